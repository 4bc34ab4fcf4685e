"""What a pack will write: the options it is given, and the layout that follows from paths and sizes alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.dataset.formats.tar import TRAILER, member_bytes
from stoker.dataset.layout import Int64s, choose_block_bytes, cut_shards, make_blocks
from stoker.dataset.listing import Listing, list_source
from stoker.dataset.names import check_prefix
from stoker.dataset.place import SHARD_BYTES, check_shard_bytes
from stoker.errors import ConfigError

_MARK_FORMAT: Final = "stoker-pack"
_MARK_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class PackOptions:
    """What is packed, and how.

    Attributes:
        shard_bytes: a shard is closed before it would pass this size.
        include, exclude: globs, over the base name, or over the path below the source if they hold a slash.
        prefix: put before all paths in the shards, and so before all keys.
    """

    shard_bytes: int = SHARD_BYTES
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    prefix: str = ""

    def __post_init__(self) -> None:
        check_shard_bytes(self.shard_bytes)
        for name in ("include", "exclude"):
            globs = getattr(self, name)
            if isinstance(globs, str):
                raise ConfigError(f"{name} takes several globs, not a string", hint=f"write {name}=({globs!r},)")
            object.__setattr__(self, name, tuple(globs))
        object.__setattr__(self, "prefix", check_prefix(self.prefix))

    def to_json(self) -> dict[str, Any]:
        """The options as `.pack.json` keeps them; globs are sorted, for their order means nothing."""
        return {
            "shard_bytes": self.shard_bytes,
            "include": sorted(set(self.include)),
            "exclude": sorted(set(self.exclude)),
            "prefix": self.prefix,
        }


@dataclass(frozen=True, slots=True, eq=False)
class PackPlan:
    """What a pack will write: a pure function of the paths and sizes of the files.

    Attributes:
        listing: the files and the samples they make.
        options: what it was made with.
        extents: int64[samples], bytes of each sample in its shard.
        shards: int64[shards + 1], first sample of each shard, and the number of samples.
        total_bytes: content of all files.
    """

    listing: Listing
    options: PackOptions
    extents: Int64s
    shards: Int64s
    total_bytes: int

    @property
    def mark(self) -> dict[str, Any]:
        """What `.pack.json` says: the pack can go on exactly when it is this."""
        return {
            "format": _MARK_FORMAT,
            "version": _MARK_VERSION,
            "listing": self.listing.digest,
            "options": self.options.to_json(),
        }

    @property
    def shard_count(self) -> int:
        """How many shards there will be."""
        return len(self.shards) - 1

    def shard_size(self, shard: int) -> int:
        """Bytes of a shard, the end of its archive included."""
        return int(self.extents[self.shards[shard] : self.shards[shard + 1]].sum()) + len(TRAILER)

    def members_of(self, shard: int) -> tuple[int, int]:
        """First and last + 1 of the members of a shard, as indexes into the listing."""
        starts = self.listing.starts
        return starts[int(self.shards[shard])], starts[int(self.shards[shard + 1])]

    def to_json(self) -> dict[str, Any]:
        """Counts for `--dry-run`."""
        blocks = make_blocks(self.extents, self.shards, choose_block_bytes(int(self.extents.sum())))
        return {
            "files": len(self.listing.files),
            "samples": len(self.listing.keys),
            "bytes": self.total_bytes,
            "shards": self.shard_count,
            "blocks": len(blocks),
            "fields": sorted({member.field for member in self.listing.members}),
            "skipped_files": self.listing.skipped_count,
        }


def plan_pack(source: Path, options: PackOptions) -> PackPlan:
    """List `source` and lay out its samples; writes nothing. Raises as `list_source`."""
    listing = list_source(source, options.include, options.exclude, options.prefix)
    sizes = np.array([member_bytes(member.path, member.size) for member in listing.members], dtype=np.int64)
    extents = np.add.reduceat(sizes, np.array(listing.starts[:-1]))
    return PackPlan(
        listing=listing,
        options=options,
        extents=extents,
        shards=cut_shards(extents, options.shard_bytes),
        total_bytes=sum(member.size for member in listing.members),
    )
