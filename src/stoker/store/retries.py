"""The one way in which requests are made again: `Retries`.

Full jitter (the wait is anything between nothing and the bound), a bound that doubles, a deadline, and one budget for
the whole store: when much fails, retries stop instead of multiplying the load that makes it fail.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn, TypeVar

from stoker.errors import ConfigError, StokerError, Throttled
from stoker.units import format_seconds

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


def _always(_error: StokerError) -> bool:
    return True


class Retries:
    """Makes operations again by one policy, within one budget, and counts. Thread-safe.

    An operation may consist of others that are made again by themselves: what those gave up is not begun anew.
    """

    def __init__(
        self,
        policy: RetryPolicy | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        fraction: Callable[[], float] = random.random,
    ) -> None:
        self.policy = RetryPolicy() if policy is None else policy
        self.budget = RetryBudget(self.policy)
        self._clock = clock
        self._sleep = sleep
        self._fraction = fraction
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

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

    def run(self, operation: Callable[[], T], safe: Callable[[StokerError], bool] = _always) -> T:
        """What `operation` returns, made again after what is retryable and `safe` to repeat.

        The last error says which attempt it was, and why there is no other.
        """
        self.count("operations")
        self.count("attempts")
        series = self.begin()
        while True:
            try:
                result = operation()
            except StokerError as error:
                series.failed(error, safe)
            else:
                self.budget.give()
                return result

    def begin(self) -> Series:
        """Attempts in a row, of which the first is made now; for what goes on where the last one stopped."""
        return Series(self, self._clock)

    def count(self, what: str) -> None:
        """Note that it happened."""
        with self._lock:
            self._counts[what] += 1

    def why_not(self, attempt: int, began: float) -> str | None:
        """Why there is no attempt after `attempt`, which failed; None after having waited for the next one."""
        policy = self.policy
        if attempt >= policy.attempts:
            self.count("given_up")
            return f" of {policy.attempts}"
        wait_s = policy.wait_s(attempt, self._fraction())
        spent_s = self._clock() - began
        if spent_s + wait_s > policy.deadline_s:
            self.count("given_up")
            return f", no time for another after {format_seconds(spent_s)}"
        if not self.budget.take():
            self.count("out_of_budget")
            return ", and the store has no retries left: too much fails"
        self._sleep(wait_s)
        return None


class Series:
    """Attempts in a row at one thing. For one thread."""

    def __init__(self, retries: Retries, clock: Callable[[], float]) -> None:
        self._retries = retries
        self._clock = clock
        self._began = clock()
        self._attempt = 1

    def moved(self) -> None:
        """The last attempt got further than those before: what it failed at has failed once."""
        self._began, self._attempt = self._clock(), 1

    def failed(self, error: StokerError, safe: Callable[[StokerError], bool] = _always) -> None:
        """Wait for the next attempt after one that raised `error`; raise it if there is none, saying why."""
        if error.is_given_up:
            raise error
        if isinstance(error, Throttled):
            self._retries.count("throttled")
        if not error.retryable:
            self._give_up(error, "")
        if not safe(error):
            self._give_up(error, ", not safe to repeat")
        reason = self._retries.why_not(self._attempt, self._began)
        if reason is not None:
            self._give_up(error, reason)
        self._attempt += 1
        self._retries.count("attempts")

    def _give_up(self, error: StokerError, reason: str) -> NoReturn:
        """Raise the same error, saying which attempt it was and why there is no other; unchanged if none could help."""
        if self._attempt == 1 and not error.retryable:
            raise error
        given_up = type(error)(f"{error.what} (attempt {self._attempt}{reason})", error.where, error.hint)
        given_up.is_given_up = True
        raise given_up from error.__cause__
