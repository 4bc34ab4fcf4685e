"""The way of committed steps to the far tier: rank 0 moves them behind training, the other ranks look for them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol

from stoker.checkpoint.commit import Patience, note_undrained, read_undrained
from stoker.checkpoint.drain import DrainOptions, Pacer, StepDrain
from stoker.checkpoint.drain_plan import choose_next
from stoker.checkpoint.generation import Generation
from stoker.checkpoint.inventory import read_manifest
from stoker.checkpoint.layout import Home, StepId
from stoker.checkpoint.tiers import FAR_NAME
from stoker.checkpoint.writer import Background
from stoker.errors import ClosedError, Fenced, NotFound, SaveFailed, StokerError, TimedOut, brief
from stoker.ledger import Counter
from stoker.store.base import Store
from stoker.units import format_bytes, format_seconds

_HINT: Final = "storage hangs or is slow; the drain goes on if it comes back"
_log = logging.getLogger("stoker.checkpoint")


@dataclass(frozen=True, slots=True)
class DrainStats:
    """What rank 0 drained so far: steps and bytes that arrived, bytes that lay there from a drain that was killed.

    `overtaken`: steps that were left out because a newer one was ready before their turn came.
    """

    drained: int = 0
    failed: int = 0
    overtaken: int = 0
    copied_bytes: int = 0
    kept_bytes: int = 0
    last_drained_step: int | None = None


class Passage(Protocol):
    """The way of one step to the far tier."""

    @property
    def reached(self) -> bool:
        """Whether this rank knows that the step is there."""

    def wait(self, limit_s: float) -> None:
        """Wait until it is. Raises SaveFailed or Fenced if it will not be, TimedOut after `limit_s`."""


class OwnPassage:
    """That of a step which this process drains."""

    def __init__(self, step: StepId, hurry: threading.Event) -> None:
        self.step = step
        self._hurry = hurry
        self._over = threading.Event()
        self._error: StokerError | None = None
        self._told = False

    @property
    def reached(self) -> bool:
        """Whether the step was committed in the far tier."""
        return self._over.is_set() and self._error is None

    def wait(self, limit_s: float) -> None:
        """Wait for the drain, which no longer keeps to its pace. Raises SaveFailed, Fenced, TimedOut."""
        self.wait_settled(limit_s)
        if self._error is not None:
            self._told = True
            raise self._error

    def wait_settled(self, limit_s: float) -> None:
        """Wait until the drain is over, well or not. Raises TimedOut."""
        self._hurry.set()
        if not self._over.wait(limit_s):
            waited = format_seconds(limit_s)
            raise TimedOut(f"step {self.step.step} did not reach tier {FAR_NAME!r} within {waited}", hint=_HINT)

    def settle(self, error: StokerError | None, *, told: bool = False) -> None:
        """The drain is over. `told`: the error is not a failure that the next save should raise."""
        self._error = error
        self._told = told
        self._over.set()

    @property
    def settled(self) -> bool:
        """Whether the drain is over, well or not."""
        return self._over.is_set()

    def take_failure(self) -> StokerError | None:
        """The error, if there was one and nobody was told yet."""
        if self._error is None or self._told:
            return None
        self._told = True
        return self._error


class SeenPassage:
    """That of a step which rank 0 drains: looked for in the far tier when somebody waits for it."""

    def __init__(self, near: Home, far: Store, step: StepId) -> None:
        self._near = near
        self._far = far
        self._step = step
        self.reached = False

    def wait(self, limit_s: float) -> None:
        """Look until the step is there. Raises SaveFailed with rank 0's reason if it says that it will not be."""
        patience = Patience(limit_s)
        while not self._look():
            reason = read_undrained(self._near, self._step)
            if reason is not None:
                raise SaveFailed(reason, self._far.url)
            if not patience.pause():
                waited = format_seconds(limit_s)
                raise TimedOut(f"step {self._step.step} did not reach tier {FAR_NAME!r} within {waited}", hint=_HINT)

    def _look(self) -> bool:
        try:
            read_manifest(self._far, self._step.name, self._step)
        except NotFound:
            return False
        self.reached = True
        return True


