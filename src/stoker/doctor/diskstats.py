"""/proc/diskstats: what block devices did between two moments. Pure.

Source: Documentation/admin-guide/iostats.rst of the kernel. 14 columns, 18 since 4.18 (discards), 20 since 5.5
(flushes); sectors are 512 bytes whatever the device's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from stoker.doctor.finding import Evidence, Finding, FindingId
from stoker.doctor.kinds import LINE_UNKNOWN, Kind, Sample
from stoker.doctor.subject import Subject
from stoker.doctor.texts import whole

SECTOR_BYTES: Final = 512
_LEAST_COLUMNS: Final = 14
_BUSY_RATIO: Final = 0.95
_DEEP_QUEUE: Final = 32.0
_UNEVEN: Final = 4.0
_SUM_TOLERANCE: Final = 0.05
# Disks as the kernel names them: not their partitions, not what is made of them, not the hidden paths of a multipath.
_DISK: Final = re.compile(r"nvme\d+n\d+|sd[a-z]+|x?vd[a-z]+|mmcblk\d+|pmem\d+|dasd[a-z]+")
_MADE: Final = re.compile(r"md\w*|dm-\d+")

COUNTERS = FindingId(
    "disk-counters",
    "Counters of block devices since the machine started.",
    "One moment says nothing of now; two do.",
    "give two, some seconds apart: stoker doctor explain diskstats BEFORE AFTER",
)
RATES = FindingId(
    "disk-rates",
    "What a block device did between two moments: bytes, waiting time, share of the time in use, requests waiting.",
    "A device is counted once: an array or its members, never both.",
    "compare with the datasheet or with stoker doctor storage PATH",
)
BUSY = FindingId(
    "disk-saturated",
    "A device was in use nearly all the time with many requests waiting.",
    "It may be at its limit; a drive that works on many requests at once may yet take more.",
    "compare its throughput with the datasheet; spread the data over more drives",
)
UNEVEN = FindingId(
    "disk-uneven",
    "Members of an array do very different amounts of work.",
    "The busiest one decides how fast the array is.",
    "look at stripe and chunk size, at how files lie on the members, and at a member that is slow",
)
COUNTERS_BACK = FindingId(
    "disk-counters-went-back",
    "Counters of a device are smaller than before, or there at one of the two moments only.",
    "The device or the machine was started again in between, or the order is wrong.",
    "give the earlier moment first, both of one run of the machine",
)


@dataclass(frozen=True)
class DiskCounters:
    """Counters of one device. Times in milliseconds; `queue_ms` is the time of all requests added up."""

    name: str
    reads: int
    read_sectors: int
    read_ms: int
    writes: int
    write_sectors: int
    write_ms: int
    in_flight: int
    busy_ms: int
    queue_ms: int
    line: str


def parse(text: str) -> dict[str, DiskCounters]:
    """The counters by device; lines of another form are passed over."""
    found = {}
    for line in text.splitlines():
        counters = _counters(line)
        if counters:
            found[counters.name] = counters
    return found


def _counters(line: str) -> DiskCounters | None:
    words = line.split()
    if len(words) < _LEAST_COLUMNS or not (words[0].isdigit() and words[1].isdigit()):
        return None
    numbers = [whole(word) for word in words[3:_LEAST_COLUMNS]]
    n = [number for number in numbers if number is not None]
    if len(n) < len(numbers):
        return None
    return DiskCounters(words[2], n[0], n[2], n[3], n[4], n[6], n[7], n[8], n[9], n[10], line)


def detect(text: str) -> bool:
    """Whether it is /proc/diskstats; by its first lines, for the last may be cut."""
    lines = [line for line in text.splitlines() if line.strip()]
    return bool(lines) and all(_counters(line) for line in lines[:3])


def explain(text: str, source: str) -> list[Finding]:
    """What one moment tells: which devices there are."""
    devices = parse(text)
    strange = [line for line in text.splitlines() if line.strip() and not _counters(line)]
    found = [LINE_UNKNOWN.unknown("diskstats", "a line is not understood", Evidence(s, source)) for s in strange[:3]]
    if not devices:
        return found or [LINE_UNKNOWN.unknown("diskstats", "is empty", Evidence("", source))]
    disks = [name for name in devices if _DISK.fullmatch(name)]
    made = [name for name in devices if _MADE.fullmatch(name)]
    what = f"{len(disks)} disks ({', '.join(disks)})" + (f", and made of disks: {', '.join(made)}" if made else "")
    lines = [Evidence(devices[name].line, source) for name in (*disks, *made)]
    return [*found, COUNTERS.info("diskstats", f"{what}; two moments are needed", *lines)]


@dataclass(frozen=True)
class DiskWork:
    """What a device did in a time. `busy_ratio` and `queue_mean_count` need the time between the two moments."""

    name: str
    ios: int
    read_bytes: int
    write_bytes: int
    await_ms: float
    busy_ms: int
    queue_ms: int

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.write_bytes


def work(before: DiskCounters, after: DiskCounters) -> DiskWork | None:
    """The difference of two moments, or None where a counter went back."""
    ios = after.reads - before.reads + after.writes - before.writes
    waited_ms = after.read_ms - before.read_ms + after.write_ms - before.write_ms
    sectors = (after.read_sectors - before.read_sectors, after.write_sectors - before.write_sectors)
    busy_ms, queue_ms = after.busy_ms - before.busy_ms, after.queue_ms - before.queue_ms
    if min(ios, waited_ms, *sectors, busy_ms, queue_ms) < 0:
        return None
    await_ms = waited_ms / ios if ios else 0.0
    read_bytes, write_bytes = (count * SECTOR_BYTES for count in sectors)
    return DiskWork(after.name, ios, read_bytes, write_bytes, await_ms, busy_ms, queue_ms)


def compare(before: Sample, after: Sample, between_s: float | None) -> list[Finding]:
    """What the devices did between two moments. Without the time between them there are no rates."""
    first, second = parse(before.text), parse(after.text)
    found = _only_once(first, second, before, after)
    done: dict[str, DiskWork] = {}
    for name in second:
        if name not in first or not (_DISK.fullmatch(name) or _MADE.fullmatch(name)):
            continue
        lines = [Evidence(first[name].line, before.source), Evidence(second[name].line, after.source)]
        moved = work(first[name], second[name])
        if moved is None:
            found.append(COUNTERS_BACK.unknown(name, "its counters went back", *lines))
        elif moved.ios:
            done[name] = moved
            found += _judge(moved, between_s, lines)
    disks = [w for name, w in done.items() if _DISK.fullmatch(name)]
    arrays = [w for name, w in done.items() if _MADE.fullmatch(name)]
    lines = [Evidence(second[w.name].line, after.source) for w in (*disks, *arrays)]
    if disks and (arrays or len(disks) > 1):
        found.append(_total(disks, arrays, between_s, lines))
    return found + _uneven(first, second, done, lines)


def _only_once(
    first: dict[str, DiskCounters], second: dict[str, DiskCounters], before: Sample, after: Sample
) -> list[Finding]:
    """Disks that came or went between the two moments: what they did is not known."""
    found = []
    for there, other, sample, when in ((first, second, before, "earlier"), (second, first, after, "later")):
        for name in there:
            if name not in other and _DISK.fullmatch(name):
                line = Evidence(there[name].line, sample.source)
                found.append(COUNTERS_BACK.unknown(name, f"is only in the {when} of the two", line))
    return found


def _judge(moved: DiskWork, between_s: float | None, lines: list[Evidence]) -> list[Finding]:
    request_kib = moved.moved_bytes / moved.ios / 1024
    what = f"{_bytes(moved.moved_bytes, between_s)} ({moved.read_bytes / max(moved.moved_bytes, 1):.0%} read)"
    if not moved.queue_ms:  # md keeps no times
        return [RATES.info(moved.name, f"{what}, {request_kib:.0f} KiB a request", *lines, fix="")]
    what += f", await {moved.await_ms:.1f} ms, {request_kib:.0f} KiB a request"
    if not between_s or between_s <= 0:
        return [RATES.info(moved.name, f"{what}; without the time between the two there are no rates", *lines)]
    busy_ratio, queue = moved.busy_ms / between_s / 1000, moved.queue_ms / between_s / 1000
    what += f", busy {busy_ratio:.1%}, average queue {queue:.0f}"
    if busy_ratio >= _BUSY_RATIO and queue >= _DEEP_QUEUE:
        return [BUSY.warn(moved.name, what, *lines)]
    return [RATES.info(moved.name, what, *lines, fix="")]


def _total(disks: list[DiskWork], arrays: list[DiskWork], between_s: float | None, lines: list[Evidence]) -> Finding:
    moved = _bytes(sum(w.moved_bytes for w in disks), between_s)
    made = f"; {', '.join(w.name for w in arrays)} made of them is not counted again" if arrays else ""
    return RATES.info("disks", f"{moved} in all by {len(disks)} disks{made}", *lines, fix="")


def _uneven(
    first: dict[str, DiskCounters], second: dict[str, DiskCounters], done: dict[str, DiskWork], lines: list[Evidence]
) -> list[Finding]:
    """Disks of one kind that make up an array, or may, and differ much in what they moved."""
    groups: dict[str, dict[str, int]] = {}
    for name in second:
        if name in first and _DISK.fullmatch(name):
            moved = done[name].moved_bytes if name in done else 0
            groups.setdefault(re.match(r"[a-z]+", name)[0], {})[name] = moved  # type: ignore[index]
    arrays = {n: w.moved_bytes for n, w in done.items() if _MADE.fullmatch(n) and w.moved_bytes}
    found = []
    for members in groups.values():
        total = sum(members.values())
        made = [n for n, moved in arrays.items() if abs(total - moved) <= _SUM_TOLERANCE * moved]
        if len(members) < 2 or not made:  # noqa: PLR2004 - one is even with itself
            continue
        most, least = max(members, key=lambda n: members[n]), min(members, key=lambda n: members[n])
        if members[most] >= _UNEVEN * max(members[least], 1):
            share = members[most] / total
            what = f"{most} does {share:.0%} of its work, {least} {members[least] / total:.0%}"
            found.append(UNEVEN.warn(made[0], what, *lines))
    return found


def _bytes(count: int, between_s: float | None) -> str:
    """A rate where the time is known, else an amount; in decimal units as datasheets have them."""
    per_s = between_s is not None and between_s > 0
    value = count / between_s if per_s and between_s else float(count)
    unit = "/s" if per_s else ""
    return f"{value / 1e9:.2f} GB{unit}" if value >= 1e8 else f"{value / 1e6:.2f} MB{unit}"  # noqa: PLR2004 - 0.1 GB


IDS: Final = (COUNTERS, RATES, BUSY, UNEVEN, COUNTERS_BACK)
KINDS: Final = (Kind("diskstats", detect, explain, compare),)
SUBJECT: Final = Subject("disk", ids=IDS, kinds=KINDS)
