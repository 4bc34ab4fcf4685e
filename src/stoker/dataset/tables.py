"""Tables of a data set: numpy columns in memory, one uncompressed Arrow IPC record batch on disk.

The digest of a table is taken over its raw columns, so that it says nothing of Arrow's own bytes, which may differ
from one release of Arrow to the next (docs/reference/dataset-format.md).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.dataset.arrow import ArrowColumn, read_batch
from stoker.errors import FormatError
from stoker.io.memory import map_file
from stoker.io.os_errors import translating
from stoker.store.base import Store
from stoker.values import Key

ColumnType: TypeAlias = Literal["int64", "uint32", "utf8"]
Schema: TypeAlias = tuple[tuple[str, ColumnType], ...]

_ARROW_NAMES: Final[dict[ColumnType, str]] = {"int64": "int64", "uint32": "uint32", "utf8": "large_string"}
_ASCII: Final = 0x80  # bytes below are characters of their own
_FOLLOWS_MASK, _FOLLOWS = 0xC0, 0x80  # those of a character but its first
_METADATA_BYTES: Final = 1 << 20  # more schema and framing than any table of ours has
_TEXT_BYTES: Final = 4096  # the longest string in a table: a path
_WHOLE_MAX_BYTES: Final = 1 << 30  # of a table whose rows are not known beforehand


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """A column of strings: int64[n + 1] offsets from 0 into UTF-8 bytes."""

    offsets: NDArray[np.int64]
    data: NDArray[np.uint8]

    @classmethod
    def of(cls, strings: Iterable[str]) -> Self:
        """The column of these strings."""
        encoded = [text.encode() for text in strings]
        offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded)), out=offsets[1:])
        return cls(offsets, np.frombuffer(b"".join(encoded), dtype=np.uint8))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def at(self, index: int) -> str:
        """One of the strings."""
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes().decode()

    def find(self, wanted: bytes) -> list[int]:
        """Where in the column a string stands, given as UTF-8. Compares lengths first: about 1 ns a row."""
        lengths = np.diff(self.offsets)
        rows = np.flatnonzero(lengths == len(wanted)).tolist()
        data = self.data.tobytes() if rows else b""
        return [row for row in rows if data.startswith(wanted, int(self.offsets[row]))]

    def __iter__(self) -> Iterator[str]:
        data = self.data.tobytes()
        bounds = self.offsets.tolist()
        for start, stop in pairwise(bounds):
            yield data[start:stop].decode()


Column: TypeAlias = NDArray[np.int64] | NDArray[np.uint32] | Text


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Named columns of one length, in order."""

    columns: Mapping[str, Column]

    def __post_init__(self) -> None:
        assert len({len(column) for column in self.columns.values()}) <= 1

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    @property
    def schema(self) -> Schema:
        """Names and types of the columns."""
        return tuple((name, column_type(column)) for name, column in self.columns.items())

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return sum(array.nbytes for name in self.columns for array in self.arrays(name))

    def arrays(self, name: str) -> tuple[NDArray[Any], ...]:
        """The raw values of a column: offsets and bytes of strings, or the numbers."""
        column = self.columns[name]
        return (column.offsets, column.data) if isinstance(column, Text) else (column,)

    def int64(self, name: str) -> NDArray[np.int64]:
        """An int64 column."""
        column = self.columns[name]
        assert not isinstance(column, Text)
        return column.view(np.int64)

    def uint32(self, name: str) -> NDArray[np.uint32]:
        """A uint32 column."""
        column = self.columns[name]
        assert not isinstance(column, Text)
        return column.view(np.uint32)

    def text(self, name: str) -> Text:
        """A column of strings."""
        column = self.columns[name]
        assert isinstance(column, Text)
        return column

    def digest(self) -> str:
        """sha256 over the raw columns, in hex: for each its name, type and row count, then its values.

        Name and type are followed by a zero byte; numbers are little-endian, the count an int64; strings are their
        n + 1 int64 offsets, then their bytes. About 1 GB/s.
        """
        digest = hashlib.sha256()
        for name, column in self.columns.items():
            digest.update(f"{name}\0{column_type(column)}\0".encode() + len(column).to_bytes(8, "little"))
            for values in self.arrays(name):
                digest.update(np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<")).data)
        return digest.hexdigest()


def column_type(column: Column) -> ColumnType:
    """The type of a column, as the digest and the documentation name it."""
    if isinstance(column, Text):
        return "utf8"
    return "uint32" if column.dtype == np.uint32 else "int64"


def encode_table(table: Table) -> memoryview:
    """The table as an Arrow IPC file: one record batch, no compression, no nulls."""
    import pyarrow as pa  # noqa: PLC0415  20 ms that training, which reads without it, need not wait for
    import pyarrow.ipc  # noqa: PLC0415

    types = {kind: pa.type_for_alias(name) for kind, name in _ARROW_NAMES.items()}
    schema = pa.schema([pa.field(name, types[kind], nullable=False) for name, kind in table.schema])
    arrays = []
    for name, kind in table.schema:
        buffers = [pa.py_buffer(np.ascontiguousarray(values)) for values in table.arrays(name)]
        arrays.append(pa.Array.from_buffers(types[kind], len(table.columns[name]), [None, *buffers]))
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V5, compression=None)
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return memoryview(sink.getvalue())


