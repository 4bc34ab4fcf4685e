"""Plans of the steps to come, several made at once: what planning costs is mostly paid a call, not a sample."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from stoker.errors import StokerError
from stoker.feed.batch import BadSample
from stoker.feed.cached import Runs
from stoker.feed.plan import BatchPlan

_MOST_COUNT: Final = 16
_MOST_PARTS: Final = 2048  # reads of all plans made at once: beyond it the work a read is what takes the time
_SLOW_NS: Final = 5_000_000  # so long takes only what reads offset tables: one batch must not wait for those of others


class Planned(NamedTuple):
    """A plan, the bad samples that are not in it, and how it may be read from the page cache."""

    plan: BatchPlan
    bad: tuple[BadSample, ...]
    runs: Runs | None


class PlansAhead:
    """Plans for one reader of steps, of `step_count` there are. For one thread.

    `make(steps)` plans consecutive steps; `changes()` is another number whenever plans made before are out of date. A
    first step, or one after a jump, is planned alone, since it is waited for; then 2, 4 ... at once as long as steps
    follow one another, up to 16 and 2,048 reads, and none of them takes long.
    """

    def __init__(
        self,
        make: Callable[[Sequence[int]], list[Planned]],
        changes: Callable[[], int],
        step_count: int,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._make = make
        self._changes = changes
        self._step_count = step_count
        self._clock_ns = clock_ns
        self._most = 1
        self._plans: dict[int, tuple[Planned, int]] = {}
        self._made_at = 0
        self._count = 0  # how many were made at once last
        self._end = -1  # the step after these
        self._was_slow = False

    def find(self, step: int) -> tuple[Planned, int]:
        """The plan of a step, the same one until `drop`, and the nanoseconds that making it took: those of all that
        were made at once belong to the first, which may be waited for. Raises what making it raises.
        """
        if self._made_at != self._changes():
            self._plans.clear()
        found = self._plans.get(step)
        if found is None:
            self._plan(step)
            found = self._plans[step]
        return found

    def drop(self, step: int) -> None:
        """A plan is used, or not wanted any more."""
        self._plans.pop(step, None)

    def _plan(self, step: int) -> None:
        self._plans.clear()
        goes_on = step == self._end and not self._was_slow
        self._count = min(2 * self._count, self._most, self._step_count - step) if goes_on else 1
        begin_ns = self._clock_ns()
        self._made_at = self._changes()
        try:
            made = self._make(range(step, step + self._count))
        except StokerError:
            if self._count == 1:
                raise
            # Some step has an error, which is told where that step is asked for.
            self._count = 1
            made = self._make((step,))
        cost_ns = self._clock_ns() - begin_ns
        for number, planned in enumerate(made):
            self._plans[step + number] = planned, 0 if number else cost_ns
        self._end = step + len(made)
        self._was_slow = cost_ns > _SLOW_NS
        self._most = max(1, min(_MOST_COUNT, _MOST_PARTS // max(1, made[0].plan.sizes.size)))
