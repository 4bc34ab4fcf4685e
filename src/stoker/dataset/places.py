"""`Places`: where samples lie, for a reader that asks again and again: all objects' offsets as rows of one array."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.dataset.distinct import distinct
from stoker.dataset.layout import Int64s
from stoker.dataset.objects import ObjectTable
from stoker.dataset.offsets import MISSING, OffsetsTable
from stoker.units import MIB

NO_CHECKSUM: Final = -1
ROWS_MAX_BYTES: Final = 128 * MIB  # 5 million samples of one field; beyond it, tables are asked object by object


class Extents(NamedTuple):
    """Where fields of samples lie: n samples in the order asked for, f fields in the order asked for.

    Attributes:
        object: int64[n], index into `OpenDataset.objects`.
        offset: int64[n, f], first byte in the object; -1 where a sample lacks the field.
        size: int64[n, f], bytes.
        crc32c: int64[n, f], of those bytes; -1 in objects that were only indexed, which are held to their version.
        equal_bytes: the one size of all, if that is known ahead: `size` need not be looked at then, and no sample lacks
            a field; 0 if it is not.
    """

    object: Int64s
    offset: Int64s
    size: Int64s
    crc32c: Int64s
    equal_bytes: int = 0


class Places:
    """Where `fields` and the key of every sample lie: int64[N, 3f + 2], filled object by object when first needed.

    Answering for 64 samples costs some 20 us, of however many objects they are; by the tables themselves it costs
    about 20 us an object. Memory: 24 bytes a sample and field, 16 a sample, and the keys. Thread-safe.
    """

    def __init__(self, objects: ObjectTable, table: Callable[[int], OffsetsTable], fields: Sequence[str]) -> None:
        self._first = objects.first_sample
        self._table = table
        self._fields = tuple(fields)
        count = int(objects.sample_count.sum())
        self._rows = np.empty((count, row_items(len(fields))), np.int64)
        self._known = np.zeros(len(objects), np.bool_)
        self._lock = threading.Lock()
        self._keys = np.empty(1 << 12, np.uint8)  # end to end in the order in which objects came; only ever added to
        self._keys_end = 0

    def load(self, index: int) -> None:
        """Take up the offsets of an object, if they are not yet. Raises as reading its table does."""
        if self._known[index]:
            return
        table = self._table(index)
        with self._lock:
            if not self._known[index]:  # another thread may have been first: then it is being read already
                self._fill(int(self._first[index]), table)
                self._known[index] = True

    def find(self, samples: Int64s) -> tuple[Extents, NDArray[np.uint8], Int64s]:
        """Where samples (int64[n], each one that exists) lie; their keys end to end, and int64[n + 1] offsets."""
        objects = np.searchsorted(self._first, samples, side="right") - 1
        known = self._known[objects]
        if not known.all():
            for index in distinct(objects[~known]).tolist():
                self.load(index)
        width = len(self._fields)
        rows = self._rows[samples]
        extents = Extents(objects, rows[:, :width], rows[:, width : 2 * width], rows[:, 2 * width : 3 * width])
        starts, lengths = rows[:, 3 * width], rows[:, 3 * width + 1]
        offsets = np.zeros(len(samples) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        within = np.arange(int(offsets[-1]))
        within += np.repeat(starts - offsets[:-1], lengths)
        return extents, self._keys[within], offsets

    def _fill(self, first: int, table: OffsetsTable) -> None:
        width = len(self._fields)
        rows = self._rows[first : first + len(table)]
        rows[:, :width] = MISSING
        rows[:, width : 3 * width] = 0
        for column, field in enumerate(self._fields):
            found = table.fields.get(field)
            if found is not None:
                rows[:, column] = found.offset
                rows[:, width + column] = found.size
                rows[:, 2 * width + column] = NO_CHECKSUM if found.crc32c is None else found.crc32c
        starts = table.keys.offsets
        rows[:, 3 * width] = starts[:-1] + self._add_keys(table.keys.data)
        rows[:, 3 * width + 1] = np.diff(starts)

    def _add_keys(self, data: NDArray[np.uint8]) -> int:
        start, self._keys_end = self._keys_end, self._keys_end + len(data)
        if self._keys_end > len(self._keys):
            larger = np.empty(2 * self._keys_end, np.uint8)
            larger[:start] = self._keys[:start]
            self._keys = larger  # whoever reads the old one finds there what it looks for
        self._keys[start : self._keys_end] = data
        return start


def row_items(field_count: int) -> int:
    """Numbers a sample: offset, size and checksum of each field, start and length of its key."""
    return 3 * field_count + 2
