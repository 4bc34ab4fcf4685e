"""Samples without checksums: several are read at a time, where files are quick to read.

Handing a read to another thread, finding its file and translating what may go wrong cost more than reading 4 KiB from
the page cache: 20 us, 2.5 and 1.1. Windows of tokens are such reads, thousands a second from a handful of files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from stoker.errors import Truncated
from stoker.feed.fetch import SampleReader
from stoker.feed.plan import BatchPlan
from stoker.store.base import ScatteringStore, Store
from stoker.values import Key

# Rows that together take as long as a turn of the fetch pool, in which a thread reads one after the other anyway. On a
# slow mount, or while many of them come from a cold disk, every row is a read of its own, and they wait side by side.
_JOINED_S: Final = 0.001
_JOINED_MAX_COUNT: Final = 64
# A batch whose rows take no longer than this is read by the thread that planned it: 16 windows of 64 KiB, 0.1 ms of
# reading, cost 250 us of CPU less than with a thread of the pool, which waits for the interpreter lock after each. Only
# from the page cache: a disk has them sooner when several threads ask.
_HERE_S: Final = 0.002
_WARM_S: Final = 20e-6
_WARM_BYTE_S: Final = 1 / 4e9
# A thread that is preempted on busy cores, for 4 ms or more, seems to have waited for storage. Storage that has become
# slow shows in the next read, too.
_OUTLIER: Final = 4.0
_PREEMPTED_S: Final = 0.01
_WEIGHT: Final = 0.2  # of the newest read in the running mean


class Reader(Protocol):
    """`do` of the job that reads a batch, and how much there is to do."""

    def __len__(self) -> int:
        """How many reads."""

    def __call__(self, index: int) -> int:
        """Do one; returns its bytes."""


class RowPace:
    """Chooses how batches of a data set, whose `objects` lie in `store`, are read: by what rows cost lately.

    `joined(count)` is told of reads that are done in one.
    """

    def __init__(self, store: Store, objects: Sequence[Key], joined: Callable[[int], None]) -> None:
        self.objects = objects
        self.joined = joined
        self._store = store
        self._scattering = store if isinstance(store, ScatteringStore) else None  # to ask costs 10 us
        self._was_odd = False
        self.row_s = 0.0  # running mean

    def reader(self, plan: BatchPlan, memory: memoryview) -> Reader:
        """What reads a planned batch into `memory`."""
        if self._scattering is not None and self.joins(plan):
            most = min(_JOINED_MAX_COUNT, int(_JOINED_S / self.row_s)) if self.row_s else 1
            return RowReader(self, self._scattering, plan, memory, max(1, most))
        return SampleReader(self._store, self.objects, plan, memory)

    def learn(self, count: int, seconds: float) -> None:
        """So many rows took so long. For any thread: what two write at once is what either of them saw."""
        row_s = seconds / count
        odd = 0 < _OUTLIER * self.row_s < row_s and seconds < _PREEMPTED_S
        if odd and not self._was_odd:
            row_s = self.row_s
        self._was_odd = odd
        self.row_s += _WEIGHT * (row_s - self.row_s) if self.row_s else row_s
        if count > 1:
            self.joined(count - 1)

    def joins(self, plan: BatchPlan) -> bool:
        """Whether rows of a batch are read several at a time, where they are quick to read."""
        return self._scattering is not None and plan.crc32cs.size > 0 and not plan.has_checksums


class RowReader:
    """Reads at most `most` rows at a time, straight into their places."""

    def __init__(self, pace: RowPace, store: ScatteringStore, plan: BatchPlan, memory: memoryview, most: int) -> None:
        self._pace = pace
        self._store = store
        self._plan = plan
        numbers = plan.objects if len(plan.fields) == 1 else plan.objects.repeat(len(plan.fields))
        names = pace.objects
        self._keys = [names[number] for number in numbers.tolist()]
        self._offsets = plan.offsets.ravel().tolist()
        starts = plan.targets.ravel()
        stops = starts + plan.sizes.ravel()
        self._buffers = [memory[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
        self._most = most
        self._done = 0  # rows that are read already

    def __len__(self) -> int:
        return (len(self._keys) - self._done + self._most - 1) // self._most

    def __call__(self, index: int) -> int:
        """Read some rows. Raises what the store raises, and says which sample it is of."""
        start = self._done + index * self._most
        stop = min(start + self._most, len(self._keys))
        buffers = self._buffers[start:stop]
        begin_s = time.perf_counter()
        try:
            self._store.read_each(self._keys[start:stop], self._offsets[start:stop], buffers)
        except Truncated:
            self._read_alone(start, stop)  # raises the same, of one of them
            raise
        self._pace.learn(stop - start, time.perf_counter() - begin_s)
        return sum(map(len, buffers))

    def read_here(self) -> tuple[int, int]:
        """Read in this thread, but for what is left when that has taken too long; returns the reads done and bytes.

        Does nothing if the rows are expected to take long or to come from a disk, or nothing is known of them.
        """
        count = nbytes = 0
        row_s, rows = self._pace.row_s, len(self._keys)
        if not 0 < row_s < _WARM_S + self._plan.nbytes / rows * _WARM_BYTE_S or row_s * rows > _HERE_S:
            return 0, 0
        until_s = time.perf_counter() + _HERE_S
        while self._done < len(self._keys):
            nbytes += self(0)
            self._done = min(self._done + self._most, len(self._keys))
            count += 1
            if time.perf_counter() > until_s:
                break
        return count, nbytes

    def _read_alone(self, start: int, stop: int) -> None:
        for row in range(start, stop):
            try:
                self._store.read_each(self._keys[row : row + 1], [self._offsets[row]], [self._buffers[row]])
            except Truncated as error:
                error.sample_row, error.is_bad_sample = row // len(self._plan.fields), True
                raise
