"""Shared memory without names: the arena that batches lie in, the slots lent from it, the slab of a snapshot.

All are memfds: nothing appears in a file system, and the kernel frees them when the last process that holds them ends.
Pages cost memory once they are written, not before.
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
import threading
import weakref
from bisect import bisect
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ClosedError, InternalError
from stoker.io.buffers import view
from stoker.io.memfd import make_memfd, refused, resize

ALIGNMENT: Final = 64  # a cache line, and what any vector load or DMA of a batch wants


def align(count: int) -> int:
    """`count` rounded up to a multiple of 64."""
    return -(-count // ALIGNMENT) * ALIGNMENT


def room(nbytes: int) -> int:
    """What a slot of `nbytes` takes of an arena: a multiple of 64, and never nothing."""
    return max(align(nbytes), ALIGNMENT)


class Slot(NamedTuple):
    """A part of an arena: `nbytes` from `offset` on, which is a multiple of 64."""

    offset: int
    nbytes: int


class MapWatcher(Protocol):
    """Who must know where memory is mapped in this process: it is pinned for a device, say."""

    def mapped(self, address: int, size_bytes: int) -> None:
        """The memory lies at `address` now."""

    def unmapping(self) -> None:
        """It is about to be let go, or mapped elsewhere. Called in any thread."""


class Arena:
    """Memory of a fixed size from which slots are taken, first-fit, and lent. Thread-safe.

    A slot is taken (`take`), used through `view` while it is filled, and then lent (`lend`). It comes back when the
    last view of the loan dies: the death of the loan only puts it on a queue, since it may happen in any thread, in
    the middle of a garbage collection and under any lock. `reclaim` makes such slots free again; one thread calls it.
    """

    def __init__(self, size_bytes: int, fd: int | None = None) -> None:
        """`fd` is the memory, which then is the arena's to close; without it there is new memory."""
        self._fd = make_memfd("stoker-arena", size_bytes) if fd is None else fd
        self._close_fd = weakref.finalize(self, os.close, self._fd)
        self._map: mmap.mmap | None = _map(self._fd, size_bytes)
        self._watcher: MapWatcher | None = None
        self._lock = threading.Lock()
        self._returned: SimpleQueue[Slot | None] = SimpleQueue()
        self._free = [(0, size_bytes // ALIGNMENT * ALIGNMENT)]  # [start, stop), ascending, never touching
        self._taken: dict[int, int] = {}
        self._taken_bytes = 0
        self._peak_bytes = 0
        self.size_bytes = size_bytes

    @property
    def fd(self) -> int:
        """The file of the memory, open as long as the arena is."""
        return self._fd

    @property
    def address(self) -> int:
        """Where the mapping begins in this process; another after `grow`."""
        return int(np.frombuffer(self._open_map(), np.uint8).ctypes.data)

    def watch(self, watcher: MapWatcher) -> None:
        """Tell `watcher`, the only one, where the memory is mapped: now, and whenever that changes."""
        with self._lock:
            watcher.mapped(self.address, self.size_bytes)
            self._watcher = watcher

    @property
    def taken_bytes(self) -> int:
        """Bytes of the slots that are taken or lent, padding included."""
        return self._taken_bytes

    @property
    def peak_bytes(self) -> int:
        """The most that `taken_bytes` ever was."""
        return self._peak_bytes

    def take(self, nbytes: int) -> Slot | None:
        """The first free place of `nbytes`, or None if there is none. Slots on their way back do not count as free."""
        size = room(nbytes)
        with self._lock:
            for index, (start, stop) in enumerate(self._free):
                if stop - start >= size:
                    self._free[index : index + 1] = [(start + size, stop)] if stop - start > size else []
                    self._taken[start] = size
                    self._taken_bytes += size
                    self._peak_bytes = max(self._peak_bytes, self._taken_bytes)
                    return Slot(start, nbytes)
        return None

    def claim(self, slot: Slot) -> None:
        """Take a slot where it lies: one that was lent before this arena was made over the same memory."""
        start, stop = slot.offset, slot.offset + room(slot.nbytes)
        with self._lock:
            for index, (first, last) in enumerate(self._free):
                if first <= start and stop <= last:
                    self._free[index : index + 1] = [
                        each for each in ((first, start), (stop, last)) if each[0] < each[1]
                    ]
                    self._taken[start] = stop - start
                    self._taken_bytes += stop - start
                    self._peak_bytes = max(self._peak_bytes, self._taken_bytes)
                    return
        raise InternalError(f"the slot at {start} is not free in the arena it is said to lie in")

    def give(self, slot: Slot) -> None:
        """Make a slot free at once. Only for one that was never lent: others come back by themselves."""
        with self._lock:
            size = self._taken.pop(slot.offset, None)
            if size is None:
                raise InternalError(f"slot at {slot.offset} given back twice, or never taken")
            self._taken_bytes -= size
            self._insert(slot.offset, slot.offset + size)

    def _insert(self, start: int, stop: int) -> None:
        """Add a free range, joined with those it touches."""
        index = bisect(self._free, (start, stop))
        first, last = index, index
        if index and self._free[index - 1][1] == start:
            start, first = self._free[index - 1][0], index - 1
        if index < len(self._free) and self._free[index][0] == stop:
            stop, last = self._free[index][1], index + 1
        self._free[first:last] = [(start, stop)]

    def view(self, slot: Slot) -> NDArray[np.uint8]:
        """The bytes of a taken slot, uint8[nbytes], for whoever fills it; does not keep the slot."""
        return np.frombuffer(self._open_map(), np.uint8, slot.nbytes, slot.offset)

    def lend(self, slot: Slot) -> NDArray[np.uint8]:
        """The bytes of a taken slot, uint8[nbytes]: the slot returns when this array and all views of it are dead.

        Views are numpy arrays, memoryviews and tensors made from it or from each other. Costs 0.6 us.
        """
        loan = self.view(slot)
        _watch(loan, self._returned.put, slot)
        return loan

    def reclaim(self, timeout_s: float | None = 0) -> int:
        """Make the slots free whose loans died, and return how many; waits for one up to `timeout_s` (None: for ever).

        Also returns when `wake` was called.
        """
        count = 0
        try:
            slot = self._returned.get(timeout_s != 0, timeout_s)
            while True:
                if slot is not None:
                    self.give(slot)
                    count += 1
                slot = self._returned.get_nowait()
        except Empty:
            return count

    def wake(self) -> None:
        """Let the thread in `reclaim` return now. Callable from anywhere, as a loan's death is."""
        self._returned.put(None)

    def grow(self, size_bytes: int) -> None:
        """Make the arena larger. Slots stay where they are; views made before stay valid."""
        with self._lock:
            resize(self._fd, size_bytes)
            grown = _map(self._fd, size_bytes)
            if self._watcher is not None:
                self._watcher.unmapping()
            self._map = grown
            if self._watcher is not None:
                self._watcher.mapped(self.address, size_bytes)
            start, self.size_bytes = self.size_bytes // ALIGNMENT * ALIGNMENT, size_bytes
            self._insert(start, size_bytes // ALIGNMENT * ALIGNMENT)

    def close(self) -> None:
        """Let go of the memory; what is lent stays until its views die. Idempotent."""
        with self._lock:
            if self._map is not None:
                if self._watcher is not None:
                    self._watcher.unmapping()
                self._map = self._watcher = None
                self._free = []
                self._close_fd()

    def _open_map(self) -> mmap.mmap:
        if self._map is None:
            raise ClosedError("the arena is closed")
        return self._map


class _Watch(weakref.ref[NDArray[np.uint8]]):
    """Calls `returns(what)` when a loan dies. A third of the cost of `weakref.finalize`, which is paid a batch."""

    __slots__ = ("returns", "what")

    returns: Callable[[Any], None]
    what: Any


_watches: Final[dict[int, _Watch]] = {}  # a weak reference tells of a death only as long as it lives itself
atexit.register(_watches.clear)  # nobody is told at the end of the process, when modules may be gone


def _watch(loan: NDArray[np.uint8], returns: Callable[[Any], None], what: object) -> None:
    watch = _Watch(loan, _tell_death)
    watch.returns, watch.what = returns, what
    _watches[id(watch)] = watch


def _tell_death(watch: _Watch) -> None:
    del _watches[id(watch)]
    watch.returns(watch.what)


class Window:
    """An arena that another process places batches in, as this process sees it: the memory, and loans of its slots.

    The trainer makes the memory and passes it on by `fd`; who has it all mapped may come and go. A process that is
    passed it gives its `fd`, which then is the window's to close.
    """

    def __init__(self, size_bytes: int, fd: int | None = None) -> None:
        self.fd = make_memfd("stoker-arena", size_bytes) if fd is None else fd
        self._close_fd = weakref.finalize(self, os.close, self.fd)
        self._map: mmap.mmap | None = _map(self.fd, size_bytes)
        self._watcher: MapWatcher | None = None
        self.size_bytes = size_bytes

    @property
    def address(self) -> int:
        """Where the mapping begins in this process; another after `grow`."""
        return int(np.frombuffer(self._open_map(), np.uint8).ctypes.data)

    def watch(self, watcher: MapWatcher) -> None:
        """Tell `watcher`, the only one, where the memory is mapped: now, and whenever that changes."""
        watcher.mapped(self.address, self.size_bytes)
        self._watcher = watcher

    def grow(self, size_bytes: int) -> None:
        """Map the memory anew, which the other process has made larger. Views made before stay valid."""
        grown = _map(self.fd, size_bytes)
        if self._watcher is not None:
            self._watcher.unmapping()
        self._map = grown
        self.size_bytes = size_bytes
        if self._watcher is not None:
            self._watcher.mapped(self.address, size_bytes)

    def view(self, slot: Slot) -> NDArray[np.uint8]:
        """The bytes of a slot, uint8[nbytes], for whoever fills it."""
        return np.ndarray((slot.nbytes,), np.uint8, buffer=self._map, offset=slot.offset)

    def lend(self, slot: Slot, returns: Callable[[int], None], number: int) -> NDArray[np.uint8]:
        """The bytes of a slot, uint8[nbytes]; `returns(number)` is called when this array and all views of it are dead,
        in any thread, in the middle of a garbage collection and under any lock.
        """
        mapping = self._map
        if mapping is None:
            raise ClosedError("the arena is closed")
        loan = np.frombuffer(mapping, np.uint8, slot.nbytes, slot.offset)  # half the cost of np.ndarray
        _watch(loan, returns, number)
        return loan

    def close(self) -> None:
        """Let go of the memory; what is lent stays until its views die. Idempotent."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.unmapping()
        self._map = None  # a mapping holds an open file, too
        self._close_fd()

    def _open_map(self) -> mmap.mmap:
        if self._map is None:
            raise ClosedError("the arena is closed")
        return self._map


class _Apart(mmap.mmap):
    """A mapping that knows the file it is of."""

    fd: int


def make_apart(nbytes: int) -> NDArray[np.uint8]:
    """Memory of its own, uint8[nbytes], that can be passed to another process: `apart_fd` says by which file."""
    fd = make_memfd("stoker-batch", nbytes)
    try:
        mapping = _Apart(fd, max(nbytes, ALIGNMENT))
    except (OSError, OverflowError) as error:
        os.close(fd)
        raise refused(error, nbytes) from error
    mapping.fd = fd
    weakref.finalize(mapping, os.close, fd).atexit = False
    return np.ndarray((nbytes,), np.uint8, buffer=mapping)


def apart_fd(memory: NDArray[np.uint8]) -> int:
    """The file behind what `make_apart` gave, open as long as that lives."""
    mapping: object = memory.base
    if not isinstance(mapping, _Apart):
        raise InternalError("a batch in ordinary memory cannot be passed on")
    return mapping.fd


def take_apart(fd: int, nbytes: int) -> NDArray[np.uint8]:
    """A copy, uint8[nbytes], of what another process made by `make_apart`. Closes `fd`.

    Not the memory itself: each mapping would hold an open file, and a process may hold only so many.
    """
    try:
        memory = np.empty(nbytes, np.uint8)
        left = view(memory)
        while left and (count := os.preadv(fd, [left], nbytes - len(left))):
            left = left[count:]
        if left:
            raise InternalError(f"{len(left)} of {nbytes} bytes of a batch are missing")
        return memory
    finally:
        os.close(fd)


def map_apart(fd: int, nbytes: int) -> NDArray[np.uint8]:
    """What another process made by `make_apart`, uint8[nbytes]: the memory itself. Closes `fd`."""
    try:
        return np.ndarray((nbytes,), np.uint8, buffer=_map(fd, nbytes))
    finally:
        os.close(fd)


def map_words(fd: int, count: int) -> NDArray[np.int64]:
    """`count` numbers, int64, that lie in a file which several processes map."""
    return np.ndarray((count,), np.int64, buffer=_map(fd, 8 * count))


def make_words(name: str, count: int) -> int:
    """A file for `map_words`, all 0."""
    return make_memfd(name, 8 * count)


class Slab:
    """Memory for one snapshot at a time, used again for the next. To grow, make a larger one and close this one."""

    def __init__(self, size_bytes: int) -> None:
        fd = make_memfd("stoker-slab", size_bytes)
        try:
            self._map: mmap.mmap | None = _map(fd, size_bytes)
        finally:
            os.close(fd)
        self.size_bytes = size_bytes

    def view(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Bytes [start, stop), uint8, writable. Raises ClosedError; InternalError beyond the end."""
        if self._map is None:
            raise ClosedError("the slab is closed")
        if not 0 <= start <= stop <= self.size_bytes:
            raise InternalError(f"bytes [{start}, {stop}) of a slab of {self.size_bytes}")
        return np.ndarray((stop - start,), np.uint8, buffer=self._map, offset=start)

    def close(self) -> None:
        """Let go of the memory; views that are still held keep it. Idempotent."""
        self._map = None


def map_file(path: Path) -> memoryview:
    """The content of a file, mapped, for reading; no file stays open for it, unlike for an `mmap`, so that thousands
    may be held. It is what it was if the file is replaced, not if it is cut or written to. Raises OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        return np.asarray(_FileMapping(fd, size)).data if size else memoryview(b"")
    finally:
        os.close(fd)


class _FileMapping:
    """Where a file is mapped, which numpy reads by the array interface; unmapped with the last view of it."""

    def __init__(self, fd: int, size: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
        libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        weakref.finalize(self, libc.munmap, address, size).atexit = False
        self.__array_interface__ = {"data": (address, True), "shape": (size,), "typestr": "|u1", "version": 3}


def _map(fd: int, size_bytes: int) -> mmap.mmap:
    try:
        return mmap.mmap(fd, max(size_bytes, ALIGNMENT))
    except (OSError, OverflowError) as error:
        raise refused(error, size_bytes) from error
