"""The bytes of the files a data set is packed from, read ahead, and refused if they are not what was listed."""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from stoker.dataset.listing import SourceFile
from stoker.dataset.shard import PIECE_BYTES
from stoker.errors import SourceChanged
from stoker.io.os_errors import translating

_RUN_FILES: Final = 64  # small files read by one task, so that handing it over costs little beside it
_READ_THREADS: Final = 4


def read_files(root: Path, files: Sequence[SourceFile]) -> Generator[Iterator[bytes], None, None]:
    """The contents of `files`, in order, each in pieces of at most 1 MiB; small files are read ahead by threads.

    Holds about 5 MiB. Raises SourceChanged if a file is gone, or its size or time is not what was listed, and
    AccessDenied, Unavailable.
    """
    with ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="stoker-pack") as pool:
        ahead: deque[Future[list[bytes]] | SourceFile] = deque()
        for run in _runs(files):
            large = len(run) == 1 and run[0].size > PIECE_BYTES
            ahead.append(run[0] if large else pool.submit(_read_small, root, run))
            if len(ahead) > _READ_THREADS:
                yield from _contents(root, ahead.popleft())
        while ahead:
            yield from _contents(root, ahead.popleft())


def _contents(root: Path, run: Future[list[bytes]] | SourceFile) -> Iterator[Iterator[bytes]]:
    if isinstance(run, SourceFile):
        yield _read(root, run)
    else:
        for data in run.result():
            yield iter((data,))


def _runs(files: Sequence[SourceFile]) -> Iterator[list[SourceFile]]:
    """Consecutive files, at most 64 and 1 MiB together; a larger one alone."""
    run: list[SourceFile] = []
    size = 0
    for file in files:
        if run and (size + file.size > PIECE_BYTES or len(run) == _RUN_FILES):
            yield run
            run, size = [], 0
        run.append(file)
        size += file.size
    if run:
        yield run


def _read_small(root: Path, run: Sequence[SourceFile]) -> list[bytes]:
    return [b"".join(_read(root, file)) for file in run]


def _read(root: Path, file: SourceFile) -> Iterator[bytes]:
    where = root / file.path
    with translating(f"cannot read {file.path!r}", root):
        try:
            # Not blocking: what was a file when it was listed may be a pipe by now.
            fd = os.open(where, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise _changed(root, file, "it is gone") from error
        try:
            _check_unchanged(root, file, os.fstat(fd))
            left = file.size
            while left:
                piece = os.read(fd, min(left, PIECE_BYTES))
                if not piece:
                    raise _changed(root, file, "it became shorter")
                left -= len(piece)
                yield piece
            _check_unchanged(root, file, os.fstat(fd))
        finally:
            os.close(fd)


def _check_unchanged(root: Path, file: SourceFile, state: os.stat_result) -> None:
    if not stat.S_ISREG(state.st_mode):
        raise _changed(root, file, "it is no regular file any more")
    if state.st_size != file.size:
        raise _changed(root, file, f"it had {file.size} bytes when it was listed, now {state.st_size}")
    if state.st_mtime_ns != file.mtime_ns:
        raise _changed(root, file, "it was written to since it was listed")


def _changed(root: Path, file: SourceFile, how: str) -> SourceChanged:
    hint = "pack when nothing writes there; remove the unfinished data set, or pack to another place"
    return SourceChanged(f"{file.path!r} changed while it was packed: {how}", str(root), hint)
