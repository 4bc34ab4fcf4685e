"""Reading and writing files without the page cache: O_DIRECT between the device and aligned memory.

Where a range begins or ends inside a block, that block alone goes through a small buffer beside; the blocks between
go straight to their place, in the same system call.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import threading
from typing import TYPE_CHECKING, Final

from stoker.io.buffers import ReadBuffer, view
from stoker.io.choose import Alignment, Engine, EngineChoice, FileFacts, choose, facts_of, insist, refused
from stoker.units import MIB, format_bytes

# Measured (benchmarks/README.md, direct I/O): what is cold arrives 1.3 times as fast at 64 KiB and 3 times at 1 MiB,
# for a tenth of the CPU time. To ask whether it is cold costs 4 us: 3 % of a warm read of 1 MiB, half of one of 64 KiB.
DIRECT_READ_MIN_BYTES: Final = MIB
# What is smaller is soon read again, as tables and receipts are, and a file of one request gains nothing.
DIRECT_WRITE_MIN_BYTES: Final = 4 * MIB

if TYPE_CHECKING:  # a trainer writes small files before it loads numpy
    import numpy as np
    from numpy.typing import NDArray

_HUGE_PAGE_BYTES: Final = 2 * MIB
_STAGE_BYTES: Final = 4 * MIB
_local = threading.local()


def split(start: int, stop: int, block: int) -> tuple[int, int]:
    """(first, last) of [start, stop): [start, first) is an edge, [first, last) whole blocks, [last, stop) an edge.

    Pure. An empty middle has first == last; a range within one block is all first edge.
    """
    first = min(stop, -(-start // block) * block)
    return first, max(first, stop // block * block)


def aligned_memory(size_bytes: int) -> NDArray[np.uint8]:
    """Fresh zeroed memory, uint8[size_bytes], that begins at a page, as direct I/O wants it. Freed with the array.

    2 MiB or more begin at a huge page and are made of such, where the system has them: the device then gets one request
    for 4 MiB instead of one for each 254 pages (measured: 3.6 GiB/s against 1.5).
    """
    import numpy as np  # noqa: PLC0415

    if size_bytes < _HUGE_PAGE_BYTES:
        return np.frombuffer(mmap.mmap(-1, max(size_bytes, 1)), np.uint8, size_bytes)
    memory = mmap.mmap(-1, size_bytes + _HUGE_PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8, size_bytes, offset=-address_of(memoryview(memory)) % _HUGE_PAGE_BYTES)


def address_of(data: memoryview) -> int:
    """Where the bytes of `data` lie in this process."""
    import numpy as np  # noqa: PLC0415

    return int(np.frombuffer(data, np.uint8).__array_interface__["data"][0]) if data else 0


def is_congruent(data: memoryview, start: int, alignment: Alignment) -> bool:
    """Whether `data` lies in memory so that the blocks of a file, from `start` on, fall on aligned addresses."""
    first, last = split(start, start + len(data), alignment.offset_bytes)
    return first == last or (address_of(data) + first - start) % alignment.memory_bytes == 0


class DirectFile:
    """A file opened once more, with O_DIRECT, for reading. Thread-safe."""

    def __init__(self, fd: int, alignment: Alignment) -> None:
        self._fd = fd
        self.alignment = alignment

    @classmethod
    def open(cls, fd: int, requested: Engine) -> tuple[DirectFile | None, EngineChoice]:
        """The file that `fd` has open, for direct reads, with the reason; None where the page cache it is.

        Raises OSError. What was asked for by name is the caller's to insist on.
        """
        facts = facts_of(fd)
        choice = choose(requested, facts)
        if choice.effective == "buffered" or facts.alignment is None:
            return None, choice
        try:  # by its descriptor: the name may stand for another file by now
            again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None, EngineChoice(requested, "buffered", "/proc is not mounted, to open the file once more")
            if error.errno != errno.EINVAL:
                raise
            return None, refused(requested, "open")
        return cls(again, facts.alignment), choice

    def read_into(self, start: int, data: memoryview) -> int:
        """Fill `data` from `start` on; returns the bytes read, fewer only at the end of the file. Raises OSError.

        `data` must be congruent. One system call if the kernel reads it all at once.
        """
        block = self.alignment.offset_bytes
        done, stop = start, start + len(data)
        while done < stop:
            first, last = split(done, stop, block)
            base = done // block * block
            head, tail = _edges(block)
            parts = []
            if first > done:
                parts.append(head)
            if last > first:
                parts.append(data[first - start : last - start])
            if stop > last:
                parts.append(tail)
            reached = min(stop, base + os.preadv(self._fd, parts, base))
            if reached <= done:
                break
            if first > done:
                until = min(first, reached)
                data[done - start : until - start] = head[done - base : until - base]
            if reached > last:
                data[last - start : reached - start] = tail[: reached - last]
            done = reached
        return done - start

    def read_staged(self, start: int, data: memoryview) -> int:
        """As `read_into`, for memory that is not aligned: through 4 MiB beside it, at the price of a copy.

        Measured still 2.3 times as fast as the page cache is for cold bytes, since the memory beside is of huge pages.
        """
        block = self.alignment.offset_bytes
        stage = _stage()
        done, stop = start, start + len(data)
        while done < stop:
            base = done // block * block
            wanted = min(len(stage), -(-(stop - base) // block) * block)
            reached = min(stop, base + os.preadv(self._fd, [stage[:wanted]], base))
            if reached <= done:
                break
            data[done - start : reached - start] = stage[done - base : reached - base]
            done = reached
        return done - start

    def close(self) -> None:
        """Close the descriptor. Once."""
        os.close(self._fd)


class FileWriter:
    """Appends to an empty open file; what is large goes directly, if it can.

    Aligned memory is written from where it lies, other pieces are gathered in 4 MiB of aligned memory first. What
    `auto` gathers and never fills goes through the page cache: small files are read again soon. The last part of a
    block does so in any case. Nothing is durable before the caller's fsync. `choice` is None until it is made.
    """

    def __init__(self, fd: int, engine: Engine, where: str) -> None:
        self._fd = fd
        self._engine = engine
        self._where = where
        self._block = 1
        self._memory = 1
        self._stage: memoryview | None = None
        self._staged = 0
        self.choice: EngineChoice | None = None
        if engine == "buffered":
            self.choice = EngineChoice(engine, "buffered", "asked for")

    def write(self, data: ReadBuffer) -> None:
        """Append all of `data`. Raises OSError; UnsupportedError if `direct` was asked for and is refused."""
        rest = view(data)
        while rest:
            if self.choice is None and self._staged + len(rest) >= DIRECT_WRITE_MIN_BYTES:
                self._decide()
            if self.choice is not None and not self._is_direct():
                self._flush()
                _append(self._fd, rest)
                return
            whole = self._whole_blocks(rest)
            if whole:
                self._flush()
                self._append_blocks(rest[:whole])
            else:
                whole = self._gather(rest)
            rest = rest[whole:]

    def finish(self) -> EngineChoice:
        """Write what was gathered. To be called once, before the file is synced."""
        if self.choice is None:
            if self._engine == "direct":
                self._decide()
            else:
                self.choice = EngineChoice(
                    self._engine, "buffered", f"files below {format_bytes(DIRECT_WRITE_MIN_BYTES)} are read again soon"
                )
        self._flush()
        self._stage = None
        assert self.choice is not None
        return self.choice

    def _decide(self) -> None:
        facts = facts_of(self._fd)
        self._settle(choose(self._engine, facts), facts)

    def _settle(self, choice: EngineChoice, facts: FileFacts) -> None:
        if choice.effective == "direct" and facts.alignment is not None:
            # A write of half a page makes the device or the file system read the other half first.
            self._block = max(facts.alignment.offset_bytes, mmap.PAGESIZE)
            self._memory = facts.alignment.memory_bytes
            if not _set_direct(self._fd, on=True):
                choice = refused(self._engine, "open")
        self.choice = insist(choice, self._where)

    def _whole_blocks(self, rest: memoryview) -> int:
        """How much of `rest` can be written from where it lies, after what is gathered."""
        if not self._is_direct() or self._staged % self._block or address_of(rest) % self._memory:
            return 0
        return len(rest) // self._block * self._block

    def _gather(self, rest: memoryview) -> int:
        if self._stage is None:
            self._stage = aligned_memory(DIRECT_WRITE_MIN_BYTES).data
        count = min(len(rest), len(self._stage) - self._staged)
        self._stage[self._staged : self._staged + count] = rest[:count]
        self._staged += count
        if self._staged == len(self._stage):
            self._flush()
        return count

    def _flush(self) -> None:
        """Write what is gathered: whole blocks as chosen, the part of a block at the end through the page cache."""
        if not self._staged or self._stage is None:
            return
        part, self._staged = self._stage[: self._staged], 0
        if self._is_direct():
            whole = len(part) // self._block * self._block
            self._append_blocks(part[:whole])
            part = part[whole:]
            if part:
                _set_direct(self._fd, on=False)
        _append(self._fd, part)

    def _append_blocks(self, blocks: memoryview) -> None:
        while blocks:
            try:
                count = os.write(self._fd, blocks)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self.choice = insist(refused(self._engine, "a write"), self._where)
                _set_direct(self._fd, on=False)
                _append(self._fd, blocks)
                return
            blocks = blocks[count:]

    def _is_direct(self) -> bool:
        return self.choice is not None and self.choice.effective == "direct"


def _append(fd: int, rest: memoryview) -> None:
    while rest:
        rest = rest[os.write(fd, rest) :]


def _set_direct(fd: int, *, on: bool) -> bool:
    """Switch O_DIRECT of an open file; False if the file system refuses."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def _edges(block: int) -> tuple[memoryview, memoryview]:
    """Two blocks of aligned memory that belong to this thread."""
    memory: memoryview | None = getattr(_local, "edges", None)
    if memory is None or len(memory) < 2 * block:
        memory = _local.edges = aligned_memory(2 * max(block, mmap.PAGESIZE)).data
    return memory[:block], memory[block : 2 * block]


def _stage() -> memoryview:
    memory: memoryview | None = getattr(_local, "stage", None)
    if memory is None:
        memory = _local.stage = aligned_memory(_STAGE_BYTES).data
    return memory
