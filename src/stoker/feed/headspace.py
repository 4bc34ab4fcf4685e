"""Headspace: what a step costs when no batch has to be waited for. A few batches are kept and handed over again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stoker.errors import ConfigError
from stoker.feed.options import count_of
from stoker.ledger import Cause, LedgerSnapshot
from stoker.units import format_seconds

_NS = 1e9


@dataclass(frozen=True, slots=True)
class StepCost:
    """What steps cost, the first not counted: it is cold.

    Attributes:
        steps: how many were counted.
        step_s: time from one batch to the next, mean.
        utilisation: accelerator utilisation as DLIO counts it, 0 to 1: the share of that time that was not a wait.
    """

    steps: int
    step_s: float
    utilisation: float


@dataclass(frozen=True, slots=True)
class HeadspaceReport:
    """A step without storage beside the steps of training.

    Attributes:
        batches: how many were kept and repeated.
        samples_per_s: what this rank would take without storage.
        free: the steps of the replay.
        trained: those of training by the same ledger so far, if there were any.
    """

    batches: int
    samples_per_s: float
    free: StepCost
    trained: StepCost | None

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        free, trained = self.free, self.trained
        kept = f"{free.steps} steps over {self.batches} kept batches, {self.samples_per_s:,.0f} samples/s a rank"
        text = f"without storage: {_line(free)} ({kept})"
        return text if trained is None else f"{text}\nin training:     {_line(trained)} ({trained.steps} steps)"


def _line(cost: StepCost) -> str:
    return f"{format_seconds(cost.step_s)} a step, utilisation {cost.utilisation:.3f}"


class Headspace(Iterator[Any]):
    """Hands over `kept` in turn, `steps` times in all, and clocks the loop. One loop; made by `Loader.headspace`.

    The batches are the same objects again and again: a step that writes into its batch finds that the next time.
    """

    def __init__(
        self,
        kept: Sequence[Any],
        steps: int,
        *,
        trained: Callable[[], LedgerSnapshot],
        wait: Callable[[], None] = lambda: None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._kept = kept
        self._steps = count_of("steps", steps, 2)
        self._trained = trained
        self._wait = wait
        self._clock = clock
        self._count = 0
        self._first_ns = self._end_ns = self._left_ns = 0
        self._compute_ns = 0

    def __next__(self) -> Any:
        entered_ns = self._clock()
        if self._count >= 2:  # noqa: PLR2004  the first step is cold
            self._compute_ns += entered_ns - self._left_ns
        if self._count == self._steps:
            self._wait()  # for a device, whose work the loop runs ahead of
            after_ns = self._clock()
            self._compute_ns += after_ns - entered_ns
            self._end_ns = after_ns
            self._count += 1
        if self._count > self._steps:
            raise StopIteration
        if self._count == 1:
            self._wait()
            self._first_ns = self._clock()
        batch = self._kept[self._count % len(self._kept)]
        self._count += 1
        self._left_ns = self._clock()
        return batch

    def report(self) -> HeadspaceReport:
        """What a step cost. Raises ConfigError before the loop is through."""
        if not self._end_ns:
            raise ConfigError(
                f"the loop has had {self._count} of {self._steps} batches", hint="run it to its end, then ask"
            )
        steps = self._steps - 1
        running_ns = max(1, self._end_ns - self._first_ns)
        free = StepCost(steps, running_ns / steps / _NS, min(1.0, self._compute_ns / running_ns))
        samples = sum(int(batch.valid.sum()) for batch in self._kept) / len(self._kept)
        return HeadspaceReport(len(self._kept), samples / free.step_s, free, trained_cost(self._trained()))


def kept_steps(first: int, count: int, step_count: int) -> range:
    """The steps to keep: `count` from `first` on, or the last ones there are. Raises ConfigError for none. Pure."""
    count = min(count_of("count", count, 1), step_count)
    start = min(first, step_count - count)
    return range(start, start + count)


def trained_cost(snapshot: LedgerSnapshot) -> StepCost | None:
    """What a step of training cost, by DLIO's rule: without the first one and without saves. Pure."""
    totals = snapshot.totals
    steps = totals.steps - 1
    compute_ns = totals.compute_ns - totals.first_compute_ns
    waited_ns = sum(totals.waits_ns.values()) - totals.waits_ns[Cause.CHECKPOINT] - totals.first_wait_ns
    if steps < 1 or compute_ns + waited_ns <= 0:
        return None
    return StepCost(steps, (compute_ns + waited_ns) / steps / _NS, compute_ns / (compute_ns + waited_ns))
