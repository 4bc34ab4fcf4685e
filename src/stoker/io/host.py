"""Which host this is, as far as kernel locks reach."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


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
    return hashlib.sha256(f"{boot} {host_name()}".encode()).hexdigest()[:8]
