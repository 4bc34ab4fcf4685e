"""Counting steps: which number a save gets, and which steps are saved. Pure."""

from __future__ import annotations

from typing import Any, Final

from stoker.checkpoint.state import HasStep
from stoker.errors import ConfigError
from stoker.values import whole_number

_STEP_LIMIT: Final = 2**53  # JSON's numbers are exact up to here in every reader


def is_due(step: int, every: int, total: int | None) -> bool:
    """Whether `step`, the number of batches done, is to be saved: every `every` steps, and the last. Pure."""
    return step > 0 and (step % every == 0 or step == total)


def steps_done(after: HasStep | int) -> int:
    """The number of batches done. Raises ConfigError for anything but a batch or its number."""
    step = whole_number(getattr(after, "step", after))
    if step is None:
        kind = type(after).__name__
        raise ConfigError(f"save after {after!r}, a {kind}, which has no number", hint="give the batch, or its number")
    if not -1 <= step < _STEP_LIMIT - 1:
        raise ConfigError(f"save after step {step}", hint="give the last step done, or -1 before the first")
    return step + 1


def interval(every: Any) -> int:
    """Every how many steps to save. Raises ConfigError for anything but a count of 1 or more."""
    steps = whole_number(every)
    if steps is None or steps < 1:
        raise ConfigError(f"every={every!r} steps", hint="give a whole number of 1 or more")
    return steps
