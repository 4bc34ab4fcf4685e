"""Reading what lies in the page cache already, in the thread that plans: it never waits for storage there.

A warm read of 100 KiB is 11 us of copying. To have other threads do it costs half as much again: they are woken, wait
for the interpreter lock, and move what they work on from core to core.
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


class Found(NamedTuple):
    """What of a batch was read: `done` reads of `nbytes`; `rest` int64[m] are the others, by their numbers in the
    plan. `can_tell` is False if the store does not know what lies in memory.
    """

    done: int
    nbytes: int
    rest: NDArray[np.int64]
    can_tell: bool


def read_cached(
    store: CachingStore, objects: Sequence[Key], plan: BatchPlan, memory: memoryview, gives_up: Callable[[], bool]
) -> Found:
    """Read and check the parts of a batch that lie in memory, those of one object with one look-up.

    Parts with another checksum than they should have are left, too: whoever reads them alone has the error.
    """
    rows = plan.objects.repeat(len(plan.fields))
    order = np.argsort(rows, kind="stable")
    rows, sizes, targets = rows[order], plan.sizes.ravel()[order], plan.targets.ravel()[order]
    buffers = [memory[start:stop] for start, stop in zip(targets.tolist(), (targets + sizes).tolist(), strict=True)]
    offsets, expected = plan.offsets.ravel()[order].tolist(), plan.crc32cs.ravel()[order].tolist()
    left: list[int] = []
    misses, can_tell = 0, True
    for first, stop in pairwise(_cut(rows, sizes)):
        if misses >= _MISSES_MAX or gives_up():
            left += range(first, stop)
            continue
        key = objects[int(rows[first])]
        digests = store.read_cached(key, offsets[first:stop], buffers[first:stop], crc32c_of_view)
        if digests is None:
            misses, can_tell, digests = _MISSES_MAX, False, []
        end = first + len(digests)
        if digests != (wanted := expected[first:end]):
            pairs = enumerate(zip(digests, wanted, strict=True), first)
            left += [at for at, (digest, want) in pairs if digest != want != NO_CHECKSUM]
        if end < stop:
            misses += 1
            left += range(end, stop)
    return Found(len(order) - len(left), int(sizes.sum() - sizes[left].sum()), np.sort(order[left]), can_tell)


def _cut(rows: NDArray[np.int64], sizes: NDArray[np.int64]) -> list[int]:
    """Where to cut parts, sorted by their objects `rows`, so that each piece is of one object and not too large."""
    cell = (np.cumsum(sizes) - sizes) // _RUN_MAX_BYTES
    return [0, *(np.flatnonzero((rows[1:] != rows[:-1]) | (cell[1:] != cell[:-1])) + 1).tolist(), len(rows)]
