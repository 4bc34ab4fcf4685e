"""The tables of objects and blocks: how they are stored, and what must hold of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.dataset.layout import BlockTable, Int64s
from stoker.dataset.manifest import Manifest
from stoker.dataset.tables import Schema, Table, Text, read_table
from stoker.errors import ConfigError, DigestMismatch, FormatError, NotFound, SourceChanged
from stoker.store.base import Store
from stoker.values import Key

OBJECTS_SCHEMA: Final[Schema] = (
    ("key", "utf8"),
    ("size_bytes", "int64"),
    ("first_sample", "int64"),
    ("sample_count", "int64"),
    ("offsets_sha256", "utf8"),
    ("version", "utf8"),
)
BLOCKS_SCHEMA: Final[Schema] = (
    ("object", "int64"),
    ("offset", "int64"),
    ("length", "int64"),
    ("first_sample", "int64"),
    ("sample_count", "int64"),
)
FILES_VERSION: Final = "files:"
CHECKED_FILES_VERSION: Final = "files+crc32c:"
VERSION_MAX_LENGTH: Final = 1024
_SHA256_DIGITS: Final = 64
_AGAIN: Final = "index the source again, to another place or after removing this index"


@dataclass(frozen=True, slots=True, eq=False)
class ObjectTable:
    """The objects of a data set, in manifest order.

    Attributes:
        keys: names relative to the manifest.
        size_bytes: int64[n].
        first_sample: int64[n], rising from 0.
        sample_count: int64[n], at least 1.
        offsets_sha256: the digest of each object's table of offsets, in hex; empty where offsets follow by arithmetic.
        versions: what each object must still be when it is read (see `Version`); none where stoker wrote them.
    """

    keys: tuple[Key, ...]
    size_bytes: Int64s
    first_sample: Int64s
    sample_count: Int64s
    offsets_sha256: tuple[str, ...]
    versions: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.keys)

    def version(self, index: int) -> Version:
        """What an object is held to."""
        return Version.parse(self.versions[index] if self.versions else "")


class Version(NamedTuple):
    """What an object is held to besides its size.

    Attributes:
        checksums: whether each field of its samples has a crc32c.
        store: the version that the store must still state, or empty.
        files: the digest of its table of files, if it stands for a row of files; or empty.
    """

    checksums: bool
    store: str = ""
    files: str = ""

    @classmethod
    def parse(cls, text: str) -> Version:
        """Read an entry of the column `version`: "", "files:SHA256", "files+crc32c:SHA256", or a store's version."""
        for lead, checksums in ((FILES_VERSION, False), (CHECKED_FILES_VERSION, True)):
            if text.startswith(lead):
                return cls(checksums, files=text.removeprefix(lead))
        return cls(checksums=not text, store=text)

    def __str__(self) -> str:
        if self.files:
            return (CHECKED_FILES_VERSION if self.checksums else FILES_VERSION) + self.files
        return self.store


def objects_table(objects: ObjectTable) -> Table:
    """The table as it is stored. Objects that stoker wrote carry no version: their samples' checksums do better."""
    return Table(
        {
            "key": Text.of(objects.keys),
            "size_bytes": objects.size_bytes,
            "first_sample": objects.first_sample,
            "sample_count": objects.sample_count,
            "offsets_sha256": Text.of(objects.offsets_sha256),
            "version": Text.of(objects.versions or [""] * len(objects)),
        }
    )


def blocks_table(blocks: BlockTable) -> Table:
    """The table as it is stored."""
    return Table({name: getattr(blocks, name) for name, _ in BLOCKS_SCHEMA})


def read_objects(store: Store, key: Key, manifest: Manifest) -> ObjectTable:
    """The objects of a data set. Raises FormatError, DigestMismatch, NewerFormat, NotFound."""
    where = f"{key} in {store.url}"
    table = read_verified(store, key, manifest.object_count, manifest.tables.objects)
    _check_schema(table, OBJECTS_SCHEMA, where)
    try:
        keys = tuple(Key(text) for text in table.text("key"))
    except ConfigError as error:
        raise FormatError(f"the name of an object cannot be used: {error.what}", where) from error
    objects = ObjectTable(
        keys=keys,
        size_bytes=table.int64("size_bytes"),
        first_sample=table.int64("first_sample"),
        sample_count=table.int64("sample_count"),
        offsets_sha256=tuple(table.text("offsets_sha256")),
        versions=tuple(table.text("version")) if len(table.text("version").data) else (),
    )
    problems: dict[str, bool | np.bool_] = {
        "two objects have one name": len(set(keys)) < len(keys),
        "an object has no size": (objects.size_bytes < 1).any(),
        "a digest is not a sha256": any(len(digest) != _SHA256_DIGITS for digest in objects.offsets_sha256),
        "a version makes no sense": not all(map(_is_version, objects.versions)),
    }
    _check(problems | _counting(objects.first_sample, objects.sample_count, manifest.sample_count), where)
    return objects


