"""ZFS pools and btrfs devices: `zpool status -j`, `btrfs device stats`. Pure.

Sources: zpool-status(8) of OpenZFS 2.3, where numbers are texts unless --json-int and a healthy leaf is HEALTHY;
btrfs-device(8).
"""

from __future__ import annotations

import re
from typing import Any, Final

from stoker.doctor import raid_ids as ids
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.json_text import line_of, number, value_of, word
from stoker.doctor.kinds import LINE_UNKNOWN

_GOOD: Final = ("ONLINE", "HEALTHY", "AVAIL", "INUSE")
_BAD: Final = ("DEGRADED", "FAULTED", "OFFLINE", "REMOVED", "UNAVAIL", "SUSPENDED", "SPLIT")
_GROUPS: Final = ("vdevs", "logs", "special", "dedup", "l2cache", "spares")
_COUNTERS: Final = ("read_errors", "write_errors", "checksum_errors")
_BTRFS: Final = re.compile(r"^\[(.+)\]\.(\w+_errs)\s+(\S+)\s*$")
_BTRFS_COUNTERS: Final = 5
_MAX_DEPTH: Final = 32


def detect_zpool(text: str) -> bool:
    """Whether it is `zpool status -j`."""
    value = value_of(text)
    pools = value.get("pools") if isinstance(value, dict) else None
    return isinstance(pools, dict) and all(isinstance(pool, dict) and "vdevs" in pool for pool in pools.values())


def explain_zpool(text: str, source: str) -> list[Finding]:
    """State, errors and running scans of all pools."""
    value = value_of(text)
    pools = value.get("pools") if isinstance(value, dict) else None
    if not isinstance(pools, dict) or not all(isinstance(pool, dict) for pool in pools.values()):
        line = next((line for line in text.splitlines() if line.strip()), "")
        return [LINE_UNKNOWN.unknown("zfs", "no output of zpool status -j that is known", Evidence(line, source))]
    found = [finding for name, pool in pools.items() for finding in _pool(name, pool, text, source)]
    return found or [ids.NO_ARRAY.info("zfs", "no pool", Evidence(line_of(text, '"pools"'), source), fix="")]


def judge_state(name: str, state: str, line: Evidence, *, rebuilding: bool = False) -> Finding:
    """A finding of a pool's state, from whichever source."""
    if state in _GOOD:
        return ids.HEALTHY.ok(name, f"pool is {state}", line)
    if state in _BAD:
        if rebuilding:
            return ids.REBUILDING.warn(name, f"pool is {state}, resilvering", line)
        return ids.DEGRADED.fail(name, f"pool is {state}, nothing is being rebuilt", line)
    return LINE_UNKNOWN.unknown(name, f"state {state!r} is not known", line)


def _pool(name: str, pool: dict[str, Any], text: str, source: str) -> list[Finding]:
    subject, state = f"zfs {name}", word(pool, "state")
    line = Evidence(line_of(text, '"state"', f'"{state}"'), source)
    scan = pool.get("scan_stats")
    work, at = (word(scan, "function"), word(scan, "state")) if isinstance(scan, dict) else ("", "")
    running = at in ("SCANNING", "ACTIVE")
    found = [judge_state(subject, state, line, rebuilding=running and work == "RESILVER")]
    if running and found[0].id == ids.HEALTHY.name:
        found.append(ids.BACKGROUND.warn(subject, f"{work.lower()} is running", Evidence(line_of(text, work), source)))
    lost = number(pool, "error_count")
    if lost:
        line = Evidence(line_of(text, '"error_count"', word(pool, "error_count")), source)
        found.append(ids.DATA_LOST.fail(subject, f"{lost:.0f} data errors", line))
    for group in _GROUPS:
        found += _devices(subject, pool.get(group), text, source)
    return [*found, ids.NOT_DIRECT.info(subject, "ZFS: GPUDirect never takes it", line)]


def _devices(subject: str, vdevs: Any, text: str, source: str) -> list[Finding]:
    """What is wrong with the devices at the bottom; those above only add them up."""
    found: list[Finding] = []
    waiting = [(vdevs, 0)]
    while waiting:
        level, depth = waiting.pop(0)
        for name, device in level.items() if isinstance(level, dict) and depth < _MAX_DEPTH else ():
            if not isinstance(device, dict):
                continue
            if device.get("vdevs"):
                waiting.append((device["vdevs"], depth + 1))
                continue
            errors = {key: number(device, key) for key in _COUNTERS}
            bad = [f"{value:.0f} {key.replace('_', ' ')}" for key, value in errors.items() if value]
            state = word(device, "state")
            if state not in _GOOD:
                bad.append(f"state {state or 'not told'}")
            if bad:
                line = Evidence(line_of(text, f'"{name}"'), source)
                found.append(ids.ERRORS.warn(f"{subject} {name}", ", ".join(bad), line))
    return found


def detect_btrfs(text: str) -> bool:
    """Whether it is `btrfs device stats`."""
    lines = [line for line in text.splitlines() if line.strip()]
    return bool(lines) and sum(bool(_BTRFS.match(line)) for line in lines) * 2 > len(lines)


def explain_btrfs(text: str, source: str) -> list[Finding]:
    """Errors that btrfs counted for each device."""
    devices: dict[str, list[tuple[str, str, str]]] = {}
    found: list[Finding] = []
    for line in text.splitlines():
        match = _BTRFS.match(line)
        if match:
            devices.setdefault(match[1], []).append((match[2], match[3], line))
        elif line.strip():
            found.append(LINE_UNKNOWN.unknown("btrfs", "a line is not understood", Evidence(line, source)))
    for device, rows in devices.items():
        found += judge_btrfs(f"btrfs {device}", rows, source)
    if devices:
        first = next(iter(devices.values()))[0][2]
        found.append(ids.NOT_DIRECT.info("btrfs", "btrfs: GPUDirect never takes it", Evidence(first, source)))
    return found or [LINE_UNKNOWN.unknown("btrfs", "is empty", Evidence("", source))]


def judge_btrfs(subject: str, rows: list[tuple[str, str, str]], source: str) -> list[Finding]:
    """Counters of one device: (name, value, line)."""
    strange = [line for _, value, line in rows if not (value.isascii() and value.isdigit())]
    if strange:
        return [LINE_UNKNOWN.unknown(subject, "a counter is not understood", Evidence(strange[0], source))]
    bad = [(name, value, line) for name, value, line in rows if value.strip("0")]
    if bad:
        what = ", ".join(f"{value} {name.removesuffix('_errs').replace('_', ' ')} errors" for name, value, _ in bad)
        return [ids.ERRORS.warn(subject, what, *(Evidence(line, source) for _, _, line in bad))]
    if len(rows) < _BTRFS_COUNTERS:
        what = f"only {len(rows)} of its {_BTRFS_COUNTERS} counters are told"
        return [LINE_UNKNOWN.unknown(subject, what, *(Evidence(line, source) for _, _, line in rows))]
    return [ids.HEALTHY.ok(subject, "no errors were counted", *(Evidence(line, source) for _, _, line in rows))]
