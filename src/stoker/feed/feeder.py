"""The feeder in threads of this process; feed/child.py has it in one of its own, and then nothing of this is loaded."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final

from stoker.dataset.order import OrderedBatch
from stoker.dataset.readable import Readable
from stoker.feed.batch import WireBatch
from stoker.feed.gather import Pattern
from stoker.feed.options import FeedOptions, FeedStats
from stoker.feed.plan import FeedSpec
from stoker.feed.produce import CLOSE_S, Producer
from stoker.feed.request import check_request
from stoker.io.memory import MapWatcher
from stoker.ledger import Counter

_EXIT_S: Final = 0.5  # how long a process that ends without close() waits for reads that have begun

_started: weakref.WeakSet[InlineFeeder] = weakref.WeakSet()  # whose threads may be running


class InlineFeeder(Producer):
    """A feeder in threads of this process. `ends` is called once when all has ended, with what was counted: by
    `close()`, or by the planner after `abandon()`.
    """

    def __init__(
        self,
        opened: Readable,
        batches: Callable[[int], OrderedBatch],
        spec: FeedSpec,
        options: FeedOptions,
        step_count: int,
        ends: Callable[[dict[Counter, int]], None] = lambda _: None,
        pattern: Pattern | None = None,
    ) -> None:
        super().__init__(opened, batches, spec, options, step_count, pattern=pattern)
        self._ends = ends
        self._pid = os.getpid()
        self._one_request = threading.Lock()

    def request(self, step: int) -> WireBatch:
        """As `Feeder.request`."""
        check_request(step, self._step_count, self._pid)
        deadline_s = time.monotonic() + self._options.deadline_s
        with self._one_request, self._changed:  # no timeout: an interrupt between taking a lock and noting it loses it
            if not self._is_made(step):
                self._wait_for(step, deadline_s)
            error = self._errors.pop(step, None)
            if error is None:
                return self._hand_over(step)
        try:
            raise error
        finally:
            del error  # no cycle of error, traceback and frame

    def is_ready(self, step: int) -> bool:
        """As `Feeder.is_ready`."""
        with self._changed:
            work = self._works.get(step)
            return work is not None and work.reply is not None

    def watch(self, watcher: MapWatcher) -> None:
        """As `Feeder.watch`."""
        self._arena.watch(watcher)

    def _hand_over(self, step: int) -> WireBatch:
        """The reply for a step that is made; it stays known until all is noted."""
        work = self._works[step]
        reply = work.reply
        assert reply is not None
        self._placement.hand_over(work)
        self._next = step + 1
        if next(iter(self._works)) < step:
            self._arena.wake()  # a jump: what was passed over holds slots
        del self._works[step]
        return reply

    def _wait_for(self, step: int, deadline_s: float) -> None:
        """Wait, with the lock held, until `step` is made."""
        _started.add(self)
        self._ask(step, time.perf_counter_ns())
        try:
            while not self._is_made(step):
                self._check_running()
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise self._timed_out(step, self._works.get(step))
                self._changed.wait(left_s)
        finally:
            self._asked = None

    def stats(self) -> FeedStats:
        """As `Feeder.stats`."""
        with self._changed:
            ready = self._ready_count()
        placement, pool = self._placement, self._stages.pool
        return FeedStats(
            feeder="inline",
            budget_bytes=self._arena.size_bytes,
            bytes_in_flight=placement.in_flight_bytes,
            peak_bytes_in_flight=placement.peak_bytes,
            lent_bytes=max(0, self._arena.taken_bytes - placement.in_flight_bytes),
            ready_batches=ready,
            copied_batches=placement.copied_count,
            reads=pool.read_count,
            bytes_read=pool.read_bytes,
            **self._stages.gather_stats(),
        )

    def count(self) -> dict[Counter, int]:
        """As `Feeder.count`."""
        placement, pool = self._placement, self._stages.pool
        return {
            Counter.READS: pool.read_count,
            Counter.BYTES_READ: pool.read_bytes,
            Counter.COPIED_BATCHES: placement.copied_count,
            Counter.BYTES_IN_FLIGHT: placement.in_flight_bytes,
        }

    def end_user_code(self) -> None:
        """Stop like `abandon()`, and wait for user code: for as long as `close()` does, but hardly for storage."""
        self.abandon()
        if os.getpid() != self._pid:
            return
        self._stages.stop()
        if self._planner is not None and self._planner.ident is not None:
            self._planner.join(_EXIT_S)
        self._stages.pool.close(_EXIT_S)
        self._stages.join_user_code(CLOSE_S)

    def close(self) -> None:
        """As `Feeder.close`."""
        if os.getpid() != self._pid:
            self._closing = True
            self.abandon()
            return
        self._let_go(self._end_threads())

    def _let_go(self, left: int) -> None:
        super()._let_go(left)
        ends, self._ends = self._ends, lambda _: None
        ends(self.count())


@atexit.register
def _end_all() -> None:
    """End the threads of loaders that nobody closed, while there is still an interpreter.

    Python unwinds a daemon thread that takes the GIL later than that. Where it does so out of a C++ destructor, as it
    is after most calls of PyTorch, the process aborts ("terminate called without an active exception").
    """
    feeders = list(_started)
    for feeder in feeders:  # all stop at once
        feeder.abandon()
    for feeder in feeders:
        feeder.end_user_code()
