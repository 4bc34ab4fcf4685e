"""`Order`: which samples are in global batch t, as a pure function of manifest, recipe, epoch and t.

The rule is order version 1, stated in docs/reference/order.md and pinned for ever by tests/format/golden/order-v1.json.
Ranks, workers and restarts cannot change it: they only ask for slices of it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from stoker.dataset.recipe import ORDER_VERSION, Recipe, Shuffle, check_blocks, is_digest, plan_lanes, plan_recipe
from stoker.dataset.splitmix import Hasher
from stoker.dataset.walk import ExactWalk, Walk, WindowWalk
from stoker.errors import ConfigError, EmptyDataset, LayoutError
from stoker.values import whole_number

if TYPE_CHECKING:  # who feeds has no position
    from stoker.dataset.position import Position

__all__ = ["ORDER_VERSION", "Order", "OrderedBatch", "Recipe", "Shuffle", "plan_recipe"]

# Slices of batches that can be asked for again at no cost: readers a few steps apart share one order without undoing
# each other's work. 2 MiB, and at least the last one.
_RECENT_SAMPLES: Final = 1 << 18
_RECENT_COUNT: Final = 80  # 64 that were asked for, and what was made ahead
# Who asks for one step after another is given several at once: it costs what one does.
_AHEAD_COUNT: Final = 16
_AHEAD_SAMPLES: Final = 1 << 14


@dataclass(frozen=True, slots=True, eq=False)
class OrderedBatch:
    """One global batch, or a rank's slice of it; arrays are read-only.

    `samples` int64[size]: sample numbers in manifest order; `valid` bool[size]: False for the pads of an evaluation.
    """

    step: int
    epoch: int
    samples: NDArray[np.int64]
    valid: NDArray[np.bool_]


class Order:
    """The order of one data set under one recipe. Thread-safe.

    `block_samples` int64[n]: samples of each block, in manifest order; the first sample of a block is the sum of those
    before it. `block_bytes` and `manifest_digest` are the manifest's.

    Cost: n hashes at once, n when an epoch is first asked for; a first step hashes the samples of at most 2W blocks a
    lane and those it keeps for later, and steps that follow one another cost 2 to 3 hashes a sample ('exact': N
    hashes an epoch). Memory: 56 bytes a block and at most 2^24 sample numbers ('exact': 8 bytes a sample, more while
    it sorts). Manifest order costs nothing. Ranks pay only for the lanes they read.

    Raises EmptyDataset for no sample or, in training, fewer than one global batch; ConfigError for a recipe that is
    not the one `plan_recipe` gives for this data set.
    """

    def __init__(
        self, block_samples: NDArray[np.int64], recipe: Recipe, *, block_bytes: int, manifest_digest: str
    ) -> None:
        blocks = check_blocks(block_samples)
        _check_recipe(blocks, block_bytes, recipe)
        if not is_digest(manifest_digest):
            raise ConfigError(f"not a digest: {manifest_digest!r}", hint="give the digest of the data set's manifest")
        self.recipe = recipe
        self.manifest_digest = manifest_digest
        self.lanes = plan_lanes(blocks.size, recipe.global_batch_size, recipe.shuffle)
        self.sample_count = int(blocks.sum())
        self.steps_per_epoch = _count_steps(self.sample_count, recipe)
        self._hasher = Hasher(recipe.seed)
        self._walk = self._start_walk(blocks)
        self._lock = threading.Lock()
        self._recent: OrderedDict[tuple[int, int, int], NDArray[np.int64]] = OrderedDict()
        self._recent_size = 0  # samples in it
        self._valid: dict[int, NDArray[np.bool_]] = {}
        self._last: tuple[int, int, int] | None = None

    def _start_walk(self, blocks: NDArray[np.int64]) -> Walk | None:
        size = self.recipe.global_batch_size
        if self.recipe.shuffle is False:
            return None
        if self.recipe.shuffle == "exact":
            return ExactWalk(self.sample_count, size, self._hasher)
        return WindowWalk(
            blocks, lane_count=self.lanes, batch_size=size, window=self.recipe.window, hasher=self._hasher
        )

    @property
    def hash_count(self) -> int:
        """Blocks and samples hashed since this order was made."""
        return self._hasher.count

    def batch(self, step: int) -> OrderedBatch:
        """Global batch `step`, which counts from 0 over the whole run. Raises ConfigError for what is no step."""
        return self.rank_batch(step, 0, 1)

    def rank_batch(self, step: int, rank: int, size: int) -> OrderedBatch:
        """What `rank` of `size` ranks reads of global batch `step`: always B / size samples.

        Training: slots [rank * B/size, (rank+1) * B/size) of `batch(step)`. Evaluation: the same, but for the last
        step of an epoch, whose pads are dealt round robin; each rank's pads follow its real samples, and the valid
        samples of all ranks, rank after rank, are those of the batch.
        Raises LayoutError if `rank` is not one of `size`, or `size` does not divide B.
        """
        share = self._share(rank, size)
        number = whole_number(step)
        if number is None or number < 0:
            raise ConfigError(f"step is {step!r}", hint="steps count from 0 over the whole run")
        step = number
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        if self._walk is None:
            samples, valid = self._in_manifest_order(step_in_epoch, rank, size)
        else:
            samples = self._recall(self._walk, step, rank * share, (rank + 1) * share)
            valid = self._every(share)
        samples.flags.writeable = False
        valid.flags.writeable = False
        return OrderedBatch(step, epoch, samples, valid)

    def position(self, after: int) -> Position:
        """Where a run stands when it has done step `after` (-1: none yet). A pure value.

        Raises ConfigError for anything but a whole number of -1 or more.
        """
        from stoker.dataset.position import Position, Segment  # noqa: PLC0415  who feeds has none

        done = whole_number(after)
        if done is None or done < -1:
            raise ConfigError(f"position after step {after!r}", hint="give the last step done, or -1 before the first")
        fields = self.recipe.to_json()
        segment = Segment(self.manifest_digest, self.recipe.digest, first_step=0, fields=fields)
        return Position((segment,), next_step=done + 1)

    def _share(self, rank: int, size: int) -> int:
        batch = self.recipe.global_batch_size
        if size < 1 or batch % size:
            raise LayoutError(
                f"a global batch of {batch} samples cannot be divided by {size} ranks",
                hint=f"it divides by {', '.join(map(str, _divisors(batch)))}",
            )
        if not 0 <= rank < size:
            raise LayoutError(f"there is no rank {rank} among {size}", hint=f"ranks count from 0 to {size - 1}")
        return batch // size

    def _every(self, share: int) -> NDArray[np.bool_]:
        valid = self._valid.get(share)
        if valid is None:
            valid = self._valid[share] = np.ones(share, np.bool_)
        return valid

    def _recall(self, walk: Walk, step: int, start: int, stop: int) -> NDArray[np.int64]:
        key = (step, start, stop)
        with self._lock:
            samples = self._recent.get(key)
            if samples is None:
                epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
                follows = self._last == (step - 1, start, stop)
                most = max(1, min(_AHEAD_COUNT, _AHEAD_SAMPLES // (stop - start), self.steps_per_epoch - step_in_epoch))
                batches = walk.take(epoch, step_in_epoch, start, stop, most if follows else 1)
                for ahead, one in enumerate(batches):
                    self._keep((step + ahead, start, stop), one)
                samples = batches[0]
            self._last = key
        return samples

    def _keep(self, key: tuple[int, int, int], samples: NDArray[np.int64]) -> None:
        """Note what a step takes, and forget the oldest; with the lock held."""
        before = self._recent.get(key)
        self._recent_size += samples.size - (0 if before is None else before.size)
        self._recent[key] = samples
        while len(self._recent) > 1 and (self._recent_size > _RECENT_SAMPLES or len(self._recent) > _RECENT_COUNT):
            self._recent_size -= self._recent.popitem(last=False)[1].size

    def _in_manifest_order(self, step: int, rank: int, size: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        batch = self.recipe.global_batch_size
        share = batch // size
        pads = max(0, (step + 1) * batch - self.sample_count)
        # Pad j goes to rank j mod size: as many to each, one more to the first pads % size ranks.
        pads_before = pads // size * rank + min(rank, pads % size)
        real = share - pads // size - (rank < pads % size)
        slots = np.arange(share)
        valid = slots < real
        return np.where(valid, step * batch + rank * share - pads_before + slots, self.sample_count - 1), valid


def _check_recipe(blocks: NDArray[np.int64], block_bytes: int, recipe: Recipe) -> None:
    rule = plan_recipe(
        blocks, block_bytes, seed=recipe.seed, global_batch_size=recipe.global_batch_size, shuffle=recipe.shuffle
    )
    if recipe != rule:
        raise ConfigError(
            f"the recipe is not of this data set: shuffle {recipe.shuffle!r} with window {recipe.window}, "
            f"where the rule gives {rule.shuffle!r} with {rule.window} for {blocks.size} blocks of {block_bytes} bytes",
            hint="make the recipe with plan_recipe from the manifest at hand",
        )


def _count_steps(sample_count: int, recipe: Recipe) -> int:
    batch = recipe.global_batch_size
    if recipe.shuffle is False:
        return -(-sample_count // batch)
    if sample_count < batch:
        raise EmptyDataset(
            f"the data set has {sample_count} samples, fewer than one global batch of {batch}",
            hint=f"lower global_batch_size to {sample_count} or less; evaluation (shuffle=False) pads instead",
        )
    return sample_count // batch


def _divisors(number: int) -> list[int]:
    low = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*low, *(number // d for d in low)})
