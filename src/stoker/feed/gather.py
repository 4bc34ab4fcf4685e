"""Whether samples are read one by one, or gathered from units that are read whole. Only choices: no I/O, no clock.

A unit is a block, or adjacent blocks of one object. Read whole and kept for as long as samples of it are wanted, it
saves a request for each of them, and costs memory: under the window order as many units are open at a time as a rank
reads lanes, times the window (docs/reference/order.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.dataset.layout import BLOCK_MAX_BYTES, Int64s
from stoker.dataset.order import Order
from stoker.dataset.readable import Blocks
from stoker.dataset.recipe import Shuffle
from stoker.io.memory import align
from stoker.units import MIB
from stoker.values import Layout

NEAR_S: Final = 0.001  # a store whose small reads take less is read at the price of the CPU, not of its latency
# What things cost, measured on warm files: a small read and what is around it, a byte of one, a copy of a field.
_READ_S: Final = 8e-6
_COPY_S: Final = 0.4e-6
# The same of rows without checksums, which are read several in a turn (feed/rows.py) and copied at once.
_ROW_READ_S: Final = 2e-6
_ROW_COPY_S: Final = 0.15e-6
_NEAR_BYTE_S: Final = 1 / 8e9
_SLACK: Final = 1.25
_WORTH: Final = 0.75  # what a way must cost of the one before it: larger units delay the first batch
# One stream from a store that is far: a request that moves as many bytes as this does in its latency is half used.
_FAR_BYTE_S: Final = 1 / (50 * MIB)


@dataclass(frozen=True, slots=True)
class Pattern:
    """What one of `rank_count` ranks reads: `share` samples of each global batch, out of `lane_count` lanes.

    `lane_ratio` is the part of a lane that is this rank's: 1 unless there are more ranks than lanes.
    """

    shuffle: Shuffle
    window: int
    lane_count: int
    lane_ratio: float
    share: int
    rank_count: int


class ReadFacts(NamedTuple):
    """What the choice depends on besides the blocks.

    Attributes:
        field_count: reads a sample, if it is read by itself.
        sample_bytes: bytes of these fields in the mean.
        latency_s: what a small read takes.
        ahead_bytes: batches that are read ahead of use.
        threads: reads in flight at most.
        gather_bytes: memory for units; a limit.
        rows: whether these are rows without checksums, of which several are read in a turn.
    """

    field_count: int
    sample_bytes: float
    latency_s: float
    ahead_bytes: int
    threads: int
    gather_bytes: int
    rows: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """Runs of blocks that are read whole.

    Attributes:
        of_block: int64[blocks], the unit a block is in.
        object, offset, length, sample_count: int64[units], where a unit lies, and the samples in it.
        usable: bool[units], False where samples are read by themselves: units of one sample, or of no single object.
        frame_bytes: memory a unit takes.
    """

    of_block: Int64s
    object: Int64s
    offset: Int64s
    length: Int64s
    sample_count: Int64s
    usable: NDArray[np.bool_]
    frame_bytes: int


class Gathering(NamedTuple):
    """What was chosen: `frame_count` units at a time of `units`; None: each sample by itself.

    `needed_bytes` is the memory for the units that would have been gathered, had there been as much; 0 if gathering
    would not pay. `ahead_count` units may be read before there is a batch that needs them: what storage that is far
    has in flight, and what makes up for units that come late, must not depend on how many batches there is memory for.
    """

    units: Units | None
    frame_count: int
    needed_bytes: int
    ahead_count: int = 0

    @property
    def holds_all(self) -> bool:
        """Whether every unit has a frame of its own."""
        return self.units is not None and self.frame_count >= int(self.units.usable.sum())


def pattern_of(order: Order, layout: Layout) -> Pattern:
    """What a rank of `layout` reads."""
    size = order.recipe.global_batch_size
    share, slots = size // layout.dp_size, size // order.lanes
    start = layout.dp_rank * share
    lane_count = -(-(start + share) // slots) - start // slots
    ratio = min(1.0, share / slots)
    return Pattern(order.recipe.shuffle, order.recipe.window, lane_count, ratio, share, layout.dp_size)


def choose_units(blocks: Blocks, readable: NDArray[np.bool_], pattern: Pattern, facts: ReadFacts) -> Gathering:
    """The cheapest way to read that fits `facts.gather_bytes`. `readable` bool[objects]: can be read across samples.

    Costs O(blocks) for each size tried: one for near stores, up to eight for far ones. The cost of a way is the time
    of requests and bytes for a sample; what bytes are read that other ranks want is part of it.
    """
    read_s, copy_s = (_ROW_READ_S, _ROW_COPY_S) if facts.rows else (_READ_S, _COPY_S)
    direct_s = _cost_s(facts, facts.field_count, facts.sample_bytes, read_s)
    best, best_s, needed = None, direct_s, 0
    spans = [0]
    if facts.latency_s >= NEAR_S:
        spans += [1 << bits for bits in range(17, BLOCK_MAX_BYTES.bit_length())]
    for span_bytes in spans:
        units = cut_units(blocks, readable, span_bytes)
        if not units.usable.any():
            continue
        unit_bytes = float(units.length[units.usable].mean())
        samples = float(units.sample_count[units.usable].mean())
        used = samples * _used_ratio(pattern, samples, whole=span_bytes > 0)
        copies_s = facts.field_count * copy_s + facts.sample_bytes * _NEAR_BYTE_S
        gathered_s = _cost_s(facts, 1 / used, unit_bytes / used, _READ_S) + copies_s
        ratio = float(units.sample_count[units.usable].sum() / units.sample_count.sum())
        cost_s = ratio * gathered_s + (1 - ratio) * direct_s
        if cost_s >= _WORTH * best_s:
            continue
        # Near units are read when they are needed; far ones as long before as batches are, as many as are in flight.
        ahead = 0 if facts.latency_s < NEAR_S else min(facts.threads, int(facts.ahead_bytes / unit_bytes))
        open_count = _open_count(pattern, units, samples, whole=span_bytes > 0)
        frames = min(int(units.usable.sum()), open_count + ahead)
        if frames * units.frame_bytes > facts.gather_bytes:
            needed = min(needed or frames * units.frame_bytes, frames * units.frame_bytes)
            continue
        best, best_s = (units, frames, open_count), cost_s
    if best is None:
        return Gathering(None, 0, needed)
    units, frames, open_count = best
    # All of them, if they fit, so that the next epoch reads nothing; else as many as help, also if reads turn out slow.
    most, count = facts.gather_bytes // units.frame_bytes, int(units.usable.sum())
    frame_count = count if count <= most else min(most, int(_SLACK * frames) + facts.threads)
    ahead = 0
    if facts.latency_s >= NEAR_S and facts.ahead_bytes:
        ahead = min(facts.threads, frame_count - (0 if frame_count == count else open_count))
    return Gathering(units, frame_count, frames * units.frame_bytes, ahead)


def cut_units(blocks: Blocks, readable: NDArray[np.bool_], span_bytes: int) -> Units:
    """Units of the blocks that begin in one stretch of `span_bytes` of one object; 0: each block is one.

    The last block of a unit may reach beyond the stretch; units that reach as far again are not usable, nor are those
    of a single sample.
    """
    starts = np.ones(len(blocks), np.bool_)
    if span_bytes:
        cell = blocks.offset // span_bytes
        starts[1:] = (blocks.object[1:] != blocks.object[:-1]) | (cell[1:] != cell[:-1])
    first = np.flatnonzero(starts)
    last = np.append(first[1:], len(blocks)) - 1
    offset = blocks.offset[first]
    length = blocks.offset[last] + blocks.length[last] - offset
    samples = blocks.first_sample[last] + blocks.sample_count[last] - blocks.first_sample[first]
    usable = readable[blocks.object[first]] & (samples > 1) & (length <= (2 * span_bytes or BLOCK_MAX_BYTES))
    frame_bytes = align(int(length[usable].max())) if usable.any() else 0
    return Units(np.cumsum(starts) - 1, blocks.object[first], offset, length, samples, usable, frame_bytes)


def _cost_s(facts: ReadFacts, requests: float, nbytes: float, near_s: float) -> float:
    """Time of `requests` for `nbytes`: `near_s` each where the store is near."""
    near = facts.latency_s < NEAR_S
    request_s, byte_s = (near_s, _NEAR_BYTE_S) if near else (facts.latency_s, _FAR_BYTE_S)
    return requests * request_s + nbytes * byte_s


def _used_ratio(pattern: Pattern, samples: float, *, whole: bool) -> float:
    """How many of the samples of a unit are this rank's, at least one of them."""
    if pattern.shuffle is False:  # runs of `share` samples, then as many of each other rank
        ratio = 1.0 if pattern.rank_count == 1 else min(1.0, pattern.share / (pattern.share + samples))
        ratio = max(ratio, 1 / pattern.rank_count)
    elif whole or pattern.shuffle == "exact":
        ratio = 1 / pattern.rank_count
    else:  # of a lane that several ranks share each reads a part
        ratio = pattern.lane_ratio
    return max(ratio, 1 / samples)


def _open_count(pattern: Pattern, units: Units, samples: float, *, whole: bool) -> int:
    """Units that are open at a time: those that the order goes back to."""
    count = int(units.usable.sum())
    if pattern.shuffle is False:
        return min(count, 2 * (int(pattern.share / samples) + 2))
    if whole or pattern.shuffle == "exact":
        return count  # adjacent blocks stand anywhere in the epoch
    # Keys of a piece spread over W places, so W pieces of a lane are open, one or two of them cut by the lane's ends.
    return min(count, pattern.lane_count * (pattern.window + 2))