class Drains:
    """Rank 0: drains one step after the other on a thread of its own. Thread-safe.

    Falls it behind, it goes on with the newest step and leaves out those that were overtaken, but never stops one
    midway: also when the process begins another generation meanwhile, with `renew`. `tally` counts what becomes
    of them.
    """

    def __init__(
        self,
        near: Home,
        far: Store,
        generation: Generation,
        options: DrainOptions,
        tally: Callable[[Counter, int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._near = near
        self._far = far
        self._generation = generation
        self._renewing = threading.Lock()  # held while the next generation begins
        self._options = options
        self._tally = tally
        self._clock = clock
        self._hurry = threading.Event()
        self._background = Background("stoker-drain")
        self._lock = threading.Lock()
        self._waiting: dict[StepId, OwnPassage] = {}
        self._unsettled: list[OwnPassage] = []
        self._saved_at = clock()
        self._interval_s: float | None = None
        self._stats = DrainStats()

    def open(self, step: StepId) -> OwnPassage:
        """A passage for a step that is being saved; nothing moves before `begin`."""
        return OwnPassage(step, self._hurry)

    def begin(self, passage: OwnPassage) -> None:
        """The step is committed nearby just now: drain it when those before are through."""
        now = self._clock()
        with self._lock:
            self._interval_s, self._saved_at = now - self._saved_at, now
        self._hurry.clear()
        self._submit(passage)

    def resume(self) -> OwnPassage | None:
        """Drain the step that the generation goes on from; None if there is none, or this node does not have it."""
        step = self._generation.restore
        if step is None or step.name not in self._near.list_dirs():
            return None
        with self._lock:
            waiting = self._waiting.get(step)
        if waiting is not None:
            return waiting
        passage = self.open(step)
        self._submit(passage)
        return passage

    def renew(self, begin: Callable[[], Generation]) -> Generation:
        """The process begins its next generation: what waits or is on its way is drained in that one.

        Does not wait for a drain; one that is told that a newer generation has begun waits to hear which.
        """
        with self._renewing:
            self._generation = begin()
            return self._generation

    def stats(self) -> DrainStats:
        """What was done so far."""
        with self._lock:
            return self._stats

    def take_failure(self) -> StokerError | None:
        """The first error of a drain that nobody was told of."""
        with self._lock:
            for passage in [passage for passage in self._unsettled if passage.settled]:
                self._unsettled.remove(passage)
                failure = passage.take_failure()
                if failure is not None:
                    return failure
        return None

    def _submit(self, passage: OwnPassage) -> None:
        with self._lock:
            self._waiting[passage.step] = passage
            self._unsettled.append(passage)
        self._add(Counter.DRAIN_BACKLOG, 1)
        try:
            self._background.submit(self._work)
        except RuntimeError as error:  # no thread can be started
            with self._lock:
                self._waiting.pop(passage.step, None)
            self._settle(passage, SaveFailed(f"step {passage.step.step} cannot be drained in the background: {error}"))

    def _work(self) -> None:
        """Drain the newest step that waits, and leave out the others."""
        with self._lock:
            chosen = choose_next(self._waiting)
            waiting, self._waiting = self._waiting, {}
            interval_s = self._interval_s
        if chosen is None:
            return
        newest, overtaken = chosen
        for step in overtaken:
            self._leave_out(waiting[step], newest)
        error = self._drain_renewed(newest, interval_s)
        if error is not None:
            self._note(newest, error.what)
            _log.warning("step %d stays on its tier (the next save raises this): %s", newest.step, error.what)
        self._settle(waiting[newest], error)

    def _drain_renewed(self, step: StepId, interval_s: float | None) -> StokerError | None:
        """Drain a step; the error if it failed. Again if it was this process that went on to a newer generation."""
        while True:
            number = self._generation.number
            error = self._drain(step, number, interval_s)
            if not isinstance(error, Fenced):
                break
            with self._renewing:
                if self._generation.number == number:
                    break
        if error is not None:
            self._count(lambda was: replace(was, failed=was.failed + 1))
            self._add(Counter.DRAINS_FAILED, 1)
        return error

    def _drain(self, step: StepId, generation: int, interval_s: float | None) -> StokerError | None:
        """Drain a step in a generation; the error if it failed. Does not raise."""
        drain = StepDrain(self._near, self._far, step, generation)
        pacer = Pacer(self._options.limits, interval_s, self._hurry, self._clock)
        began_s = self._clock()
        try:
            if step.generation < generation and drain.is_committed():
                return None
            done = drain.run(pacer, read_back=self._options.read_back)
        except Exception as error:  # noqa: BLE001  the thread's boundary: the next save, wait() or close() raises it
            return self._failure(step, error)
        finally:
            self._add(Counter.DRAIN_NS, int((self._clock() - began_s) * 1e9))
        self._add(Counter.DRAINED_STEPS, 1)
        self._add(Counter.DRAINED_BYTES, done.copied_bytes)
        self._count(
            lambda was: replace(
                was,
                drained=was.drained + 1,
                copied_bytes=was.copied_bytes + done.copied_bytes,
                kept_bytes=was.kept_bytes + done.kept_bytes,
                last_drained_step=step.step,
            )
        )
        _log.info("step %d reached tier %r: %s", step.step, FAR_NAME, format_bytes(done.copied_bytes))
        return None

    def _failure(self, step: StepId, error: Exception) -> StokerError:
        if isinstance(error, Fenced):
            return error
        what = error.what if isinstance(error, StokerError) else brief(error)
        failure = SaveFailed(
            f"step {step.step} is saved, but did not reach tier {FAR_NAME!r}: {what}",
            error.where if isinstance(error, StokerError) else self._far.url,
            error.hint if isinstance(error, StokerError) else "",
        )
        failure.__cause__ = error
        return failure

    def _leave_out(self, passage: OwnPassage, newest: StepId) -> None:
        """A newer step is ready: this one is not drained any more."""
        first = self.stats().overtaken == 0
        self._count(lambda was: replace(was, overtaken=was.overtaken + 1))
        step = passage.step.step
        reason = f"step {step} was not drained to tier {FAR_NAME!r}: step {newest.step} was ready before its turn"
        _log.log(
            logging.WARNING if first else logging.INFO,
            "%s; save less often, or to a faster store, if every step is to arrive",
            reason,
        )
        self._note(passage.step, reason)
        self._add(Counter.DRAINS_OVERTAKEN, 1)
        self._settle(passage, SaveFailed(reason, self._far.url, "wait for the newer step"), told=True)

    def _settle(self, passage: OwnPassage, error: StokerError | None, *, told: bool = False) -> None:
        self._add(Counter.DRAIN_BACKLOG, -1)
        passage.settle(error, told=told)

    def _add(self, counter: Counter, amount: int) -> None:
        with suppress(ClosedError):  # the run ended before the drain did
            self._tally(counter, amount)

    def _note(self, step: StepId, reason: str) -> None:
        if self._generation.layout.dp_size > 1:
            note_undrained(self._near, step, reason)

    def _count(self, change: Callable[[DrainStats], DrainStats]) -> None:
        with self._lock:
            self._stats = change(self._stats)
