"""`Store`: bytes under keys, in one place. Everything that holds objects for stoker is one of these.

The contract below is what `stoker.testing.StoreSuite` tests; a store that passes it works with every room.

- Blocking and thread-safe. Use after `close()` raises ClosedError.
- An object appears whole or not at all, and is durable when the call that made it returns.
- Errors: NotFound, AlreadyExists, AccessDenied, CapacityError, Truncated, Unavailable, TimedOut; a missing object is
  never confused with one that may not be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from stoker.io.buffers import ReadBuffer, WriteBuffer
from stoker.values import ByteRange, Key, ObjectInfo

__all__ = [
    "CachingStore",
    "ObjectWriter",
    "PromotingStore",
    "ReadBuffer",
    "ScatteringStore",
    "Store",
    "StoreLimits",
    "WriteBuffer",
]


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """What the place can do.

    `if_absent_max_bytes`: the largest object that `write(..., if_absent=True)` takes.
    `promotes`: whether `promote` exists (a directory can be renamed).
    `latency_s`: what one small read costs, roughly; readers choose their concurrency by it.
    """

    if_absent_max_bytes: int
    promotes: bool
    latency_s: float


class ObjectWriter(Protocol):
    """An object being written. Invisible until `commit()`; leaving the `with` block without it leaves nothing."""

    def write(self, data: ReadBuffer) -> None:
        """Append bytes. Raises CapacityError, AccessDenied; after an error only `discard()` makes sense."""

    def commit(self) -> ObjectInfo:
        """Make the object durable, then visible. Raises CapacityError, AccessDenied."""

    def discard(self) -> None:
        """Forget the object; no effect after `commit()`."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class Store(Protocol):
    """Bytes under keys in one place."""

    @property
    def url(self) -> str:
        """Where it is, for messages; no secrets."""

    @property
    def limits(self) -> StoreLimits:
        """What this place can do."""

    def stat(self, key: Key) -> ObjectInfo:
        """Size and version. Raises NotFound, AccessDenied."""

    def read_into(self, key: Key, start: int, buffer: WriteBuffer) -> None:
        """Fill the whole `buffer` with the object's bytes from `start` on.

        One request; no copy where the platform allows. Raises NotFound, Truncated if the object ends earlier.
        """

    def read(self, key: Key, range: ByteRange | None = None) -> bytes:  # noqa: A002  the field's word
        """The object, or a range of it, as bytes: for small objects. Raises NotFound, Truncated."""

    def write(self, key: Key, data: ReadBuffer, *, if_absent: bool = False) -> ObjectInfo:
        """Store `data` under `key`, atomically and durably.

        With `if_absent`, exactly one of several writers wins and the others get AlreadyExists (small objects only:
        ConfigError above `limits.if_absent_max_bytes`). Without it an existing object is replaced as a whole.
        """

    def writer(self, key: Key, *, size_bytes: int = 0) -> ObjectWriter:
        """Write a large object piece by piece: `with store.writer(key) as w: w.write(..); w.commit()`.

        `size_bytes`: how large it will be, if that is known. A store that writes in parts takes parts large enough for
        it; more and fewer bytes may come all the same.
        """

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key begins with `prefix`, in no promised order. Never those still being written."""

    def delete(self, key: Key) -> None:
        """Remove an object; no error if it is not there."""

    def path(self, key: Key) -> Path | None:
        """The file that holds the object, where there is one; the object need not exist."""

    def close(self) -> None:
        """Release what is held. Idempotent."""


@runtime_checkable
class ScatteringStore(Protocol):
    """A store where finding an object costs more than reading a little of it: a file system."""

    def read_each(self, keys: Sequence[Key], starts: Sequence[int], buffers: Sequence[memoryview]) -> None:
        """Fill each buffer, of bytes, with those of the object of its key from its start on: as so many `read_into`,
        in order, with one look-up of each object. Raises the same.
        """


@runtime_checkable
class CachingStore(Protocol):
    """A store that can say whether bytes lie in memory already: a file system with a page cache."""

    def read_cached(
        self, key: Key, starts: Sequence[int], buffers: Sequence[memoryview], digest: Callable[[memoryview], int]
    ) -> list[int] | None:
        """Fill each buffer, of bytes, from its start on, as long as that needs no waiting for storage.

        Returns `digest` of those that were filled, the first ones; what is in the others is undefined, and `read_into`
        says why. None if the store cannot tell what needs waiting: there is no use in asking again.
        """


class PromotingStore(Store, Protocol):
    """A store that can make many objects visible at once (`limits.promotes`): a directory on a file system."""

    def promote(self, source: str, target: str) -> None:
        """Rename everything under prefix `source` to prefix `target`, atomically and durably.

        Prefixes are whole directories, without a trailing slash. Raises NotFound if there is no `source`,
        AlreadyExists if `target` holds anything.
        """

    def delete_tree(self, prefix: str) -> None:
        """Remove everything under directory `prefix`, also what is half-written there; no error if nothing is."""

    def list_dirs(self, prefix: str = "") -> Iterator[str]:
        """Names of the directories directly under directory `prefix` (empty: the root), in no promised order."""

    def sweep(self, prefix: str = "") -> int:
        """Remove what killed writers left anywhere under directory `prefix`; returns how much it was.

        Never touches what a live writer is writing, in this process or another.
        """
