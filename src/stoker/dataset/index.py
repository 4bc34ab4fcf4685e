"""`index`: a manifest for tar archives, or a tree of files, that exist. They are read, never changed or copied."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from stoker import crash
from stoker.dataset.index_tar import APART, Choice, Indexed, Tally, check_fields, index_tar
from stoker.dataset.index_tree import count_unlisted, index_tree
from stoker.dataset.listing import Globs
from stoker.dataset.manifest import (
    BLOCKS_KEY,
    MANIFEST_KEY,
    OBJECTS_KEY,
    PACK_KEY,
    Manifest,
    check_there,
    holds,
    is_manifest,
    read_manifest,
)
from stoker.dataset.offsets import offsets_key
from stoker.dataset.place import read_mark, sweep
from stoker.dataset.publish import Catalog, write_once
from stoker.dataset.select import find_objects, is_tar
from stoker.dataset.tables import encode_table
from stoker.dataset.tree import files_key
from stoker.errors import (
    AccessDenied,
    AlreadyExists,
    ConfigError,
    DatasetError,
    EmptyDataset,
    SourceChanged,
    StokerError,
)
from stoker.store.base import Store
from stoker.values import Key, ObjectInfo

Progress: TypeAlias = Callable[[int, int], None]
"""Called with objects done, and objects in all."""

MARK_FORMAT: Final = "stoker-index"
OFFSETS_PREFIX: Final = "offsets/"
_MARK_VERSION: Final = 1
_THREADS: Final = 8  # archives walked at once: a walk waits for storage
_AHEAD: Final = 16

_log = logging.getLogger("stoker.dataset")


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """What is indexed, and how.

    Attributes:
        include, exclude: globs over the files of samples: by base name, or by path if they hold a slash.
        checksums: read every byte once and keep its crc32c. Then a copy of the objects is as good as they are; without
            it they are held to their size and version.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    checksums: bool = False

    def to_json(self) -> dict[str, Any]:
        """The options as the mark keeps them."""
        globs = {"include": sorted(set(self.include)), "exclude": sorted(set(self.exclude))}
        return {**globs, "checksums": self.checksums}


