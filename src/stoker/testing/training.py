"""`ArrayState`: a training state of numpy arrays, for tests of checkpoints that need no framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.checkpoint.state import Scalars, Share, StoredTensor, TensorEntry
from stoker.errors import CheckpointError

DTYPES: Final = {
    np.dtype(name): code
    for name, code in {
        "bool": "BOOL",
        "u1": "U8",
        "i1": "I8",
        "u2": "U16",
        "i2": "I16",
        "u4": "U32",
        "i4": "I32",
        "u8": "U64",
        "i8": "I64",
        "f2": "F16",
        "f4": "F32",
        "f8": "F64",
        "c8": "C64",
    }.items()
}


@dataclass(frozen=True, slots=True)
class Part:
    """Says that an array is a box of a larger one."""

    offsets: tuple[int, ...]
    global_shape: tuple[int, ...]


@dataclass
class ArrayState:
    """A `TrainingState`: named arrays, JSON values, and one number that stands for all random number streams.

    Arrays named in `parts` are boxes of larger ones; those whose names begin with `extra.` belong to the rank alone.
    """

    arrays: dict[str, NDArray[Any]]
    parts: Mapping[str, Part] = field(default_factory=dict)
    shared: dict[str, Any] = field(default_factory=dict)
    private: dict[str, Any] = field(default_factory=dict)
    stream: int = 0

    def capture(self) -> ArrayCapture:
        """The arrays as they are now."""
        scalars = Scalars(shared=dict(self.shared), private=dict(self.private))
        return ArrayCapture(tuple(self._entries()), scalars, {"stream": self.stream}, dict(self.arrays))

    def wanted(self, stored: Mapping[str, StoredTensor], scalars: Scalars) -> Sequence[TensorEntry]:
        """All arrays; they must be the stored ones, in name, dtype and whole shape."""
        entries = list(self._entries())
        mine = {entry.name: StoredTensor(entry.dtype, entry.global_shape) for entry in entries}
        if mine != dict(stored) or scalars.shared.keys() != self.shared.keys():
            raise CheckpointError(f"the state is {mine}, stored is {dict(stored)}")
        return entries

    def load(self, tensors: Mapping[str, NDArray[np.uint8]], scalars: Scalars) -> None:
        """Copy into the arrays in place."""
        for name, data in tensors.items():
            array = self.arrays[name]
            array[...] = data.view(array.dtype).reshape(array.shape)
        self.shared = dict(scalars.shared)
        self.private = dict(scalars.private)

    def load_rng(self, rng: Any) -> None:
        """Continue the stream."""
        self.stream = rng["stream"]

    def seed_rng(self, entropy: int) -> None:
        """Begin another stream."""
        self.stream = entropy

    def _entries(self) -> list[TensorEntry]:
        found = []
        for name, array in self.arrays.items():
            dtype = DTYPES[array.dtype]
            part = self.parts.get(name)
            if part is not None:
                found.append(TensorEntry(name, dtype, array.shape, part.offsets, part.global_shape, Share.CHUNK))
            else:
                share = Share.PRIVATE if name.startswith("extra.") else Share.REPLICATED
                found.append(TensorEntry.whole(name, dtype, array.shape, share))
        return found


@dataclass(frozen=True)
class ArrayCapture:
    """What `ArrayState.capture` returns."""

    entries: Sequence[TensorEntry]
    scalars: Scalars
    rng: Any
    arrays: Mapping[str, NDArray[Any]]

    def copy_into(self, name: str, target: NDArray[np.uint8]) -> None:
        """Copy one array's bytes."""
        if target.size:
            array = self.arrays[name]
            target.view(array.dtype).reshape(array.shape)[...] = array
