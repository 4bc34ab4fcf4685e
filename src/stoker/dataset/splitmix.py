"""The one hash of the order: splitmix64 over (seed, purpose, epoch, number).

docs/reference/order.md states it; it is fixed for ever. Random number generators are no alternative: NumPy does not
promise that a stream stays the same from one release to the next.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_MASK: Final = (1 << 64) - 1
_GAMMA: Final = 0x9E3779B97F4A7C15
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB
# Numbers hashed at once: 3 arrays of 128 KiB stay in a core's cache.
_SLICE: Final = 1 << 14


class Purpose(IntEnum):
    """What a hash decides; another purpose is another, independent hash."""

    RUN = 1
    BLOCK = 2
    SAMPLE = 3
    MAP = 4
    SUBSTITUTE = 5


def mix(state: int) -> int:
    """The output of splitmix64 for `state`, both in 0..2^64-1: add gamma, then two rounds of xor and multiply."""
    z = (state + _GAMMA) & _MASK
    z = ((z ^ (z >> 30)) * _FIRST) & _MASK
    z = ((z ^ (z >> 27)) * _SECOND) & _MASK
    return z ^ (z >> 31)


def mix_array(states: NDArray[np.uint64]) -> None:
    """`mix` of every element, in place and wrapping; about 5 ns each, 128 KiB of memory."""
    spare = np.empty(min(_SLICE, states.size), np.uint64)
    for start in range(0, states.size, _SLICE):
        z = states[start : start + _SLICE]
        shifted = spare[: z.size]
        z += np.uint64(_GAMMA)
        np.right_shift(z, np.uint64(30), out=shifted)
        z ^= shifted
        z *= np.uint64(_FIRST)
        np.right_shift(z, np.uint64(27), out=shifted)
        z ^= shifted
        z *= np.uint64(_SECOND)
        np.right_shift(z, np.uint64(31), out=shifted)
        z ^= shifted


class Hasher:
    """h(p, e, i) = mix(mix(mix(mix(seed) ^ p) ^ e) ^ i) for one seed, counting the numbers i it hashed.

    The count is what planning costs, in units that do not depend on the machine. Not thread-safe.
    """

    def __init__(self, seed: int) -> None:
        self._root = mix(seed)
        self.count = 0

    def hash(self, purpose: Purpose, epoch: int, numbers: NDArray[np.integer[Any]]) -> NDArray[np.uint64]:
        """h(purpose, epoch, i) for every i >= 0 of `numbers`: a new uint64 array of the same length.

        One-to-one: mix is, so different numbers never share a hash (upper halves of hashes may be equal).
        """
        stem = mix(mix(self._root ^ purpose) ^ epoch)
        hashes = numbers.astype(np.uint64)
        hashes ^= np.uint64(stem)
        mix_array(hashes)
        self.count += hashes.size
        return hashes
