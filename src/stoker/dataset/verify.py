"""Verifying a data set: is everything there and what it was? Goes on after a fault and tells all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeAlias

from stoker.dataset.index_tar import checksum_of
from stoker.dataset.manifest import check_there
from stoker.dataset.objects import check_version, verify_table
from stoker.dataset.offsets import MISSING, OffsetsTable, offsets_key
from stoker.dataset.open import OpenDataset, open_dataset
from stoker.dataset.shelf import check_inside_blocks
from stoker.dataset.tables import read_table
from stoker.dataset.tree import FilesTable, TreeStore
from stoker.errors import (
    DatasetError,
    DigestMismatch,
    FormatError,
    IntegrityError,
    NewerFormat,
    NotFound,
    StokerError,
    StoreError,
    Truncated,
)
from stoker.store.base import Store
from stoker.values import Key

Progress: TypeAlias = Callable[[int, int], None]
"""Called with bytes (deep) or objects done, and in all."""

_THREADS: Final = 4
_NOT_ITSELF: Final = frozenset({"NotFound", "SourceChanged"})  # what is in such an object says nothing


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is not as it should be: the object or file, and what is wrong, in the words of the error."""

    where: str
    error: str
    what: str


@dataclass(frozen=True, slots=True)
class Verified:
    """What was looked at, and what was found.

    `unchecked_bytes` were read but have no checksum to be compared with: they are held to the version of their object.
    """

    objects: int
    read_bytes: int
    unchecked_bytes: int
    faults: tuple[Fault, ...]


def verify_dataset(tables: Store, data: Store, *, deep: bool, progress: Progress | None = None) -> Verified:
    """Verify the data set whose manifest is in `tables` and whose objects are in `data` (mostly the same store).

    Always: manifest and tables against their digests, objects against the sizes and versions they should have; costs
    a stat an object or file. `deep`: also every field against its crc32c; reads all of them. Damage is returned, not
    raised. Raises DatasetError if there is no data set, NotFound if there is no such place, NewerFormat, AccessDenied,
    Unavailable, TimedOut.
    """
    check_there(tables)
    try:
        opened = open_dataset(tables, data)
    except NewerFormat:
        raise
    except (IntegrityError, NotFound) as error:
        return Verified(0, 0, 0, (fault_of(error, tables.url),))
    return _Verifier(opened, data, deep=deep).run(progress)


def fault_of(error: StokerError, where: str) -> Fault:
    """The fault that an error tells of. Raises the error if it tells of the store's state and not of the bytes'."""
    if isinstance(error, StoreError) and not isinstance(error, NotFound):
        raise error
    return Fault(error.where or where, type(error).__name__, error.what)


def _check_size(store: Store, key: Key, size_bytes: int) -> None:
    found = store.stat(key).size_bytes
    if found != size_bytes:
        kind = Truncated if found < size_bytes else FormatError
        raise kind(f"{str(key)!r} has {found:,} bytes, not {size_bytes:,}", store.url)


class _Verifier:
    def __init__(self, opened: OpenDataset, data: Store, *, deep: bool) -> None:
        self._opened = opened
        self._data = data
        self._deep = deep

    def run(self, progress: Progress | None) -> Verified:
        """Look at all objects, several at once."""
        opened = self._opened
        faults: list[Fault] = []
        count, total = len(opened.objects), opened.manifest.total_bytes
        read_bytes = unchecked_bytes = 0
        with ThreadPoolExecutor(_THREADS, "stoker-verify") as pool:
            for done, found in enumerate(pool.map(self._object, range(count)), 1):
                read_bytes += found.read_bytes
                unchecked_bytes += found.unchecked_bytes
                faults += found.faults
                if progress is not None:
                    progress(*((read_bytes, total) if self._deep else (done, count)))
        return Verified(count, read_bytes, unchecked_bytes, tuple(faults))

    def _object(self, index: int) -> Verified:
        """One object: its offsets, then itself, then its fields."""
        objects, tables = self._opened.objects, self._opened.tables
        key, size, version = objects.keys[index], int(objects.size_bytes[index]), objects.version(index)
        faults: list[Fault] = []
        try:
            if version.files:
                files = FilesTable.read(tables, key, version.files, size)
                faults += self._files(files)
            elif version.store:
                check_version(self._data, key, size, version.store)
            else:
                _check_size(self._data, key, size)
        except (IntegrityError, DatasetError, NotFound) as error:
            faults.append(fault_of(error, f"{key} in {self._data.url}"))
        try:
            offsets = self._offsets(index)
        except (IntegrityError, NotFound) as error:
            faults.append(fault_of(error, f"{offsets_key(key)} in {tables.url}"))
            return Verified(1, 0, 0, tuple(faults))
        gone = any(fault.error in _NOT_ITSELF for fault in faults) and not version.files
        if gone or not self._deep:
            return Verified(1, 0, 0, tuple(faults))
        return self._fields(index, offsets, faults)

    def _offsets(self, index: int) -> OffsetsTable:
        objects, tables = self._opened.objects, self._opened.tables
        key = offsets_key(objects.keys[index])
        where = f"{key} in {tables.url}"
        table = read_table(tables, key, int(objects.sample_count[index]))
        verify_table(table, objects.offsets_sha256[index], key, tables)
        names, size = self._opened.manifest.field_names, int(objects.size_bytes[index])
        offsets = OffsetsTable.check(table, names, size, where, checksums=objects.version(index).checksums)
        check_inside_blocks(offsets, self._opened.blocks, int(objects.first_sample[index]), where)
        return offsets

    def _files(self, files: FilesTable) -> Iterator[Fault]:
        """Files of a tree that are gone, or not what was indexed."""
        for row in range(len(files)):
            try:
                info = files.check(self._data, row)
                if not info.version:
                    _check_size(self._data, info.key, info.size_bytes)
            except (IntegrityError, DatasetError, NotFound) as error:
                yield fault_of(error, self._data.url)

    def _fields(self, index: int, offsets: OffsetsTable, faults: list[Fault]) -> Verified:
        """Every field of the samples of an object, in the order of their bytes."""
        objects, store = self._opened.objects, self._opened.store
        key, first = objects.keys[index], int(objects.first_sample[index])
        read_bytes = unchecked_bytes = 0
        for row, sample in enumerate(offsets.keys):
            for name, columns in offsets.fields.items():
                offset, size = int(columns.offset[row]), int(columns.size[row])
                if offset == MISSING:
                    continue
                where = f"field {name!r} of sample {sample!r} ({first + row}): {size} bytes at {offset} of {key}"
                try:
                    digest = checksum_of(store, key, offset, size)
                    read_bytes += size
                    if columns.crc32c is None:
                        unchecked_bytes += size
                    elif digest != columns.crc32c[row]:
                        what = f"it has crc32c {digest:08x}, not {int(columns.crc32c[row]):08x}"
                        raise DigestMismatch(what, f"{where} in {store.url}")
                except (IntegrityError, DatasetError, NotFound) as error:
                    # A file of a tree that is gone or was changed stands on the list already.
                    if isinstance(error, DigestMismatch) or not isinstance(store, TreeStore):
                        faults.append(fault_of(error, where))
        return Verified(1, read_bytes, unchecked_bytes, tuple(faults))
