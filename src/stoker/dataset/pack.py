"""`pack`: a folder of files becomes tar shards and a manifest. Deterministic, and resumed where it was killed."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from stoker import crash
from stoker.dataset.manifest import MANIFEST_KEY, PACK_KEY, Manifest, holds
from stoker.dataset.offsets import OffsetsBuilder, OffsetsTable, Place, offsets_key
from stoker.dataset.open import open_dataset
from stoker.dataset.place import check_empty, read_mark, shard_key, sweep
from stoker.dataset.plan import PackOptions, PackPlan, plan_pack
from stoker.dataset.publish import Catalog, write_once
from stoker.dataset.shard import Member, PlaceCounter, ShardReader, ShardWriter
from stoker.dataset.source import read_files
from stoker.dataset.tables import encode_table, read_table
from stoker.errors import AlreadyExists, ConfigError, FormatError, SourceChanged
from stoker.store.base import Store
from stoker.units import MIB
from stoker.values import Key

__all__ = ["PackOptions", "PackPlan", "PackReport", "Progress", "pack", "plan_pack"]

Progress: TypeAlias = Callable[[int, int, int], None]
"""Called with bytes done, bytes in all, and files done: about once a MiB, and after each shard."""

_TELL_BYTES: Final = 1 * MIB
_DEFAULTS: Final = PackOptions()

_log = logging.getLogger("stoker.dataset")


@dataclass(frozen=True, slots=True)
class PackReport:
    """What a pack did.

    `skipped_shards` were finished by an earlier run and not written again; `already_there` says that nothing was left
    to do. `total_bytes` is the content of all files; `skipped_files` are neither regular files nor links to one.
    """

    dataset: str
    files: int
    samples: int
    total_bytes: int
    shards: int
    blocks: int
    digest: str
    skipped_shards: int
    skipped_files: int
    already_there: bool
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The facts the command line prints."""
        return {
            "dataset": self.dataset,
            "files": self.files,
            "samples": self.samples,
            "bytes": self.total_bytes,
            "shards": self.shards,
            "blocks": self.blocks,
            "digest": self.digest,
            "skipped_shards": self.skipped_shards,
            "skipped_files": self.skipped_files,
            "already_there": self.already_there,
            "seconds": self.seconds,
        }


def pack(source: Path, store: Store, options: PackOptions = _DEFAULTS, progress: Progress | None = None) -> PackReport:
    """Pack the files under `source` into a data set at the root of `store`.

    The same files give the same bytes. Run again after it was killed, it writes no byte of the shards that are
    finished; run again after it is done, it does nothing. Holds about 6 MiB, the listing, and one shard's offsets.

    Raises, before anything is written, DatasetError for files that make no samples, EmptyDataset, AlreadyExists if
    another data set lies there, SourceChanged if another pack was begun there; and while it reads, SourceChanged for a
    file that is not what was listed. StoreError, CapacityError as the store does.
    """
    started_s = time.perf_counter()
    _check_apart(source, store)
    plan = plan_pack(source, options)
    finished = _claim(store, plan)
    sweep(store)
    packer = _Packer(store, plan, progress or _say_nothing)
    manifest = open_dataset(store).manifest if finished else packer.run()
    report = PackReport(
        dataset=store.url,
        files=len(plan.listing.files),
        samples=manifest.sample_count,
        total_bytes=manifest.total_bytes,
        shards=plan.shard_count,
        blocks=manifest.block_count,
        digest=manifest.digest,
        skipped_shards=plan.shard_count if finished else packer.skipped_shards,
        skipped_files=plan.listing.skipped_count,
        already_there=finished,
        seconds=time.perf_counter() - started_s,
    )
    _log.info("packed %d files into %d shards in %s", report.files, report.shards, store.url)
    return report


