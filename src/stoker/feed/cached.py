"""Reading what lies in the page cache already, in the thread that plans: it never waits for storage there.

A warm read of 100 KiB and its check take 15 us of CPU time. To have other threads do it costs a third as much again:
they are woken, wait for the interpreter lock, look each file up, and move what they work on from core to core.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.dataset.places import NO_CHECKSUM
from stoker.feed.plan import BatchPlan
from stoker.io.checksum import crc32c_of_view
from stoker.store.base import CachingStore
from stoker.values import Key

_RUN_MAX_BYTES: Final = 8 << 20  # some milliseconds, after which it is seen that a batch is not wanted any more
_MISSES_MAX: Final = 4  # after so many in one batch the rest of it is taken to be cold, too


class Runs(NamedTuple):
    """How the m parts of a batch are read: one object after the other.

    Attributes:
        order: int64[m], their numbers in the plan; what follows is in this order.
        cuts: where runs of parts of one object begin, and m.
        objects: the object of each run.
        offsets, starts, stops, crc32cs: of each part, where it lies, where it goes, and its checksum.
    """

    order: NDArray[np.int64]
    cuts: list[int]
    objects: list[int]
    offsets: list[int]
    starts: list[int]
    stops: list[int]
    crc32cs: list[int]


class Found(NamedTuple):
    """What of a batch was read: `done` reads of `nbytes`; `rest` int64[m] are the others, by their numbers in the
    plan. `can_tell` is False if the store does not know what lies in memory.
    """

    done: int
    nbytes: int
    rest: NDArray[np.int64]
    can_tell: bool


def order_runs(plans: Sequence[BatchPlan]) -> list[Runs]:
    """How each of several batches of the same size is read; costs little more than one."""
    width, count = len(plans[0].fields), plans[0].sizes.size
    rows = np.concatenate([plan.objects for plan in plans]).repeat(width).reshape(-1, count)
    order = np.argsort(rows, axis=1, kind="stable")
    flat = (order + np.arange(0, order.size, count)[:, None]).ravel()
    rows = rows.ravel()[flat]

    def sort(columns: list[NDArray[np.int64]]) -> NDArray[np.int64]:
        column: NDArray[np.int64] = np.concatenate(columns).ravel()[flat]
        return column

    sizes, starts = sort([plan.sizes for plan in plans]), sort([plan.targets for plan in plans])
    offsets, crc32cs = sort([plan.offsets for plan in plans]), sort([plan.crc32cs for plan in plans])
    stops = starts + sizes
    # No look-up reads more than it should: cut by the sum of bytes as well, and where the next batch begins.
    cell = (np.cumsum(sizes) - sizes) // _RUN_MAX_BYTES
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = (rows[1:] != rows[:-1]) | (cell[1:] != cell[:-1])
    begins[::count] = True
    found = []
    for number in range(len(plans)):
        here = slice(number * count, (number + 1) * count)
        cuts = np.flatnonzero(begins[here])
        parts = (column[here].tolist() for column in (offsets, starts, stops, crc32cs))
        found.append(Runs(order[number], [*cuts.tolist(), count], rows[here][cuts].tolist(), *parts))
    return found


def read_cached(
    store: CachingStore, objects: Sequence[Key], runs: Runs, memory: memoryview, gives_up: Callable[[], bool]
) -> Found:
    """Read and check the parts of a batch that lie in memory, those of one object with one look-up.

    Parts with another checksum than they should have are left, too: whoever reads them alone has the error.
    """
    starts, stops, expected = runs.starts, runs.stops, runs.crc32cs
    left: list[int] = []
    misses, can_tell = 0, True
    for number, (first, stop) in zip(runs.objects, pairwise(runs.cuts), strict=True):
        if misses >= _MISSES_MAX or gives_up():
            left += range(first, stop)
            continue
        buffers = [memory[starts[at] : stops[at]] for at in range(first, stop)]
        digests = store.read_cached(objects[number], runs.offsets[first:stop], buffers, crc32c_of_view)
        if digests is None:
            misses, can_tell, digests = _MISSES_MAX, False, []
        end = first + len(digests)
        if digests != (wanted := expected[first:end]):
            pairs = enumerate(zip(digests, wanted, strict=True), first)
            left += [at for at, (digest, want) in pairs if digest != want != NO_CHECKSUM]
        if end < stop:
            misses += 1
            left += range(end, stop)
    nbytes = sum(stops) - sum(starts) - sum(stops[at] - starts[at] for at in left)
    return Found(len(starts) - len(left), nbytes, np.sort(runs.order[left]), can_tell)
