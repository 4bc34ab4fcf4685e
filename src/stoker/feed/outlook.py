"""Looking ahead in the order: what storage that is far has to deliver, long before there is memory for the batches.

How many reads are in flight is then what training takes times the latency, whatever the memory for batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from stoker.dataset.order import OrderedBatch

_MOST_SAMPLES: Final = 1 << 18  # 2 MiB of sample numbers
_MOST_STEPS: Final = 1024
_TURN_STEPS: Final = 32  # after a batch was begun: the next one is not held up
_MADE_AGAIN_STEPS: Final = 64  # a step as little before the last one is no jump: a batch that failed, or was dropped


class Outlook:
    """The samples of each step, and of those to come. `begin(ordered, due)` reads ahead for a batch that is `due` steps
    away, and says whether there was room for all of it; `forget()` follows a jump. For one thread.
    """

    def __init__(
        self,
        batches: Callable[[int], OrderedBatch],
        step_count: int,
        begin: Callable[[OrderedBatch, int], bool],
        forget: Callable[[], None],
    ) -> None:
        self._batches = batches
        self._step_count = step_count
        self._begin = begin
        self._forget = forget
        self._seen: dict[int, OrderedBatch] = {}  # ascending
        self._last = 0  # the step that was reached last
        self._frontier = 0  # all before it was begun
        self._most_steps = _MOST_STEPS
        self._is_open = False

    def reach(self, step: int) -> None:
        """`step` is what is made next: look ahead from there."""
        if not self._last - _MADE_AGAIN_STEPS <= step <= self._frontier:
            self._seen.clear()
            self._forget()
            self._frontier = step
            self._is_open = False
        self._last, self._frontier = step, max(self._frontier, step + 1)
        while self._seen and (oldest := next(iter(self._seen))) < step:
            del self._seen[oldest]

    def order(self, step: int) -> OrderedBatch:
        """What `step` is made of."""
        ordered = self._seen.get(step)
        if ordered is None:
            ordered = self._batches(step)
        self._most_steps = min(_MOST_STEPS, 1 + _MOST_SAMPLES // ordered.samples.size)
        return ordered

    def open(self) -> None:
        """A batch was made. The first one after a start or a jump has all of storage to itself. For any thread."""
        self._is_open = True

    def look(self) -> None:
        """Begin what lies ahead of the step that was reached last, some steps more with each call."""
        if not self._is_open:
            return
        most = min(self._frontier + _TURN_STEPS, self._last + self._most_steps, self._step_count)
        for step in range(self._frontier, most):
            ordered = self._seen.get(step)
            if ordered is None:
                ordered = self._seen[step] = self._batches(step)
            if not self._begin(ordered, step - self._last):
                return
            self._frontier = step + 1
