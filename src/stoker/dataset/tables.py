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
import pyarrow as pa
import pyarrow.ipc
from numpy.typing import NDArray

from stoker.errors import FormatError
from stoker.store.base import Store
from stoker.values import Key

ColumnType: TypeAlias = Literal["int64", "uint32", "utf8"]
Schema: TypeAlias = tuple[tuple[str, ColumnType], ...]

_ARROW: Final[dict[ColumnType, Any]] = {"int64": pa.int64(), "uint32": pa.uint32(), "utf8": pa.large_utf8()}
_MAGIC: Final = b"ARROW1\0\0"
_METADATA_BYTES: Final = 1 << 20  # more schema and framing than any table of ours has
_TEXT_BYTES: Final = 4096  # the longest string in a table: a path
_WHOLE_MAX_BYTES: Final = 1 << 30  # of a table whose rows are not known beforehand
_COMPRESSION_SLOT: Final = 3


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
    schema = pa.schema([pa.field(name, _ARROW[kind], nullable=False) for name, kind in table.schema])
    arrays = [_to_arrow(column) for column in table.columns.values()]
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V5, compression=None)
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return memoryview(sink.getvalue())


def read_table(store: Store, key: Key, row_count: int | None) -> Table:
    """The table stored under `key`: mapped where the store has a file, read whole otherwise.

    Raises NotFound; FormatError unless it is one uncompressed record batch of `row_count` rows (None: any number) of
    our types. No memory is taken for sizes that the object itself cannot hold.
    """
    where = f"{key} in {store.url}"
    size = store.stat(key).size_bytes
    path = store.path(key)
    try:
        if path is not None:
            with pa.memory_map(str(path)) as mapped:
                return decode_table(mapped.read_buffer(), row_count, where)
    except OSError as error:  # ArrowInvalid is none; what the file system says is
        raise FormatError(f"the table cannot be mapped: {error}", where) from error
    return decode_table(pa.py_buffer(_read_whole(store, key, size, row_count)), row_count, where)


def _read_whole(store: Store, key: Key, size: int, row_count: int | None) -> bytearray:
    limit = _WHOLE_MAX_BYTES if row_count is None else _METADATA_BYTES + row_count * _TEXT_BYTES * 2
    if size > limit:
        rows = "a table of ours" if row_count is None else f"{row_count} rows"
        raise FormatError(f"the table is {size} bytes long, {rows} cannot be", f"{key} in {store.url}")
    buffer = bytearray(size)
    store.read_into(key, 0, buffer)
    return buffer


def decode_table(buffer: Any, row_count: int | None, where: str) -> Table:
    """The table in an Arrow buffer, without a copy. Raises FormatError as `read_table` does."""
    try:
        return _decode(buffer, row_count)
    except (pa.ArrowException, OSError, EOFError, StopIteration, ValueError, struct.error) as error:
        raise FormatError(f"not a table of a data set: {error or type(error).__name__}", where) from error


def _decode(buffer: Any, row_count: int | None) -> Table:
    if buffer.size < len(_MAGIC) or buffer.slice(0, len(_MAGIC)).to_pybytes() != _MAGIC:
        raise ValueError("it does not begin as an Arrow file")
    # An IPC file is a stream between a magic and a footer. Reading it as a stream shows each message before Arrow
    # takes memory for it.
    messages = pa.ipc.MessageReader.open_stream(pa.BufferReader(buffer.slice(len(_MAGIC))))
    schema = pa.ipc.read_schema(messages.read_next_message())
    types = _check_schema(schema)
    message = messages.read_next_message()
    if message.type != "record batch" or _is_compressed(bytes(message.metadata)):
        raise ValueError("it is not one uncompressed record batch")
    batch = pa.ipc.read_record_batch(message, schema)
    if row_count is not None and batch.num_rows != row_count:
        raise ValueError(f"it has {batch.num_rows} rows, {row_count} are expected")
    batch.validate(full=True)
    return Table({name: _from_arrow(name, batch.column(i), kind) for i, (name, kind) in enumerate(types)})


def _check_schema(schema: Any) -> Schema:
    types: list[tuple[str, ColumnType]] = []
    for field in schema:
        kind = next((kind for kind, arrow in _ARROW.items() if arrow.equals(field.type)), None)
        if kind is None or field.nullable:
            raise ValueError(f"column {field.name!r} has type {field.type}{' with nulls' if field.nullable else ''}")
        types.append((field.name, kind))
    if len({name for name, _ in types}) < len(types):
        raise ValueError("two columns have one name")
    return tuple(types)


def _is_compressed(metadata: bytes) -> bool:
    """Whether a record batch message (a flatbuffer that Arrow has verified) names a compression of its buffers.

    Arrow would take as much memory as a compressed buffer says it needs, and pyarrow does not tell beforehand.
    """

    def slot(table: int, index: int) -> int:
        vtable = table - int(struct.unpack_from("<i", metadata, table)[0])
        size = int(struct.unpack_from("<H", metadata, vtable)[0])
        entry = 4 + 2 * index
        offset = int(struct.unpack_from("<H", metadata, vtable + entry)[0]) if entry + 2 <= size else 0
        return table + offset if offset else 0

    message = int(struct.unpack_from("<I", metadata, 0)[0])
    header = slot(message, 2)
    batch = header + int(struct.unpack_from("<I", metadata, header)[0])
    return slot(batch, _COMPRESSION_SLOT) != 0


def _to_arrow(column: Column) -> Any:
    if isinstance(column, Text):
        buffers = pa.py_buffer(np.ascontiguousarray(column.offsets)), pa.py_buffer(np.ascontiguousarray(column.data))
        return pa.LargeStringArray.from_buffers(len(column), *buffers)
    buffers = None, pa.py_buffer(np.ascontiguousarray(column))
    return pa.Array.from_buffers(_ARROW[column_type(column)], len(column), list(buffers))


def _from_arrow(name: str, array: Any, kind: ColumnType) -> Column:
    if array.null_count or array.offset:
        raise ValueError(f"column {name!r} has nulls or does not begin at its buffer")
    _, *buffers = array.buffers()
    rows = len(array)
    if kind != "utf8":
        numbers: NDArray[Any] = np.frombuffer(buffers[0], dtype=kind, count=rows) if rows else np.zeros(0, dtype=kind)
        return numbers
    if not rows:
        return Text.of([])
    offsets = np.frombuffer(buffers[0], dtype=np.int64, count=rows + 1)
    if offsets[0] != 0:
        raise ValueError(f"column {name!r} does not begin at its buffer")
    length = int(offsets[-1])
    data = np.frombuffer(buffers[1], dtype=np.uint8, count=length) if length else np.zeros(0, dtype=np.uint8)
    return Text(offsets, data)
