"""What a tier's directory holds: runs, their committed steps, bytes; and the space of its file system."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RUN_NAME: Final = "run.json"
STEP_NAME: Final = re.compile(r"step-(\d{8,})\.g(\d{4,})\Z")


@dataclass(frozen=True, slots=True)
class RunHolding:
    """The checkpoints of one run in one place. `newest` is the directory name of the newest step, or empty."""

    run: str
    step_count: int
    newest: str
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Holdings:
    """A tier's directory at one moment. Free and total bytes are those of its file system."""

    root: str
    free_bytes: int
    total_bytes: int
    runs: tuple[RunHolding, ...]


def holdings(root: Path, checkpoints: Path) -> Holdings:
    """Walk `checkpoints` (one directory a run, told by its `run.json`) and ask the file system of `root`.

    Cost: one stat a file. A run that is being written while this looks is counted as far as it is there.
    """
    space = os.statvfs(root)
    folders = sorted(_scan(checkpoints), key=lambda entry: entry.name)
    runs = [entry for entry in folders if (Path(entry.path) / RUN_NAME).is_file()]
    return Holdings(
        root=str(root),
        free_bytes=space.f_bavail * space.f_frsize,
        total_bytes=space.f_blocks * space.f_frsize,
        runs=tuple(_run_holding(entry.name, Path(entry.path)) for entry in runs),
    )


def _run_holding(name: str, directory: Path) -> RunHolding:
    steps = []
    total_bytes = 0
    for entry in _scan(directory):
        if not entry.is_dir(follow_symlinks=False):
            continue
        total_bytes += sum(_size(file) for file in _scan(Path(entry.path)))
        match = STEP_NAME.match(entry.name)
        if match:
            steps.append((int(match[2]), int(match[1]), entry.name))
    return RunHolding(name, len(steps), max(steps)[2] if steps else "", total_bytes)


def _scan(directory: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            yield from entries
    except (FileNotFoundError, NotADirectoryError):
        return


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0
