"""A Lustre client: `lfs df`, `lctl get_param llite.*.stats`, `lnetctl net show`. Pure.

Sources: Lustre Operations Manual, chapters 16 and 32; llite's lproc_llite.c: `samples [unit] min max sum sumsq`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from stoker.doctor import filesystem_ids as ids
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.kinds import LINE_UNKNOWN, Sample
from stoker.doctor.operation_mix import OperationMix, judge_mix
from stoker.doctor.texts import real, whole

_TARGET: Final = re.compile(
    r"^(\S*(?:OST|MDT)[0-9a-f]{4}\S*)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\d{1,3})%\s+(\S+?)\[(?:OST|MDT):\d+\s*([A-Za-z]*)\]\s*([A-Za-z]*)$"
)
_TARGET_OFF: Final = re.compile(r"^(\S*(?:OST|MDT)[0-9a-f]{4}\S*)\s*:\s*(\S.*)$")
_FLAGS: Final = {"D": "degraded", "R": "read-only", "S": "out of space", "I": "out of inodes"}
_FULL_PERCENT: Final = 95
_STAT: Final = re.compile(
    r"^(\w+)\s+(\d{1,30}) samples \[(\w+)\](?:\s+(\d{1,30})\s+(\d{1,30})\s+(\d{1,40}))?(?:\s+\d+)?\s*$"
)
_STATS_HEAD: Final = re.compile(r"^llite\.(\S+)\.stats\s*=")
_CLIENT: Final = ("open", "close", "getattr", "setattr", "lookup", "read_bytes", "write_bytes", "mmap", "seek")
_DATA: Final = ("read", "write")
_NOT_OPERATIONS: Final = ("read_bytes", "write_bytes", "snapshot_time", "ioctl", "seek", "page_fault", "fault")
MICROSECONDS: Final = ("usec", "usecs")
_HEALTHY: Final = 1000


def detect_df(text: str) -> bool:
    """Whether it is `lfs df`."""
    return any(_TARGET.match(line) for line in text.splitlines())


def explain_df(text: str, source: str) -> list[Finding]:
    """Targets that are full, inactive or marked; else how full they are."""
    found: list[Finding] = []
    used: dict[str, tuple[int, Evidence]] = {}
    for line in text.splitlines():
        target, off = _TARGET.match(line), _TARGET_OFF.match(line)
        evidence = Evidence(line, source)
        if target:
            name, percent = target[1].removesuffix("_UUID"), int(target[5])
            used[name] = (percent, evidence)
            marks = [_FLAGS[c] for c in target[7] + target[8] if c in _FLAGS]
            if percent >= _FULL_PERCENT:
                what = f"{percent}% full: the allocator passes it over, and writes to it fail"
                found.append(ids.LUSTRE_TARGET_FULL.warn(name, what, evidence))
            if marks:
                found.append(ids.LUSTRE_TARGET_OFF.warn(name, ", ".join(marks), evidence))
        elif off:
            found.append(ids.LUSTRE_TARGET_OFF.warn(off[1], off[2].strip(), evidence))
    if not used:
        line = next((line for line in text.splitlines() if line.strip()), "")
        return found or [LINE_UNKNOWN.unknown("Lustre", "no output of lfs df that is known", Evidence(line, source))]
    if found:
        return found
    most, least = max(p for p, _ in used.values()), min(p for p, _ in used.values())
    lines = [line for _, line in used.values()]
    return [ids.LUSTRE_SPACE.ok("Lustre", f"{len(used)} targets, {least}% to {most}% full", *lines)]


@dataclass(frozen=True)
class ClientCounter:
    """One line of llite's stats. `total` is the sum in `unit`: bytes or usecs; None where only a count is kept."""

    count: int
    unit: str
    total: int | None
    line: str


def detect_stats(text: str) -> bool:
    """Whether it is the stats of a Lustre client."""
    names = {match[1] for line in text.splitlines() if (match := _STAT.match(line))}
    headed = any(_STATS_HEAD.match(line) for line in text.splitlines())
    return bool(names) and (headed or ("snapshot_time" in text and bool(names & set(_CLIENT))))


