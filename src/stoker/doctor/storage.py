"""What a bounded measurement of storage does, and what its numbers mean. Pure.

JSON of a measurement, as `stoker doctor storage --json` prints it under `measurement` and as it is kept on the node::

    {"version": 1, "path", "mount", "fs_type", "device", "clock_s", "elapsed_s", "file_bytes",
     "sequential_read_bytes_per_s", "random_read_bytes_per_s", "random_reads_per_s", "write_bytes_per_s",
     "commit_s", "creates_per_s", "stats_per_s", "removes_per_s", "link_bytes_per_s" (or null),
     "read_engine": {"requested", "effective", "reason"}, "write_engine": same}
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Final

from stoker.doctor.finding import Evidence, Finding, FindingId
from stoker.doctor.identity import PathIdentity
from stoker.doctor.node import Missing, Node
from stoker.doctor.subject import Subject
from stoker.doctor.texts import real, whole
from stoker.errors import CapacityError
from stoker.io.choose import EngineChoice
from stoker.units import GIB, KIB, MIB, format_bytes, format_rate, format_seconds

VERSION: Final = 1
_FREE_SHARE: Final = 4  # a quarter of what is free, at most
_LANE_8B: Final = 8 / 10  # PCIe 1 and 2 send 10 bits for 8
_LANE_128B: Final = 128 / 130
_FAST_LANE_GT_PER_S: Final = 8.0

STORAGE_MEASURED = FindingId(
    "storage-measured",
    meaning="What a bounded measurement of a path gave.",
    why="It is the ceiling that the attribution of a stall and the planner go by; a data sheet promises more.",
    fix="none is needed",
)
STORAGE_PAGE_CACHE = FindingId(
    "storage-measured-cached",
    meaning="The measurement had to go through the page cache, or the file system keeps files in memory.",
    why="What was read may have come from memory: the numbers are an upper bound, not what the device gives.",
    fix="measure a path on a file system with direct I/O, or a data set larger than memory with another tool",
)
STORAGE_LINK = FindingId(
    "storage-link-limit",
    meaning="What the link of a device, or of the node, can carry at most, beside what was measured.",
    why="Storage cannot be faster than the link it hangs on; far below it something else is the limit.",
    fix="none is needed",
)
IDS: Final = (STORAGE_MEASURED, STORAGE_PAGE_CACHE, STORAGE_LINK)
SUBJECT: Final = Subject("storage", ids=IDS)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is written and for how long each part may go on. In all less than 20 s and 2 GiB.

    Reads of `block_bytes` in order and of `random_bytes` anywhere, by `readers` threads each; `file_count` empty files
    are made, looked at and removed; `commit_count` small files are written durably.
    """

    file_bytes: int = 2 * GIB
    block_bytes: int = 4 * MIB
    random_bytes: int = 128 * KIB
    readers: int = 8
    file_count: int = 2000
    commit_count: int = 16
    write_s: float = 5.0
    read_s: float = 3.0
    random_s: float = 3.0
    metadata_s: float = 3.0

    @property
    def limit_s(self) -> float:
        """Longest time of all parts together; a request that hangs may take longer."""
        return self.write_s + self.read_s + self.random_s + 2 * self.metadata_s


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured. `commit_s`: the median of small files written durably; `write_bytes_per_s` includes fsync."""

    file_bytes: int
    elapsed_s: float
    sequential_read_bytes_per_s: float
    random_read_bytes_per_s: float
    random_reads_per_s: float
    write_bytes_per_s: float
    commit_s: float
    creates_per_s: float
    stats_per_s: float
    removes_per_s: float
    read_engine: EngineChoice
    write_engine: EngineChoice


@dataclass(frozen=True, slots=True)
class Place:
    """Where it was measured."""

    path: str
    mount: str
    fs_type: str
    device: str
    link_bytes_per_s: float | None


def plan_for(free_bytes: int, where: str, largest: Plan | None = None) -> Plan:
    """The plan for a file system with `free_bytes`: at most a quarter of them. Raises CapacityError if that is too few.

    64 MiB are the least that says anything.
    """
    largest = largest or Plan()
    file_bytes = min(largest.file_bytes, free_bytes // _FREE_SHARE) // largest.block_bytes * largest.block_bytes
    least_bytes = min(largest.file_bytes, 16 * largest.block_bytes)
    if file_bytes < least_bytes:
        raise CapacityError(
            f"{format_bytes(free_bytes)} are free, too few to measure with a quarter of them",
            where,
            f"at least {format_bytes(_FREE_SHARE * least_bytes)} must be free",
        )
    return Plan(**{**asdict(largest), "file_bytes": file_bytes})


def pcie_bytes_per_s(speed: str, width: str) -> float | None:
    """What a PCIe link carries one way, from `current_link_speed` ("16.0 GT/s PCIe") and `current_link_width` ("4")."""
    match = re.match(r"\s*([\d.]+)\s*GT/s", speed)
    rate, lanes = real(match[1]) if match else None, whole(width.strip())
    if rate is None or lanes is None or lanes <= 0:
        return None
    coding = _LANE_128B if rate >= _FAST_LANE_GT_PER_S else _LANE_8B
    return rate * 1e9 * coding * lanes / 8


def link_limit(node: Node, identity: PathIdentity) -> float | None:
    """Bytes/s of the PCIe links of the NVMe devices under a path together, or None where they cannot be seen.

    Only of devices that lie side by side (one, or a RAID0): of others the sum says nothing.
    """
    device = identity.device
    leaves = device.leaves() if device else ()
    if device is None or not leaves or any(leaf.kind != "nvme" for leaf in leaves):
        return None
    if len(leaves) > 1 and device.detail != "raid0":
        return None
    limits = []
    for leaf in leaves:
        base = f"/sys/block/{leaf.name}/device/device"
        texts = [node.read(f"{base}/{name}", 64) for name in ("current_link_speed", "current_link_width")]
        if any(isinstance(text, Missing) for text in texts):
            return None
        limits.append(pcie_bytes_per_s(*(str(text) for text in texts)))
    return None if None in limits else sum(limit for limit in limits if limit)


def judge(found: Measurement, place: Place) -> list[Finding]:
    """Findings of a measurement."""
    engines = f"read {found.read_engine.effective}, written {found.write_engine.effective}"
    lines = (
        Evidence(f"in order {format_rate(found.sequential_read_bytes_per_s)}", "read"),
        Evidence(
            f"at random {format_rate(found.random_read_bytes_per_s)}, {found.random_reads_per_s:,.0f} a second", "read"
        ),
        Evidence(f"{format_rate(found.write_bytes_per_s)} with fsync", "write"),
        Evidence(f"{format_seconds(found.commit_s)} for a small file, durably", "write"),
        Evidence(
            f"{found.creates_per_s:,.0f} creates, {found.stats_per_s:,.0f} stats, "
            f"{found.removes_per_s:,.0f} removals a second",
            "metadata",
        ),
    )
    what = (
        f"reads {format_rate(found.sequential_read_bytes_per_s)} in order and "
        f"{format_rate(found.random_read_bytes_per_s)} at random, writes {format_rate(found.write_bytes_per_s)}; "
        f"{found.creates_per_s:,.0f} files a second ({engines})"
    )
    findings = [STORAGE_MEASURED.ok(place.path, what, *lines)]
    cached = {f"{e.effective}: {e.reason}" for e in (found.read_engine, found.write_engine) if e.effective != "direct"}
    if cached:
        what = "the measurement went through the page cache: an upper bound"
        findings.append(STORAGE_PAGE_CACHE.warn(place.path, what, *(Evidence(c, "engine") for c in sorted(cached))))
    if place.link_bytes_per_s:
        share = found.sequential_read_bytes_per_s / place.link_bytes_per_s
        what = f"reads {share:.0%} of the {format_rate(place.link_bytes_per_s)} that its link can carry"
        findings.append(STORAGE_LINK.info(place.path, what))
    return findings


def to_json(found: Measurement, place: Place, clock_s: float) -> dict[str, Any]:
    """As JSON values; see the top of this module."""
    return {"version": VERSION, "clock_s": clock_s, **asdict(place), **asdict(found)}
