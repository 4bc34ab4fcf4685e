"""`RetryStore`: the one place where requests are made again.

Full jitter (the wait is anything between nothing and the bound), a bound that doubles, a deadline, and one budget for
the whole store: when much fails, retries stop instead of multiplying the load that makes it fail.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from stoker.errors import ConfigError, StokerError, Throttled
from stoker.io.buffers import ReadBuffer, WriteBuffer
from stoker.store.base import ObjectWriter, Store, StoreLimits
from stoker.units import format_seconds
from stoker.values import ByteRange, Key, ObjectInfo

_EXPONENT_MAX: Final = 32  # beyond it the bound is the cap anyway

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When to try again.

    `attempts`: how often in all. Before attempt n + 1 the wait is random in [0, min(cap_s, base_s * 2**(n-1))].
    `deadline_s`: no attempt begins later than this after the first. The budget of a store begins with
    `budget` retries, each costs one, and each operation that succeeds gives `budget_ratio` of one back.
    """

    attempts: int = 6
    base_s: float = 0.1
    cap_s: float = 10.0
    deadline_s: float = 120.0
    budget: float = 100.0
    budget_ratio: float = 0.1

    def __post_init__(self) -> None:
        if self.attempts < 1 or min(self.base_s, self.cap_s, self.deadline_s, self.budget, self.budget_ratio) < 0:
            raise ConfigError(f"not a way to retry: {self}", hint="attempts is 1 or more, nothing is negative")

    def wait_s(self, attempt: int, fraction: float) -> float:
        """How long to wait after `attempt` (from 1) failed; `fraction` is a random number in [0, 1)."""
        return fraction * min(self.cap_s, self.base_s * 2.0 ** min(attempt - 1, _EXPONENT_MAX))