def parse_stats(text: str) -> dict[str, dict[str, ClientCounter]]:
    """The counters of each client, by its name ("" if it is not told)."""
    found: dict[str, dict[str, ClientCounter]] = {}
    current = ""
    for line in text.splitlines():
        head, stat = _STATS_HEAD.match(line), _STAT.match(line)
        if head:
            current = head[1]
        elif stat:
            total = whole(stat[6])
            found.setdefault(current, {})[stat[1]] = ClientCounter(int(stat[2]), stat[3], total, line.strip())
    return found


def explain_stats(text: str, source: str) -> list[Finding]:
    """What the clients did since they were mounted."""
    clients = parse_stats(text)
    if not clients:
        line = next((line for line in text.splitlines() if line.strip()), "")
        return [LINE_UNKNOWN.unknown("Lustre", "no stats of a client that are known", Evidence(line, source))]
    strange = [s for s in text.splitlines() if "samples" in s and not _STAT.match(s)]
    found = [LINE_UNKNOWN.unknown("Lustre", "a counter is not understood", Evidence(s, source)) for s in strange[:3]]
    for name, counters in clients.items():
        lines = [Evidence(counter.line, source) for counter in counters.values()]
        work = _work(_named(name), counters, source, None)
        found += work or [ids.LUSTRE_IO.info(_named(name), "nothing was done yet", *lines, fix="")]
    return found


def _named(client: str) -> str:
    return f"Lustre {client.partition('-')[0]}" if client else "Lustre"


def _work(subject: str, counters: dict[str, ClientCounter], source: str, between_s: float | None) -> list[Finding]:
    found: list[Finding] = []
    times, sizes = counters.get("read"), counters.get("read_bytes")
    if sizes and sizes.count and sizes.total is not None:
        what = f"{sizes.total / sizes.count / 1e6:.2f} MB a read"
        lines = [Evidence(sizes.line, source)]
        if times and times.count and times.total is not None and times.unit in MICROSECONDS:
            what = f"read: {times.total / times.count / 1000:.1f} ms mean, {what}"
            lines.append(Evidence(times.line, source))
        if between_s and between_s > 0:
            what += f", {sizes.total / between_s / 1e9:.2f} GB/s"
        opened = counters.get("open")
        if opened and opened.count and opened.total is not None and opened.unit in MICROSECONDS:
            what += f"; open: {opened.total / opened.count / 1000:.1f} ms mean"
            lines.append(Evidence(opened.line, source))
        found.append(ids.LUSTRE_IO.info(subject, what, *lines, fix=""))
    return found + judge_mix(subject, client_mix(counters), [Evidence(c.line, source) for c in counters.values()])


def client_mix(counters: dict[str, ClientCounter]) -> OperationMix:
    """Data and metadata operations, with their times where they are kept (since Lustre 2.13 or so)."""

    def time(names: Sequence[str]) -> int:
        return sum(counters[n].total or 0 for n in names if counters[n].unit in MICROSECONDS)

    data = [name for name in _DATA if name in counters]
    sized = [counters[n].count for n in ("read_bytes", "write_bytes") if n in counters and n[:-6] not in data]
    metadata = [name for name in counters if name not in (*_DATA, *_NOT_OPERATIONS)]
    return OperationMix(
        sum(counters[n].count for n in data) + sum(sized),
        sum(counters[n].count for n in metadata),
        time(data),
        time(metadata) if data or not sized else 0,
    )


