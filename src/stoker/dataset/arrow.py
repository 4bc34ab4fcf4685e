"""Arrow IPC files, as far as tables of ours need them, read without Arrow, whose import takes as long as an opening.

Source: the Arrow columnar format, "Encapsulated message format" and "IPC file format", with the flatbuffers of
Message.fbs and Schema.fbs. Every number is held against the bytes that are there before it is used.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

MAGIC: Final = b"ARROW1\0\0"

_METADATA_MAX_BYTES: Final = 1 << 20  # more than any table of ours has
_CONTINUES: Final = 0xFFFFFFFF
_SCHEMA, _RECORD_BATCH = 1, 3  # MessageHeader
_INT, _LARGE_UTF8 = 2, 20  # Type
_TYPE_NAMES: Final = {1: "null", 3: "float", 4: "binary", 5: "string", 6: "bool", 12: "list", 13: "struct"}


class ArrowColumn(NamedTuple):
    """A column of a record batch: `type` as Arrow names it, and the buffers of its values (offsets first, if any)."""

    name: str
    type: str
    buffers: tuple[memoryview, ...]


def read_batch(data: memoryview) -> tuple[int, list[ArrowColumn]]:
    """Rows and columns of the one record batch in a file, without a copy.

    Raises ValueError or struct.error unless it is uncompressed, little-endian, without nulls, and all of it is there;
    columns of other types than int64, uint32 and large_utf8 are refused by the name of their type.
    """
    if bytes(data[: len(MAGIC)]) != MAGIC:
        raise ValueError("it does not begin as an Arrow file")
    # A file is a stream between a magic and a footer: the messages are read in order.
    schema, _, at = _message(data, len(MAGIC), _SCHEMA)
    batch, body, _ = _message(data, at, _RECORD_BATCH)
    types = _read_schema(schema)
    if batch.slot(3):
        raise ValueError("it is not one uncompressed record batch")
    rows = batch.number(0, "<q")
    nodes, buffers = batch.structs(1), batch.structs(2)
    parts = [_part(body, start, length) for start, length in buffers]
    if len(nodes) != len(types) or len(parts) != sum(_buffer_count(kind) for _, kind in types):
        raise ValueError("its columns do not fit its schema")
    columns = []
    for (name, kind), (length, null_count) in zip(types, nodes, strict=True):
        if length != rows or null_count:
            raise ValueError(f"column {name!r} has nulls or another length")
        count = _buffer_count(kind)
        columns.append(ArrowColumn(name, kind, tuple(parts[1:count])))  # the first says what is null
        del parts[:count]
    return rows, columns


def _buffer_count(kind: str) -> int:
    return 3 if kind == "large_string" else 2


def _part(body: memoryview, start: int, length: int) -> memoryview:
    if not 0 <= start <= start + length <= len(body):
        raise ValueError("a buffer lies outside of the record batch")
    return body[start : start + length]


def _message(data: memoryview, at: int, kind: int) -> tuple[_Table, memoryview, int]:
    """The header of the message at `at`, its body, and where the next one begins."""
    lead, size = struct.unpack_from("<II", data, at)
    start = at + 8 + size
    if lead != _CONTINUES or not 0 < size <= _METADATA_MAX_BYTES or start > len(data):
        raise ValueError("a message is cut, or there is none")
    metadata = bytes(data[at + 8 : start])
    message = _Table(metadata, _unsigned(metadata, 0))
    length = message.number(3, "<q")
    if message.number(1, "<B") != kind:
        raise ValueError("it is not one uncompressed record batch")
    if not 0 <= length <= len(data) - start:
        raise ValueError("a record batch is cut")
    return message.table(2), data[start : start + length], start + length


def _read_schema(schema: _Table) -> list[tuple[str, str]]:
    if schema.number(0, "<h"):
        raise ValueError("its numbers are big-endian")
    types = []
    for field in schema.tables(1):
        name, kind = field.text(0), _type_name(field)
        nullable = field.number(1, "<B")
        if nullable or kind not in ("int64", "uint32", "large_string") or field.slot(4):
            raise ValueError(f"column {name!r} has type {kind}{' with nulls' if nullable else ''}")
        types.append((name, kind))
    if len({name for name, _ in types}) < len(types):
        raise ValueError("two columns have one name")
    return types


def _type_name(field: _Table) -> str:
    kind = field.number(2, "<B")
    if kind == _LARGE_UTF8:
        return "large_string"
    if kind != _INT:
        return _TYPE_NAMES.get(kind, f"number {kind} of Arrow's")
    number = field.table(3)
    return f"{'' if number.number(1, '<B') else 'u'}int{number.number(0, '<i')}"


def _unsigned(metadata: bytes, at: int) -> int:
    """The offset at `at`, made absolute."""
    return at + int(struct.unpack_from("<I", metadata, at)[0])


class _Table:
    """A table of a flatbuffer: fields by their slot, 0 where there is none. Raises struct.error beyond the end."""

    def __init__(self, metadata: bytes, at: int) -> None:
        self._metadata = metadata
        self._at = at
        vtable = at - int(struct.unpack_from("<i", metadata, at)[0])
        if vtable < 0:
            raise ValueError("its metadata point before their beginning")
        size = int(struct.unpack_from("<H", metadata, vtable)[0])
        self._slots = struct.unpack_from(f"<{max(0, size - 4) // 2}H", metadata, vtable + 4)

    def slot(self, index: int) -> int:
        """Where a field lies; 0: it is not there."""
        offset = self._slots[index] if index < len(self._slots) else 0
        return self._at + offset if offset else 0

    def number(self, index: int, layout: str) -> int:
        at = self.slot(index)
        return int(struct.unpack_from(layout, self._metadata, at)[0]) if at else 0

    def table(self, index: int) -> _Table:
        return _Table(self._metadata, self._pointed(index))

    def _pointed(self, index: int) -> int:
        at = self.slot(index)
        if not at:
            raise ValueError("its metadata lack something")
        return _unsigned(self._metadata, at)

    def _vector(self, index: int, item_bytes: int) -> tuple[int, int]:
        """Where the items of a vector begin, and how many they are."""
        at = self._pointed(index)
        count = int(struct.unpack_from("<I", self._metadata, at)[0])
        if count * item_bytes > len(self._metadata) - at - 4:
            raise ValueError("its metadata are cut")
        return at + 4, count

    def text(self, index: int) -> str:
        at, count = self._vector(index, 1)
        return self._metadata[at : at + count].decode()

    def tables(self, index: int) -> list[_Table]:
        at, count = self._vector(index, 4)
        return [_Table(self._metadata, _unsigned(self._metadata, at + 4 * i)) for i in range(count)]

    def structs(self, index: int) -> list[tuple[int, int]]:
        """A vector of pairs of int64."""
        at, count = self._vector(index, 16)
        return list(struct.iter_unpack("<qq", self._metadata[at : at + 16 * count]))
