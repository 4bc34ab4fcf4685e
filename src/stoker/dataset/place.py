"""The place where a data set is written: what lies there, whose it is, and how it is cleared. Shared by all writers."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, Final, cast

from stoker import crash
from stoker.dataset.manifest import BLOCKS_KEY, OBJECTS_KEY, PACK_KEY, holds
from stoker.errors import AlreadyExists, ConfigError, NotFound
from stoker.store.base import PromotingStore, Store
from stoker.units import MIB, format_bytes
from stoker.values import Key, whole_number

SHARD_BYTES: Final = 64 * MIB
SHARD_LEAST_BYTES: Final = MIB  # below, opening a shard costs more than reading it
SHARD_MAX_BYTES: Final = 1 << 40

_log = logging.getLogger("stoker.dataset")


def check_shard_bytes(shard_bytes: int) -> int:
    """`shard_bytes`, or ConfigError if no shard can have that size. Says so if shards would be too small to help."""
    size_bytes = whole_number(shard_bytes)
    if size_bytes is None or not 1 <= size_bytes <= SHARD_MAX_BYTES:
        raise ConfigError(f"not a size for shards: {shard_bytes!r}", hint="64 MiB suits most; at most 1 TiB")
    if size_bytes < SHARD_LEAST_BYTES:
        _log.warning(
            "shards of at most %s: a data set of many tiny files is as slow as the files themselves; 64MiB suits most",
            format_bytes(size_bytes),
        )
    return size_bytes


def shard_key(index: int) -> Key:
    """The name of a shard."""
    return Key(f"shard-{index:06d}.tar")


def read_mark(store: Store) -> Mapping[str, Any] | None:
    """What `.pack.json` says, or None if there is none; empty if it is not ours."""
    try:
        mark = json.loads(store.read(PACK_KEY))
    except NotFound:
        return None
    except (ValueError, RecursionError):
        return {}
    return mark if isinstance(mark, dict) else {}


def check_empty(store: Store) -> None:
    """Raise AlreadyExists if a part of a data set lies in a place that nobody marked."""
    found = next((info.key for prefix in ("shard-", "offsets/") for info in store.list(prefix)), None)
    found = found or next((key for key in (OBJECTS_KEY, BLOCKS_KEY) if holds(store, key)), None)
    if found is not None:
        raise AlreadyExists(f"{str(found)!r} is there already, and not of this writing", store.url, "use another place")


def remove_unpublished(store: Store, *, keep_mark: bool = False) -> None:
    """Remove the parts of a data set that has no manifest; the mark goes last, so that a killed removal is taken up."""
    parts = [info.key for prefix in ("shard-", "offsets/") for info in store.list(prefix)]
    for key in [*parts, OBJECTS_KEY, BLOCKS_KEY]:
        store.delete(key)
        crash.point("dataset-part-removed")
    if not keep_mark:
        store.delete(PACK_KEY)
        crash.point("dataset-mark-removed")


def sweep(store: Store) -> None:
    """Remove what killed writers left under temporary names, where the store keeps files."""
    if store.limits.promotes:
        cast("PromotingStore", store).sweep()
