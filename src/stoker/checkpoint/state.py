"""What the checkpoint room asks of a training state, of the data it is fed with, and of its peers.

The protocols are implemented above (`stoker.torch.state`, `stoker.feed`, `stoker.torch.rendezvous`): nothing here knows
PyTorch. Bytes pass as flat uint8 arrays, everything else as JSON values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.dataset.position import Position
from stoker.errors import ConfigError
from stoker.io.safetensors import dtype_bytes

Json: TypeAlias = Any  # None, bool, int, float, str, list[Json], dict[str, Json]


class Share(StrEnum):
    """Which ranks hold a tensor."""

    REPLICATED = "replicated"  # every rank holds all of it, with the same values
    CHUNK = "chunk"  # each rank holds a box of it, given by offsets and shape
    PRIVATE = "private"  # each rank has its own under this name


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """The part of a named tensor that this rank holds: `shape` elements from `offsets` on in one of `global_shape`."""

    name: str
    dtype: str  # as safetensors calls it: "F32", "BF16", ...
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    global_shape: tuple[int, ...]
    share: Share = Share.REPLICATED

    @classmethod
    def whole(cls, name: str, dtype: str, shape: Sequence[int], share: Share = Share.REPLICATED) -> TensorEntry:
        """An entry for all of a tensor."""
        shape = tuple(shape)
        return cls(name, dtype, shape, (0,) * len(shape), shape, share)

    @property
    def nbytes(self) -> int:
        """Bytes of this rank's part."""
        return math.prod(self.shape) * dtype_bytes(self.dtype)


@dataclass(frozen=True, slots=True)
class Scalars:
    """The part of a training state that is no tensor, as JSON: `shared` is the same on all ranks, `private` is not."""

    shared: Mapping[str, Json] = field(default_factory=dict)
    private: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a checkpoint: its dtype and its whole shape."""

    dtype: str
    shape: tuple[int, ...]


class Capture(Protocol):
    """A training state as it is now. Holds references to tensors, so it lives only while a snapshot is taken."""

    @property
    def entries(self) -> Sequence[TensorEntry]:
        """The tensors this rank holds and would write, in a fixed order; names are unique."""

    @property
    def scalars(self) -> Scalars:
        """Everything that is no tensor, but for random numbers."""

    @property
    def rng(self) -> Json:
        """The states of the random number generators of this rank."""

    def copy_into(self, name: str, target: NDArray[np.uint8]) -> None:
        """Copy this rank's part of tensor `name` into `target`, row-major, `nbytes` of its entry."""


class TrainingState(Protocol):
    """What is saved and restored: model, optimizer, scheduler, random numbers, and what the user adds."""

    def capture(self) -> Capture:
        """Look at the state now, copying nothing yet. Raises CheckpointError naming what cannot be saved."""

    def wanted(self, stored: Mapping[str, StoredTensor], scalars: Scalars) -> Sequence[TensorEntry]:
        """The parts of the stored tensors that this rank needs; changes nothing.

        Raises CheckpointError with the first few and the counts of what is missing, unexpected or of another shape.
        """

    def load(self, tensors: Mapping[str, NDArray[np.uint8]], scalars: Scalars) -> None:
        """Put what was `wanted` into the live state: for each name the bytes of its part, row-major."""

    def load_rng(self, rng: Json) -> None:
        """Continue the random number streams that `Capture.rng` recorded."""

    def seed_rng(self, entropy: int) -> None:
        """Start all random number streams anew from `entropy`, 0..2^64-1."""


class Feed(Protocol):
    """The data a run trains on: a training loader."""

    def __len__(self) -> int:
        """Steps of the whole run."""

    def position(self, after: int) -> Position:
        """Where the run stands after step `after`, -1 for none. Raises ConfigError if this is no training."""

    def seek(self, position: Position) -> None:
        """Continue at `position`. Raises ConfigError naming what differs if it is of other data."""


def check_feed(data: Feed | None) -> None:
    """Raise ConfigError, before anything is saved, if `data` is not a training loader."""
    if data is None:
        return
    missing = [name for name in ("__len__", "position", "seek") if not callable(getattr(data, name, None))]
    if missing:
        raise ConfigError(
            f"data is a {type(data).__name__}, which has no {', '.join(missing)}",
            hint="give what run.loader(...) returned, or leave data= out",
        )
    data.position(-1)


class HasStep(Protocol):
    """A batch, as far as a save looks at it."""

    @property
    def step(self) -> int:
        """The number of the batch, from 0 over the whole run."""


class Rendezvous(Protocol):
    """How the ranks of a run hear from rank 0, once, at the start."""

    def broadcast(self, name: str, value: Json, deadline_s: float) -> Json:
        """Rank 0's `value`, on every rank; what the others pass is ignored. Raises TimedOut after `deadline_s`."""
