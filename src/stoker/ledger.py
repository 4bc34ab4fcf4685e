"""The ledger: one rank's account of every wait, by cause, in a page of memory that outlives the process.

A fixed-size file mapped shared: others read it while training runs (`read_ledger`), and it is whole after kill -9.
What is counted is time the training loop stood still on the host, not what the accelerator idled.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from stoker.errors import (
    AccessDenied,
    AlreadyExists,
    CapacityError,
    ClosedError,
    FormatError,
    InternalError,
    NotFound,
    StokerError,
    StoreError,
)
from stoker.ledger_format import (
    LEDGER_BYTES,
    MAGIC,
    Cause,
    Counter,
    LedgerIdentity,
    LedgerSnapshot,
    LedgerStart,
    SaveRecord,
    StepRecord,
    Totals,
    ledger_name,
    pack_header,
    pack_save,
    pack_step,
    pack_totals,
    parse,
)
from stoker.values import StageTimes

__all__ = [
    "Cause",
    "Counter",
    "Ledger",
    "LedgerIdentity",
    "LedgerSnapshot",
    "LedgerStart",
    "SaveRecord",
    "StageTimes",
    "StepRecord",
    "Totals",
    "ledger_name",
    "parse_ledger",
    "read_ledger",
    "split_wait",
    "utilisation",
]

_READ_TRIES: Final = 1000
_CAUSES: Final = tuple(Cause)  # to go through an enumeration costs a call for each
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def split_wait(start_ns: int, stop_ns: int, stages: StageTimes) -> dict[Cause, int]:
    """The wait [start, stop) of one batch, charged to the stage the batch was in at each moment.

    Before its fetch began (no slot was free) and after its map was done, the time is hand-off. The parts are never
    negative and sum to `stop_ns - start_ns`. A stage that ends before the one before it takes no time. Pure.
    """
    if stop_ns < start_ns:
        raise InternalError(f"a wait ends {start_ns - stop_ns} ns before it begins")
    if max(stages) <= start_ns:  # it lay ready, as it should
        return {Cause.FETCH: 0, Cause.DECODE: 0, Cause.MAP: 0, Cause.HANDOFF: stop_ns - start_ns}
    parts = {Cause.FETCH: 0, Cause.DECODE: 0, Cause.MAP: 0, Cause.HANDOFF: 0}
    at = start_ns
    for cause, until in (
        (Cause.HANDOFF, stages.planned_ns),
        (Cause.FETCH, stages.fetched_ns),
        (Cause.DECODE, stages.decoded_ns),
        (Cause.MAP, stages.mapped_ns),
        (Cause.HANDOFF, stop_ns),
    ):
        end = min(max(at, until), stop_ns)
        parts[cause] += end - at
        at = end
    return parts


class Ledger:
    """The account of one rank in one generation. Thread-safe; made by `create`.

    `record_step`, `record_end` and `record_checkpoint` are called by the training thread in the order of events;
    `add` by any thread. Each call publishes: a reader of the file sees it at once, and kill -9 loses nothing.
    """

    def __init__(
        self, memory: mmap.mmap, identity: LedgerIdentity, start: LedgerStart, clock: Callable[[], int]
    ) -> None:
        self.identity = identity
        self.start = start
        self._memory: mmap.mmap | None = memory
        self._image = b""
        self._clock = clock
        self._lock = threading.Lock()
        self._totals = Totals(last_ns=start.perf_ns)
        self._sequence = 0
        self._last_left_ns: int | None = None
        self._blocked_ns = 0
        self._publish()
        header = pack_header(identity, start)
        memory[len(MAGIC) : len(header)] = header[len(MAGIC) :]
        memory[: len(MAGIC)] = MAGIC  # last: what has no magic was never finished

    @classmethod
    def create(
        cls,
        path: Path | None,
        identity: LedgerIdentity,
        *,
        start: LedgerStart | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> Self:
        """A new ledger in the file `path` (0600, never over an existing one), or in memory only if None.

        The file's 0.5 MiB are allocated at once, so that a full disk is an error here and not a signal later. A file
        that could not be finished has no magic number, and readers pass it over.
        Raises AlreadyExists, AccessDenied, CapacityError, NotFound (no such directory), StoreError.
        """
        if start is None:
            start = LedgerStart(os.getpid(), _boot_id(), time.time(), clock())
        memory = mmap.mmap(-1, LEDGER_BYTES) if path is None else _map_new(path)
        return cls(memory, identity, start, clock)

    def record_step(
        self,
        step: int,
        epoch: int,
        entered_ns: int,
        left_ns: int,
        waits: Mapping[Cause, int],
        sample_count: int,
        batch_bytes: int,
    ) -> None:
        """Account for one batch: the loop waited in `next()` from `entered_ns` to `left_ns`, split as in `waits`.

        The time since the batch before, without what saves blocked, is the compute of that batch. Before the first
        batch of a loop there is none. `waits` sum to the wait, and CHECKPOINT is not among them. Costs 4 µs.
        """
        parts = [waits.get(cause, 0) for cause in _CAUSES]
        if left_ns < entered_ns or min(parts) < 0 or sum(parts) != left_ns - entered_ns or parts[-1]:
            raise InternalError(f"the parts of a wait of {left_ns - entered_ns} ns do not fit: {dict(waits)}")
        with self._lock:
            compute_ns, blocked_ns = self._close_interval(entered_ns)
            totals = self._totals
            if not totals.steps:
                totals.first_step = step
                totals.first_entered_ns = entered_ns
                totals.first_wait_ns = left_ns - entered_ns
            totals.steps += 1
            totals.samples += sample_count
            totals.batch_bytes += batch_bytes
            totals.last_step = max(totals.last_step, step)
            totals.last_ns = left_ns
            for cause, part in waits.items():
                if part:
                    totals.waits_ns[cause] += part
            self._last_left_ns = left_ns
            parts[-1] = blocked_ns
            record = (totals.steps, step, entered_ns, left_ns, compute_ns, epoch, sample_count, batch_bytes)
            self._write(*pack_step(record, parts))
            self._publish()

    def record_end(self, entered_ns: int) -> None:
        """The loop is over: `next()` was entered at `entered_ns` and had nothing more. Closes the last compute."""
        with self._lock:
            self._close_interval(entered_ns)
            self._last_left_ns = None
            self._totals.last_ns = max(self._totals.last_ns, entered_ns)
            self._publish()

    def record_checkpoint(self, step: int, blocked_ns: int, staged_bytes: int) -> None:
        """A save stopped training for `blocked_ns`. Called in the training thread, when it goes on."""
        if blocked_ns < 0:
            raise InternalError(f"a save cannot block for {blocked_ns} ns")
        with self._lock:
            totals = self._totals
            self._blocked_ns += blocked_ns
            totals.waits_ns[Cause.CHECKPOINT] += blocked_ns
            totals.saves += 1
            totals.staged_bytes += staged_bytes
            totals.blocked_max_ns = max(totals.blocked_max_ns, blocked_ns)
            totals.last_ns = max(totals.last_ns, self._clock())
            self._write(*pack_save(SaveRecord(totals.saves, step, totals.last_ns, blocked_ns, staged_bytes)))
            self._publish()

    def add(self, counter: Counter, amount: int) -> None:
        """Count `amount` more; any thread. Costs 2.3 µs."""
        self.add_all({counter: amount})

    def add_all(self, amounts: Mapping[Counter, int], *, publish: bool = True) -> None:
        """Count these amounts more, at the cost of one. Without `publish` readers see it with the next call."""
        with self._lock:
            if self._memory is None:
                raise _closed()
            for counter, amount in amounts.items():
                self._totals.counters[counter] += amount
            if publish:
                self._publish()

    def snapshot(self) -> LedgerSnapshot:
        """The account now, with the records of the last steps; also after `close()`. About 10 ms."""
        return parse_ledger(self.image(), "this process")

    def image(self) -> bytes:
        """The bytes of the ledger now, as a file would hold them; also after `close()`. For a copy elsewhere."""
        with self._lock:
            return self._image if self._memory is None else self._memory[:]

    def close(self) -> None:
        """Mark the account as ended in order, and let go of the file. Idempotent; `snapshot` still works."""
        with self._lock:
            if self._memory is None:
                return
            self._totals.closed = 1
            self._totals.last_ns = max(self._totals.last_ns, self._clock())
            self._publish()
            try:
                self._image = self._memory[:]
            except MemoryError:  # then the mapping stays, which says the same
                return
            self._memory.close()
            self._memory = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _close_interval(self, entered_ns: int) -> tuple[int, int]:
        """Compute and blocked time since the last batch was handed over; counts the compute."""
        blocked_ns, self._blocked_ns = self._blocked_ns, 0
        if self._last_left_ns is None:
            return 0, 0
        compute_ns = max(0, entered_ns - self._last_left_ns - blocked_ns)
        self._totals.compute_ns += compute_ns
        if self._totals.steps == 1:
            self._totals.first_compute_ns = compute_ns
        return compute_ns, blocked_ns

    def _publish(self) -> None:
        self._sequence += 1
        self._write(*pack_totals(self._sequence, self._totals))

    def _write(self, offset: int, body: bytes) -> None:
        if self._memory is None:
            raise _closed()
        self._memory[offset : offset + len(body)] = body


def _closed() -> ClosedError:
    return ClosedError("the ledger is closed", hint="record nothing after close(); snapshot() still works")


def parse_ledger(image: bytes, where: str) -> LedgerSnapshot:
    """The ledger whose bytes are `image` (from `Ledger.image`, or a whole file).

    Raises FormatError, NewerFormat. About 10 ms.
    """
    snapshot = parse(image, where)
    if snapshot is None:
        raise FormatError("neither copy of a ledger's totals is whole", where, "the host died before they were stored")
    return snapshot


def read_ledger(path: Path) -> LedgerSnapshot:
    """The ledger in the file `path`, also while its process runs and after kill -9.

    Raises NotFound, AccessDenied, FormatError, NewerFormat. About 10 ms.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _translated(error, path) from error
    try:
        for _ in range(_READ_TRIES):
            snapshot = parse(os.pread(descriptor, LEDGER_BYTES + 1, 0), str(path))
            if snapshot is not None:
                return snapshot
    except OSError as error:
        raise _translated(error, path) from error
    finally:
        os.close(descriptor)
    raise FormatError("neither copy of a ledger's totals is whole", str(path), "the host died before they were stored")


