"""From what a user names to an open data set: beside its manifest, by an index kept elsewhere, or indexed now."""

from __future__ import annotations

import hashlib
import logging
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stoker.dataset.describe import Dataset
from stoker.dataset.manifest import MANIFEST_KEY, holds
from stoker.dataset.open import OpenDataset, open_dataset
from stoker.dataset.readable import Readable
from stoker.dataset.select import Address, find_objects, parse_address
from stoker.errors import DatasetError, TimedOut
from stoker.io.lock import FileLock
from stoker.store.base import Store
from stoker.store.local import LocalStore
from stoker.store.open import open_store
from stoker.units import format_seconds
from stoker.values import canonical_json

INDEX_DEADLINE_S: Final = 1800.0
_TELL_S: Final = 10.0
_PAUSE_MAX_S: Final = 0.5

_log = logging.getLogger("stoker.dataset")


@dataclass(frozen=True, slots=True)
class IndexCache:
    """A folder of this node for indexes that nobody made beforehand, and how long to wait for who makes one."""

    root: Path
    deadline_s: float = INDEX_DEADLINE_S


def open_described(dataset: Dataset, stack: ExitStack, cache: IndexCache | None = None) -> Readable:
    """Open what `dataset` names, files of tokens or anything else. Raises as `open_tokens` and `open_indexed` do."""
    if dataset.windows is not None:
        from stoker.dataset.tokens import open_tokens  # noqa: PLC0415  not for every data set

        return open_tokens(dataset.source, dataset.windows, stack)
    return open_indexed(dataset, stack, cache)


def open_indexed(dataset: Dataset, stack: ExitStack, cache: IndexCache | None = None) -> OpenDataset:
    """Open what `dataset` names, by its manifest. `stack` closes the stores that are opened here.

    Where there is no manifest and `cache` is given, one process of the node indexes once, and the others wait. Raises
    DatasetError if there is no manifest and no cache; TimedOut; and as `open_dataset` and `index` do.
    """
    address = None if isinstance(dataset.source, Store) else parse_address(dataset.source)
    data = _open(dataset.source if address is None else address.base, stack)
    if dataset.index is not None:
        return open_dataset(_open(dataset.index, stack), data)
    if cache is None or address is None:
        opened = open_dataset(data)
        if address is not None and address.pattern and not _covers(opened, address):
            what = f"{address.pattern!r} is a part of this data set, and nothing names its samples alone"
            raise DatasetError(
                what, data.url, "name the folder for all of it, or index that part: stoker index URL --out"
            )
        return opened
    if _has_manifest(data):
        opened = open_dataset(data)
        if not address.pattern or _covers(opened, address):
            return opened
    return open_dataset(_cached_index(data, address, cache, stack), data)


def _open(place: str | Path | Store, stack: ExitStack) -> Store:
    return place if isinstance(place, Store) else stack.enter_context(closing(open_store(place)))


def _has_manifest(data: Store) -> bool:
    """Whether there is a data set, or what was to become one: opening it then says what is missing."""
    if holds(data, MANIFEST_KEY):
        return True
    from stoker.dataset.index import MARK_FORMAT  # noqa: PLC0415  20 ms that a data set with a manifest need not wait for
    from stoker.dataset.place import read_mark  # noqa: PLC0415

    mark = read_mark(data)
    return mark is not None and mark.get("format") != MARK_FORMAT


def _covers(opened: OpenDataset, address: Address) -> bool:
    """Whether the data set at the place holds exactly the objects that the pattern names."""
    return {info.key for info in find_objects(opened.store, address.pattern)} == set(opened.objects.keys)


def _cached_index(data: Store, address: Address, cache: IndexCache, stack: ExitStack) -> Store:
    """The index of the objects as they are now, which is made if this node has none."""
    from stoker.dataset.index import list_sources  # noqa: PLC0415  as above

    infos = list_sources(data, address.pattern, beside=False)
    place_name = data.url.encode("utf-8", "backslashreplace").decode()  # a path may be no UTF-8
    state = [place_name, *([info.key, info.size_bytes, info.version] for info in infos)]
    name = hashlib.sha256(canonical_json(state)).hexdigest()[:32]
    place = stack.enter_context(closing(LocalStore(cache.root / name)))
    with FileLock(cache.root / f"{name}.lock") as lock:
        _wait(lock, place, cache.deadline_s)
        if not holds(place, MANIFEST_KEY):
            _make(data, address, place, len(infos))
    return place


def _wait(lock: FileLock, place: Store, deadline_s: float) -> None:
    """Hold the lock, or see that the index is there. Raises TimedOut."""
    start_s, pause_s = time.monotonic(), 0.01
    while not holds(place, MANIFEST_KEY) and not lock.try_acquire():
        if time.monotonic() - start_s > deadline_s:
            what = f"waited {format_seconds(deadline_s)} for an index that another process makes: {lock.holder()}"
            raise TimedOut(what, str(lock.path), "index beforehand: stoker index URL")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_MAX_S)


def _make(data: Store, address: Address, place: Store, count: int) -> None:
    from stoker.dataset.index import index  # noqa: PLC0415  as above

    url = f"{address.base}/{address.pattern}" if address.pattern else address.base
    _log.info("%s has no manifest: indexing %d objects", url, count)
    told_s = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal told_s
        if time.monotonic() - told_s > _TELL_S:
            told_s = time.monotonic()
            _log.info("indexed %d of %d objects of %s", done, total, url)

    report = index(data, address.pattern, place, progress=tell)
    _log.warning(
        "indexed %s in %s, for this node alone; keep an index beside the data: stoker index '%s'",
        *(url, format_seconds(report.seconds), url),
    )
