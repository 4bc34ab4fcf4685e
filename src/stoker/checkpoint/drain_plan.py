"""What a drain does and how fast: what is missing at the far end, which step is next, how long to pause. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from stoker.checkpoint.layout import StepId
from stoker.checkpoint.manifest import FileRecord, WrittenFile
from stoker.errors import ConfigError
from stoker.units import MIB

SHARE: Final = 0.5  # of the time until the next save that a drain takes


@dataclass(frozen=True, slots=True)
class PaceLimits:
    """The slowest a drain is made, and the fastest it may be. A drain without a known interval goes at the slowest."""

    floor_bytes_per_s: float = 64.0 * MIB
    ceiling_bytes_per_s: float = math.inf

    def __post_init__(self) -> None:
        if not 0 < self.floor_bytes_per_s <= self.ceiling_bytes_per_s:
            raise ConfigError(
                f"a drain cannot run at {self.floor_bytes_per_s:,} to {self.ceiling_bytes_per_s:,} bytes/s",
                hint="the floor is above 0 and not above the ceiling",
            )


@dataclass(frozen=True, slots=True)
class RankPart:
    """One rank's files of a step, and the receipt that is copied after them."""

    receipt: FileRecord
    files: tuple[WrittenFile, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes of files and receipt."""
        return self.receipt.bytes + sum(file.bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Held:
    """What the far end holds of a step: sizes by name, and the receipts that are there byte for byte."""

    sizes: Mapping[str, int]
    receipts: frozenset[str]


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """The parts to copy, in order, and the bytes that stay as they are."""

    parts: tuple[RankPart, ...]
    copied_bytes: int
    kept_bytes: int


def plan_drain(step: Sequence[RankPart], held: Held) -> DrainPlan:
    """What of `step` is to be copied to where `held` is.

    A receipt goes to the far end after all files of its rank, so one that is there proves them: they are kept if they
    have their sizes. A file without such a receipt is copied again: its size alone proves nothing.
    """
    parts = []
    kept_bytes = 0
    for part in step:
        proven = part.receipt.name in held.receipts
        missing = [file for file in part.files if not (proven and held.sizes.get(file.name) == file.bytes)]
        kept_bytes += sum(file.bytes for file in part.files) - sum(file.bytes for file in missing)
        if proven and not missing:
            kept_bytes += part.receipt.bytes
        else:
            parts.append(RankPart(part.receipt, tuple(missing)))
    return DrainPlan(tuple(parts), sum(part.total_bytes for part in parts), kept_bytes)


def pace(step_bytes: int, interval_s: float | None, limits: PaceLimits) -> float:
    """Bytes a second at which `step_bytes` take half of `interval_s`, the time between saves, within limits."""
    if interval_s is None:
        return limits.floor_bytes_per_s
    time_s = interval_s * SHARE  # 0 also for the smallest float above 0
    wanted = step_bytes / time_s if time_s > 0 else math.inf
    return min(max(wanted, limits.floor_bytes_per_s), limits.ceiling_bytes_per_s)


def pause_s(moved_bytes: int, elapsed_s: float, bytes_per_s: float) -> float:
    """How long to wait so that `moved_bytes` in `elapsed_s` are not more than the pace allows; 0 if behind it."""
    return max(0.0, moved_bytes / bytes_per_s - elapsed_s)


def choose_next(waiting: Iterable[StepId]) -> tuple[StepId, tuple[StepId, ...]] | None:
    """Of the steps that wait for a drain: the newest, and those that it has overtaken. None if none waits.

    A step whose drain has begun is not among them: it is always finished, so that some step arrives however slow the
    far tier is.
    """
    steps = sorted(set(waiting))
    return (steps[-1], tuple(steps[:-1])) if steps else None