def compare_stats(before: Sample, after: Sample, between_s: float | None) -> list[Finding]:
    """What the clients did between two moments; their own clocks tell the time between them if nobody else does."""
    first, second = parse_stats(before.text), parse_stats(after.text)
    seconds = between_s
    clocks = [snapshot_s(before.text), snapshot_s(after.text)]
    if seconds is None and clocks[0] is not None and clocks[1] is not None:
        seconds = clocks[1] - clocks[0]
    found: list[Finding] = []
    for name, counters in second.items():
        done: dict[str, ClientCounter] = {}
        for key, now in counters.items():
            then = first.get(name, {}).get(key, ClientCounter(0, now.unit, 0, ""))
            total = None if now.total is None or then.total is None else now.total - then.total
            if now.count < then.count or (total or 0) < 0:
                line = Evidence(now.line, after.source)
                found.append(ids.LUSTRE_IO.unknown(_named(name), f"the counters of {key} went back", line))
            elif now.count > then.count:
                done[key] = ClientCounter(now.count - then.count, now.unit, total, now.line)
        found += _work(f"{_named(name)} between the two", done, after.source, seconds)
    return found


def snapshot_s(text: str) -> float | None:
    """The client's clock, in seconds, when it told its stats; None if it does not say."""
    match = re.search(r"^snapshot_time\s*:?\s+(\d{1,12}(?:\.\d{1,9})?)", text, re.MULTILINE)
    return real(match[1]) if match else None


def detect_lnet(text: str) -> bool:
    """Whether it is `lnetctl net show`."""
    return bool(re.search(r"^\s*- net type:", text, re.MULTILINE))


def path_health(text: str) -> int | None:
    """The worst health of an interface of `lnetctl net show`, of 1000, but for the loopback; None if none is told."""
    found = [
        value
        for nid, values in _interfaces(text, "").items()
        if not nid.endswith("@lo") and "health value" in values
        if (value := whole(values["health value"][0])) is not None
    ]
    return min(found, default=None)


def explain_lnet(text: str, source: str) -> list[Finding]:
    """Interfaces that are down or not healthy; else that all are."""
    interfaces = _interfaces(text, source)
    real_ones = {nid: values for nid, values in interfaces.items() if not nid.endswith("@lo")}
    if not real_ones:
        line = next((line for line in text.splitlines() if line.strip()), "")
        return [LINE_UNKNOWN.unknown("LNet", "no interface but lo is told", Evidence(line, source))]
    found: list[Finding] = []
    good: list[str] = []
    lines: list[Evidence] = []
    for nid, values in real_ones.items():
        status, health = values.get("status"), values.get("health value")
        value = whole(health[0]) if health else None
        if status is None or (health and value is None):
            found.append(LINE_UNKNOWN.unknown(nid, "its state is not understood", values["nid"][1]))
        elif status[0] != "up":
            found.append(ids.LNET.warn(nid, f"is {status[0]}", values["nid"][1], status[1]))
        elif health and value is not None and value < _HEALTHY:
            found.append(ids.LNET.warn(nid, f"health {value} of {_HEALTHY}", values["nid"][1], health[1]))
        else:
            good.append(nid)
            lines += [values["nid"][1], health[1] if health else status[1]]
    if good:
        told = all("health value" in real_ones[nid] for nid in good)
        what = f"{len(good)} up" + (" and healthy" if told else "; health is told by lnetctl net show -v 3")
        networks = sorted({nid.partition("@")[2] for nid in good})
        found.append(ids.LNET.ok("LNet", f"{', '.join(networks)}: {what}", *lines))
    return found


def _interfaces(text: str, source: str) -> dict[str, dict[str, tuple[str, Evidence]]]:
    """Per interface its `status` and `health value`, each with its line; the first of a key counts."""
    found: dict[str, dict[str, tuple[str, Evidence]]] = {}
    current: dict[str, tuple[str, Evidence]] | None = None
    for line in text.splitlines():
        key, mark, value = line.strip().removeprefix("- ").partition(":")
        if not mark:
            continue
        entry = (value.strip(), Evidence(line, source))
        if key == "net type":
            current = None
        elif key == "nid":
            current = found.setdefault(value.strip(), {})
            current.setdefault("nid", entry)
        elif current is not None and key in ("status", "health value"):
            current.setdefault(key, entry)
    return found