def read_blocks(store: Store, key: Key, manifest: Manifest) -> BlockTable:
    """The blocks of a data set, not yet compared with its objects. Raises FormatError, DigestMismatch, NotFound."""
    table = read_verified(store, key, manifest.block_count, manifest.tables.blocks)
    _check_schema(table, BLOCKS_SCHEMA, f"{key} in {store.url}")
    return BlockTable(**{name: table.int64(name) for name, _ in BLOCKS_SCHEMA})


def check_blocks(blocks: BlockTable, objects: ObjectTable, manifest: Manifest, where: str) -> None:
    """Raise FormatError unless the blocks cover all samples in order, without overlap, inside their objects."""
    within = (blocks.object >= 0) & (blocks.object < len(objects))
    counting = _counting(blocks.first_sample, blocks.sample_count, manifest.sample_count)
    _check({"a block lies in no object": not within.all()} | counting, where)
    size = objects.size_bytes[blocks.object]
    first, count = objects.first_sample[blocks.object], objects.sample_count[blocks.object]
    fits = (blocks.offset >= 0) & (blocks.length > 0) & (blocks.length <= size)
    fits &= blocks.offset <= size - np.clip(blocks.length, 0, size)
    _check({"a block reaches beyond its object": not fits.all()}, where)
    same = blocks.object[1:] == blocks.object[:-1]
    ends = blocks.offset[:-1] + blocks.length[:-1]
    inside = (blocks.first_sample >= first) & (blocks.first_sample + blocks.sample_count <= first + count)
    problems: dict[str, bool | np.bool_] = {
        "a block holds samples of another object": not inside.all(),
        "two blocks overlap": (same & (blocks.offset[1:] < ends)).any(),
        "a block of several samples is longer than block_bytes": (
            (blocks.sample_count > 1) & (blocks.length > manifest.block_bytes)
        ).any(),
    }
    _check(problems, where)


def read_verified(store: Store, key: Key, row_count: int, sha256: str) -> Table:
    """A table whose digest is known. Raises DigestMismatch naming it, FormatError, NotFound."""
    table = read_table(store, key, row_count)
    verify_table(table, sha256, key, store)
    return table


def verify_table(table: Table, sha256: str, key: Key, store: Store) -> None:
    """Raise DigestMismatch, naming the table, unless its digest is `sha256`."""
    actual = table.digest()
    if actual != sha256:
        raise DigestMismatch(f"table {str(key)!r} was altered: its digest is {actual}, not {sha256}", store.url)


def check_version(
    store: Store, key: Key, size_bytes: int, version: str, *, seen: str = "indexed", hint: str = _AGAIN
) -> None:
    """Raise SourceChanged unless the object is what it was when it was `seen`. Costs one stat."""
    try:
        info = store.stat(key)
    except NotFound as error:
        raise SourceChanged(f"{str(key)!r} was {seen} and is gone", store.url, hint) from error
    if info.size_bytes != size_bytes:
        what = f"{str(key)!r} had {size_bytes:,} bytes when it was {seen}, now {info.size_bytes:,}"
        raise SourceChanged(what, store.url, hint)
    if info.version != version:
        what = f"{str(key)!r} was written to since it was {seen}: its version was {version!r}, now {info.version!r}"
        raise SourceChanged(what, store.url, hint)


def _is_version(text: str) -> bool:
    version = Version.parse(text)
    if text.startswith((FILES_VERSION, CHECKED_FILES_VERSION)):
        return len(version.files) == _SHA256_DIGITS
    return len(text) <= VERSION_MAX_LENGTH


def _check_schema(table: Table, schema: Schema, where: str) -> None:
    if table.schema != schema:
        raise FormatError(f"the columns are {list(table.columns)}, not {[name for name, _ in schema]}", where)


def _counting(first: Int64s, count: NDArray[np.int64], total: int) -> dict[str, bool | np.bool_]:
    """Problems of ranges [first, first + count) that should cover [0, total) in order."""
    sane = (first >= 0) & (first <= total) & (count >= 1) & (count <= total)
    follows = bool(sane.all()) and np.array_equal(first[1:], first[:-1] + count[:-1])
    return {"the samples are not counted without a gap": not follows or first[0] != 0 or first[-1] + count[-1] != total}


def _check(problems: Mapping[str, bool | np.bool_], where: str) -> None:
    for problem, found in problems.items():
        if found:
            raise FormatError(f"the table makes no sense: {problem}", where)
