"""`RetryStore`: a wrapper that makes the requests of any store again; `stoker.store.retries` says when."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from stoker.errors import StokerError, Throttled
from stoker.io.buffers import ReadBuffer, WriteBuffer
from stoker.store.base import ObjectWriter, Store, StoreLimits
from stoker.store.retries import Retries, RetryBudget, RetryPolicy, RetryStats
from stoker.values import ByteRange, Key, ObjectInfo

__all__ = ["RetryBudget", "RetryPolicy", "RetryStats", "RetryStore", "SelfRetrying"]


@runtime_checkable
class SelfRetrying(Protocol):
    """A store whose operations take several requests, or hold what nobody else can send again: a writer's bytes."""

    def with_retries(self, retries: Retries) -> Store:
        """The same store, which makes again by `retries` what nobody else can, and each request of several."""


def _throttled(error: StokerError) -> bool:
    return isinstance(error, Throttled)


class RetryStore:
    """`inner`, whose operations are made again when an error says that this may help (`retryable`).

    Only what is safe to make twice: reads, listing, deleting, and writing whole objects. Writers are passed through:
    their bytes are gone; a `SelfRetrying` store makes again what it can of them, by the same policy and budget. A write
    `if_absent` is made again after Throttled alone, since its first try may have been stored, unless the inner store
    `settles` that itself. It never promotes. The last error says which attempt it was.
    """

    def __init__(
        self,
        inner: Store,
        policy: RetryPolicy | None = None,
        *,
        settles: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        fraction: Callable[[], float] = random.random,
    ) -> None:
        self._retries = Retries(policy, clock=clock, sleep=sleep, fraction=fraction)
        self.inner = inner.with_retries(self._retries) if isinstance(inner, SelfRetrying) else inner
        self.policy = self._retries.policy
        self.budget = self._retries.budget
        self._settles = settles

    @property
    def url(self) -> str:
        """Where the inner store is."""
        return self.inner.url

    @property
    def limits(self) -> StoreLimits:
        """Those of the inner store, but nothing can be promoted."""
        return replace(self.inner.limits, promotes=False)

    def stats(self) -> RetryStats:
        """Counts so far."""
        return self._retries.stats()

    def stat(self, key: Key) -> ObjectInfo:
        """Size and version. Raises NotFound."""
        return self._retries.run(lambda: self.inner.stat(key))

    def read_into(self, key: Key, start: int, buffer: WriteBuffer) -> None:
        """Fill `buffer` with the object's bytes from `start` on. Raises NotFound, Truncated."""
        self._retries.run(lambda: self.inner.read_into(key, start, buffer))

    def read(self, key: Key, range: ByteRange | None = None) -> bytes:  # noqa: A002  the field's word
        """The object, or a range of it. Raises NotFound, Truncated."""
        return self._retries.run(lambda: self.inner.read(key, range))

    def write(self, key: Key, data: ReadBuffer, *, if_absent: bool = False) -> ObjectInfo:
        """Store `data` under `key`. Raises AlreadyExists if `if_absent`."""

        def write() -> ObjectInfo:
            return self.inner.write(key, data, if_absent=if_absent)

        return self._retries.run(write, _throttled) if if_absent and not self._settles else self._retries.run(write)

    def writer(self, key: Key, *, size_bytes: int = 0) -> ObjectWriter:
        """The inner store's writer: what can be made again of it, that store does itself."""
        return self.inner.writer(key, size_bytes=size_bytes)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key begins with `prefix`, each once; a listing that fails begins again."""
        listing = self._retries.run(lambda: self.inner.list(prefix))
        return self._list(prefix, listing)

    def delete(self, key: Key) -> None:
        """Remove an object; no error if it is not there."""
        self._retries.run(lambda: self.inner.delete(key))

    def path(self, key: Key) -> Path | None:
        """The file that holds the object, where there is one."""
        return self.inner.path(key)

    def close(self) -> None:
        """Close the inner store."""
        self.inner.close()

    def _list(self, prefix: str, listing: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
        seen: set[Key] = set()
        series, seen_before = self._retries.begin(), 0
        while True:
            try:
                info = next((info for info in listing if info.key not in seen), None)
            except StokerError as error:
                if len(seen) > seen_before:
                    seen_before = len(seen)
                    series.moved()
                series.failed(error)
                listing = _Restarting(lambda: self.inner.list(prefix))
                continue
            if info is None:
                return
            seen.add(info.key)
            yield info


class _Restarting:
    """A listing that is begun when its first object is asked for, so that beginning it can fail and be repeated."""

    def __init__(self, begin: Callable[[], Iterator[ObjectInfo]]) -> None:
        self._begin = begin
        self._listing: Iterator[ObjectInfo] | None = None

    def __iter__(self) -> Iterator[ObjectInfo]:
        return self

    def __next__(self) -> ObjectInfo:
        if self._listing is None:
            self._listing = self._begin()
        return next(self._listing)
