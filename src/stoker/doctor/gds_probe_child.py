"""`python -m stoker.doctor.gds_probe_child FILE`: the probe's calls, in a process that may be killed. Prints JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from stoker.doctor import nvidia_fs
from stoker.doctor.gds_probe import READ_BYTES, Observation, Stage, probe
from stoker.doctor.node import LiveNode
from stoker.errors import StokerError
from stoker.io.cufile import CuFile, open_strict
from stoker.units import MIB

_STATS: Final = "/proc/driver/nvidia-fs/stats"


def observe(path: Path, open_library: Callable[[int], CuFile], nvfs_mib: Callable[[], int | None]) -> Observation:
    """Open the file and the library, probe, and close both. Never raises what the file system or the vendor says."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        return Observation(Stage.NOT_STARTED, f"the file cannot be opened for direct I/O: {error.strerror}".lower())
    try:
        library = open_library(READ_BYTES)
        try:
            before = nvfs_mib()
            seen = probe(library, fd, os.fstat(fd).st_size)
            after = nvfs_mib()
        finally:
            library.close()
    except StokerError as error:
        return Observation(Stage.OPEN, error.what)
    finally:
        os.close(fd)
    if before is None or after is None:
        return seen
    return replace(seen, nvfs_bytes=(after - before) * MIB)


def read_nvfs_mib() -> int | None:
    """What nvidia-fs has read so far in MiB, None if it is not loaded or does not count."""
    text = LiveNode().read(_STATS)
    return nvidia_fs.parse_stats(text).read_mib if isinstance(text, str) else None


def main(arguments: list[str]) -> int:
    """Probe the file named by the one argument."""
    seen = observe(Path(arguments[0]), open_strict, read_nvfs_mib)
    json.dump(seen.to_json(), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