@dataclass(frozen=True, slots=True)
class IndexReport:
    """What an index found. `skipped` counts what was left out, by reason; `already_there`: nothing was written."""

    source: str
    index: str
    digest: str
    kind: str
    samples: int
    objects: int
    blocks: int
    total_bytes: int
    fields: tuple[str, ...]
    checksums: bool
    skipped: Mapping[str, int]
    already_there: bool
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The facts the command line prints."""
        facts = {name: getattr(self, name) for name in self.__slots__}
        facts["bytes"] = facts.pop("total_bytes")
        return facts | {"fields": list(self.fields), "skipped": dict(self.skipped)}


_DEFAULTS: Final = IndexOptions()


def index(
    source: Store,
    pattern: str,
    out: Store | None = None,
    options: IndexOptions = _DEFAULTS,
    progress: Progress | None = None,
) -> IndexReport:
    """Index the objects of `source` that match `pattern` (all: empty) into `out`, or beside them where that is None.

    The same source and options give the same digest. What is there already, and the same, is left alone. Raises
    DatasetError for files that make no samples, with counts and a hint; EmptyDataset; SourceChanged if an object
    changes meanwhile, or what was indexed there was another; AlreadyExists, FormatError, StoreError.
    """
    started_s = time.perf_counter()
    place = source if out is None or out.url == source.url else out
    _check_apart(source, place)
    infos = list_sources(source, pattern, beside=place is source)
    tars = is_tar(infos, source.url)
    writer = _Writer(place, options, fresh=_claim_or_advise(place, source, options))
    sweep(place)
    choice = Choice(Globs(options.include), Globs(options.exclude), options.checksums)
    found = _walk_tars(source, infos, choice) if tars else index_tree(source, infos, choice)
    try:
        with closing(found):  # its threads end here, not where a collector finds it: a thread that begins may be there
            for done, one in enumerate(found, 1):
                writer.add(one)
                if progress is not None:
                    progress(done, len(infos) if tars else done)
        manifest = writer.finish(source.url, pattern or "*")
    except BaseException:
        writer.discard()
        raise
    if not tars and not pattern and (left := count_unlisted(source, len(find_objects(source, "")))) > 0:
        writer.tally.skipped["names that are no files (links, sockets, or names that no store can have)"] += left
    for reason, count in sorted(writer.tally.skipped.items()):
        _log.warning("left out of the index of %s: %d %s", source.url, count, reason)
    return IndexReport(
        source=source.url,
        index=place.url,
        digest=manifest.digest,
        kind="tar" if tars else "tree",
        samples=manifest.sample_count,
        objects=len(infos),
        blocks=manifest.block_count,
        total_bytes=manifest.total_bytes,
        fields=manifest.field_names,
        checksums=options.checksums,
        skipped=dict(sorted(writer.tally.skipped.items())),
        already_there=not writer.fresh,
        seconds=time.perf_counter() - started_s,
    )


def list_sources(source: Store, pattern: str, *, beside: bool) -> list[ObjectInfo]:
    """The objects an index covers: what matches `pattern`, without what an index of stoker's put beside them.

    Raises EmptyDataset if there are none, NotFound if there is no such place, DatasetError if they are a packed data
    set; AlreadyExists if files that are not stoker's have the names that an index `beside` them would take.
    """
    infos = find_objects(source, pattern)
    if not infos:
        check_there(source)
    named = [info for info in infos if _is_own(info.key)]
    if named and _has_index(source):
        infos = [info for info in infos if not _is_own(info.key)]
    elif named and beside:
        what = f"an index would be written over {str(named[0].key)!r}, which is no part of one"
        raise AlreadyExists(what, source.url, "write the index to another place: --out")
    if not infos:
        raise EmptyDataset("there is nothing to index", source.url, "give the folder or the archives")
    return infos


class _Writer:
    """Writes the tables of objects as they come; or, where an index is already there, only compares in the end."""

    def __init__(self, place: Store, options: IndexOptions, *, fresh: bool) -> None:
        self.fresh = fresh
        self.tally = Tally()
        self._place = place
        self._options = options
        self._catalog = Catalog()

    def add(self, one: Indexed) -> None:
        """The next object."""
        self.tally.add(one.tally)
        check_fields(self.tally, self._place.url)
        if not len(one.offsets):
            self.tally.skipped["archives without samples"] += 1
            return
        if self.tally.problems:
            return  # nothing will be published
        if self.fresh:
            if one.files is not None:
                self._place.write(files_key(one.key), encode_table(one.files))
                crash.point("index-files-written")
            self._place.write(offsets_key(one.key), encode_table(one.offsets.table))
            crash.point("index-offsets-written")
        self._catalog.add(one.key, one.size_bytes, one.extents, one.offsets, one.version)

    def finish(self, source: str, pattern: str) -> Manifest:
        """Publish, unless there were problems; or compare with what is there."""
        _refuse(self.tally, source)
        if not self._catalog.object_count:
            raise EmptyDataset(f"no sample in what matches {pattern!r}", source, "look at --include and --exclude")
        if self.fresh:
            manifest = self._catalog.publish(self._place)
        else:
            manifest = self._catalog.seal().manifest
            _check_same(manifest, read_manifest(self._place), self._place)
        if (read_mark(self._place) or {}).get("format") == MARK_FORMAT:
            self._place.delete(PACK_KEY)
            crash.point("index-mark-removed")
        return manifest

    def discard(self) -> None:
        """Remove what was written, if it was not published; says so where it cannot. The mark goes last."""
        try:
            if self.fresh and not holds(self._place, MANIFEST_KEY):
                _remove_parts(self._place)
                self._place.delete(PACK_KEY)
                crash.point("index-discarded")
        except StokerError as error:
            _log.warning("an unfinished index stays in %s: the next one removes it: %s", self._place.url, error)


def _walk_tars(store: Store, infos: Sequence[ObjectInfo], choice: Choice) -> Generator[Indexed, None, None]:
    """Index archives side by side; the results in order, at most 16 ahead of the one that is taken. To be closed."""
    with ThreadPoolExecutor(_THREADS, "stoker-index") as pool:
        waiting: deque[Future[Indexed]] = deque()
        try:
            for info in infos:
                waiting.append(pool.submit(_walk_tar, store, info, choice))
                if len(waiting) >= _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _walk_tar(store: Store, info: ObjectInfo, choice: Choice) -> Indexed:
    found = index_tar(store, info, choice)
    now = store.stat(info.key)
    if (now.size_bytes, now.version) != (info.size_bytes, info.version):
        raise SourceChanged(f"{str(info.key)!r} changed while it was indexed", store.url, "index when nothing writes")
    return found


def _claim_or_advise(place: Store, source: Store, options: IndexOptions) -> bool:
    """`_claim`; where nothing can be written beside the data, the error says how to do without."""
    try:
        return _claim(place, source, options)
    except AccessDenied as error:
        if place is not source:
            raise
        hint = "; ".join(text for text in (error.hint, "an index may lie elsewhere: --out") if text)
        raise AccessDenied(error.what, error.where, hint) from error


def _claim(place: Store, source: Store, options: IndexOptions) -> bool:
    """Mark the place as this index's; False if an index is there already. Raises AlreadyExists."""
    mark = read_mark(place)
    if holds(place, MANIFEST_KEY):
        read_manifest(place)
        return False
    wanted = {"format": MARK_FORMAT, "version": _MARK_VERSION, "options": options.to_json()}
    if mark is None:
        for key in (OBJECTS_KEY, BLOCKS_KEY, *(info.key for info in place.list(OFFSETS_PREFIX))):
            if holds(place, key):
                raise AlreadyExists(
                    f"{str(key)!r} is there already, and not of an index", place.url, "use another --out"
                )
        if place is not source and any(True for _ in place.list("shard-")):
            raise AlreadyExists("shards of another data set are there", place.url, "use another --out")
        write_once(place, PACK_KEY, _text(wanted))
        crash.point("index-marked")
    elif mark.get("format") != MARK_FORMAT:
        raise AlreadyExists("an unfinished data set of another writer is there", place.url, "use another --out")
    elif mark != wanted:
        _log.info("removing what an index with other options left in %s", place.url)
        _remove_parts(place)
        place.write(PACK_KEY, _text(wanted))
        crash.point("index-marked-anew")
    return True


