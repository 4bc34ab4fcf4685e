"""A lock between processes: a file that stays, held through its open description."""

from __future__ import annotations

import json
import os
import time
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stoker.io import ofd
from stoker.io.atomic import make_dirs
from stoker.io.host import host_name
from stoker.io.os_errors import translating

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

        Raises AccessDenied, StoreError, also where the file system has no locks.
        """
        if self._held is not None:
            return True
        with translating("cannot take a lock", self.path):
            return self._acquire()

    def _acquire(self) -> bool:
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
        said = self._read_holder()
        try:
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(said["since"]))
            return f"pid {int(said['pid'])} on {said['host']} since {since} UTC"
        except (ValueError, TypeError, KeyError, OSError, OverflowError):  # not ours
            return "an unknown process"

    def _read_holder(self) -> dict[str, Any]:
        """What the file says; empty while it is being written, or if it is not ours."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return {}
        try:
            said = json.loads(os.pread(fd, _HOLDER_MAX_BYTES, 0))
        except (OSError, ValueError, RecursionError):
            return {}
        finally:
            os.close(fd)
        return said if isinstance(said, dict) else {}

    def is_orphaned(self) -> int:
        """The pid of who took the lock last, if it was a process of this host and is gone; else 0.

        Somebody holds the lock nevertheless: a child that inherited the open file.
        """
        said = self._read_holder()
        if said.get("host") != host_name() or not isinstance(pid := said.get("pid"), int) or pid <= 0:
            return 0
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
        except (FileNotFoundError, ProcessLookupError):
            return pid
        except OSError:
            return 0
        return pid if state.split()[:1] == ["Z"] else 0  # ended, and nobody has asked how: it has no open files

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
