"""The offset tables at hand: read when first needed, verified, kept while there is room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from stoker.dataset.layout import BlockTable
from stoker.dataset.objects import ObjectTable, check_version, verify_table
from stoker.dataset.offsets import MISSING, OffsetsTable, offsets_key
from stoker.dataset.tables import read_table
from stoker.errors import FormatError
from stoker.store.base import Store
from stoker.units import KIB

_MAPPED_BYTES: Final = 64 * KIB  # what a mapped table counts for: its pages are the kernel's to reclaim, its map is not


class Stores(NamedTuple):
    """Where the tables of a data set are, and where its objects are; mostly the same place."""

    tables: Store
    data: Store


class OffsetsShelf:
    """Offset tables by object index, least recently used out first. Thread-safe.

    `limit_bytes` bounds what is kept: a table read into memory counts for its size, a mapped one for 64 KiB.
    """

    def __init__(
        self, stores: Stores, fields: Sequence[str], objects: ObjectTable, blocks: BlockTable, limit_bytes: int
    ) -> None:
        self.loaded_count = 0
        self._store = stores.tables
        self._data = stores.data
        self._fields = fields
        self._objects = objects
        self._blocks = blocks
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, tuple[OffsetsTable, int]] = OrderedDict()
        self._kept_bytes = 0
        self._verified: set[int] = set()

    def get(self, index: int) -> OffsetsTable:
        """The offsets of an object, which is what it was when it was indexed.

        Raises SourceChanged if it is not; DigestMismatch, FormatError, NotFound, StoreError.
        """
        with self._lock:
            found = self._kept.get(index)
            if found is not None:
                self._kept.move_to_end(index)
                return found[0]
        table, nbytes = self._load(index)
        with self._lock:
            self.loaded_count += 1
            if index not in self._kept:
                self._kept[index] = table, nbytes
                self._kept_bytes += nbytes
            while self._kept_bytes > self._limit_bytes and len(self._kept) > 1:
                _, (_, dropped) = self._kept.popitem(last=False)
                self._kept_bytes -= dropped
        return table

    def _load(self, index: int) -> tuple[OffsetsTable, int]:
        key = offsets_key(self._objects.keys[index])
        where = f"{key} in {self._store.url}"
        table = read_table(self._store, key, int(self._objects.sample_count[index]))
        mapped = self._store.path(key) is not None
        version, size = self._objects.version(index), int(self._objects.size_bytes[index])
        if not mapped or index not in self._verified or not version.checksums:
            # A file that was mapped and verified once is not hashed again: objects are immutable, and every field
            # read by these offsets is checked against its own crc32c, where it has one.
            verify_table(table, self._objects.offsets_sha256[index], key, self._store)
        offsets = OffsetsTable.check(table, self._fields, size, where, checksums=version.checksums)
        if version.store:
            check_version(self._data, self._objects.keys[index], size, version.store)
        if index not in self._verified:
            check_inside_blocks(offsets, self._blocks, int(self._objects.first_sample[index]), where)
            self._verified.add(index)
        return offsets, _MAPPED_BYTES if mapped else table.nbytes


def check_inside_blocks(offsets: OffsetsTable, blocks: BlockTable, first: int, where: str) -> None:
    """Raise FormatError unless each field lies in the block that its sample belongs to; `first` is the first of all."""
    samples = np.arange(first, first + len(offsets))
    block = np.searchsorted(blocks.first_sample, samples, side="right") - 1
    start, stop = blocks.offset[block], blocks.offset[block] + blocks.length[block]
    for name, field in offsets.fields.items():
        outside = (field.offset != MISSING) & ((field.offset < start) | (field.offset + field.size > stop))
        if outside.any():
            raise FormatError(
                f"field {name!r} of sample {first + int(np.argmax(outside))} lies outside its block", where
            )
