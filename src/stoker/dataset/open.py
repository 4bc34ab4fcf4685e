"""`open_dataset`: a data set as it is read. Opening costs O(blocks); what lies where in a shard is read when needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.dataset.layout import BlockTable, Int64s
from stoker.dataset.manifest import BLOCKS_KEY, OBJECTS_KEY, Manifest, read_manifest
from stoker.dataset.objects import ObjectTable, check_blocks, read_blocks, read_objects
from stoker.dataset.offsets import MISSING, OffsetsTable
from stoker.dataset.places import NO_CHECKSUM, ROWS_MAX_BYTES, Extents, Places, row_items
from stoker.dataset.shelf import OffsetsShelf, Stores
from stoker.dataset.tables import Text
from stoker.dataset.tree import see_trees
from stoker.errors import DatasetError
from stoker.store.base import Store
from stoker.units import MIB

__all__ = ["NO_CHECKSUM", "Extents", "OpenDataset", "open_dataset"]

OFFSETS_BYTES: Final = 256 * MIB

_Group: TypeAlias = tuple[OffsetsTable, NDArray[np.intp], Int64s]


class OpenDataset:
    """A data set that can be read. Thread-safe, holds no file open; made by `open_dataset`.

    Attributes:
        store: where `objects` are read; of a tree of files it takes their names for the files they stand for.
        tables: where manifest and tables are; mostly the same store.
        readable: bool[objects], whether one read may reach across samples: not where an object stands for many files.
    """

    def __init__(
        self, store: Store, tables: Store, manifest: Manifest, objects: ObjectTable, blocks: BlockTable
    ) -> None:
        self.store = store
        self.tables = tables
        self.manifest = manifest
        self.objects = objects
        self.blocks = blocks
        self._shelf = OffsetsShelf(Stores(tables, store), manifest.field_names, objects, blocks, OFFSETS_BYTES)
        self.readable = np.array([not objects.version(index).files for index in range(len(objects))], np.bool_)
        self._places: dict[tuple[str, ...], Places] = {}

    @property
    def namer(self) -> None:
        """Keys are data: they are read from the tables."""

    def offsets(self, index: int) -> OffsetsTable:
        """The offsets of an object, read when they are not at hand. Raises as `extents` does."""
        return self._shelf.get(index)

    def load(self, index: int, fields: tuple[str, ...]) -> None:
        """Read the offsets of an object ahead of `find`, where they are not at hand. Raises as `extents` does."""
        places = self._places_of(fields)
        if places is None:
            self._shelf.get(index)
        else:
            places.load(index)

    def find(self, samples: Int64s, fields: tuple[str, ...]) -> tuple[Extents, NDArray[np.uint8], Int64s]:
        """What `extents` and `key_bytes` say, for a reader that asks again and again for the same fields.

        All offsets that were read stay in memory, up to 128 MiB for these fields; larger data sets are asked object
        by object. Raises as `extents` does.
        """
        self._check_samples(samples)
        places = self._places_of(fields)
        if places is None:
            return (self.extents(samples, fields), *self.key_bytes(samples))
        return places.find(samples)

    def extents(self, samples: Int64s, fields: Sequence[str]) -> Extents:
        """Where `fields` of `samples` (int64[n], any order, repeats allowed) lie.

        Costs one offset table for each object touched (read and verified when it is not at hand), and vector
        operations. Raises DatasetError for a field that the manifest does not name, or a sample that does not exist;
        FormatError, DigestMismatch, StoreError for a table that cannot be read.
        """
        self._check_fields(fields)
        shape = len(samples), len(fields)
        offset = np.full(shape, MISSING, dtype=np.int64)
        size = np.zeros(shape, dtype=np.int64)
        crc32c = np.zeros(shape, dtype=np.int64)
        objects = self._objects_of(samples)
        for table, places, rows in self._groups(samples, objects):
            for column, field in enumerate(fields):
                found = table.fields.get(field)
                if found is not None:
                    offset[places, column] = found.offset[rows]
                    size[places, column] = found.size[rows]
                    crc32c[places, column] = NO_CHECKSUM if found.crc32c is None else found.crc32c[rows]
        return Extents(objects, offset, size, crc32c)

    def key_bytes(self, samples: Int64s) -> tuple[NDArray[np.uint8], Int64s]:
        """Keys of `samples` (int64[n]): their UTF-8 bytes end to end, and int64[n + 1] offsets into them."""
        groups = list(self._groups(samples, self._objects_of(samples)))
        offsets = np.zeros(len(samples) + 1, dtype=np.int64)
        for table, places, rows in groups:
            offsets[places + 1] = table.keys.offsets[rows + 1] - table.keys.offsets[rows]
        np.cumsum(offsets, out=offsets)
        data = np.empty(int(offsets[-1]), dtype=np.uint8)
        for table, places, rows in groups:
            starts, targets = table.keys.offsets[rows], offsets[places]
            lengths = offsets[places + 1] - targets
            within = np.arange(int(lengths.sum()), dtype=np.int64)
            within -= np.repeat(np.cumsum(lengths) - lengths, lengths)
            data[np.repeat(targets, lengths) + within] = table.keys.data[np.repeat(starts, lengths) + within]
        return data, offsets

    def keys(self, samples: Int64s) -> list[str]:
        """Keys of `samples` (int64[n]). Costs and errors as `extents`."""
        data, offsets = self.key_bytes(samples)
        return list(Text(offsets, data))

    def largest_batch_bytes(self, fields: Sequence[str], sample_count: int, *, exact: bool = False) -> int:
        """The most bytes that `fields` of any `sample_count` samples take.

        By default a bound from the manifest alone (`sample_count` times the largest of each field), which also covers
        a padded tail, where one sample may stand many times. With `exact` the sum over the largest different samples;
        this reads every offset table.
        """
        self._check_fields(fields)
        if not exact:
            return sample_count * sum(f.max_bytes for f in self.manifest.fields if f.name in fields)
        largest = np.zeros(0, dtype=np.int64)
        for index in range(len(self.objects)):
            table = self._shelf.get(index)
            sizes = np.zeros(len(table), dtype=np.int64)
            for field in set(fields) & table.fields.keys():
                sizes += table.fields[field].size
            largest = np.concatenate([largest, sizes])
            if len(largest) > sample_count:
                largest = np.partition(largest, len(largest) - sample_count)[len(largest) - sample_count :]
        return int(largest.sum())

    def _places_of(self, fields: tuple[str, ...]) -> Places | None:
        places = self._places.get(fields)
        if places is None:
            self._check_fields(fields)
            if self.manifest.sample_count * row_items(len(fields)) * 8 > ROWS_MAX_BYTES:
                return None
            # Of two threads that come first one may make it in vain: nothing of it is filled yet.
            places = self._places.setdefault(fields, Places(self.objects, self._shelf.get, fields))
        return places

    def _check_samples(self, samples: Int64s) -> None:
        count = self.manifest.sample_count
        if len(samples) and not 0 <= int(samples.min()) <= int(samples.max()) < count:
            odd = samples[(samples < 0) | (samples >= count)][0]
            raise DatasetError(f"there is no sample {odd}: the data set has {count}", self.store.url)

    def _objects_of(self, samples: Int64s) -> Int64s:
        self._check_samples(samples)
        return np.searchsorted(self.objects.first_sample, samples, side="right").astype(np.int64) - 1

    def _groups(self, samples: Int64s, objects: Int64s) -> Iterator[_Group]:
        """For each object: its offsets, where its samples stand in `samples`, and their rows in the offsets."""
        order = np.argsort(objects, kind="stable")
        touched, starts = np.unique(objects[order], return_index=True)
        for index, places in zip(touched.tolist(), np.split(order, starts[1:]), strict=False):
            yield self._shelf.get(index), places, samples[places] - self.objects.first_sample[index]

    def _check_fields(self, fields: Sequence[str]) -> None:
        unknown = [field for field in fields if field not in self.manifest.field_names]
        if unknown:
            raise DatasetError(
                f"the data set has no field {', '.join(map(repr, unknown))}",
                self.store.url,
                f"it has {', '.join(map(repr, self.manifest.field_names))}",
            )


def open_dataset(store: Store, data: Store | None = None) -> OpenDataset:
    """Open the data set at the root of `store`: manifest, objects and blocks, verified; O(blocks), offsets later.

    `data` holds the objects where they do not lie beside the manifest: an index that is kept elsewhere. It is the
    caller's word alone that says where; nothing in a data set names another place. The stores stay the caller's to
    close. Raises DatasetError if there is no manifest, NewerFormat for a version this release does not know,
    DigestMismatch naming the table that was altered, FormatError, NotFound for a table that is gone or a place that is
    not there, and StoreError.
    """
    manifest = read_manifest(store)
    objects = read_objects(store, OBJECTS_KEY, manifest)
    blocks = read_blocks(store, BLOCKS_KEY, manifest)
    check_blocks(blocks, objects, manifest, f"{BLOCKS_KEY} in {store.url}")
    data = store if data is None else data
    return OpenDataset(see_trees(store, data, objects), store, manifest, objects, blocks)
