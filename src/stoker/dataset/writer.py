"""`stoker.writer`: write a data set to a path or URL."""

from __future__ import annotations

import os
import weakref

from stoker.dataset.place import SHARD_BYTES
from stoker.dataset.write import DatasetWriter
from stoker.store.base import Store
from stoker.store.open import open_store
from stoker.units import parse_bytes
from stoker.values import path_text


def writer(url: str | os.PathLike[str] | Store, *, shard_bytes: int | str = SHARD_BYTES) -> DatasetWriter:
    """Write a data set sample by sample: `with stoker.writer(url) as w: w.write("a/1", {"jpg": b, "json": b2})`.

    `shard_bytes` is a number or a size such as "64MiB". Nothing is visible before the `with` block ends; an exception
    inside it publishes nothing. Raises AlreadyExists if a data set is there, ConfigError, StoreError.
    """
    shard_size = parse_bytes(shard_bytes)
    if isinstance(url, Store):
        return DatasetWriter(url, shard_bytes=shard_size)
    store = open_store(path_text("the place of a data set", url))
    opened = DatasetWriter(store, shard_bytes=shard_size)
    weakref.finalize(opened, store.close)
    return opened
