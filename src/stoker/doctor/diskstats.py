"""/proc/diskstats: rate, latency, queue of block devices.

Source: Documentation/admin-guide/iostats.rst. A sector is 512 bytes, whatever the device has. Kernels before 4.18 have
11 numbers, before 5.5 15, then 17.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from stoker.doctor import host_ids as ids
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.kinds import LINE_UNKNOWN, Sample
from stoker.doctor.texts import whole

SECTOR_BYTES: Final = 512
BUSY_RATIO: Final = 0.95
QUEUE_LONG: Final = 16.0
_UNBALANCED_TIMES: Final = 3
_SUM_TOLERANCE: Final = 0.05
_COLUMNS: Final = 11
_LINE: Final = re.compile(r"^\s*\d+\s+\d+\s+([A-Za-z][\w!-]*)((?:\s+\d+){11,})\s*$")
_STACKED: Final = re.compile(r"(?:md|dm-|loop|bcache|drbd|rbd)\w*")
_PARTITION: Final = re.compile(r"(?:nvme\d+n\d+p|mmcblk\d+p)\d+|[shv]d[a-z]+\d+|xvd[a-z]+\d+")


@dataclass(frozen=True)
class DiskCounters:
    """The counters that matter, of reads and writes; times in ms."""

    reads: int
    read_sectors: int
    read_ms: int
    writes: int
    written_sectors: int
    write_ms: int
    busy_ms: int
    weighted_ms: int
    line: str


@dataclass(frozen=True)
class DiskLoad:
    """What a device did between two samples."""

    name: str
    read_bytes: int
    written_bytes: int
    requests: int
    await_ms: float
    busy_ms: int
    weighted_ms: int
    line: str

    @property
    def is_stacked(self) -> bool:
        """Whether it lies on other devices, whose counters have the same bytes again."""
        return bool(_STACKED.fullmatch(self.name))


def detect(text: str) -> bool:
    """Whether it is /proc/diskstats."""
    lines = [line for line in text.splitlines() if line.strip()]
    return bool(lines) and all(_LINE.match(line) for line in lines[:3])


def parse(text: str) -> dict[str, DiskCounters]:
    """Counters of whole devices by name: partitions are counted in their disks."""
    found = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None or _PARTITION.fullmatch(match[1]):
            continue
        numbers = [number for word in match[2].split() if (number := whole(word)) is not None]
        if len(numbers) >= _COLUMNS:
            reads, _, read_sectors, read_ms, writes, _, written_sectors, write_ms, _, busy_ms, weighted_ms = numbers[
                :11
            ]
            found[match[1]] = DiskCounters(
                reads, read_sectors, read_ms, writes, written_sectors, write_ms, busy_ms, weighted_ms, line
            )
    return found


def explain(text: str, source: str) -> list[Finding]:
    """Lines that are not understood; totals since the boot say nothing of now."""
    found = [
        LINE_UNKNOWN.unknown("disks", "a line is not understood", Evidence(line, source))
        for line in text.splitlines()
        if line.strip() and not _LINE.match(line)
    ]
    known = parse(text)
    if known:
        what = f"{', '.join(known)}: counters since the boot; for rates, take two samples"
        found.append(ids.DISK_RATE.info("disks", what))
    return found


def loads(before: str, after: str) -> list[DiskLoad]:
    """What each device did between two texts; devices whose counters went back are left out."""
    old = parse(before)
    found = []
    for name, new in parse(after).items():
        first = old.get(name)
        if first is None or new.reads < first.reads or new.writes < first.writes or new.busy_ms < first.busy_ms:
            continue
        requests = new.reads - first.reads + new.writes - first.writes
        waited_ms = new.read_ms - first.read_ms + new.write_ms - first.write_ms
        found.append(
            DiskLoad(
                name=name,
                read_bytes=(new.read_sectors - first.read_sectors) * SECTOR_BYTES,
                written_bytes=(new.written_sectors - first.written_sectors) * SECTOR_BYTES,
                requests=requests,
                await_ms=waited_ms / requests if requests else 0.0,
                busy_ms=new.busy_ms - first.busy_ms,
                weighted_ms=new.weighted_ms - first.weighted_ms,
                line=new.line,
            )
        )
    return found


def compare(before: Sample, after: Sample, seconds: float | None) -> list[Finding]:
    """Rates, devices that are full, and members that do not share the work."""
    worked = [load for load in loads(before.text, after.text) if load.requests]
    found: list[Finding] = []
    missing = sorted(set(parse(after.text)) - {load.name for load in loads(before.text, after.text)})
    if missing:
        what = f"{', '.join(missing)}: only in one sample, or counters went back"
        found.append(ids.SAMPLES_DIFFER.unknown("disks", what))
    for load in worked:
        found += _judge(load, seconds, after.source)
    found += _total(worked, seconds)
    found += _judge_balance(worked, after.source)
    if not worked and not missing:
        found.append(ids.DISK_RATE.info("disks", "no device worked between the samples"))
    return found


def _judge(load: DiskLoad, seconds: float | None, source: str) -> list[Finding]:
    line = Evidence(load.line, source)
    moved = load.read_bytes + load.written_bytes
    await_text = f"a request takes {load.await_ms:.3g} ms"
    if not seconds:
        what = f"moved {moved / 1e9:.3g} GB in an unknown time, {await_text}; give the seconds for rates"
        return [ids.SAMPLES_DIFFER.unknown(load.name, what, line)]
    busy, queue = load.busy_ms / (seconds * 1e3), load.weighted_ms / (seconds * 1e3)
    what = f"{moved / seconds / 1e9:.3g} GB/s"
    if load.is_stacked:
        return [ids.DISK_RATE.info(load.name, f"{what}; the devices below it count the same bytes", line)]
    what += f", {await_text}, busy {busy:.1%}, average queue {queue:.0f}"
    if busy >= BUSY_RATIO and queue >= QUEUE_LONG:
        return [ids.DISK_SATURATED.warn(load.name, f"saturated: {what}", line)]
    return [ids.DISK_RATE.info(load.name, what, line)]


def _total(worked: Sequence[DiskLoad], seconds: float | None) -> list[Finding]:
    """All devices together, each byte once."""
    once = [load for load in worked if not load.is_stacked]
    if not seconds or len(once) == len(worked) or not once:
        return []
    rate = sum(load.read_bytes + load.written_bytes for load in once) / seconds
    again = ", ".join(load.name for load in worked if load.is_stacked)
    return [ids.DISK_RATE.info("disks", f"{rate / 1e9:.3g} GB/s together, {again} not counted again")]


def _judge_balance(worked: Sequence[DiskLoad], source: str) -> list[Finding]:
    """Of devices that together have what an md device has: whether one has most of it."""
    found: list[Finding] = []
    members = [load for load in worked if not load.is_stacked]
    moved = sum(load.read_bytes + load.written_bytes for load in members)
    for array in worked:
        carried = array.read_bytes + array.written_bytes
        if not array.name.startswith("md") or len(members) < 2 or abs(moved - carried) > _SUM_TOLERANCE * carried:  # noqa: PLR2004
            continue
        hottest = max(members, key=lambda load: load.read_bytes + load.written_bytes)
        hot = hottest.read_bytes + hottest.written_bytes
        others = (moved - hot) / (len(members) - 1)
        if hot >= _UNBALANCED_TIMES * max(others, 1):
            what = (
                f"{hottest.name} carries {hot / moved:.0%} of its bytes, of {len(members)} devices that share its work"
            )
            lines = [Evidence(load.line, source) for load in members]
            found.append(ids.DISK_UNBALANCED.warn(array.name, what, *lines))
    return found
