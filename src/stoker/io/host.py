"""Which host this is, as far as kernel locks reach, and what of it this process may use."""

from __future__ import annotations

import functools
import os
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_START_FIELD = 19  # of /proc/PID/stat, counted from the state behind the name: clock ticks from boot to start


def cpu_count() -> int:
    """Processors that this process may use; those of the host where a sandbox does not say."""
    try:
        return len(os.sched_getaffinity(0))
    except OSError:
        return os.cpu_count() or 1


def host_name() -> str:
    """The node name, for messages."""
    return os.uname().nodename


@functools.cache
def host_id() -> str:
    """8 hex digits that differ between hosts, boots, and containers with names of their own.

    Boot id and node name together: cloned images share a machine id, and containers on one kernel may see a shared
    file system through mounts that do not share locks.
    """
    try:
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    import hashlib  # noqa: PLC0415  2 ms that only who writes needs to spend

    return hashlib.sha256(f"{boot} {host_name()}".encode()).hexdigest()[:8]


def process_id() -> str:
    """`host_id`, the pid and when the process began: no other process ever has the same."""
    return f"{host_id()}-{os.getpid()}-{_started_ticks(os.getpid())}"


def is_gone(process: str) -> bool:
    """Whether the process that had this `process_id` has surely ended. False for one of another host."""
    host, _, rest = process.partition("-")
    pid, _, ticks = rest.partition("-")
    if host != host_id() or not (pid.isdecimal() and ticks.isdecimal()) or not 0 < int(pid) < 1 << 31:
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # it lives, as another user's
        pass
    return _started_ticks(int(pid)) not in (0, int(ticks))


def _started_ticks(pid: int) -> int:
    """When a process began; 0 where that cannot be known."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[_START_FIELD])