def utilisation(snapshots: Iterable[LedgerSnapshot]) -> float | None:
    """Accelerator utilisation over ledgers by the formula of DLIO and MLPerf Storage, 0..1; None without counted steps.

    Compute of the counted steps divided by their running time. The first step of each start is not counted. As there,
    saves end a block of steps, so that the time they block is part of neither number.
    """
    compute_ns = running_ns = 0
    for snapshot in snapshots:
        totals = snapshot.totals
        counted_ns = totals.compute_ns - totals.first_compute_ns
        compute_ns += counted_ns
        running_ns += counted_ns + totals.wait_ns - totals.waits_ns[Cause.CHECKPOINT] - totals.first_wait_ns
    return compute_ns / running_ns if running_ns > 0 else None


def _map_new(path: Path) -> mmap.mmap:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, LEDGER_BYTES)
            return mmap.mmap(descriptor, LEDGER_BYTES, mmap.MAP_SHARED)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _translated(error, path) from error


def _translated(error: OSError, path: Path) -> StokerError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno == errno.ENOENT:
        return NotFound(f"no ledger: {reason.lower()}", str(path), "check the name of the run and its directory")
    if error.errno == errno.EEXIST:
        return AlreadyExists(
            "this rank and generation have a ledger already", str(path), "move it away, or choose another run name"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP):
        return AccessDenied(
            f"the ledger cannot be opened: {reason.lower()}", str(path), "check owner and mode of the directory"
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CapacityError(
            f"no room for a ledger of {LEDGER_BYTES} bytes: {reason.lower()}",
            str(path),
            "free some space, or choose another place for the nvme tier",
        )
    return StoreError(
        f"the ledger cannot be used: {reason.lower()}", str(path), "the nvme tier must be on an ordinary file system"
    )


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
