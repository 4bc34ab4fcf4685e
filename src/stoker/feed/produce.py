"""Making the batches of a rank, ahead of their use: the core that every feeder drives, in threads of its process.

One thread, stoker-plan, chooses what is made next and where it lies; it alone waits for slots. What is asked for goes
first; what is not wanted any more is dropped.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Final

from stoker.dataset.order import OrderedBatch
from stoker.dataset.readable import Readable
from stoker.errors import CapacityError, ClosedError, InternalError, TimedOut
from stoker.feed.ahead import Planned, PlansAhead
from stoker.feed.bad import Replacements
from stoker.feed.gather import Pattern
from stoker.feed.options import FeedOptions
from stoker.feed.outlook import Outlook
from stoker.feed.placement import Placement, Work
from stoker.feed.plan import FeedSpec, plan_batches
from stoker.feed.stages import Stages
from stoker.io.limits import shortage, start_thread
from stoker.io.memory import make_apart
from stoker.units import format_seconds

CLOSE_S: Final = 10.0  # how long closing waits for reads that have begun, which nothing can interrupt

_log = logging.getLogger("stoker.feed")


class Producer:
    """Makes steps [0, step_count), whose samples `batches(step)` names. Starts with the first step asked for.

    A feeder derives from it: it says with `_ask` what is wanted, is told by `_tell_made` of what is made, and takes
    that from `_works` and `_errors`. `pattern` says how a rank reads, so that samples may be gathered; None: each is
    read by itself.
    """

    def __init__(
        self,
        opened: Readable,
        batches: Callable[[int], OrderedBatch],
        spec: FeedSpec,
        options: FeedOptions,
        step_count: int,
        placement: Placement | None = None,
        pattern: Pattern | None = None,
    ) -> None:
        self._opened = opened
        self._spec = spec
        self._options = options
        self._step_count = step_count
        self._replacements = Replacements(spec.bad_policy, spec.budget_ratio, spec.seed, opened.manifest.sample_count)
        self._placement = placement or _place(spec, options)
        self._arena = self._placement.arena
        self._stages = Stages(opened, spec, options, self._placement, _weakly(self._finish), pattern)
        self._outlook = Outlook(
            batches, step_count, self._stages.read_ahead, self._stages.forget_ahead
        )  # the planner's
        self._planner: threading.Thread | None = None  # once it runs, it holds the feeder until it ends
        self._plans = PlansAhead(self._make_plans, lambda: self._replacements.change_count, step_count)

        # What follows is guarded by this lock, but for the flag, which a garbage collection may set anywhere.
        self._changed = threading.Condition()
        self._stopping = self._closing = False
        self._failure: BaseException | None = None
        self._works: dict[int, Work] = {}
        self._errors: dict[int, BaseException] = {}
        self._next = 0  # what lies before it is not wanted
        self._frontier = 0  # what lies between the two is begun
        self._ahead = False
        self._asked: int | None = None  # the step that training waits for
        self._asked_ns = 0
        self._patience_s = options.patience_s
        self._short: int | None = None  # the step asked for that found no slot
        self._starved = False

    # For the feeder, with the lock held.

    def _ask(self, step: int, since_ns: int) -> None:
        """Make `step` before all others, and then those that follow it: training has waited for it since then."""
        self._check_running()
        if self._planner is None:
            self._planner = threading.Thread(target=self._plan_batches, name="stoker-plan", daemon=True)
        if self._planner.ident is None:
            start_thread(self._planner, "cannot make batches")
        self._next = self._frontier = step
        self._asked, self._asked_ns, self._ahead = step, since_ns, True
        self._arena.wake()

    def _is_made(self, step: int) -> bool:
        """Whether `step` is ready, or has failed."""
        work = self._works.get(step)
        return step in self._errors or (work is not None and work.reply is not None)

    def _tell_made(self, step: int) -> None:
        """`step` is ready, or has failed."""
        if self._asked == step:
            self._changed.notify_all()

    def _check_running(self) -> None:
        if self._failure is not None:
            raise self._failed()
        if self._stopping:
            raise ClosedError("the loader is closed")

    def _failed(self) -> BaseException:
        """What ended the planner: said as it is if the system gave too little, else a bug."""
        failure = self._failure
        assert failure is not None
        failure = shortage(failure, "cannot make batches") or failure
        if isinstance(failure, CapacityError):
            return CapacityError(failure.what, failure.where, failure.hint)
        error = InternalError(f"the feeder failed: {failure!r}")
        error.__cause__ = failure
        return error

    def _timed_out(self, step: int, work: Work | None) -> TimedOut:
        what = "a free slot, or the offsets of its samples" if work is None else work.stage
        job = work.job if work is not None else None
        if job is not None:
            what = f"{job.left} of its {job.count} reads"
        return TimedOut(
            f"the batch of step {step} was not there after {format_seconds(self._options.deadline_s)}: "
            f"it waits for {what}",
            where=self._opened.store.url,
            hint="the storage does not answer, or is too slow for a batch of this size",
        )

    def _ready_count(self) -> int:
        """Batches that lie ready."""
        return sum(work.reply is not None for work in self._works.values())

    # Ending.

    def abandon(self) -> None:
        """Stop soon, without waiting. Takes no lock: a garbage collection may call it anywhere.

        The planner then ends what there is; if it was never started, there is only memory, which goes with the feeder.
        """
        self._stopping = True
        self._arena.wake()

    def _end_threads(self) -> int:
        """Stop, wait for all threads, and return how many still wait for reads."""
        self._closing = True
        self.abandon()
        with self._changed:
            self._changed.notify_all()
        self._stages.stop()
        deadline_s = time.monotonic() + CLOSE_S
        planner = self._planner
        if planner is not None and planner.ident is not None:
            planner.join(CLOSE_S)
        left = self._stages.join(max(0.0, deadline_s - time.monotonic()))
        return left + (planner is not None and planner.is_alive())

    def _let_go(self, left: int) -> None:
        """Give everything back, but for what is lent and what `left` threads still use."""
        if left:
            _log.warning("%d threads still wait for %s; they end with the process", left, self._opened.store.url)
        with self._changed:
            for work in self._works.values():  # also those that no thread came to any more
                work.dropped = True
                self._placement.give_back(work)
            self._works.clear()
            self._errors.clear()
        self._arena.reclaim()
        self._arena.close()

    # Choosing what is made next and where it lies, in the planner's thread.

    def _plan_batches(self) -> None:
        try:
            while not self._stopping:
                wait_s = self._plan_next()
                if self._arena.reclaim(wait_s):
                    self._starved = False
        except BaseException as error:  # noqa: BLE001  thread boundary: told to whoever asks for a batch
            self._failure = error
        abandoned = self._failure is None and not self._closing
        self._stopping = True
        with self._changed:
            if self._failure is not None and self._asked is not None and not self._is_made(self._asked):
                self._errors[self._asked] = self._failed()
                self._tell_made(self._asked)
            self._changed.notify_all()
        self._stages.stop()
        if abandoned:  # by a loader that nobody holds any more
            self._let_go(self._stages.join(CLOSE_S))

    def _plan_next(self) -> float | None:
        """Begin one more batch if there is one to begin. Returns how long to wait for slots (None: until woken)."""
        with self._changed:
            self._drop_passed()
            chosen = self._choose()
        if chosen is None:
            return None
        try:
            self._outlook.reach(chosen)
            planned, cost_ns = self._plans.find(chosen)
            work = Work(chosen, *planned)
            wait_s = self._place(work, cost_ns)
        except BaseException as error:  # noqa: BLE001  thread boundary: raised where the batch is asked for
            self._fail(chosen, error)
            self._plans.drop(chosen)
            return 0
        if work.memory is not None:
            self._plans.drop(chosen)
            self._stages.fetch(work)
            if self._stages.looks_ahead:
                self._outlook.look()
        return wait_s

    def _choose(self) -> int | None:
        """The step to begin now."""
        if self._asked is not None and self._asked not in self._works and self._asked not in self._errors:
            return self._asked
        if not self._ahead or not self._options.prefetch_bytes:
            return None
        if self._placement.output_bytes is None and self._works:
            return None  # until the first batch has shown how much room a map takes
        self._frontier = max(self._frontier, self._next)
        while self._frontier in self._works:
            self._frontier += 1
        return self._frontier if self._frontier < self._step_count else None

    def _make_plans(self, steps: Sequence[int]) -> list[Planned]:
        ordered = [self._outlook.order(step) for step in steps]
        with self._changed:
            applied = [self._replacements.apply(each) for each in ordered]
        batches = [batch for batch, _ in applied]
        self._stages.load_offsets(batches)
        plans = plan_batches(self._opened, batches, self._spec.fields)
        runs = self._stages.order_reads(plans)
        return [Planned(plan, bad, run) for plan, (_, bad), run in zip(plans, applied, runs, strict=True)]

    def _place(self, work: Work, cost_ns: int) -> float | None:
        """Find room for a batch, in ordinary memory if all slots stay lent; else returns how long to wait for one."""
        step, nbytes = work.step, work.plan.nbytes
        with self._changed:
            if self._choose() != step:
                return 0  # training has asked for another one meanwhile
            placed = self._placement.place(work, nbytes)
            while not placed and (furthest := max(self._works, default=step)) > step:
                self._drop(furthest)
                self._arena.reclaim()  # if it was made, its slot came back just now
                placed = self._placement.place(work, nbytes)
            if not placed and self._asked != step:
                return None
            if placed:
                if self._short == step:
                    self._patience_s = self._options.patience_s  # waiting for the slot was right
                self._starved = False
            else:
                self._short = step
                wait_s = self._patience_s - (time.perf_counter_ns() - self._asked_ns) / 1e9
                if wait_s > 0 and not self._starved:
                    return wait_s
                if not self._starved:
                    # One such wait until a slot comes back, and half as long the next time: training that keeps more
                    # batches than there are slots for would otherwise stand still for a second again and again.
                    self._patience_s /= 2
                self._starved = True
                self._placement.place_apart(work, nbytes)
            # Fetching begins with the plan, which reads offsets, or with waiting for it; not while a slot is missing.
            begin_ns = time.perf_counter_ns() - cost_ns
            if self._asked == step and self._short != step:
                begin_ns = min(begin_ns, self._asked_ns)
            work.times.append(begin_ns)
            self._short = None
            self._works[step] = work
            return 0

    def _drop_passed(self) -> None:
        for step in [step for step in self._works if step < self._next]:
            self._drop(step)
        for step in [step for step in self._errors if step < self._next]:
            del self._errors[step]

    def _drop(self, step: int) -> None:
        """Make no more of a batch; its slots come back when nobody writes into them any more."""
        work = self._works.pop(step)
        if work.reply is not None:
            self._placement.give_back(work)
        else:
            self._stages.drop(work)

    # What becomes of a batch, in the thread of its last stage.

    def _finish(self, work: Work, error: BaseException | None) -> None:
        if error is not None:
            error = shortage(error, f"cannot make the batch of step {work.step}", self._opened.store.url) or error
        with self._changed:
            if error is None and not work.dropped:
                self._outlook.open()
                self._tell_made(work.step)
                if any(self._spec.grows):
                    self._arena.wake()  # the first one shows how much room the others take
                return
            self._placement.give_back(work)
            self._arena.wake()
            if error is not None and not work.dropped:
                del self._works[work.step]
                told = None if work.again else self._replacements.note(work.plan.ordered, error, work.plan.keys)
                if told is None:
                    self._frontier = min(self._frontier, work.step)  # it is made once more
                else:
                    self._fail(work.step, told)

    def _fail(self, step: int, error: BaseException) -> None:
        """Keep the error for whoever asks for the batch; nothing is read ahead until the next one is asked for."""
        with self._changed:
            self._errors[step] = error
            self._ahead = False
            self._tell_made(step)


def _place(spec: FeedSpec, options: FeedOptions) -> Placement:
    if spec.packed:  # other processes look at the batches as well
        return Placement(options.prefetch_bytes, spec.grows, apart=make_apart)
    return Placement(options.prefetch_bytes, spec.grows)


def _weakly(finish: Callable[[Work, BaseException | None], None]) -> Callable[[Work, BaseException | None], None]:
    """The bound method, but not holding its object: a feeder that nobody holds is freed at once."""
    method = weakref.WeakMethod(finish)

    def call(work: Work, error: BaseException | None) -> None:
        bound = method()
        if bound is not None:
            bound(work, error)

    return call
