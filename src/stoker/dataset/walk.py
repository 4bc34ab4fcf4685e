"""Walking through an order step by step at about two hashes a sample, in bounded memory.

A walk holds what makes the next step cheap: the piece order of the last two epochs, and a stretch of every lane that
was asked for. It never changes what a step holds, only what finding it costs. Walks are not thread-safe.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.dataset.lanes import EpochPieces, Lanes, cut_lanes, lane_stretch, order_epoch
from stoker.dataset.splitmix import Hasher, Purpose

SampleNumbers: TypeAlias = NDArray[np.uint32] | NDArray[np.int64]

EPOCHS_KEPT: Final = 2  # prefetch reaches into the next epoch while this one is still being read
# Sample numbers kept over all lanes. Up to the most, a stretch is two windows long: 2 hashes a sample. At the most it
# is still one window, 3 hashes, if samples take 1 KiB or more (a window is at most 16 GiB), as all do in tar.
KEPT_LEAST: Final = 1 << 18
KEPT_MOST: Final = 1 << 24


class Walk(Protocol):
    """How an epoch is gone through; `step` counts within the epoch, `start` and `stop` within the global batch."""

    def take(self, epoch: int, step: int, start: int, stop: int, count: int = 1) -> NDArray[np.int64]:
        """Samples in slots [start, stop) of `count` global batches from `step` on: a new int64[count, stop - start]."""


def compact(samples: NDArray[np.int64], sample_count: int) -> SampleNumbers:
    """The same numbers in 4 bytes each if those of `sample_count` samples fit, so that twice as many can be kept."""
    return samples.astype(np.uint32) if sample_count <= 1 << 32 else samples


class ExactWalk:
    """The epoch sorted by h(3, e, sample), which never ties.

    N hashes and a sort an epoch; 4 bytes a sample and epoch kept, about 24 while it sorts.
    """

    def __init__(self, sample_count: int, batch_size: int, hasher: Hasher) -> None:
        self._sample_count = sample_count
        self._batch_size = batch_size
        self._hasher = hasher
        self._epochs: OrderedDict[int, SampleNumbers] = OrderedDict()

    def take(self, epoch: int, step: int, start: int, stop: int, count: int = 1) -> NDArray[np.int64]:
        """Samples in slots [start, stop) of `count` global batches from `step` on: int64[count, stop - start]."""
        samples = self._epochs.get(epoch)
        if samples is None:
            _make_room(self._epochs)
            keys = self._hasher.hash(Purpose.SAMPLE, epoch, np.arange(self._sample_count))
            samples = compact(np.argsort(keys), self._sample_count)
            self._epochs[epoch] = samples
        begin = step * self._batch_size
        batches = samples[begin : begin + count * self._batch_size].reshape(count, self._batch_size)
        return batches[:, start:stop].astype(np.int64)


class _Stretch(NamedTuple):
    """Samples at positions [start, start + len(samples)) of a lane in an epoch."""

    epoch: int
    start: int
    samples: SampleNumbers

    def holds(self, epoch: int, start: int, stop: int) -> bool:
        return epoch == self.epoch and self.start <= start and stop <= self.start + self.samples.size


class WindowWalk:
    """The window rule: slots [i * B/G, (i+1) * B/G) of a batch are the next samples of lane i.

    Only the lanes that a rank's slots lie in are worked on and kept.
    """

    def __init__(
        self, block_samples: NDArray[np.int64], *, lane_count: int, batch_size: int, window: int, hasher: Hasher
    ) -> None:
        self._hasher = hasher
        self._block_count = block_samples.size
        self._window = window
        self._lanes: Lanes = cut_lanes(block_samples, lane_count, hasher)
        self._sample_count = int(self._lanes.cuts[-1])
        self._lane_slots = batch_size // lane_count
        self._steps = self._sample_count // batch_size
        wanted = max(2 * window * lane_count * self._sample_count // self._lanes.block.size, KEPT_LEAST)
        self._stretch_steps = max(1, min(wanted, KEPT_MOST) // batch_size)
        self._epochs: OrderedDict[int, EpochPieces] = OrderedDict()
        self._stretches: dict[int, _Stretch] = {}

    def take(self, epoch: int, step: int, start: int, stop: int, count: int = 1) -> NDArray[np.int64]:
        """Samples in slots [start, stop) of `count` global batches from `step` on: int64[count, stop - start]."""
        slots = self._lane_slots
        taken = np.empty((count, stop - start), np.int64)
        for lane in range(start // slots, -(-stop // slots)):
            low, high = max(start, lane * slots), min(stop, (lane + 1) * slots)
            done = 0
            while done < count:  # a stretch may end between the first step and the last
                stretch = self._stretch(epoch, lane, step + done)
                begin = (step + done) * slots - stretch.start
                here = min(count - done, (stretch.samples.size - begin) // slots)
                rows = stretch.samples[begin : begin + here * slots].reshape(here, slots)
                taken[done : done + here, low - start : high - start] = rows[
                    :, low - lane * slots : high - lane * slots
                ]
                done += here
        return taken

    def _stretch(self, epoch: int, lane: int, step: int) -> _Stretch:
        slots = self._lane_slots
        stretch = self._stretches.get(lane)
        if stretch is not None and stretch.holds(epoch, step * slots, (step + 1) * slots):
            return stretch
        # Lanes renew their stretches at different steps, even neighbours (multiples of the golden ratio, 40503/65536):
        # all 512 at once would hold up one step in thousands by seconds.
        shift = (lane * 40503 % 65536) * self._stretch_steps // 65536
        stop = min(self._steps, step + self._stretch_steps - (step + shift) % self._stretch_steps)
        samples = lane_stretch(self._pieces(epoch), lane, (step * slots, stop * slots), self._window, self._hasher)
        stretch = _Stretch(epoch, step * slots, compact(samples, self._sample_count))
        self._stretches[lane] = stretch
        return stretch

    def _pieces(self, epoch: int) -> EpochPieces:
        pieces = self._epochs.get(epoch)
        if pieces is None:
            _make_room(self._epochs)
            pieces = order_epoch(self._lanes, self._block_count, epoch, self._hasher)
            self._epochs[epoch] = pieces
        return pieces


def _make_room(epochs: OrderedDict[int, EpochPieces] | OrderedDict[int, SampleNumbers]) -> None:
    while len(epochs) >= EPOCHS_KEPT:
        epochs.popitem(last=False)