class RetryBudget:
    """Retries that a store still has. Thread-safe."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._full = policy.budget
        self._ratio = policy.budget_ratio
        self._left = policy.budget
        self._lock = threading.Lock()

    @property
    def left(self) -> float:
        """Retries that are left now."""
        return self._left

    def take(self) -> bool:
        """Take one retry; False if none is left."""
        with self._lock:
            if self._left < 1:
                return False
            self._left -= 1
            return True

    def give(self) -> None:
        """Note an operation that succeeded."""
        with self._lock:
            self._left = min(self._full, self._left + self._ratio)


@dataclass(frozen=True, slots=True)
class RetryStats:
    """What was tried so far: `operations` asked for, `attempts` made for them, how many were `throttled`, and how
    many operations were given up: out of attempts or time, or out of budget.
    """

    operations: int
    attempts: int
    throttled: int
    given_up: int
    out_of_budget: int
    budget_left: float

    @property
    def retries(self) -> int:
        """Attempts beyond the first of each operation."""
        return self.attempts - self.operations


def _retryable(error: StokerError) -> bool:
    return error.retryable


def _throttled(error: StokerError) -> bool:
    return isinstance(error, Throttled)


class RetryStore:
    """`inner`, whose operations are made again when an error says that this may help (`retryable`).

    Only what is safe to make twice: reads, listing, deleting, and writing whole objects. Writers are passed through:
    their bytes are gone. A write `if_absent` is made again after Throttled alone, since its first try may have been
    stored, unless the inner store `settles` that itself. It never promotes. The last error says which attempt it was.
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
        self.inner = inner
        self.policy = RetryPolicy() if policy is None else policy
        self.budget = RetryBudget(self.policy)
        self._settles = settles
        self._clock = clock
        self._sleep = sleep
        self._fraction = fraction
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

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
        with self._lock:
            counts = Counter(self._counts)
        return RetryStats(
            counts["operations"],
            counts["attempts"],
            counts["throttled"],
            counts["given_up"],
            counts["out_of_budget"],
            self.budget.left,
        )

    def stat(self, key: Key) -> ObjectInfo:
        """Size and version. Raises NotFound."""
        return self._retry(lambda: self.inner.stat(key))

    def read_into(self, key: Key, start: int, buffer: WriteBuffer) -> None:
        """Fill `buffer` with the object's bytes from `start` on. Raises NotFound, Truncated."""
        self._retry(lambda: self.inner.read_into(key, start, buffer))

    def read(self, key: Key, range: ByteRange | None = None) -> bytes:  # noqa: A002  the field's word
        """The object, or a range of it. Raises NotFound, Truncated."""
        return self._retry(lambda: self.inner.read(key, range))

    def write(self, key: Key, data: ReadBuffer, *, if_absent: bool = False) -> ObjectInfo:
        """Store `data` under `key`. Raises AlreadyExists if `if_absent`."""
        safe = _throttled if if_absent and not self._settles else _retryable
        return self._retry(lambda: self.inner.write(key, data, if_absent=if_absent), safe)

    def writer(self, key: Key, *, size_bytes: int = 0) -> ObjectWriter:
        """The inner store's writer: nothing of it is made again here."""
        return self.inner.writer(key, size_bytes=size_bytes)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key begins with `prefix`, each once; a listing that fails begins again."""
        listing = self._retry(lambda: self.inner.list(prefix))
        return self._list(prefix, listing)

    def delete(self, key: Key) -> None:
        """Remove an object; no error if it is not there."""
        self._retry(lambda: self.inner.delete(key))

    def path(self, key: Key) -> Path | None:
        """The file that holds the object, where there is one."""
        return self.inner.path(key)

    def close(self) -> None:
        """Close the inner store."""
        self.inner.close()

    def _list(self, prefix: str, listing: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
        seen: set[Key] = set()
        began, attempt, seen_before = self._clock(), 1, 0
        while True:
            try:
                info = next((info for info in listing if info.key not in seen), None)
            except StokerError as error:
                if len(seen) > seen_before:  # it got further than the last time
                    began, attempt, seen_before = self._clock(), 1, len(seen)
                reason = self._give_up(error, attempt, began, _retryable)
                if reason is not None:
                    raise _with_attempt(error, attempt, reason) from error.__cause__
                attempt += 1
                self._count("attempts")
                listing = _Restarting(lambda: self.inner.list(prefix))
                continue
            if info is None:
                return
            seen.add(info.key)
            yield info

    def _retry(self, operation: Callable[[], T], safe: Callable[[StokerError], bool] = _retryable) -> T:
        began, attempt = self._clock(), 0
        self._count("operations")
        while True:
            attempt += 1
            self._count("attempts")
            try:
                result = operation()
            except StokerError as error:
                reason = self._give_up(error, attempt, began, safe)
                if reason is None:
                    continue
                raise _with_attempt(error, attempt, reason) from error.__cause__
            self.budget.give()
            return result

    def _give_up(
        self, error: StokerError, attempt: int, began: float, safe: Callable[[StokerError], bool]
    ) -> str | None:
        """Why not to try again, or None after having waited for the next attempt."""
        if isinstance(error, Throttled):
            self._count("throttled")
        if not safe(error):
            return ", not safe to repeat" if error.retryable else ""
        policy = self.policy
        if attempt >= policy.attempts:
            self._count("given_up")
            return f" of {policy.attempts}"
        wait_s = policy.wait_s(attempt, self._fraction())
        if self._clock() - began + wait_s > policy.deadline_s:
            self._count("given_up")
            return f", no time for another after {format_seconds(self._clock() - began)}"
        if not self.budget.take():
            self._count("out_of_budget")
            return ", and the store has no retries left: too much fails"
        self._sleep(wait_s)
        return None

    def _count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1


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


def _with_attempt(error: StokerError, attempt: int, reason: str) -> StokerError:
    """The same error, saying which attempt it was and why there is no other; unchanged if none could help."""
    if attempt == 1 and not error.retryable:
        return error
    return type(error)(f"{error.what} (attempt {attempt}{reason})", error.where, error.hint)
