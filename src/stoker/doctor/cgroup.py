"""Files of a cgroup (version 2; of 1 those of cpu and memory): throttling, memory events, shared memory in the limit.

Sources: Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst, scheduler/sched-bwc.rst. A line of io.stat may
have a device and no values. Without a limit memory.limit_in_bytes is the largest number of pages, in bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from stoker.doctor import host_ids as ids
from stoker.doctor import pressure
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.kinds import LINE_UNKNOWN
from stoker.doctor.texts import sections, whole

FILES: Final = (
    *("cpu.stat", "cpu.max", "memory.events", "memory.stat", "memory.max", "memory.current"),
    *("io.stat", "io.max", "io.pressure", "cpu.pressure", "memory.pressure"),
)
FILES_V1: Final = (
    *("cpu.stat", "cpu.cfs_quota_us", "cpu.cfs_period_us", "memory.failcnt", "memory.stat"),
    *("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control"),
)
_NO_LIMIT_BYTES: Final = 1 << 62
THROTTLED_RATIO: Final = 0.10
SHMEM_RATIO: Final = 0.5
_FLAT: Final = re.compile(r"^([a-z0-9_.]+) (\d{1,30})$")
_DEVICE: Final = re.compile(r"^\d+:\d+(?: |$)")


def detect(text: str) -> bool:
    """Whether it is a file of a cgroup, or several; those of pressure alone are not."""
    parts = sections(text)
    if any(name.rpartition("/")[2] in (*FILES, *FILES_V1) and "pressure" not in name for name in parts):
        return True
    flat = _flat(text)
    return ("nr_periods" in flat and "nr_throttled" in flat) or ("oom_kill" in flat and "max" in flat)


def _flat(text: str) -> dict[str, int]:
    """`key number` lines, whichever file they are of: the keys that matter differ between files."""
    return {match[1]: int(match[2]) for line in text.splitlines() if (match := _FLAT.match(line.strip()))}


def throttling(text: str) -> dict[str, int]:
    """nr_periods and nr_throttled, those of them that are there."""
    return {name: value for name, value in _flat(text).items() if name in ("nr_periods", "nr_throttled")}


def _file(parts: Mapping[str, str], name: str) -> str | None:
    return next((text for key, text in parts.items() if key.rpartition("/")[2] == name), None)


def explain(text: str, source: str) -> list[Finding]:
    """What the limits did to the job."""
    parts = sections(text)
    found = judge(parts, source)
    for name, part in parts.items():
        for line in part.splitlines():
            if line.strip() and not _is_known(name.rpartition("/")[2], line.strip()):
                found.append(
                    LINE_UNKNOWN.unknown(
                        "cgroup", f"a line of {name or 'it'} is not understood", Evidence(line, source)
                    )
                )
    return found


def _is_known(name: str, line: str) -> bool:
    if name in ("io.stat", "io.max"):
        return bool(_DEVICE.match(line))
    if name.endswith(".pressure"):
        return line.startswith(("some ", "full "))
    if name in ("cpu.stat", "memory.events", "memory.stat", "memory.oom_control", ""):
        return bool(_FLAT.match(line)) or (
            not name and bool(_DEVICE.match(line) or line.startswith(("some ", "full ")))
        )
    return True


def judge(parts: Mapping[str, str], source: str) -> list[Finding]:
    """Findings of files by their names; a text without names is under ""."""
    found: list[Finding] = []
    flat = _flat("\n".join(parts.values()))
    found += _judge_throttling(flat, source)
    found += _judge_memory(flat, parts, source)
    seen = bool(found) or "nr_periods" in flat or "oom_kill" in flat or _failures(parts) is not None
    under_pressure = [
        one
        for name, part in parts.items()
        if name.endswith(".pressure")
        for one in pressure.parse(f"==> {name} <==\n{part}")[0]
    ]
    found += pressure.judge(under_pressure, source, "pressure of the cgroup")
    if seen and not any(str(f.severity) in ("warn", "fail") and f.subject == "cgroup" for f in found):
        found.append(
            ids.CGROUP_FINE.ok("cgroup", "no throttling and no memory limit that was reached", *_shown(flat, source))
        )
    return found


def _shown(flat: Mapping[str, int], source: str) -> list[Evidence]:
    keys = ("nr_periods", "nr_throttled", "max", "oom_kill")
    shown = [f"{key} {flat[key]}" for key in keys if key in flat]
    return [Evidence(", ".join(shown), source)]


def _judge_throttling(flat: Mapping[str, int], source: str) -> list[Finding]:
    periods, throttled = flat.get("nr_periods"), flat.get("nr_throttled")
    if not periods or throttled is None:
        return []
    share = throttled / periods
    times = [f"{key} {flat[key]}" for key in ("throttled_usec", "throttled_time") if key in flat]
    line = Evidence(", ".join([f"nr_periods {periods}, nr_throttled {throttled}", *times]), source)
    if share < THROTTLED_RATIO:
        return []
    what = f"the CPU limit stopped it in {share:.0%} of periods: too low, the CPU cannot feed the GPUs"
    return [ids.THROTTLED.warn("cgroup", what, line)]


def _judge_memory(flat: Mapping[str, int], parts: Mapping[str, str], source: str) -> list[Finding]:
    found: list[Finding] = []
    if flat.get("oom_kill"):
        line = Evidence(f"oom_kill {flat['oom_kill']}", source)
        found.append(ids.OOM.fail("cgroup", f"{flat['oom_kill']} processes were killed for memory", line))
    reached, name = (flat.get("max"), "max") if "oom_kill" in flat and "max" in flat else (_failures(parts), "failcnt")
    if reached:
        what = f"its memory limit was reached {reached} times: the page cache of the job is squeezed"
        found.append(ids.MEMORY_LIMIT.warn("cgroup", what, Evidence(f"{name} {reached}", source)))
    limit, shmem = memory_limit(parts), flat.get("shmem")
    if limit and shmem is not None and shmem >= SHMEM_RATIO * limit:
        word = "memory.limit_in_bytes" if _file(parts, "memory.max") is None else "memory.max"
        line = Evidence(f"shmem {shmem}, {word} {limit}", source)
        found.append(ids.SHMEM.warn("cgroup", f"shared memory takes {shmem / limit:.0%} of the memory limit", line))
    return found


def _failures(parts: Mapping[str, str]) -> int | None:
    """How often the limit of version 1 was reached; None where it is not told."""
    return whole((_file(parts, "memory.failcnt") or "").strip())


def memory_limit(parts: Mapping[str, str]) -> int | None:
    """The limit of memory in bytes, of either version; None without one, or if it is not understood."""
    text = _file(parts, "memory.max")
    limit = whole((text if text is not None else _file(parts, "memory.limit_in_bytes") or "").strip())
    return limit if limit is not None and limit < _NO_LIMIT_BYTES else None


def cpu_quota(text: str) -> float | None:
    """CPUs that cpu.max allows: quota / period; None without a limit (max, -1), or if it is not understood."""
    words = text.split()
    numbers = [whole(word) for word in words]
    if len(numbers) != 2 or numbers[0] is None or numbers[0] < 0 or not numbers[1]:  # noqa: PLR2004 - quota and period
        return None
    return numbers[0] / numbers[1]
