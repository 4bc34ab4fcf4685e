"""`DatasetWriter`: make a data set from Python, sample by sample. Published as a whole by `close()`, or not at all."""

from __future__ import annotations

import json
import logging
import os
import secrets
import warnings
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker import crash
from stoker.dataset.formats.tar import TRAILER, member_bytes
from stoker.dataset.manifest import MANIFEST_KEY, PACK_KEY, Manifest, holds
from stoker.dataset.names import FIELD_LIMIT, check_sample_name
from stoker.dataset.offsets import OffsetsBuilder, offsets_key
from stoker.dataset.place import (
    SHARD_BYTES,
    check_empty,
    check_shard_bytes,
    read_mark,
    remove_unpublished,
    shard_key,
    sweep,
)
from stoker.dataset.publish import Catalog
from stoker.dataset.shard import Member, ShardWriter
from stoker.dataset.tables import encode_table
from stoker.dataset.values import as_bytes
from stoker.errors import AlreadyExists, ClosedError, ConfigError, DatasetError, EmptyDataset, NotFound, StokerError
from stoker.io.buffers import ReadBuffer
from stoker.store.base import Store
from stoker.units import format_count

_EXAMPLE: Final = 'write(key, {"jpg": data})'
_MARK_FORMAT: Final = "stoker-writer"
_State: TypeAlias = Literal["open", "failed", "published", "discarded"]

_log = logging.getLogger("stoker.dataset")


