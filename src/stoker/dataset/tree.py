"""Trees of files that are read where they lie: many files stand in a row as one object, whose bytes are theirs.

Such an object exists only in the tables. Its files lie end to end, with one byte between two that nobody reads: so
each file has a place of its own, also an empty one. A table of files says which they are.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.dataset.layout import Int64s
from stoker.dataset.objects import ObjectTable, check_version, verify_table
from stoker.dataset.tables import Schema, Table, Text, read_table
from stoker.errors import AccessDenied, ConfigError, FormatError, Truncated
from stoker.io.buffers import ReadBuffer, WriteBuffer, view
from stoker.store.base import ObjectWriter, Store, StoreLimits
from stoker.values import ByteRange, Key, ObjectInfo

FILES_SCHEMA: Final[Schema] = (("path", "utf8"), ("size_bytes", "int64"), ("version", "utf8"))
_TABLES_KEPT: Final = 16


def files_key(object_key: str) -> Key:
    """Where the table of files of an object is stored."""
    return Key(f"offsets/{object_key}.files.arrow")


def file_starts(sizes: Int64s) -> Int64s:
    """Where each file begins in the object, and where it ends: int64[n + 1]."""
    starts = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes + 1, out=starts[1:])
    return starts


class FilesTable:
    """The files that one object stands for, and which of them were seen to be unchanged."""

    def __init__(self, table: Table, where: str = "") -> None:
        self.table = table
        self._where = where
        self.sizes = table.int64("size_bytes")
        self.starts = file_starts(self.sizes)
        self._paths = table.text("path")
        self._versions = table.text("version")
        self._checked: NDArray[np.bool_] = np.zeros(len(table), dtype=np.bool_)

    @classmethod
    def of(cls, infos: Sequence[ObjectInfo], *, checksums: bool) -> FilesTable:
        """The table of these files. Those whose samples have checksums carry no version."""
        versions = [""] * len(infos) if checksums else [info.version for info in infos]
        sizes = np.array([info.size_bytes for info in infos], dtype=np.int64)
        paths = Text.of([info.key for info in infos])
        return cls(Table({"path": paths, "size_bytes": sizes, "version": Text.of(versions)}))

    @classmethod
    def read(cls, store: Store, object_key: Key, sha256: str, size_bytes: int) -> FilesTable:
        """The files of an object of `size_bytes`. Raises DigestMismatch, FormatError, NotFound, StoreError."""
        key = files_key(object_key)
        where = f"{key} in {store.url}"
        table = read_table(store, key, None)
        verify_table(table, sha256, key, store)
        if table.schema != FILES_SCHEMA:
            raise FormatError(f"not a table of files: its columns are {list(table.columns)}", where)
        sizes = table.int64("size_bytes")
        if not len(table) or (sizes < 0).any() or (sizes > size_bytes).any() or len(table) > size_bytes:
            raise FormatError("the table makes no sense: a file has no size that can be", where)
        if int(sizes.sum()) + len(sizes) != size_bytes:
            raise FormatError(f"the files do not make an object of {size_bytes:,} bytes", where)
        return cls(table, where)

    def __len__(self) -> int:
        return len(self.table)

    def info(self, index: int) -> ObjectInfo:
        """Key, size and version of a file; the version is empty where checksums hold it. Raises FormatError."""
        try:
            key = Key(self._paths.at(index))
        except ConfigError as error:
            raise FormatError(f"the name of a file cannot be used: {error.what}", self._where) from error
        return ObjectInfo(key, int(self.sizes[index]), self._versions.at(index))

    def find(self, offset: int, length: int) -> int | None:
        """The file that holds bytes [offset, offset + length) of the object, if they lie in one."""
        index = int(np.searchsorted(self.starts, offset, side="right")) - 1
        inside = 0 <= index < len(self) and offset + length <= int(self.starts[index]) + int(self.sizes[index])
        return index if inside else None

    def check(self, store: Store, index: int) -> ObjectInfo:
        """The file, if it is what was indexed: one stat the first time. Raises SourceChanged, StoreError."""
        info = self.info(index)
        if info.version and not self._checked[index]:
            check_version(store, info.key, info.size_bytes, info.version)
            self._checked[index] = True
        return info


class TreeStore:
    """A store in which objects made of files can be read; everything else is as in `data`. Nothing can be written."""

    def __init__(self, tables: Store, data: Store, objects: ObjectTable) -> None:
        self._tables = tables
        self._data = data
        self._objects = objects
        self._index = {key: number for number, key in enumerate(objects.keys) if objects.version(number).files}
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, FilesTable] = OrderedDict()

    @property
    def url(self) -> str:
        """That of the files."""
        return self._data.url

    @property
    def limits(self) -> StoreLimits:
        """Those of the files."""
        return self._data.limits

    def stat(self, key: Key) -> ObjectInfo:
        """Size and version, of an object made of files as its tables say."""
        index = self._index.get(key)
        if index is None:
            return self._data.stat(key)
        return ObjectInfo(key, int(self._objects.size_bytes[index]), str(self._objects.version(index)))

    def read_into(self, key: Key, start: int, buffer: WriteBuffer) -> None:
        """Fill `buffer` from the file that lies at `start`; one stat more the first time. Raises SourceChanged too."""
        if key not in self._index:
            self._data.read_into(key, start, buffer)
            return
        files, length = self.files(key), len(view(buffer))
        index = files.find(start, length)
        if index is None:
            raise Truncated(f"no file of {str(key)!r} holds bytes {start:,} to {start + length:,}", self.url)
        info = files.check(self._data, index)
        self._data.read_into(info.key, start - int(files.starts[index]), buffer)

    def read(self, key: Key, range: ByteRange | None = None) -> bytes:  # noqa: A002  the field's word
        """As in the store of the files; of an object made of files, a range inside one of them."""
        if key not in self._index:
            return self._data.read(key, range)
        part = ByteRange(0, self.stat(key).size_bytes) if range is None else range
        buffer = bytearray(part.length)
        self.read_into(key, part.start, buffer)
        return bytes(buffer)

    def write(self, key: Key, data: ReadBuffer, *, if_absent: bool = False) -> ObjectInfo:
        """Raise AccessDenied: source data is not changed."""
        del data, if_absent
        raise AccessDenied(f"cannot write {str(key)!r}: a data set that is read in place", self.url)

    def writer(self, key: Key, *, size_bytes: int = 0) -> ObjectWriter:
        """Raise AccessDenied: source data is not changed."""
        del size_bytes
        raise AccessDenied(f"cannot write {str(key)!r}: a data set that is read in place", self.url)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """The files."""
        return self._data.list(prefix)

    def delete(self, key: Key) -> None:
        """Raise AccessDenied: source data is not changed."""
        raise AccessDenied(f"cannot delete {str(key)!r}: a data set that is read in place", self.url)

    def path(self, key: Key) -> Path | None:
        """The file that holds the object; None for one made of files."""
        return None if key in self._index else self._data.path(key)

    def close(self) -> None:
        """Leave the stores open: they are the caller's."""

    def files(self, key: Key) -> FilesTable:
        """The files of an object, from a table that is read once and kept while 16 are. Raises as `FilesTable.read`."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        index = self._index[key]
        made = FilesTable.read(
            self._tables, key, self._objects.version(index).files, int(self._objects.size_bytes[index])
        )
        with self._lock:
            made = self._kept.setdefault(key, made)
            if len(self._kept) > _TABLES_KEPT:
                self._kept.popitem(last=False)
        return made


def see_trees(tables: Store, data: Store, objects: ObjectTable) -> Store:
    """`data`, or where some `objects` are made of files a store that can read those."""
    made_of_files = any(objects.version(index).files for index in range(len(objects))) if objects.versions else False
    return TreeStore(tables, data, objects) if made_of_files else data
