"""Where every byte of a data set lies: shards and blocks are pure functions of the samples' extents.

An extent is what a sample takes in its shard, from its first tar header to its last padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.dataset.formats.tar import TRAILER
from stoker.units import KIB, MIB

Int64s: TypeAlias = NDArray[np.int64]

BLOCK_MIN_BYTES: Final = 64 * KIB
BLOCK_MAX_BYTES: Final = 8 * MIB
_BLOCKS_WANTED = 4096


@dataclass(frozen=True, slots=True)
class BlockTable:
    """The blocks of a data set, in manifest order: int64[n] each.

    Block i is bytes [offset, offset + length) of object `object` and holds samples
    [first_sample, first_sample + sample_count).
    """

    object: Int64s
    offset: Int64s
    length: Int64s
    first_sample: Int64s
    sample_count: Int64s

    def __len__(self) -> int:
        return len(self.object)


def choose_block_bytes(total_extent: int) -> int:
    """The smallest power of two >= total_extent / 4096, within 64 KiB .. 8 MiB."""
    wanted = -(-total_extent // _BLOCKS_WANTED)
    return min(max(1 << max(wanted - 1, 0).bit_length(), BLOCK_MIN_BYTES), BLOCK_MAX_BYTES)


def cut_shards(extents: Int64s, shard_bytes: int) -> Int64s:
    """The first sample of each shard, and the number of samples at the end: int64[shards + 1].

    A shard is closed before it, with the end of its archive, would pass `shard_bytes`; a larger sample gets a shard
    of its own.
    """
    return _runs(_starts(extents), 0, len(extents), shard_bytes - len(TRAILER))


def make_blocks(extents: Int64s, shards: Int64s, block_bytes: int) -> BlockTable:
    """Cut shards into blocks: the longest runs of whole samples of one shard whose extent is <= `block_bytes`.

    A larger sample is a block of its own. `extents` is int64[samples], `shards` as `cut_shards` returns it. Costs
    O(blocks * log(samples)).
    """
    starts = _starts(extents)
    runs = [_runs(starts, int(first), int(stop), block_bytes) for first, stop in pairwise(shards)]
    counts = np.array([len(run) - 1 for run in runs], dtype=np.int64)
    first = np.concatenate([run[:-1] for run in runs]) if runs else np.zeros(0, dtype=np.int64)
    stop = np.concatenate([run[1:] for run in runs]) if runs else np.zeros(0, dtype=np.int64)
    owner = np.repeat(np.arange(len(runs), dtype=np.int64), counts)
    return BlockTable(
        object=owner,
        offset=starts[first] - starts[shards[owner]],
        length=starts[stop] - starts[first],
        first_sample=first,
        sample_count=stop - first,
    )


def _starts(extents: Int64s) -> Int64s:
    starts = np.zeros(len(extents) + 1, dtype=np.int64)
    np.cumsum(extents, out=starts[1:])
    return starts


def _runs(starts: Int64s, first: int, stop: int, limit: int) -> Int64s:
    """Cut samples [first, stop) greedily into runs of at most `limit` bytes, at least one sample each."""
    cuts = [first]
    while cuts[-1] < stop:
        here = cuts[-1]
        there = int(np.searchsorted(starts, starts[here] + limit, side="right")) - 1
        cuts.append(min(max(there, here + 1), stop))
    return np.array(cuts, dtype=np.int64)
