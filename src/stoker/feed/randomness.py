"""Randomness of a map: a stream of its own for each sample, fixed by (seed, epoch, sample number) and nothing else.

The seed of a sample is h(MAP, epoch, sample) of docs/reference/order.md: splitmix64 over the seed of the loader. So
what a map draws depends on no rank, worker, micro-batch or restart, and two samples never share a seed.
"""

from __future__ import annotations

import random
import sys
import threading

import numpy as np
from numpy.typing import NDArray

from stoker.dataset.splitmix import Hasher, Purpose
from stoker.errors import ConfigError

_LOW_32: int = (1 << 32) - 1


class _Current(threading.local):
    """The sample that this thread maps: its seed, and its generator once that was asked for."""

    seed: int | None = None
    rng: np.random.Generator | None = None


_current = _Current()


def sample_rng() -> np.random.Generator:
    """The random generator of the sample that is being mapped, for a function given to `Dataset.map`.

    A Philox stream keyed by (seed of the loader, epoch, number of the sample): the same on any number of ranks and map
    workers, and after a restart. The same object for all of a sample's functions, new for the next sample. About 20 us
    at the first call for a sample. Raises ConfigError outside of a map function, and in threads that one starts.
    """
    if _current.rng is None:
        if _current.seed is None:
            raise ConfigError(
                "sample_rng() was called where no sample is mapped",
                hint="call it in a function given to map(), in the thread that runs it",
            )
        _current.rng = np.random.Generator(np.random.Philox(key=_current.seed))
    return _current.rng


class Seeding:
    """Says which sample comes next, for n samples of one epoch: `begin(row)` before, `end()` after the last.

    With `global_state` the generators of the process are seeded as well: `random`, NumPy's own, and PyTorch's if that
    is loaded. 12 us a sample (8 for `random`), and never in a process of the user's.
    """

    def __init__(self, seed: int, epoch: int, samples: NDArray[np.int64], *, global_state: bool) -> None:
        self._seeds: list[int] = Hasher(seed).hash(Purpose.MAP, epoch, samples).tolist()
        self._global = global_state

    def begin(self, row: int) -> None:
        """Sample `row` is mapped next, in this thread."""
        seed = self._seeds[row]
        _current.seed, _current.rng = seed, None
        if self._global:
            random.seed(seed)
            np.random.seed(seed & _LOW_32)  # noqa: NPY002  what users of the old interface draw from
            torch = sys.modules.get("torch")
            if torch is not None:
                torch.default_generator.manual_seed(seed)

    def end(self) -> None:
        """No sample is mapped any more."""
        _current.seed = _current.rng = None
