"""A tree of files that exists becomes samples where it lies: objects of about 65,536 files each, made in the tables."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from typing import Final

import numpy as np

from stoker.dataset.index_tar import NAMELESS, TWICE, Choice, Indexed, Tally, check_fields, checksum_of
from stoker.dataset.names import split_path
from stoker.dataset.objects import Version, check_version
from stoker.dataset.offsets import OffsetsBuilder, Place
from stoker.dataset.tree import FilesTable
from stoker.store.base import Store
from stoker.values import Key, ObjectInfo

FILES_PER_OBJECT: Final = 65_536


def index_tree(store: Store, infos: Sequence[ObjectInfo], choice: Choice) -> Generator[Indexed, None, None]:
    """The files `infos` that `choice` takes as samples, in the order of their paths; members of one stand together.

    Reads no file, unless checksums are wanted. Holds the names of all files. Raises DatasetError for too many fields,
    StoreError; files that make no sample are counted in the tallies.
    """
    tally = Tally()
    samples: dict[str, dict[str, ObjectInfo]] = {}
    for info in sorted(infos, key=lambda info: info.key):
        if not choice.takes(info.key):
            continue
        key, field = split_path(info.key)
        if not key or not field:
            tally.refuse(NAMELESS, repr(str(info.key)))
            continue
        members = samples.setdefault(key, {})
        if field in members:
            tally.refuse(TWICE, repr(str(info.key)))
            continue
        members[field] = info
        tally.fields[field] += 1
        check_fields(tally, store.url)
    part: dict[str, dict[str, ObjectInfo]] = {}
    number = count = 0
    for key, members in samples.items():
        if part and count + len(members) > FILES_PER_OBJECT:
            yield _object(store, number, part, choice, tally)
            part, number, count, tally = {}, number + 1, 0, Tally()
        part[key] = members
        count += len(members)
    yield _object(store, number, part, choice, tally)


def _object(
    store: Store, number: int, samples: dict[str, dict[str, ObjectInfo]], choice: Choice, tally: Tally
) -> Indexed:
    """The object made of the files of `samples`; `tally` is what was counted for it."""
    infos = [info for members in samples.values() for info in members.values()]
    files = FilesTable.of(infos, checksums=choice.checksums)
    builder = OffsetsBuilder(checksums=choice.checksums)
    starts, row = files.starts.tolist(), 0
    extents = []
    for key, members in samples.items():
        places = []
        for field, info in members.items():
            crc = _checksum(store, info) if choice.checksums else 0
            places.append(Place(field, starts[row], info.size_bytes, crc))
            row += 1
        builder.add(key, places)
        extents.append(starts[row] - places[0].offset)
    return Indexed(
        key=Key(f"tree-{number:06d}"),
        size_bytes=starts[-1],
        version=str(Version(checksums=choice.checksums, files=files.table.digest())),
        extents=np.array(extents, dtype=np.int64),
        offsets=builder.build(),
        tally=tally,
        files=files.table,
    )


def count_unlisted(store: Store, listed_count: int) -> int:
    """How many names under a folder are no objects: links, sockets, names that no store can have. 0 if unknown."""
    manifest = store.path(Key("manifest.json"))
    if manifest is None:
        return 0
    return sum(len(names) for _, _, names in os.walk(manifest.parent)) - listed_count


def _checksum(store: Store, info: ObjectInfo) -> int:
    crc = checksum_of(store, info.key, 0, info.size_bytes)
    check_version(store, info.key, info.size_bytes, info.version)
    return crc
