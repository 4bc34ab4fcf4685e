"""The window rule of the order, as pure functions: lanes, the pieces of an epoch, and any stretch of a lane.

docs/reference/order.md is the rule in words. Positions here count over all lanes: lane g holds positions
[cuts[g], cuts[g+1]), in the order of the run as in the order of every epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.dataset.distinct import distinct
from stoker.dataset.splitmix import Hasher, Purpose


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """The run order cut into G lanes: m pieces of n blocks, lane after lane. 24 bytes a piece.

    `block` int64[m]: the block a piece is of; `first` int64[m]: its first sample; `size` int64[m]: its samples.
    `cuts` int64[G+1]: where lanes begin, in samples; `pieces` int64[G+1]: the same in pieces.
    """

    block: NDArray[np.int64]
    first: NDArray[np.int64]
    size: NDArray[np.int64]
    cuts: NDArray[np.int64]
    pieces: NDArray[np.int64]

    @property
    def count(self) -> int:
        """G."""
        return self.cuts.size - 1


class EpochPieces(NamedTuple):
    """The pieces of every lane in the order of one epoch. 16 bytes a piece.

    `first` int64[m]: the first sample of a piece; `prefix` int64[m+1]: samples before it, over all lanes.
    """

    lanes: Lanes
    epoch: int
    first: NDArray[np.int64]
    prefix: NDArray[np.int64]


def cut_lanes(block_samples: NDArray[np.int64], lane_count: int, hasher: Hasher) -> Lanes:
    """Blocks by (h(1, 0, block), block), their samples end to end, cut at g * N // G. n hashes and a sort of them.

    A block under a cut becomes a piece in each lane it reaches; no lane holds two pieces of one block.
    """
    hashes = hasher.hash(Purpose.RUN, 0, np.arange(block_samples.size))
    run_order = np.argsort(hashes)  # no ties: for one purpose and epoch h is one-to-one
    block_stop = np.cumsum(block_samples)
    run_stop = np.cumsum(block_samples[run_order])
    sample_count = int(run_stop[-1])
    cuts = np.array([g * sample_count // lane_count for g in range(lane_count + 1)], np.int64)
    edges = distinct(np.concatenate((cuts, run_stop)))
    at = np.searchsorted(run_stop, edges[:-1], side="right")
    block = run_order[at]
    # The distance of a piece from the end of its block is the same in the run order and in the data set.
    first = block_stop[block] - (run_stop[at] - edges[:-1])
    return Lanes(block, first, np.diff(edges), cuts, np.searchsorted(edges, cuts))


def order_epoch(lanes: Lanes, block_count: int, epoch: int, hasher: Hasher) -> EpochPieces:
    """The pieces of each lane by (h(2, e, block), block). n hashes and a sort of m pieces."""
    hashes = hasher.hash(Purpose.BLOCK, epoch, np.arange(block_count))
    lane = np.repeat(np.arange(lanes.count), np.diff(lanes.pieces))
    order = np.lexsort((hashes[lanes.block], lane))  # a lane holds a block once, so there are no ties
    prefix = np.zeros(order.size + 1, np.int64)
    np.cumsum(lanes.size[order], out=prefix[1:])
    return EpochPieces(lanes, epoch, lanes.first[order], prefix)


def reachable(prefix: NDArray[np.int64], window: int, start: int, stop: int) -> tuple[int, int]:
    """The pieces [low, high) of one lane that can have samples at its sorted positions [start, stop).

    `prefix` int64[m+1] are the samples before each of the lane's m pieces. Proof: the keys of piece p lie in
    [p << 32, (p + W) << 32), because W * (h >> 32) < W << 32. So every sample of pieces 0 .. p-W stands before all
    samples of p, and every sample of pieces p+W .. m-1 behind them. A sample of p has at least prefix[p-W+1] samples
    before it, and fewer than prefix[p+W] (indices kept within 0 .. m): it can stand in [start, stop) only if
    prefix[p+W] > start and prefix[p-W+1] < stop. Both hold for one run of pieces, as prefix rises.

    With piece s holding position start and piece t holding stop - 1, that is s-W+1 .. t+W-1: the spanned pieces and
    2W - 2 more. All samples of pieces below `low` stand before `start`, all from `high` on behind `stop` - 1; hence
    position k of the lane is position k - prefix[low] of the samples of [low, high) sorted by themselves.
    """
    holds_start = int(np.searchsorted(prefix, start, side="right")) - 1
    holds_last = int(np.searchsorted(prefix, stop, side="left")) - 1
    return max(0, holds_start - window + 1), min(prefix.size - 1, holds_last + window)


def lane_stretch(
    pieces: EpochPieces, lane: int, span: tuple[int, int], window: int, hasher: Hasher
) -> NDArray[np.int64]:
    """Samples at positions `span` = [start, stop) of a lane in this epoch, 0 <= start < stop <= the lane's samples.

    Hashes and sorts the samples of the reachable pieces: about 100 ns each, and 40 bytes while it lasts.
    """
    offset = int(pieces.lanes.cuts[lane])
    here = slice(int(pieces.lanes.pieces[lane]), int(pieces.lanes.pieces[lane + 1]) + 1)
    prefix = pieces.prefix[here]
    start, stop = span[0] + offset, span[1] + offset
    low, high = reachable(prefix, window, start, stop)
    first = pieces.first[here][low:high]
    size = np.diff(prefix[low : high + 1])
    # Pieces by their first sample: then all samples ascend, and a stable sort by key keeps ties in sample order.
    ascending = np.argsort(first)
    first, size = first[ascending], size[ascending]
    samples = np.arange(int(size.sum()))
    samples += np.repeat(first - (np.cumsum(size) - size), size)
    keys = hasher.hash(Purpose.SAMPLE, pieces.epoch, samples)
    keys >>= np.uint64(32)
    keys *= np.uint64(window)
    keys += np.repeat((low + ascending).astype(np.uint64) << np.uint64(32), size)
    skipped = int(prefix[low])
    chosen = np.argsort(keys, kind="stable")[start - skipped : stop - skipped]
    return samples[chosen]
