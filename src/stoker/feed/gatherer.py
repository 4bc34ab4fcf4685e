"""Gathering a batch: whole units into frames, once each; then each sample from its frame to its place, and checked."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from stoker.dataset.distinct import distinct
from stoker.dataset.order import OrderedBatch
from stoker.dataset.places import NO_CHECKSUM
from stoker.dataset.readable import Readable
from stoker.errors import NotFound, StokerError, Truncated
from stoker.feed.fetch import FetchPool, Job, SampleReader
from stoker.feed.frames import Ahead, Frames
from stoker.feed.gather import NEAR_S, Gathering
from stoker.feed.plan import BatchPlan
from stoker.io.buffers import view
from stoker.io.checksum import crc32c_of_view

if TYPE_CHECKING:
    from stoker.feed.placement import Work

Done = Callable[["Work", BaseException | None], None]

# Near units are read in the planner's thread as long as the quickest took less: waking another costs as much as two.
_INLINE_S: Final = NEAR_S
_NOT_BEGUN: Final = 1 << 40
_ROW_MAX_BYTES: Final = 16 << 10  # copied twice at once; larger ones gain nothing by it


class Gatherer:
    """Fetches batches by whole units. `done(work, error)` is called once for each, in whatever thread was its last.

    Samples whose unit has no frame, could not be read, or does not match its checksum, are read by themselves: the
    errors of a batch are the same either way. `keeps`: there is a further epoch, as `Frames` wants to know.
    """

    def __init__(self, opened: Readable, gathering: Gathering, pool: FetchPool, done: Done, *, keeps: bool) -> None:
        assert gathering.units is not None
        self.units = gathering.units
        self.frames = Frames(gathering.units, gathering.frame_count, keeps=keeps)
        self.pool = pool
        self.done = done
        self.opened = opened
        self._first_sample = opened.blocks.first_sample
        self._ahead_count = gathering.ahead_count
        self._ahead_jobs: set[Job] = set()

    def fetch(self, work: Work) -> None:
        """Begin to fetch a batch that has its memory, or do all of it if its units are near. For one thread.

        Waits while batches before it hold all frames.
        """
        units = self._units_of(work.plan.ordered)
        error: BaseException | None = None
        try:
            frames = self.frames.at_hand(units)
            is_done = frames is not None and self._lay_out_rows(work, units, frames)
        except BaseException as raised:  # noqa: BLE001  thread boundary: raised where the batch is asked for
            error, is_done = raised, True
        if is_done:
            self.done(work, error)
        else:
            _Gathered(self, work, units).begin()

    def _lay_out_rows(self, work: Work, units: NDArray[np.int64], frames: NDArray[np.int64]) -> bool:
        """Copy the fields of a batch from its frames, and check them; False if that was not to be (see `copy_rows`)."""
        assert work.memory is not None
        plan, target = work.plan, view(work.memory)
        starts = self.starts_of(plan, units, frames)
        return all(copy_rows(self.frames.memory, target, starts[:, i], plan, i) for i in range(len(plan.fields)))

    def starts_of(self, plan: BatchPlan, units: NDArray[np.int64], frames: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the parts of a batch begin in the memory of frames: int64[n, f]."""
        starts: NDArray[np.int64] = (
            plan.offsets + (frames * self.frames.frame_bytes - self.units.offset[units])[:, None]
        )
        return starts

    def read_ahead(self, ordered: OrderedBatch, due: int) -> bool:
        """Begin to read the units of a batch that is `due` batches away; False if there is no room for all of them now.

        One that cannot be read is left to the batch, which then says why. For the thread that fetches.
        """
        ahead = self.frames.claim_ahead(self._units_of(ordered), self._ahead_count, due)
        if ahead.unit:
            job = Job(ordered.step, len(ahead.unit), partial(self._try, ahead), partial(self._end_ahead, ahead))
            self._ahead_jobs.add(job)
            self.pool.submit(job)
        return ahead.is_all

    def forget_ahead(self) -> None:
        """Other batches are wanted than those that units are being read for."""
        for job in tuple(self._ahead_jobs):
            self.pool.abandon(job)
        self.frames.forget_ahead()

    def _units_of(self, ordered: OrderedBatch) -> NDArray[np.int64]:
        blocks = np.searchsorted(self._first_sample, ordered.samples, side="right") - 1
        units: NDArray[np.int64] = self.units.of_block[blocks]
        return units

    def _try(self, ahead: Ahead, index: int) -> int:
        try:
            return self.read(ahead.unit[index], ahead.frame[index])
        except StokerError:
            return 0

    def _end_ahead(self, ahead: Ahead, job: Job) -> None:
        for frame in ahead.frame:
            self.frames.settle(frame, ready=False)  # no effect on those that were read
        self._ahead_jobs.discard(job)

    def read(self, unit: int, frame: int) -> int:
        """Read a unit into its frame; returns its bytes, 0 if its object ends earlier or is gone."""
        units, length = self.units, int(self.units.length[unit])
        ready = False
        try:
            key = self.opened.objects.keys[units.object[unit]]
            self.opened.store.read_into(key, int(units.offset[unit]), self.frames.view(frame, length))
            ready = True
        except (Truncated, NotFound):  # what of it is there may be enough; if not, the error names the sample
            return 0
        finally:
            self.frames.settle(frame, ready=ready)
        return length