class _Packer:
    """Writes what a plan says, shard after shard."""

    def __init__(self, store: Store, plan: PackPlan, progress: Progress) -> None:
        self.skipped_shards = 0
        self._store = store
        self._plan = plan
        self._progress = progress
        self._done_bytes = self._done_files = self._told_bytes = 0

    def run(self) -> Manifest:
        """Write all that is missing, and publish."""
        there = {info.key: info.size_bytes for prefix in ("shard-", "offsets/") for info in self._store.list(prefix)}
        catalog = Catalog()
        for shard in range(self._plan.shard_count):
            key, size = shard_key(shard), self._plan.shard_size(shard)
            if there.get(key, size) != size:
                raise AlreadyExists(
                    f"{str(key)!r} has {there[key]} bytes, this pack writes {size}",
                    self._store.url,
                    "something else wrote there: pack to another place",
                )
            first, stop = int(self._plan.shards[shard]), int(self._plan.shards[shard + 1])
            offsets = self._take(shard, there) if key in there else self._write(shard)
            catalog.add(key, size, self._plan.extents[first:stop], offsets)
            self._tell(at_least=0)
        return catalog.publish(self._store)

    def _write(self, shard: int) -> OffsetsTable:
        """Write a shard and its offsets."""
        key, (first, stop), listing = shard_key(shard), self._plan.members_of(shard), self._plan.listing
        with (
            ShardWriter(self._store, key) as writer,
            closing(read_files(listing.root, listing.files[first:stop])) as contents,
        ):

            def copy(member: Member) -> Place:
                writer.begin(member)
                for piece in next(contents):
                    writer.add(piece)
                    self._done_bytes += len(piece)
                    self._tell(at_least=_TELL_BYTES)
                self._done_files += 1
                return writer.end()

            offsets = self._offsets(shard, copy)
            writer.finish()
        crash.point("pack-shard-written")
        return self._keep(key, offsets)

    def _take(self, shard: int, there: Mapping[Key, int]) -> OffsetsTable:
        """The offsets of a shard that an earlier run finished; made from its bytes if they were not written."""
        key, (first, stop) = shard_key(shard), self._plan.members_of(shard)
        self.skipped_shards += 1
        self._done_files += stop - first
        self._done_bytes += sum(member.size for member in self._plan.listing.members[first:stop])
        if offsets_key(key) in there and (found := self._read_offsets(shard)) is not None:
            return found
        return self._keep(key, self._offsets(shard, ShardReader(self._store, key).next))

    def _read_offsets(self, shard: int) -> OffsetsTable | None:
        """The offsets written for a shard, or None if they are not those of its layout."""
        key = offsets_key(shard_key(shard))
        expected = self._offsets(shard, PlaceCounter().next)
        try:
            table = read_table(self._store, key, len(expected))
        except FormatError as error:
            _log.warning("making %s again: %s", key, error)
            return None
        same = table.schema == expected.table.schema and all(
            np.array_equal(found, wanted)
            for name in table.columns
            if not name.endswith("/crc32c")
            for found, wanted in zip(table.arrays(name), expected.table.arrays(name), strict=True)
        )
        return OffsetsTable(table) if same else None

    def _offsets(self, shard: int, place: Callable[[Member], Place]) -> OffsetsTable:
        """The offsets of a shard, the place of each member as `place` gives it, in order."""
        builder, listing = OffsetsBuilder(), self._plan.listing
        for sample in range(int(self._plan.shards[shard]), int(self._plan.shards[shard + 1])):
            members = listing.members[listing.starts[sample] : listing.starts[sample + 1]]
            builder.add(listing.keys[sample], [place(member) for member in members])
        return builder.build()

    def _keep(self, shard_key: Key, offsets: OffsetsTable) -> OffsetsTable:
        self._store.write(offsets_key(shard_key), encode_table(offsets.table))
        crash.point("pack-offsets-written")
        return offsets

    def _tell(self, *, at_least: int) -> None:
        if self._done_bytes - self._told_bytes >= at_least:
            self._told_bytes = self._done_bytes
            self._progress(self._done_bytes, self._plan.total_bytes, self._done_files)


def _claim(store: Store, plan: PackPlan) -> bool:
    """Mark the place as this pack's; True if the pack is finished already. Raises AlreadyExists, SourceChanged."""
    mark = read_mark(store)
    if holds(store, MANIFEST_KEY):
        if mark == plan.mark:
            return True
        hint = "pack to another place: nothing is overwritten"
        raise AlreadyExists("another data set is there already", store.url, hint)
    if mark is None:
        check_empty(store)
        write_once(store, PACK_KEY, (json.dumps(plan.mark, indent=2, sort_keys=True) + "\n").encode())
        crash.point("pack-marked")
    elif mark.get("format") != plan.mark["format"]:
        raise AlreadyExists("an unfinished data set of another writer is there", store.url, "pack to another place")
    elif mark != plan.mark:
        raise SourceChanged(
            f"a pack that was begun there had {_difference(mark, plan.mark)}",
            store.url,
            "pack to another place, or remove the unfinished one first",
        )
    return False


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    before, now = old.get("options"), new["options"]
    if isinstance(before, dict) and before != now:
        names = [name for name in now if before.get(name) != now[name]]
        return "other options: " + ", ".join(f"{name} {before.get(name)!r}, now {now[name]!r}" for name in names)
    return "other files, or files with other sizes or times, than the source has now"


def _check_apart(source: Path, store: Store) -> None:
    """Raise ConfigError if the data set would be written into its own source."""
    manifest = store.path(MANIFEST_KEY)
    if manifest is not None and manifest.resolve().is_relative_to(source.resolve()):
        raise ConfigError(
            "the data set would lie inside the folder it is packed from", store.url, "pack to a place outside it"
        )


def _say_nothing(done_bytes: int, total_bytes: int, files: int) -> None:
    """Progress that nobody wants to see."""
