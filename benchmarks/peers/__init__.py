"""The loaders that are compared, one file each, behind one small interface.

The module of a peer has `open_feed(job)`. Importing it imports the library, so that no clock sees that; what is known
without it stands here.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

WORKERS = (0, 1, 2, 4)


@dataclass(frozen=True)
class About:
    """What is known of a peer.

    `folder` holds the data set in its format; `workers` are the settings that are tried, `packages` those whose
    versions are told; `caches` is true if it keeps what it fetched from far away, on disk or in memory; `copies` are
    those of a sample's bytes until the batch is handed over, from its source: nothing can count them from outside.
    `far_folder`, if it is another, holds the same data many times over, where `folder` cannot be read without end.
    `module` is that of another peer.
    """

    folder: str
    workers: tuple[int, ...]
    packages: tuple[str, ...]
    caches: bool
    copies: str
    far_folder: str = ""
    module: str = ""


PEERS = {
    "stoker": About(
        "tar",
        (0,),
        ("stoker", "numpy", "crc32c"),
        caches=True,
        copies="1: page cache to slot; 2 where blocks are gathered: page cache to block, to slot",
        far_folder="tar-long",
    ),
    # The same with a data set that is larger than its memory for blocks, so that no epoch finds any block there.
    "stoker-little": About(
        "tar-long",
        (0,),
        ("stoker", "numpy", "crc32c"),
        caches=True,
        copies="1 or 2, as above",
        module="stoker",
    ),
    "floor": About("tar", WORKERS, ("torch",), False, "1: page cache to tensor"),
    "webdataset": About("tar", WORKERS, ("webdataset",), False, "3: page cache to file buffer, to bytes, to tensor"),
    "streaming": About("mds", WORKERS, ("mosaicml-streaming",), True, "2: page cache to bytes, to tensor; far 2 more"),
    "litdata": About("litdata", WORKERS, ("litdata",), True, "2: mapped file to bytes, to tensor; far 2 more"),
}
NULL = About("tar", (0,), ("numpy",), False, "0")


@dataclass(frozen=True)
class Job:
    """What a peer is to feed.

    `source` is the folder, or the URL, of the data set in the peer's format. With `far`, every request for data has
    the latency of slow.py, and nothing that was read before may answer for it. `scratch` is an empty folder.
    `gather_bytes` is stoker's setting of that name, None for its default.
    """

    source: str
    sample_count: int
    sample_bytes: int
    batch_size: int
    workers: int
    far: bool
    scratch: Path
    gather_bytes: int | None = None


class Feed(Protocol):
    """A loader at work. `stock` is how many batches it may have ready, with those that are handed over."""

    stock: int

    def epoch(self) -> Iterator[Sequence[Any]]:
        """Batches of one epoch, each as the buffers that hold its samples, end to end."""

    def close(self) -> None:
        """End threads and processes."""


def load(name: str) -> Any:
    """The module of a peer."""
    about = PEERS.get(name, NULL)
    return importlib.import_module(f"peers.{about.module or name}_peer")