def read_table(store: Store, key: Key, row_count: int | None) -> Table:
    """The table stored under `key`: mapped where the store has a file, read whole otherwise.

    Raises NotFound and what else the system says; FormatError unless it is one uncompressed record batch of
    `row_count` rows (None: any number) of our types. No memory is taken for sizes that the object itself cannot hold.
    """
    where = f"{key} in {store.url}"
    size = store.stat(key).size_bytes
    path = store.path(key)
    if path is None:
        return decode_table(_read_whole(store, key, size, row_count), row_count, where)
    with translating(f"cannot map table {str(key)!r}", path):
        mapped = map_file(path)
    return decode_table(mapped, row_count, where)


def _read_whole(store: Store, key: Key, size: int, row_count: int | None) -> bytearray:
    limit = _WHOLE_MAX_BYTES if row_count is None else _METADATA_BYTES + row_count * _TEXT_BYTES * 2
    if size > limit:
        rows = "a table of ours" if row_count is None else f"{row_count} rows"
        raise FormatError(f"the table is {size} bytes long, {rows} cannot be", f"{key} in {store.url}")
    buffer = bytearray(size)
    store.read_into(key, 0, buffer)
    return buffer


def decode_table(buffer: Any, row_count: int | None, where: str) -> Table:
    """The table in a buffer that holds an Arrow file, without a copy. Raises FormatError as `read_table` does."""
    try:
        rows, columns = read_batch(memoryview(buffer).cast("B"))
        if row_count is not None and rows != row_count:
            raise ValueError(f"it has {rows} rows, {row_count} are expected")
        return Table({column.name: _decode_column(column, rows) for column in columns})
    except (ValueError, struct.error) as error:
        raise FormatError(f"not a table of a data set: {str(error) or type(error).__name__}", where) from error


def _decode_column(column: ArrowColumn, rows: int) -> Column:
    first, *rest = column.buffers
    if not rest:
        numbers: NDArray[Any] = np.frombuffer(first, column.type, rows) if rows else np.zeros(0, column.type)
        return numbers
    if not rows:
        return Text.of([])
    offsets = np.frombuffer(first, np.int64, rows + 1)
    length = int(offsets[-1])
    if offsets[0] or length > len(rest[0]) or (offsets[1:] < offsets[:-1]).any():
        raise ValueError(f"column {column.name!r} has strings that lie outside of it")
    data = np.frombuffer(rest[0], np.uint8, length) if length else np.zeros(0, np.uint8)
    if length and int(data.max()) >= _ASCII:
        _check_utf8(column.name, offsets, data)
    return Text(offsets, data)


def _check_utf8(name: str, offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> None:
    """Raise ValueError unless each string is UTF-8: all of them in a row are, and none begins within a character."""
    begins = data[offsets[offsets < len(data)]]
    try:
        data.tobytes().decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"column {name!r} is not UTF8: {error}") from error
    if (begins & _FOLLOWS_MASK == _FOLLOWS).any():
        raise ValueError(f"column {name!r} is not UTF8: a string begins within a character")
