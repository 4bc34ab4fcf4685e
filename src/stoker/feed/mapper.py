"""User functions over samples, and what they return put together to a batch again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ClosedError, SampleError
from stoker.feed.batch import OBJECTS, Field, InReply, InSlot
from stoker.feed.plan import Mapper
from stoker.io.memory import align

_NUMBERS = (bool, int, float, complex, np.generic, np.ndarray)
_BYTES = (str, bytes, bytearray, memoryview)


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """The decoded fields of n samples, and how to name them in messages."""

    columns: dict[str, Sequence[Any]]
    count: int
    keys: Callable[[], list[str]]

    def mapped(self, mappers: Sequence[Mapper], row: int) -> dict[str, Any]:
        """What the mappers make of sample `row`. Raises SampleError naming it, from the mapper's own exception."""
        sample = {name: values[row] for name, values in self.columns.items()}
        for mapper in mappers:
            try:
                result: object = mapper(sample)
            except BaseException as error:  # user code: whatever it raises, also to end, is told with the sample's name
                raise self.error(row, f"map() failed: {type(error).__name__}: {error}") from error
            if not isinstance(result, dict) or not all(isinstance(name, str) for name in result):
                kind = type(result).__name__
                raise self.error(row, f"map() returned a {kind}", "return a dict of one sample, field -> value")
            sample = result
        return sample

    def error(self, row: int, what: str, hint: str = "") -> SampleError:
        """The error of one sample."""
        return SampleError(f"sample {self.keys()[row]!r}: {what}", hint=hint)


def map_batch(
    samples: Samples,
    mappers: Sequence[Mapper],
    allocate: Callable[[int], NDArray[np.uint8]],
    is_stopped: Callable[[], bool] = lambda: False,
) -> tuple[tuple[Field, ...], int]:
    """Map n >= 1 samples, one after the other, and put the results together.

    Arrays and numbers become one array of n rows each, in memory that `allocate(nbytes)` gives once the first sample
    has shown how much it takes; strings and bytes become lists. Returns the fields, and the bytes of their values.
    Raises SampleError, naming the sample, if the mapper raises, or if a sample has other names, types or shapes than
    the first; ClosedError between two samples once `is_stopped()`.
    """
    first = samples.mapped(mappers, 0)
    arrays = {
        name: _as_array(samples, 0, name, value) for name, value in first.items() if not isinstance(value, _BYTES)
    }
    starts: dict[str, int] = {}
    end = 0
    for name, array in arrays.items():
        starts[name] = end
        end += align(array.nbytes * samples.count)
    memory = allocate(end)
    columns: dict[str, Any] = {}
    for name, value in first.items():
        if name in arrays:
            like = arrays[name]
            shape = (samples.count, *like.shape)
            columns[name] = np.ndarray(shape, like.dtype, buffer=memory, offset=starts[name])
            columns[name][0] = like
        else:
            columns[name] = [value]
    for row in range(1, samples.count):
        if is_stopped():
            raise ClosedError("the loader is closed")
        _add_row(samples, row, samples.mapped(mappers, row), columns)
    fields = []
    nbytes = 0
    for name, column in columns.items():
        if isinstance(column, list):
            fields.append(Field(name, OBJECTS, InReply(column)))
            nbytes += sum(map(len, column))
        else:
            fields.append(Field(name, column.dtype.str, InSlot(starts[name]), shape=column.shape))
            nbytes += math.prod(column.shape) * column.itemsize
    return tuple(fields), nbytes


def _add_row(samples: Samples, row: int, sample: dict[str, Any], columns: dict[str, Any]) -> None:
    if sample.keys() != columns.keys():
        raise samples.error(row, f"map() returned {sorted(sample)}", f"for the first one it returned {sorted(columns)}")
    for name, column in columns.items():
        value = sample[name]
        if isinstance(column, list):
            if not isinstance(value, _BYTES) or isinstance(value, str) != isinstance(column[0], str):
                kinds = type(value).__name__, type(column[0]).__name__
                raise samples.error(row, f"map() returned a {kinds[0]} as {name!r}", f"for the first one a {kinds[1]}")
            column.append(value)
            continue
        array = _as_array(samples, row, name, value)
        if (array.dtype, array.shape) != (column.dtype, column.shape[1:]):
            raise samples.error(
                row,
                f"map() returned {array.dtype}{list(array.shape)} as {name!r}",
                f"for the first one {column.dtype}{list(column.shape[1:])}, and rows of a batch must be equal",
            )
        column[row] = array


def _as_array(samples: Samples, row: int, name: str, value: Any) -> NDArray[Any]:
    """A number or array, or anything that numpy can view as one (`__array__`), such as a tensor."""
    if isinstance(value, _NUMBERS) or hasattr(value, "__array__"):
        try:
            array = np.asarray(value)
        except Exception as error:  # user code again: a tensor that wants a gradient, or has a type numpy lacks
            kind = type(value).__name__
            raise samples.error(
                row,
                f"map() returned a {kind} as {name!r} that cannot become an array: {type(error).__name__}: {error}",
                "return numpy arrays, numbers, bytes or str; of a tensor .detach().cpu(), in a type that numpy has",
            ) from error
        if array.dtype.names is None and not array.dtype.hasobject:
            return array
    kind = type(value).__name__
    raise samples.error(row, f"map() returned a {kind} as {name!r}", "return numpy arrays, numbers, bytes or str")
