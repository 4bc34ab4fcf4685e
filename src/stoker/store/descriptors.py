"""Open files for reading, kept for the next read of the same object."""

from __future__ import annotations

import errno
import os
import stat
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # no reader of small samples loads it
    from stoker.io.direct import DirectFile


class OpenFile:
    """An open file and how many threads read from it; closed by the last one once it has left the table.

    `direct` is the same file open for direct I/O, if it is; whether it can be is not known before `direct_is_known`.
    """

    __slots__ = ("_opened", "direct", "direct_is_known", "fd", "identity", "kept", "users")

    def __init__(self, fd: int, identity: tuple[int, int]) -> None:
        self.fd = fd
        self.identity = identity
        self.users = 1
        self.kept = True
        self.direct: DirectFile | None = None
        self.direct_is_known = False
        self._opened: list[DirectFile] = []  # threads that open it at once open it twice: both stay until the end

    def take_direct(self, direct: DirectFile | None) -> None:
        """Keep what was opened for direct I/O; None: it cannot be."""
        if direct is not None:
            self._opened.append(direct)
        self.direct = direct
        self.direct_is_known = True

    def give_up_direct(self) -> None:
        """Use it no more; others may be in the middle of a read."""
        self.direct = None

    def close(self) -> None:
        """Close all descriptors. Once."""
        os.close(self.fd)
        for direct in self._opened:
            direct.close()


class Descriptors:
    """At most `limit` files kept open, the least recently used given up first. Thread-safe.

    Before each use the path is looked up (one stat, about 1 us on a local file system): a file that was replaced,
    removed or renamed since is opened anew or reported missing, never read from its old descriptor.
    What nobody closed is closed when the table is no longer referenced.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._table: OrderedDict[str, OpenFile] = OrderedDict()
        weakref.finalize(self, _close_all, self._table).atexit = False

    @contextmanager
    def open(self, path: str) -> Iterator[OpenFile]:
        """The regular file now at `path`, for pread only. Raises OSError; ENOENT for a directory."""
        descriptor = self.acquire(path)
        try:
            yield descriptor
        finally:
            self.release(descriptor)

    def close(self) -> None:
        """Give up every file; those being read from are closed when the read ends."""
        with self._lock:
            for descriptor in self._table.values():
                descriptor.kept = False
                self._close_if_done(descriptor)
            self._table.clear()

    def __len__(self) -> int:
        return len(self._table)

    def release(self, descriptor: OpenFile) -> None:
        """Give back what `acquire` returned."""
        with self._lock:
            descriptor.users -= 1
            if not descriptor.kept:
                self._close_if_done(descriptor)

    def acquire(self, path: str) -> OpenFile:
        """As `open`, to be given back by `release`."""
        state = os.lstat(path)
        with self._lock:
            known = self._table.get(path)
            if known is not None:
                if known.identity == (state.st_dev, state.st_ino):
                    known.users += 1
                    self._table.move_to_end(path)
                    return known
                self._drop(path)
        if not (stat.S_ISREG(state.st_mode) or stat.S_ISLNK(state.st_mode)):
            raise FileNotFoundError(errno.ENOENT, "a directory, not a file", path)
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        state = os.fstat(fd)
        fresh = OpenFile(fd, (state.st_dev, state.st_ino))
        with self._lock:
            if path in self._table:  # another thread opened it meanwhile
                self._drop(path)
            self._table[path] = fresh
            if len(self._table) > self._limit:
                self._drop(next(iter(self._table)))
        return fresh

    def _drop(self, path: str) -> None:
        descriptor = self._table.pop(path)
        descriptor.kept = False
        self._close_if_done(descriptor)

    def _close_if_done(self, descriptor: OpenFile) -> None:
        if descriptor.users == 0 and not descriptor.kept:
            descriptor.close()


def _close_all(table: OrderedDict[str, OpenFile]) -> None:
    """Close the files of a table that nobody uses. Takes no lock: a garbage collection may call it anywhere."""
    while table:
        table.popitem()[1].close()