class DatasetWriter:
    """Writes samples into tar shards: `with DatasetWriter(store) as w: w.write("a/1", {"jpg": b, "json": b2})`.

    Samples keep the order they are written in; shards, tables and manifest are those that `pack` would make of them.
    An exception inside the `with` block publishes nothing and removes what was written. What a killed writer left is
    removed by the next one at the same place. One thread at a time; holds one MiB, the keys, and one shard's offsets.
    """

    def __init__(self, store: Store, *, shard_bytes: int = SHARD_BYTES) -> None:
        self._store = store
        self._shard_bytes = check_shard_bytes(shard_bytes)
        self._catalog = Catalog()
        self._keys: set[str] = set()
        self._fields: set[str] = set()
        self._shard: ShardWriter | None = None
        self._offsets = OffsetsBuilder()
        self._extents: list[int] = []
        self._state: _State = "open"
        self._manifest: Manifest | None = None
        self._mark = json.dumps({"format": _MARK_FORMAT, "version": 1, "writer": secrets.token_hex(8)}).encode()
        self._claim()
        self._unclosed = weakref.finalize(self, _tell_unclosed, store.url, os.getpid())

    def write(self, key: str, fields: Mapping[str, ReadBuffer | NDArray[Any]]) -> None:
        """Add one sample: field name -> bytes. In a field `npy` or `*.npy` a numpy array is written in that format.

        Raises ConfigError, with nothing written, for a key or field that WebDataset would read differently, a key
        that was written before, no fields, or a value that is not bytes: an array elsewhere is refused, for its bytes
        alone say neither type nor shape. After a StoreError nothing can be published.
        """
        self._check_open()
        members, fields = self._check_sample(key, fields)
        self._state = "failed"  # until the whole sample is in the shard
        extent = sum(member_bytes(member.path, member.size) for member in members)
        if self._shard is not None and self._shard.size_bytes + extent + len(TRAILER) > self._shard_bytes:
            self._finish_shard(self._shard)
        if self._shard is None:
            self._shard = ShardWriter(self._store, shard_key(self._catalog.object_count))
        places = []
        for member in members:
            self._shard.begin(member)
            self._shard.add(fields[member.field])
            places.append(self._shard.end())
        self._offsets.add(key, places)
        self._extents.append(extent)
        self._keys.add(key)
        self._state = "open"

    def close(self) -> Manifest:
        """Publish the data set: last shard, objects, blocks, manifest. Idempotent once it succeeded.

        Raises EmptyDataset if nothing was written, DatasetError if an earlier write failed, AlreadyExists if another
        writer took the place, and StoreError; then nothing is published, and what was written is removed.
        """
        if self._manifest is None:
            try:
                self._manifest = self._publish()
            except BaseException:
                self._discard_quietly()
                raise
            self._unclosed.detach()
            self._state = "published"
            self._store.delete(PACK_KEY)
            crash.point("writer-mark-removed")
        return self._manifest

    def discard(self) -> None:
        """Publish nothing and remove what was written; no effect after `close`. Raises StoreError."""
        if self._state in ("published", "discarded"):
            return
        self._unclosed.detach()
        self._state = "discarded"
        if self._shard is not None:
            self._shard.discard()
        # A manifest may stand there although writing it reported an error: then everything must stay.
        if self._is_mine() and not holds(self._store, MANIFEST_KEY):
            remove_unpublished(self._store)

    def __repr__(self) -> str:
        return f"<DatasetWriter to {self._store.url}: {self._state}, {format_count(len(self._keys), 'sample')}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None or self._state == "discarded":
            self._discard_quietly()
        else:
            self.close()

    def _publish(self) -> Manifest:
        self._check_open()
        if self._shard is None:
            raise EmptyDataset("nothing was written: a data set has at least one sample", self._store.url)
        self._finish_shard(self._shard)
        manifest = self._catalog.publish(self._store)
        _log.info("wrote %d samples in %d shards to %s", manifest.sample_count, manifest.object_count, self._store.url)
        return manifest

    def _discard_quietly(self) -> None:
        """Discard while another error is on its way: that one is the one to be seen."""
        try:
            self.discard()
        except StokerError as error:
            _log.warning(
                "an unfinished data set stays in %s: the next writer there removes it: %s", self._store.url, error
            )

    def _finish_shard(self, shard: ShardWriter) -> None:
        if not self._is_mine():
            raise AlreadyExists("another writer has taken over this place", self._store.url, "write to another place")
        key, offsets = shard_key(self._catalog.object_count), self._offsets.build()
        size_bytes = shard.finish()
        crash.point("writer-shard-written")
        self._store.write(offsets_key(key), encode_table(offsets.table))
        crash.point("writer-offsets-written")
        self._catalog.add(key, size_bytes, np.array(self._extents, dtype=np.int64), offsets)
        self._shard, self._offsets, self._extents = None, OffsetsBuilder(), []

    def _check_sample(
        self, key: str, fields: Mapping[str, ReadBuffer | NDArray[Any]]
    ) -> tuple[list[Member], dict[str, ReadBuffer]]:
        given: object = fields
        if not isinstance(given, Mapping):
            raise ConfigError(f"sample {key!r} is a {type(given).__name__}, not fields", hint=_EXAMPLE)
        if not fields:
            raise ConfigError(f"sample {key!r} has no field", hint=_EXAMPLE)
        members, encoded = [], dict[str, ReadBuffer]()
        for field, value in fields.items():
            path = check_sample_name(key, field)
            encoded[field] = as_bytes(value, field, f"field {field!r} of sample {key!r}")
            members.append(Member(path, field, len(encoded[field])))
        if key in self._keys:
            raise ConfigError(f"sample {key!r} was written before", self._store.url, "keys are unique in a data set")
        if len(self._fields | fields.keys()) > FIELD_LIMIT:
            raise DatasetError(f"more than {FIELD_LIMIT} different fields", f"sample {key!r}", "name fields by kind")
        self._fields |= fields.keys()
        return sorted(members, key=lambda member: member.path.encode()), encoded

    def _claim(self) -> None:
        """Mark the place as being written, and remove what a killed writer left there."""
        store, mark = self._store, read_mark(self._store)
        if holds(store, MANIFEST_KEY):
            if mark is not None and mark.get("format") == _MARK_FORMAT:  # killed after the manifest: nothing is missing
                sweep(store)
                store.delete(PACK_KEY)
                crash.point("writer-mark-removed-late")
            raise AlreadyExists("a data set is there already", store.url, "write to another place")
        if mark is None:
            check_empty(store)
        elif mark.get("format") != _MARK_FORMAT:
            raise AlreadyExists("an unfinished pack is there", store.url, "finish it, remove it, or use another place")
        store.write(PACK_KEY, self._mark)
        crash.point("writer-marked")
        if mark is not None:
            _log.info("removing what an earlier writer left in %s", store.url)
            remove_unpublished(store, keep_mark=True)
        sweep(store)

    def _is_mine(self) -> bool:
        try:
            return self._store.read(PACK_KEY) == self._mark
        except NotFound:
            return False

    def _check_open(self) -> None:
        if self._state == "failed":
            raise DatasetError("an earlier write failed, so nothing can be published", self._store.url)
        if self._state != "open":
            raise ClosedError(f"the data set is {self._state}", self._store.url)


def _tell_unclosed(url: str, pid: int) -> None:
    """A writer is gone, or its process ends, and it was neither closed nor discarded. A forked process keeps silent."""
    if os.getpid() != pid:
        return
    what = f"a writer of {url} was never closed: nothing is published"
    _log.warning("%s. Use it in a with block, or call close()", what)
    warnings.warn(what, ResourceWarning, stacklevel=2)