class _Gathered:
    """One batch on its way: it waits for the units that it reads, and for those that others are reading."""

    __slots__ = ("_claim", "_error", "_gatherer", "_pending", "_units", "_work")

    def __init__(self, gatherer: Gatherer, work: Work, units: NDArray[np.int64]) -> None:
        self._gatherer = gatherer
        self._work = work
        self._units = units
        self._error: BaseException | None = None
        self._pending = _NOT_BEGUN  # units may arrive before it is known how many are awaited
        self._claim = gatherer.frames.claim(units, self._arrived, self._gives_up)

    def _gives_up(self) -> bool:
        return self._work.dropped or self._gatherer.pool.is_closed

    def begin(self) -> None:
        """Read the units that nobody reads yet."""
        gatherer, claim = self._gatherer, self._claim
        with gatherer.frames.lock:
            self._pending += claim.awaited + 1 - _NOT_BEGUN
        if claim.unit:
            if 0 < gatherer.pool.least_s < _INLINE_S:
                self._read_here()
            else:
                with gatherer.frames.lock:
                    self._pending += 1
                job = Job(self._work.step, len(claim.unit), self._read, self._have_read)
                self._submit(job)
        self._arrived()

    def _read(self, index: int) -> int:
        return self._gatherer.read(self._claim.unit[index], self._claim.frame[index])

    def _read_here(self) -> None:
        count = nbytes = 0
        begin = time.perf_counter()
        try:
            for count in range(1, len(self._claim.unit) + 1):
                nbytes += self._read(count - 1)
        except BaseException as error:  # noqa: BLE001  thread boundary: raised where the batch is asked for
            self._error = error
        took_s = time.perf_counter() - begin
        self._settle_rest()
        self._gatherer.pool.note(count, nbytes, took_s / count)

    def _have_read(self, job: Job) -> None:
        self._error = job.error
        self._work.dropped = self._work.dropped or job.abandoned
        self._settle_rest()
        self._arrived()

    def _settle_rest(self) -> None:
        for frame in self._claim.frame:
            self._gatherer.frames.settle(frame, ready=False)  # no effect on those that were read

    def _arrived(self) -> None:
        with self._gatherer.frames.lock:
            self._pending -= 1
            if self._pending:
                return
        self._work.job = None
        rest: NDArray[np.int64] | None = None
        try:
            if self._error is None and not self._work.dropped:
                rest = self._lay_out()
        except BaseException as error:  # noqa: BLE001  thread boundary: raised where the batch is asked for
            self._error = error
        self._gatherer.frames.release(self._claim.frames)
        if rest is None or not len(rest):
            self._gatherer.done(self._work, self._error)
        else:
            self._read_alone(rest)

    def _lay_out(self) -> NDArray[np.int64]:
        """Copy what lies in frames to its place, and check it there; returns the reads that are left."""
        gatherer, plan, frames = self._gatherer, self._work.plan, self._claim.frames
        assert self._work.memory is not None
        target = view(self._work.memory)
        width = len(plan.fields)
        ready = gatherer.frames.are_ready(frames)
        starts = gatherer.starts_of(plan, self._units, frames)
        if ready.all():
            same = [copy_rows(gatherer.frames.memory, target, starts[:, i], plan, i) for i in range(width)]
            if all(same):
                return np.zeros(0, np.int64)
        columns = starts, plan.targets, plan.sizes, plan.crc32cs
        places = zip(*(column[ready].ravel().tolist() for column in columns), strict=True)
        odd = copy_parts(gatherer.frames.memory, target, places)
        wrong = np.flatnonzero(np.repeat(ready, width))[odd]
        gatherer.frames.forget(frames[wrong // width])
        return distinct(np.concatenate((np.flatnonzero(np.repeat(~ready, width)), wrong)))

    def _read_alone(self, parts: NDArray[np.int64]) -> None:
        """Read the rest sample by sample."""
        opened, work = self._gatherer.opened, self._work
        assert work.memory is not None
        reader = SampleReader(opened.store, opened.objects.keys, work.plan, view(work.memory), parts)
        self._submit(Job(work.step, len(reader), reader, self._have_read_alone))

    def _have_read_alone(self, job: Job) -> None:
        self._work.job = None
        self._work.dropped = self._work.dropped or job.abandoned
        self._gatherer.done(self._work, job.error)

    def _submit(self, job: Job) -> None:
        self._work.job = job
        self._gatherer.pool.submit(job)
        if self._work.dropped:  # since it was looked at
            self._gatherer.pool.abandon(job)


def copy_rows(source: memoryview, target: memoryview, starts: NDArray[np.int64], plan: BatchPlan, column: int) -> bool:
    """Copy a field of all samples, whose bytes begin at `starts`, at once, and check it.

    False if that was not to be: samples of different or large sizes, or with other checksums than they should have.
    """
    sizes, expected = plan.sizes[:, column], plan.crc32cs[:, column]
    count, size, start = len(sizes), int(sizes[0]), plan.field_starts[column]
    if not 0 < size <= _ROW_MAX_BYTES or (sizes != size).any():
        return False
    # Every place of the memory as an item of `size` bytes: choosing some of them copies them, without a loop in Python.
    items = np.ndarray((len(source) - size + 1,), f"V{size}", buffer=source, strides=(1,))
    np.ndarray((count,), f"V{size}", buffer=target, offset=start)[:] = items[starts]
    if (expected == NO_CHECKSUM).all():
        return True
    crc32c = crc32c_of_view
    found = [crc32c(target[at : at + size]) for at in range(start, start + count * size, size)]
    if found == expected.tolist():
        return True
    return bool(((expected == found) | (expected == NO_CHECKSUM)).all())


def copy_parts(source: memoryview, target: memoryview, places: zip[tuple[int, int, int, int]]) -> list[int]:
    """Copy parts (start, target, size, crc32c) and check them; returns the numbers of those that are wrong."""
    wrong: list[int] = []
    crc32c = crc32c_of_view
    for number, (start, to, size, expected) in enumerate(places):
        stop = to + size
        target[to:stop] = source[start : start + size]
        if expected != NO_CHECKSUM and crc32c(target[to:stop]) != expected:
            wrong.append(number)
    return wrong
