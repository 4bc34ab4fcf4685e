"""How much memory this process may use: what the machine has, or less where a cgroup says so.

Sources: cgroups(7); the kernel's admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst. A limit holds for all below it.
Without one, memory.max says max and memory.limit_in_bytes more than any machine has. In a namespace of its own the
cgroup is the root of what is mounted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

_PROC: Final = Path("/proc/self/cgroup")
_ROOT: Final = Path("/sys/fs/cgroup")


def memory_bytes(proc: Path = _PROC, root: Path = _ROOT) -> int:
    """Bytes of memory for this process and those of its cgroup together. Reads a few files; what is missing is none.

    `proc` is the file that names the cgroups, `root` where their file systems are mounted.
    """
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_limits(proc, root)])


def _limits(proc: Path, root: Path) -> Iterator[int]:
    for line in _read(proc).splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            folder, file = root, "memory.max"
        elif "memory" in names.split(","):
            folder, file = root / names, "memory.limit_in_bytes"
        else:
            continue
        own = PurePosixPath(path.lstrip("/"))
        if ".." in own.parts:
            own = PurePosixPath()
        for part in (own, *own.parents):
            text = _read(folder / part / file).strip()
            if text.isascii() and text.isdigit():
                yield int(text)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
