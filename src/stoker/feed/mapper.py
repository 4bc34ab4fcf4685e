"""User functions over samples, and what they return put together to a batch again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ClosedError, SampleError, brief
from stoker.feed.batch import OBJECTS, Field, InReply, InSlot
from stoker.io.memory import align

Mapper: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]

_NUMBERS = (bool, int, float, complex, np.generic, np.ndarray)
_BYTES = (str, bytes, bytearray, memoryview)


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """The decoded fields of n samples, how to name them in messages, and what to do `before` each is mapped."""

    columns: dict[str, Sequence[Any]]
    count: int
    keys: Callable[[], list[str]]
    before: Callable[[int], None] = lambda _: None

    def mapped(self, mappers: Sequence[Mapper], row: int) -> dict[str, Any]:
        """What the mappers make of sample `row`. Raises SampleError naming it, from the mapper's own exception."""
        sample = {name: values[row] for name, values in self.columns.items()}
        self.before(row)
        for mapper in mappers:
            try:
                result: object = mapper(sample)
            except BaseException as error:  # user code: whatever it raises, also to end, is told with the sample's name
                raise self.error(row, f"map() failed: {brief(error)}") from error
            if not isinstance(result, dict) or not all(isinstance(name, str) for name in result):
                kind = type(result).__name__
                raise self.error(row, f"map() returned a {kind}", "return a dict of one sample, field -> value")
            sample = result
        return sample

    def error(self, row: int, what: str, hint: str = "") -> SampleError:
        """The error of one sample, whichever others there are."""
        error = self.unlike(row, what, hint)
        error.is_bad_sample = True
        return error

    def unlike(self, row: int, what: str, hint: str) -> SampleError:
        """The error of a sample that is unlike the first of its batch: which one is wrong nobody knows."""
        error = SampleError(f"sample {self.keys()[row]!r}: {what}", hint=hint)
        error.sample_row = row
        return error


class Column(NamedTuple):
    """What the first sample of a batch has shown of a field that a map returns.

    `dtype` is numpy's name of an array's type, whose rows of `shape` lie in the batch's memory from `start` on; or ""
    for strings and bytes, of which `kind` is the type.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    start: int


def plan_columns(samples: Samples, first: dict[str, Any], count: int) -> tuple[tuple[Column, ...], int]:
    """The columns of a batch of `count` samples, by what the first gave, and the bytes of memory they take."""
    columns = []
    end = 0
    for name, value in first.items():
        if isinstance(value, _BYTES):
            columns.append(Column(name, type(value).__name__, "", (), 0))
        else:
            array = _as_array(samples, 0, name, value)
            columns.append(Column(name, type(value).__name__, array.dtype.str, array.shape, end))
            end += align(array.nbytes * count)
    return tuple(columns), end


class Results:
    """What a map made of samples [first_row, ...) of a batch of `count`: arrays in `memory`, and lists."""

    def __init__(self, columns: tuple[Column, ...], memory: NDArray[np.uint8], count: int, first_row: int = 0) -> None:
        self._columns = columns
        self._first_row = first_row
        self._count = count
        self._names = {column.name for column in columns}
        self._arrays = {
            column.name: np.ndarray((count, *column.shape), np.dtype(column.dtype), buffer=memory, offset=column.start)
            for column in columns
            if column.dtype
        }
        self.lists: dict[str, list[Any]] = {column.name: [] for column in columns if not column.dtype}

    def add(self, samples: Samples, row: int, sample: dict[str, Any]) -> None:
        """Put the result of sample `row`, counted from the first row. Raises SampleError if it is unlike the first."""
        if sample.keys() != self._names:
            what = f"map() returned {sorted(sample)}"
            raise samples.unlike(row, what, f"for the first one it returned {sorted(self._names)}")
        for column in self._columns:
            name, value = column.name, sample[column.name]
            if not column.dtype:
                if not isinstance(value, _BYTES) or isinstance(value, str) != (column.kind == "str"):
                    what = f"map() returned a {type(value).__name__} as {name!r}"
                    raise samples.unlike(row, what, f"for the first one a {column.kind}")
                self.lists[name].append(value)
                continue
            array = _as_array(samples, row, name, value)
            rows = self._arrays[name]
            if (array.dtype, array.shape) != (rows.dtype, column.shape):
                raise samples.unlike(
                    row,
                    f"map() returned {array.dtype}{list(array.shape)} as {name!r}",
                    f"for the first one {rows.dtype}{list(column.shape)}, and rows of a batch must be equal",
                )
            rows[self._first_row + row] = array


def put_together(columns: tuple[Column, ...], count: int, lists: dict[str, list[Any]]) -> tuple[tuple[Field, ...], int]:
    """The fields of a mapped batch of `count` samples, and the bytes of their values."""
    fields = []
    nbytes = 0
    for column in columns:
        if column.dtype:
            shape = (count, *column.shape)
            fields.append(Field(column.name, column.dtype, InSlot(column.start), shape=shape))
            nbytes += math.prod(shape) * np.dtype(column.dtype).itemsize
        else:
            fields.append(Field(column.name, OBJECTS, InReply(lists[column.name])))
            nbytes += sum(map(len, lists[column.name]))
    return tuple(fields), nbytes


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
    columns, nbytes = plan_columns(samples, first, samples.count)
    results = Results(columns, allocate(nbytes), samples.count)
    results.add(samples, 0, first)
    map_rest(samples, mappers, results, 1, is_stopped)
    return put_together(columns, samples.count, results.lists)


def map_rest(
    samples: Samples,
    mappers: Sequence[Mapper],
    results: Results,
    begin: int,
    is_stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Map the samples from row `begin` on, and add what they give to `results`."""
    for row in range(begin, samples.count):
        if is_stopped():
            raise ClosedError("the loader is closed")
        results.add(samples, row, samples.mapped(mappers, row))


def _as_array(samples: Samples, row: int, name: str, value: Any) -> NDArray[Any]:
    """A number or array, or anything that numpy can view as one (`__array__`), such as a tensor."""
    if isinstance(value, _NUMBERS) or hasattr(value, "__array__"):
        try:
            array = np.asarray(value)
        except Exception as error:  # user code again: a tensor that wants a gradient, or has a type numpy lacks
            kind = type(value).__name__
            raise samples.error(
                row,
                f"map() returned a {kind} as {name!r} that cannot become an array: {brief(error)}",
                "return numpy arrays, numbers, bytes or str; of a tensor .detach().cpu(), in a type that numpy has",
            ) from error
        if array.dtype.names is None and not array.dtype.hasobject:
            return array
    kind = type(value).__name__
    raise samples.error(row, f"map() returned a {kind} as {name!r}", "return numpy arrays, numbers, bytes or str")
