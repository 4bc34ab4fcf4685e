"""Samples without checksums: several of one file are read at a time, where a file is quick to read.

Finding a file and translating what may go wrong cost more than reading 4 KiB of it from the page cache: 2.5 us and 1.1.
Windows of tokens are such reads, thousands a second from a handful of files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, Protocol

import numpy as np

from stoker.dataset.open import NO_CHECKSUM
from stoker.feed.fetch import SampleReader
from stoker.feed.plan import BatchPlan
from stoker.store.base import ScatteringStore, Store
from stoker.values import Key

# Rows that together take as long as a turn of the fetch pool, in which a thread reads one after the other anyway. On a
# slow mount, or while many of them come from a cold disk, every row is a read of its own, and they wait side by side.
_JOINED_S: Final = 0.001
_JOINED_MAX_COUNT: Final = 64
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
        self.row_s = 0.0  # running mean

    def reader(self, plan: BatchPlan, memory: memoryview) -> Reader:
        """What reads a planned batch into `memory`."""
        if self._scattering is not None and plan.crc32cs.size and int(plan.crc32cs.max()) == NO_CHECKSUM:
            most = min(_JOINED_MAX_COUNT, int(_JOINED_S / self.row_s)) if self.row_s else 1
            return RowReader(self, self._scattering, plan, memory, max(1, most))
        return SampleReader(self._store, self.objects, plan, memory)

    def learn(self, count: int, seconds: float) -> None:
        """So many rows took so long. For any thread: what two write at once is what either of them saw."""
        row_s = seconds / count
        self.row_s += _WEIGHT * (row_s - self.row_s) if self.row_s else row_s
        if count > 1:
            self.joined(count - 1)


class RowReader:
    """Reads at most `most` rows of one file at a time, straight into their places."""

    def __init__(self, pace: RowPace, store: ScatteringStore, plan: BatchPlan, memory: memoryview, most: int) -> None:
        self._pace = pace
        self._store = store
        rows = plan.objects.repeat(len(plan.fields))
        order = np.argsort(rows, kind="stable") if len(pace.objects) > 1 else slice(None)
        rows = rows[order]
        self._offsets = plan.offsets.ravel()[order].tolist()
        starts = plan.targets.ravel()[order]
        stops = starts + plan.sizes.ravel()[order]
        self._buffers = [memory[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
        edges = [0, *(np.flatnonzero(rows[1:] != rows[:-1]) + 1).tolist(), len(rows)]
        self._parts = [
            (pace.objects[rows[first]], at, min(at + most, stop))
            for first, stop in pairwise(edges)
            for at in range(first, stop, most)
        ]

    def __len__(self) -> int:
        return len(self._parts)

    def __call__(self, index: int) -> int:
        """Read some rows. Raises what the store raises."""
        key, start, stop = self._parts[index]
        buffers = self._buffers[start:stop]
        begin_s = time.perf_counter()
        self._store.read_each(key, self._offsets[start:stop], buffers)
        self._pace.learn(stop - start, time.perf_counter() - begin_s)
        return sum(map(len, buffers))
