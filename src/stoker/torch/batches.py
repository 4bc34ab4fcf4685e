"""`TensorBatch`: a batch whose arrays are tensors. Zero copy: they lie where the batch lies.

It is a dict, because that is what PyTorch, Lightning and accelerate know how to walk through, move and unpack.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from stoker.errors import ConfigError
from stoker.feed.batch import Batch, Field, read_keys

Device: TypeAlias = torch.device | str | int


class TensorBatch(dict[str, Any]):
    """One rank's share of a global batch: field -> tensor of n rows, or list of n values (raw, text, json).

    `to()` and copies keep the attributes. A framework that makes the mapping anew, key by key, loses them: reading one
    then raises AttributeError.

    Attributes:
        step: counts from 0 over the whole run.
        epoch: counts from 0.
        valid: bool tensor of n, on the device of the batch; False for samples that only pad the last batch of an
            evaluation.
    """

    __slots__ = ("__weakref__", "_key_field", "_keys", "epoch", "step", "valid")

    step: int
    epoch: int
    valid: torch.Tensor
    _key_field: Field
    _keys: list[str] | None

    @classmethod
    def of(cls, batch: Batch, values: Mapping[str, Any], valid: torch.Tensor) -> Self:
        """`values` with what `batch` says of itself. Its memory is not kept, but for what `values` refer to."""
        return cls(values).telling(batch.step, batch.epoch, valid, batch.key_field)

    def telling(self, step: int, epoch: int, valid: torch.Tensor, key_field: Field) -> Self:
        """This batch, with attributes; `key_field` is what the keys are read from."""
        self.step, self.epoch, self.valid = step, epoch, valid
        self._key_field, self._keys = key_field, None
        return self

    @property
    def sample_keys(self) -> list[str]:
        """The key of each sample; decoded when first asked for."""
        if self._keys is None:
            self._keys = read_keys(self._key_field)
        return self._keys

    def to(self, device: Device, *, non_blocking: bool = False) -> Self:
        """The batch with its tensors on `device`; lists stay. What Lightning and accelerate move batches with."""
        made = type(self)({name: _moved(value, device, non_blocking=non_blocking) for name, value in self.items()})
        if hasattr(self, "step"):
            valid = self.valid.to(device, non_blocking=non_blocking)
            made.telling(self.step, self.epoch, valid, self._key_field)
        return made

    def __getattr__(self, name: str) -> NoReturn:
        """Only reached for what is not there."""
        if name in ("step", "epoch", "valid", "sample_keys", "_key_field", "_keys"):
            raise AttributeError(f"this batch has no {name!r}: another library made it anew, from the values alone")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"<TensorBatch step {getattr(self, 'step', '?')}: {', '.join(map(repr, self))}>"


def as_tensors(batch: Batch) -> dict[str, Any]:
    """The values of a batch, numpy arrays as tensors over the same memory; lists stay. Costs some microseconds a field.

    Raises ConfigError naming a field whose type PyTorch does not have.
    """
    return {name: as_tensor(name, value) if isinstance(value, np.ndarray) else value for name, value in batch.items()}


def as_tensor(name: str, array: NDArray[Any]) -> torch.Tensor:
    """A tensor over the memory of a writable array. Raises ConfigError naming the field and its type."""
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"PyTorch has no tensors of type {array.dtype.str!r}, which field {name!r} is",
            hint="convert it with map(), or leave the field out with fields(...)",
        ) from error


def valid_of(batch: Batch) -> torch.Tensor:
    """`batch.valid` as a tensor of its own: the array may not be written to."""
    return torch.from_numpy(batch.valid.copy())


def _moved(value: Any, device: Device, *, non_blocking: bool) -> Any:
    return value.to(device, non_blocking=non_blocking) if isinstance(value, torch.Tensor) else value
