"""`Recipe`: everything that fixes the order besides the manifest, and the rule that chooses its window and lanes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError, EmptyDataset
from stoker.units import GIB
from stoker.values import json_digest, whole_number

ORDER_VERSION: Final = 1
DIGEST_MAX_CHARACTERS: Final = 128

Shuffle: TypeAlias = Literal["window", "exact", False]
"""window: hash-ordered blocks and a sliding window in lanes. exact: uniform over the epoch. False: manifest order."""

_SEED_MAX: Final = 2**64 - 1
_WINDOW_MAX: Final = 16
_WINDOW_BYTES: Final = 16 * GIB  # of blocks that all lanes together have open, unless that means fewer than 2 a lane
_LANES_MAX: Final = 512
_BLOCKS_A_LANE: Final = 64
_EXACT_BLOCKS: Final = 16  # so few blocks are shuffled exactly: the window would hold them all


@dataclass(frozen=True, slots=True)
class Recipe:
    """Seed, global batch size in samples, kind of shuffle, and window in blocks. `plan_recipe` makes it.

    Raises ConfigError for a value outside its range.
    """

    seed: int
    global_batch_size: int
    shuffle: Shuffle
    window: int

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= _SEED_MAX:
            raise ConfigError(f"seed is {self.seed}", hint="a seed is a whole number from 0 to 2^64 - 1")
        if self.global_batch_size < 1:
            raise ConfigError(
                f"global_batch_size is {self.global_batch_size}", hint="it counts the samples of all ranks, at least 1"
            )
        if not (self.shuffle is False or self.shuffle in ("window", "exact")):
            raise ConfigError(f"shuffle is {self.shuffle!r}", hint="shuffle is 'window', 'exact' or False")
        if self.window < 1:
            raise ConfigError(f"window is {self.window}", hint="a window holds at least 1 block")

    def to_json(self) -> dict[str, Any]:
        """The fields that the digest covers, under their names in messages."""
        return {
            "order": ORDER_VERSION,
            "seed": self.seed,
            "global_batch_size": self.global_batch_size,
            "shuffle": self.shuffle,
            "window": self.window,
            "mixture": None,
            "filters": [],
        }

    @property
    def digest(self) -> str:
        """sha256, in hex, of the canonical JSON of `to_json()`."""
        return json_digest(self.to_json())


def check_blocks(block_samples: NDArray[np.int64]) -> NDArray[np.int64]:
    """`block_samples` as a contiguous int64[n]. Raises EmptyDataset for no sample, ConfigError for a block of none."""
    blocks = np.ascontiguousarray(block_samples, np.int64)
    if blocks.ndim != 1:
        raise ConfigError(f"samples of blocks have {blocks.ndim} dimensions, not 1")
    if not blocks.any():
        raise EmptyDataset("the data set has no samples", hint="pack at least one global batch of samples")
    if blocks.min() < 1:
        at = int(blocks.argmin())
        raise ConfigError(f"block {at} has {blocks[at]} samples", hint="a block holds at least one sample")
    return blocks


def plan_lanes(block_count: int, global_batch_size: int, shuffle: Shuffle) -> int:
    """G: the largest divisor of the global batch that is <= clamp(n // 64, 1, 512); 1 unless shuffle is 'window'."""
    if shuffle != "window":
        return 1
    most = min(max(block_count // _BLOCKS_A_LANE, 1), _LANES_MAX, global_batch_size)
    return next(lanes for lanes in range(most, 0, -1) if global_batch_size % lanes == 0)


def plan_recipe(
    block_samples: NDArray[np.int64], block_bytes: int, *, seed: int, global_batch_size: int, shuffle: Shuffle
) -> Recipe:
    """The recipe in force for a data set of n = len(block_samples) blocks of at most `block_bytes` bytes.

    W = min(16, n, max(2, 16 GiB // (G * block_bytes))). With n <= 16 blocks 'window' becomes 'exact': the recipe names
    the rule that is followed. W is computed for every kind of shuffle; only 'window' uses it. Cost: O(n).
    Raises ConfigError for values out of range, EmptyDataset for no sample.
    """
    block_count = check_blocks(block_samples).size
    if block_bytes < 1:
        raise ConfigError(f"block_bytes is {block_bytes}", hint="it is fixed in the manifest of the data set")
    kind: Shuffle = "exact" if shuffle == "window" and block_count <= _EXACT_BLOCKS else shuffle
    unplanned = Recipe(
        seed=_whole("seed", seed),
        global_batch_size=_whole("global_batch_size", global_batch_size),
        shuffle=kind,
        window=1,
    )
    lanes = plan_lanes(block_count, unplanned.global_batch_size, kind)
    return replace(unplanned, window=min(_WINDOW_MAX, block_count, max(2, _WINDOW_BYTES // (lanes * block_bytes))))


def _whole(name: str, value: Any) -> int:
    number = whole_number(value)  # NumPy's integers become Python's: a recipe is written as JSON
    if number is None:
        raise ConfigError(f"{name} is {value!r}", hint="give a whole number")
    return number


def is_digest(text: str) -> bool:
    """Whether `text` can stand in a position: 1 to 128 visible ASCII characters."""
    return 0 < len(text) <= DIGEST_MAX_CHARACTERS and text.isascii() and text.isprintable() and " " not in text