def _remove_parts(place: Store) -> None:
    """Remove the tables of an unfinished index. Never an object: those are the source's."""
    for key in [*(info.key for info in place.list(OFFSETS_PREFIX)), OBJECTS_KEY, BLOCKS_KEY]:
        place.delete(key)
        crash.point("index-part-removed")


def _text(mark: Mapping[str, Any]) -> bytes:
    return (json.dumps(mark, indent=2, sort_keys=True) + "\n").encode()


def _check_apart(source: Store, place: Store) -> None:
    """Raise ConfigError if the index would lie inside what it indexes, where the next one would index it as well."""
    inside, root = place.path(MANIFEST_KEY), source.path(MANIFEST_KEY)
    if place is not source and inside is not None and root is not None and inside.is_relative_to(root.parent):
        raise ConfigError("the index would lie inside what it indexes", place.url, "write it to a place outside")


def _check_same(new: Manifest, old: Manifest, place: Store) -> None:
    if new.digest != old.digest:
        what = f"another index or data set is there: its digest is {old.digest}, this one's would be {new.digest}"
        hint = "the source or the options changed: use another --out, or remove that index first"
        raise AlreadyExists(what, place.url, hint)


def _refuse(tally: Tally, where: str) -> None:
    """Raise DatasetError if files could not be taken: the first problem in full, the number of the others."""
    if not tally.problems:
        return
    (problem, count), *others = tally.problems.most_common()
    files = "1 file" if count == 1 else f"{count} files"
    more = ", ..." if count > len(tally.examples[problem]) else ""
    rest = f"; and {sum(n for _, n in others)} with other problems" if others else ""
    usual = next((name for name, _ in tally.fields.most_common(1)), "jpg")
    hint = f"choose the files: --include '*.{usual}', or leave some out: --exclude GLOB"
    if problem == APART:
        hint = "make the archives anew with tar --sort=name, or pack the files: stoker pack"
    what = f"cannot index {files} {problem}: {', '.join(tally.examples[problem])}{more}{rest}"
    raise DatasetError(what, where, hint)


def _is_own(key: Key) -> bool:
    return key in (MANIFEST_KEY, OBJECTS_KEY, BLOCKS_KEY, PACK_KEY) or key.startswith(OFFSETS_PREFIX)


def _has_index(source: Store) -> bool:
    """Whether an index of stoker's, finished or not, lies beside the objects. Raises DatasetError for another's."""
    mark = read_mark(source)
    if mark is not None:
        if mark.get("format") == MARK_FORMAT:
            return True
        if str(mark.get("format")).startswith("stoker-") and not holds(source, MANIFEST_KEY):
            raise DatasetError("an unfinished data set is there", source.url, "finish writing it: it needs no index")
    return holds(source, MANIFEST_KEY) and is_manifest(source)
