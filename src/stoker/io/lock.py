"""A lock between processes: a file that stays, held through its open description."""

from __future__ import annotations

import json
import os
import time
import weakref
from pathlib import Path
from types import TracebackType
from typing import Self

from stoker.io import ofd
from stoker.io.atomic import make_dirs
from stoker.io.host import host_name

_HOLDER_MAX_BYTES = 4096


class FileLock:
    """The exclusive lock of the file at `path`; the kernel frees it when the process ends, however it ends.

    The file says who holds the lock, for messages only, and is never removed: removing it would let two processes
    hold "the" lock on two files. Two FileLocks exclude each other also within one process. A FileLock that is no
    longer referenced gives the lock back.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: weakref.finalize[[int, int], FileLock] | None = None

    def try_acquire(self) -> bool:
        """Take the lock if it is free; False if another holds it. Makes the file and its directory.

        Raises OSError, also where the file system has no locks.
        """
        if self._held is not None:
            return True
        make_dirs(self.path.parent)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            if not ofd.try_lock(fd):
                os.close(fd)
                return False
            os.ftruncate(fd, 0)
            os.pwrite(fd, _describe().encode(), 0)
        except BaseException:
            os.close(fd)
            raise
        self._held = weakref.finalize(self, _release, fd, os.getpid())
        self._held.atexit = False
        return True

    def holder(self) -> str:
        """Who took the lock last, as "pid 4711 on node-a since 2025-01-31 12:00:00 UTC"; for messages."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return "an unknown process"
        try:
            said = json.loads(os.pread(fd, _HOLDER_MAX_BYTES, 0))
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(said["since"]))
            return f"pid {int(said['pid'])} on {said['host']} since {since} UTC"
        except (OSError, ValueError, TypeError, KeyError, OverflowError):  # being written, or not ours
            return "an unknown process"
        finally:
            os.close(fd)

    def release(self) -> None:
        """Give the lock back; no effect if it is not held. A forked child only forgets it: the lock is its parent's."""
        held, self._held = self._held, None
        if held is not None:
            held()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _release(fd: int, owner_pid: int) -> None:
    if owner_pid == os.getpid():
        ofd.unlock(fd)
    os.close(fd)


def _describe() -> str:
    return json.dumps({"pid": os.getpid(), "host": host_name(), "since": int(time.time())})
