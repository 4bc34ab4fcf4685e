"""Where the fields of each sample of one object lie: the tables under `offsets/`."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.dataset.layout import Int64s
from stoker.dataset.tables import Column, ColumnType, Schema, Table, Text
from stoker.errors import FormatError
from stoker.values import Key

MISSING: Final = -1


class Place(NamedTuple):
    """Where one field of one sample lies in its object, and the crc32c of its bytes (0 where none is taken)."""

    field: str
    offset: int
    size: int
    crc32c: int


class FieldColumns(NamedTuple):
    """One field of the samples of an object: offset -1, size 0, crc32c 0 where a sample lacks it.

    `crc32c` is None in objects that were only indexed: no byte of them was read then.
    """

    offset: Int64s
    size: Int64s
    crc32c: NDArray[np.uint32] | None


class OffsetsTable:
    """The offsets of the samples of one object: their keys, and the columns of each field that occurs in it."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.keys = table.text("key")
        names = [name.removesuffix("/offset") for name in table.columns if name.endswith("/offset")]
        self.fields = {
            name: FieldColumns(
                table.int64(f"{name}/offset"),
                table.int64(f"{name}/size"),
                table.uint32(f"{name}/crc32c") if f"{name}/crc32c" in table.columns else None,
            )
            for name in names
        }

    @classmethod
    def check(
        cls, table: Table, known: Sequence[str], object_bytes: int, where: str, *, checksums: bool = True
    ) -> OffsetsTable:
        """The offsets in a table that was read.

        Raises FormatError unless its fields are among `known`, every field lies inside `object_bytes`, and there are
        checksums exactly if there should be.
        """
        names = [name.removesuffix("/offset") for name in table.columns if name.endswith("/offset")]
        if table.schema != offsets_schema(names, checksums=checksums) or names != sorted(set(names)):
            raise FormatError(f"not a table of offsets: its columns are {list(table.columns)}", where)
        unknown = sorted(set(names) - set(known))
        if unknown:
            raise FormatError(f"the manifest knows no field {', '.join(map(repr, unknown))}", where)
        offsets = cls(table)
        for name, columns in offsets.fields.items():
            missing = columns.offset == MISSING
            wrong = (columns.offset < MISSING) | (columns.size < 0) | (columns.size > object_bytes)
            wrong |= ~missing & (columns.offset > object_bytes - np.clip(columns.size, 0, object_bytes))
            wrong |= missing & (columns.size != 0)
            if columns.crc32c is not None:
                wrong |= missing & (columns.crc32c != 0)
            if wrong.any():
                row = int(np.argmax(wrong))
                raise FormatError(
                    f"field {name!r} of sample {row} lies at {columns.offset[row]} + {columns.size[row]},"
                    f" the object ends at {object_bytes}",
                    where,
                )
        return offsets

    def __len__(self) -> int:
        return len(self.table)


class OffsetsBuilder:
    """Collects the samples of one object; about 30 bytes a field and the key, each."""

    def __init__(self, *, checksums: bool = True) -> None:
        self._checksums = checksums
        self._keys: list[str] = []
        self._fields: dict[str, tuple[array[int], array[int], array[int], array[int]]] = {}

    def add(self, key: str, places: Iterable[Place]) -> None:
        """The next sample and where its fields lie."""
        row = len(self._keys)
        self._keys.append(key)
        for place in places:
            columns = self._fields.get(place.field)
            if columns is None:
                columns = self._fields[place.field] = (array("q"), array("q"), array("q"), array("I"))
            for column, value in zip(columns, (row, place.offset, place.size, place.crc32c), strict=True):
                column.append(value)

    def build(self) -> OffsetsTable:
        """The table of what was added."""
        rows = len(self._keys)
        columns: dict[str, Column] = {"key": Text.of(self._keys)}
        for field in sorted(self._fields):
            row, offset, size, crc = (np.array(column) for column in self._fields[field])
            columns[f"{field}/offset"] = _spread(rows, row, offset, MISSING)
            columns[f"{field}/size"] = _spread(rows, row, size, 0)
            if self._checksums:
                columns[f"{field}/crc32c"] = _spread(rows, row, crc, 0).astype(np.uint32)
        return OffsetsTable(Table(columns))


def offsets_schema(fields: Iterable[str], *, checksums: bool = True) -> Schema:
    """The columns of an offsets table that holds these fields."""
    schema: list[tuple[str, ColumnType]] = [("key", "utf8")]
    for field in fields:
        schema += [(f"{field}/offset", "int64"), (f"{field}/size", "int64")]
        if checksums:
            schema.append((f"{field}/crc32c", "uint32"))
    return tuple(schema)


def offsets_key(object_key: str) -> Key:
    """Where the offsets of an object are stored."""
    return Key(f"offsets/{object_key}.arrow")


def _spread(rows: int, at: NDArray[np.int64], values: NDArray[np.int64], rest: int) -> Int64s:
    column = np.full(rows, rest, dtype=np.int64)
    column[at] = values
    return column
