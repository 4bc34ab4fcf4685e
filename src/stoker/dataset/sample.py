"""One sample at a time, by its key: for looking, not for training."""

from __future__ import annotations

import difflib
from itertools import islice

import numpy as np

from stoker.dataset.open import NO_CHECKSUM, OpenDataset
from stoker.errors import DatasetError, DigestMismatch
from stoker.io.checksum import crc32c
from stoker.values import ByteRange

_NEAR_MAX = 10_000  # keys that a wrong one is compared with


def find_sample(opened: OpenDataset, key: str) -> int:
    """The number of the sample with this key. Searches the tables of offsets, one object after the other.

    Raises DatasetError if there is none, or more than one (keys are unique in what stoker wrote, and in each tar).
    """
    found: list[int] = []
    wanted = key.encode()
    for index, first in enumerate(opened.objects.first_sample.tolist()):
        found += [first + row for row in opened.offsets(index).keys.find(wanted)]
    if len(found) == 1:
        return found[0]
    if found:
        what = f"{len(found)} samples have the key {key!r}: numbers {', '.join(map(str, found[:3]))}"
        raise DatasetError(what, opened.store.url, "archives that were indexed may repeat keys: name one archive")
    near = difflib.get_close_matches(key, islice(opened.offsets(0).keys, _NEAR_MAX), n=1)
    hint = f"did you mean {near[0]!r}?" if near else "stoker ls URL lists the keys"
    raise DatasetError(f"no sample has the key {key!r}", opened.store.url, hint)


def read_sample(opened: OpenDataset, sample: int) -> dict[str, bytes]:
    """The fields of a sample, checked: against their crc32c, or the version of their object where there is none.

    Raises DigestMismatch, SourceChanged, DatasetError, StoreError.
    """
    names = opened.manifest.field_names
    places = opened.extents(np.array([sample], dtype=np.int64), names)
    key = opened.objects.keys[int(places.object[0])]
    found = {}
    for column, name in enumerate(names):
        offset, size, expected = (int(values[0, column]) for values in (places.offset, places.size, places.crc32c))
        if offset < 0:
            continue
        data = opened.store.read(key, ByteRange(offset, offset + size))
        digest = crc32c(data)
        if expected not in (NO_CHECKSUM, digest):
            what = f"field {name!r} of sample {sample} has crc32c {digest:08x}, not {expected:08x}"
            raise DigestMismatch(what, f"{size} bytes at {offset} of {key} in {opened.store.url}")
        found[name] = data
    return found
