"""Which request meets which fault: a script is a list of rules, and chance comes from its seed alone."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from stoker.errors import ConfigError
from stoker.testing.fault_server.faults import Fault


@dataclass(frozen=True, slots=True)
class Always:
    """Every request."""


@dataclass(frozen=True, slots=True)
class First:
    """The first `count` requests."""

    count: int

    def __post_init__(self) -> None:
        _check_from_one("count", self.count)


@dataclass(frozen=True, slots=True)
class Nth:
    """Request `number` alone, counted from 1."""

    number: int

    def __post_init__(self) -> None:
        _check_from_one("number", self.number)


@dataclass(frozen=True, slots=True)
class Every:
    """Requests `count`, 2 * `count`, ..., counted from 1."""

    count: int

    def __post_init__(self) -> None:
        _check_from_one("count", self.count)


@dataclass(frozen=True, slots=True)
class Chance:
    """Each request with probability `ratio`, by the script's seed."""

    ratio: float

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= 1:
            raise ConfigError(f"ratio {self.ratio} must be 0 to 1")


When = Always | First | Nth | Every | Chance


@dataclass(frozen=True, slots=True)
class Rule:
    """`fault` meets requests whose method, operation and key fit, `when` it says.

    `method` ("GET"), `operation` ("GetObject", "UploadPart", as S3 names them) and `key` are patterns with `*`, `?`
    and `[...]`, case told apart. The key of a listing is its prefix.
    """

    fault: Fault
    when: When = Always()
    method: str = "*"
    operation: str = "*"
    key: str = "*"

    def fits(self, method: str, operation: str, key: str) -> bool:
        """Whether a request is one of those that this rule counts."""
        return (
            fnmatchcase(method, self.method) and fnmatchcase(operation, self.operation) and fnmatchcase(key, self.key)
        )


@dataclass(frozen=True, slots=True)
class Script:
    """What the server does wrong, and how far away it is.

    Rules are asked in order, and the first whose `when` holds takes the request: a rule counts only the requests that
    no rule before it took. `latency_s`: each answer begins so long after its request came. `bytes_per_s`: what one
    body may use, `total_bytes_per_s`: all bodies together, each way.
    """

    rules: tuple[Rule, ...] = ()
    latency_s: float = 0.0
    bytes_per_s: float | None = None
    total_bytes_per_s: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.latency_s < 0:
            raise ConfigError(f"latency_s {self.latency_s} must be 0 or more")
        for name, rate in (("bytes_per_s", self.bytes_per_s), ("total_bytes_per_s", self.total_bytes_per_s)):
            if rate is not None and not rate > 0:
                raise ConfigError(f"{name} {rate} must be more than 0")


class Chosen(NamedTuple):
    """What a request meets: nothing, or a fault; `fraction` in [0, 1) places what the fault leaves open."""

    fault: Fault | None
    fraction: float


class Chooser:
    """Applies a script to requests in the order in which they are shown. Thread-safe."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._counts = [0] * len(script.rules)
        # A generator a rule: what one rule draws does not depend on what the others meet.
        self._dice = [random.Random(f"{script.seed}/{number}") for number in range(len(script.rules))]  # noqa: S311
        self._lock = threading.Lock()

    def choose(self, method: str, operation: str, key: str) -> Chosen:
        """The fault that this request meets."""
        with self._lock:
            for number, rule in enumerate(self.script.rules):
                if not rule.fits(method, operation, key):
                    continue
                self._counts[number] += 1
                fraction = self._dice[number].random()
                if _holds(rule.when, self._counts[number], self._dice[number]):
                    return Chosen(rule.fault, fraction)
        return Chosen(None, 0.0)


def _holds(when: When, count: int, dice: random.Random) -> bool:
    """Whether it is the turn of request `count` (from 1)."""
    if isinstance(when, First):
        return count <= when.count
    if isinstance(when, Nth):
        return count == when.number
    if isinstance(when, Every):
        return count % when.count == 0
    if isinstance(when, Chance):
        return dice.random() < when.ratio
    return True


def _check_from_one(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name} {value} must be 1 or more")
