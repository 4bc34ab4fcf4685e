"""The end of every data set that is written: objects, blocks, and the manifest last, which makes it one."""

from __future__ import annotations

from array import array
from typing import NamedTuple

import numpy as np

from stoker import crash
from stoker.dataset.layout import Int64s, choose_block_bytes, make_blocks
from stoker.dataset.manifest import BLOCKS_KEY, MANIFEST_KEY, OBJECTS_KEY, FieldSchema, Manifest, TableDigests
from stoker.dataset.objects import ObjectTable, blocks_table, objects_table
from stoker.dataset.offsets import MISSING, OffsetsTable
from stoker.dataset.tables import Table, encode_table
from stoker.errors import AlreadyExists
from stoker.store.base import Store
from stoker.values import Key


class Sealed(NamedTuple):
    """The manifest of a data set, and the tables it names."""

    manifest: Manifest
    objects: Table
    blocks: Table


class Catalog:
    """Collects the objects of a data set as they are finished; costs 8 bytes a sample."""

    def __init__(self) -> None:
        self.sample_count = 0
        self._keys: list[Key] = []
        self._sizes: list[int] = []
        self._firsts: list[int] = []
        self._digests: list[str] = []
        self._versions: list[str] = []
        self._extents = array("q")
        self._fields: dict[str, FieldSchema] = {}

    @property
    def object_count(self) -> int:
        """Objects added so far."""
        return len(self._keys)

    def add(self, key: Key, size_bytes: int, extents: Int64s, offsets: OffsetsTable, version: str = "") -> None:
        """The next object, the extents of its samples (int64[n]), where their fields lie, and what it is held to."""
        self._keys.append(key)
        self._sizes.append(size_bytes)
        self._firsts.append(self.sample_count)
        self._digests.append(offsets.table.digest())
        self._versions.append(version)
        self._extents.frombytes(extents.tobytes())
        self.sample_count += len(extents)
        for name, columns in offsets.fields.items():
            before = self._fields.get(name, FieldSchema(name, 0, 0, 0))
            self._fields[name] = FieldSchema(
                name=name,
                sample_count=before.sample_count + int((columns.offset != MISSING).sum()),
                total_bytes=before.total_bytes + int(columns.size.sum()),
                max_bytes=max(before.max_bytes, int(columns.size.max())),
            )

    def seal(self) -> Sealed:
        """What `publish` would write."""
        firsts = np.array(self._firsts, dtype=np.int64)
        cuts = np.append(firsts, self.sample_count)
        extents = np.array(self._extents, dtype=np.int64)
        block_bytes = choose_block_bytes(int(extents.sum()))
        objects = ObjectTable(
            keys=tuple(self._keys),
            size_bytes=np.array(self._sizes, dtype=np.int64),
            first_sample=firsts,
            sample_count=np.diff(cuts),
            offsets_sha256=tuple(self._digests),
            versions=tuple(self._versions) if any(self._versions) else (),
        )
        blocks = make_blocks(extents, cuts, block_bytes)
        tables = objects_table(objects), blocks_table(blocks)
        fields = tuple(self._fields[name] for name in sorted(self._fields))
        manifest = Manifest(
            sample_count=self.sample_count,
            object_count=len(objects),
            block_count=len(blocks),
            total_bytes=sum(field.total_bytes for field in fields),
            block_bytes=block_bytes,
            fields=fields,
            tables=TableDigests(objects=tables[0].digest(), blocks=tables[1].digest()),
        )
        return Sealed(manifest, *tables)

    def publish(self, store: Store) -> Manifest:
        """Write objects, blocks and the manifest, each durable before the next.

        The same objects give the same bytes. Raises AlreadyExists if another manifest is there, and StoreError.
        """
        sealed = self.seal()
        store.write(OBJECTS_KEY, encode_table(sealed.objects))
        crash.point("dataset-objects-written")
        store.write(BLOCKS_KEY, encode_table(sealed.blocks))
        crash.point("dataset-blocks-written")
        write_once(store, MANIFEST_KEY, sealed.manifest.encode())
        crash.point("dataset-manifest-written")
        return sealed.manifest


def write_once(store: Store, key: Key, data: bytes) -> None:
    """Write an object that must not replace another; no error if exactly these bytes are there already.

    Raises AlreadyExists if other bytes are.
    """
    try:
        store.write(key, data, if_absent=True)
    except AlreadyExists:
        if store.read(key) != data:
            raise
