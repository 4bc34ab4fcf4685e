"""`Checkpoint`: saves a run's training state behind training, and restores it. What `run.checkpoint` returns."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Final, Self

from stoker.checkpoint.commit import Attempt, give_up
from stoker.checkpoint.deal import deal_digest, own_entries
from stoker.checkpoint.drain import DrainOptions
from stoker.checkpoint.generation import Generation, start_generation
from stoker.checkpoint.layout import HEADER_SPLIT_BYTES, Home, SavePlan, StepId, plan_save
from stoker.checkpoint.manifest import RankState
from stoker.checkpoint.passage import Drains, DrainStats, OwnPassage, Passage, SeenPassage
from stoker.checkpoint.publish import Save, Staged, publish
from stoker.checkpoint.restore import advise, restore_step
from stoker.checkpoint.snapshot import Snapshot
from stoker.checkpoint.state import Capture, Feed, HasStep, Share, TensorEntry, TrainingState, check_feed
from stoker.checkpoint.steps import interval, is_due, steps_done
from stoker.checkpoint.tiers import FAR_NAME, Tiers
from stoker.checkpoint.writer import Background
from stoker.errors import (
    CheckpointError,
    CheckpointMissing,
    ClosedError,
    ConfigError,
    Fenced,
    IntegrityError,
    LayoutError,
    NotFound,
    SaveFailed,
    StokerError,
    text_of,
)
from stoker.io.limits import within_limits
from stoker.ledger import Counter, Ledger
from stoker.units import format_bytes, format_seconds

_NS: Final = 1e9
_log = logging.getLogger("stoker.checkpoint")


@dataclass(frozen=True, slots=True)
class SaveOptions:
    """How saves behave.

    `deadline_s`: how long a rank that has written its part waits for the others; then the save is given up.
    `limit_s`: how long `wait`, `close` and the next save wait for a whole save, before they say that storage hangs.
    `tier`: what the home is called in `Save.reached` and `wait(until=)`.
    `header_split_bytes`: tensors of a rank go into a further file where a header would become larger.
    `drain`: how committed steps are copied to the far tier, if there is one.
    """

    deadline_s: float = 600.0
    limit_s: float = 3600.0
    tier: str = "shared"
    header_split_bytes: int = HEADER_SPLIT_BYTES
    drain: DrainOptions = field(default_factory=DrainOptions)


@dataclass(frozen=True, slots=True)
class CheckpointStats:
    """What a `Checkpoint` did so far, on this rank.

    `restored_from`: the nearest tier that held the step; `fallback_files`: how many files another one had to serve.
    `drains` are counted on rank 0, which does them.
    """

    saves: int = 0
    committed: int = 0
    failed: int = 0
    staged_bytes: int = 0
    written_bytes: int = 0
    blocked_s: float = 0.0
    verified_bytes: int = 0
    last_committed_step: int | None = None
    restored_step: int | None = None
    restored_from: str | None = None
    fallback_files: int = 0
    drains: DrainStats = field(default_factory=DrainStats)


class Checkpoint:
    """Saves and restores the training state of one rank. One training thread calls it; it is a context manager.

    A save stops training for the snapshot alone: every tensor is copied into a slab. A background thread writes it to
    the home, and the step appears there when all ranks have written theirs; rank 0 then drains it to the far tier, if
    the run has one. A save or drain that failed is raised by the next `save`, `wait` or `close`, once; Fenced is raised
    again and again.
    """

    def __init__(
        self,
        home: Home | Tiers,
        *,
        generation: Generation,
        state: TrainingState,
        data: Feed | None,
        every: int,
        ledger: Ledger,
        options: SaveOptions | None = None,
    ) -> None:
        check_feed(data)
        self._tiers = Tiers.of(home)
        self._home = self._tiers.near
        self._generation = generation
        self._rank = generation.layout.dp_rank
        self._world = generation.layout.dp_size
        self._state = state
        self._data = data
        self._every = interval(every)
        self._ledger = ledger
        self._options = options or SaveOptions()
        self._snapshot = Snapshot()
        self._background = Background(f"stoker-checkpoint-{self._rank}")
        self._plan: tuple[Sequence[TensorEntry], SavePlan, str] | None = None
        self._last: Save | None = None
        self._has_saved = False  # in this generation, well or not; the same on all ranks
        self._unsettled: list[Save] = []  # saves whose end nobody has looked at
        self._fenced: Fenced | None = None
        self._lock = threading.Lock()
        self._stats = CheckpointStats()
        self._closed = False
        self._drains: Drains | None = None
        self._outward: Passage | None = None  # of the newest step that is on its way, or was
        if self._tiers.far is not None and self._rank == 0:
            self._drains = Drains(self._home, self._tiers.far, generation, self._options.drain, ledger.add)
            self._outward = self._drains.resume()

    def restore(self) -> int | None:
        """Bring the state to the newest complete step; the number of batches done there, None in a fresh run.

        Bytes come from the nearest tier that holds them right; every one is checked against its digest before anything
        live is touched. All ranks restore the step that rank 0 chose when the generation began, on any number of ranks.
        The position goes to `data`.

        After a save of this start it goes back, on one rank: it waits for what is staged, begins the next generation
        and restores the newest step of all, so that what is trained again is saved beside what was saved before.
        Several ranks must be started again for that: CheckpointError.

        Raises CheckpointMissing if steps were committed but none can be restored; DigestMismatch, Truncated or NotFound
        naming the file if the step changed since it was written, with how to go on from an older one; CheckpointError
        if the state does not fit, ConfigError if the data do not; and what became of an earlier save.
        """
        self._check_open()
        if self._has_saved:
            self._begin_again()
        step = self._generation.restore
        if step is None:
            if self._generation.committed:
                raise CheckpointMissing(
                    f"steps of run {self._generation.run!r} were committed, but none of them is whole any more",
                    self._home.url,
                    hint="bring one back, or start under another run name",
                )
            return None
        started_ns = time.perf_counter_ns()
        try:
            done = restore_step(self._tiers, self._generation, self._state, self._data)
        except (IntegrityError, NotFound) as error:
            advise(self._tiers, step, error)
            raise
        took_ns = time.perf_counter_ns() - started_ns
        self._ledger.add(Counter.RESTORES, 1)
        self._ledger.add(Counter.RESTORE_NS, took_ns)
        self._ledger.add(Counter.RESTORED_BYTES, done.restored_bytes)
        self._ledger.add(Counter.VERIFIED_BYTES, done.verified_bytes)
        with self._lock:
            self._stats = replace(
                self._stats,
                restored_step=step.step,
                verified_bytes=done.verified_bytes,
                restored_from=self._options.tier if done.store is self._home else FAR_NAME,
                fallback_files=done.fallback_files,
            )
        _log.info(
            "restored step %d of generation %d from %s: %s in %s",
            *(step.step, step.generation, done.store.url),
            *(format_bytes(done.restored_bytes), format_seconds(took_ns / _NS)),
        )
        return step.step

    @within_limits("cannot save")
    def save(self, after: HasStep | int) -> Save:
        """Save the state after a batch (or after the batch of this number); returns when the snapshot is taken.

        Saves `step-{after.step + 1:08d}`: the number of batches done. Waits if the save before is still being written.
        The same step again gives the same save, until `restore` goes back. Raises what became of an earlier save
        (SaveFailed, Fenced), ConfigError for what is no step, CheckpointError for what cannot be saved, CapacityError,
        TimedOut if the save before does not end. Interrupted (Ctrl-C), the step is saved or given up, never left open.
        """
        entered_ns = time.perf_counter_ns()
        self._check_open()
        step = steps_done(after)
        self._warn_unrestored()
        self._raise_failure()
        last = self._last
        if last is not None and last.step == step:
            if last.error is None:
                return last
            if self._world > 1:
                raise CheckpointError(
                    f"step {step} was given up by this generation, and other ranks may know", hint="save a later step"
                )
        if last is not None:
            last.wait_written()
        self._has_saved = True
        staged = self._stage(StepId(generation=self._generation.number, step=step))
        size_bytes = staged.plan.size_bytes
        passage = self._open_passage(staged.attempt.id)
        save = Save(step, tier=self._options.tier, limit_s=self._options.limit_s, passage=passage)
        try:
            self._unsettled.append(save)
            self._last = save
            self._background.submit(lambda: self._finish(staged, save, passage))
        except BaseException as error:  # no thread can be started, Ctrl-C: wait() and close() must not wait for it
            reason = f"step {step} cannot be saved in the background: {_name(error)}"
            if save.abandon(SaveFailed(reason)):
                staged.image.release()
                give_up(self._home, staged.attempt, reason)
            raise
        blocked_ns = time.perf_counter_ns() - entered_ns
        self._ledger.record_checkpoint(step, blocked_ns, size_bytes)
        with self._lock:
            was = self._stats
            self._stats = replace(
                was,
                saves=was.saves + 1,
                staged_bytes=was.staged_bytes + size_bytes,
                blocked_s=was.blocked_s + blocked_ns / _NS,
            )
        return save

    def save_if_due(self, after: HasStep | int) -> Save | None:
        """`save` if the step is due: every `every` steps, and the last of `data`. The same answer on every rank."""
        self._check_open()
        total = len(self._data) if self._data is not None else None
        return self.save(after) if is_due(steps_done(after), self._every, total) else None

    def wait(self, until: str | None = None) -> None:
        """Wait until all saves are durable and visible in tier `until`. Raises as `Save.wait` does.

        For the far tier: until the newest step is there. Older ones are there too, or were left out for a newer one.
        """
        if until == FAR_NAME and self._tiers.far is None:
            raise ConfigError(f"this run does not save to tier {until!r}", hint=f"wait for {self._options.tier!r}")
        for save in self._unsettled:
            save.wait_settled(until)
        self._raise_failure()
        if until == FAR_NAME and self._outward is not None:
            self._outward.wait(self._options.limit_s)
            self._raise_failure()

    def stats(self) -> CheckpointStats:
        """What was done so far on this rank."""
        with self._lock:
            return replace(self._stats, drains=self._drains.stats()) if self._drains is not None else self._stats

    def __repr__(self) -> str:
        done, run = self.stats(), self._generation.run
        facts = [f"every {self._every} steps", f"{done.committed} of {done.saves} saves committed"]
        for what, step in (("restored", done.restored_step), ("newest", done.last_committed_step)):
            facts += [] if step is None else [f"{what} step {step}"]
        return f"<Checkpoint of run {run!r} in {self._home.url}: {', '.join(facts + ['closed'] * self._closed)}>"

    def close(self) -> None:
        """Wait for what is staged and, on rank 0, on its way to the far tier; let go of the memory. Idempotent.

        Raises a failure that nobody was told of.
        """
        if self._closed:
            return
        self._closed = True
        try:
            for save in self._unsettled:
                save.wait_settled()
            if isinstance(self._outward, OwnPassage):
                self._outward.wait_settled(self._options.limit_s)
            failure = self._next_failure()
            if failure is not None:
                raise failure
        finally:
            if all(not save.staged for save in self._unsettled):  # else a thread still reads it, and keeps it
                self._snapshot.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except StokerError as failure:
            if error is None:
                raise
            _log.warning("a save failed as well: %s", failure.what)

    def _warn_unrestored(self) -> None:
        """A run that begins anew beside its own steps outranks them: generation counts before step."""
        there = self._generation.restore
        if there is not None and not self._has_saved and self.stats().restored_step is None:
            _log.warning(
                "run %r has step %d, but restore() was not called: what is saved now is taken for newer. Call "
                "restore() before training, or begin anew under another run name",
                *(self._generation.run, there.step),
            )

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the checkpoint is closed", self._home.url)

    def _raise_failure(self) -> None:
        """Raise the error of an earlier save, unless someone was told; being fenced is told for ever."""
        failure = self._next_failure() or self._fenced
        if failure is not None:
            raise failure

    def _next_failure(self) -> StokerError | None:
        """The first error of a save that nobody was told of."""
        for save in [save for save in self._unsettled if save.settled]:
            if isinstance(save.error, Fenced):
                self._fenced = save.error
            failure = save.take_failure()
            self._unsettled.remove(save)
            if failure is not None:
                return failure
        failure = self._drains.take_failure() if self._drains is not None else None
        if isinstance(failure, Fenced):
            self._fenced = failure
        return failure

    def _open_passage(self, step: StepId) -> Passage | None:
        """The way of a step to the far tier, if there is one."""
        if self._tiers.far is None:
            return None
        return self._drains.open(step) if self._drains is not None else SeenPassage(self._home, self._tiers.far, step)

    def _begin_again(self) -> None:
        """Go back: the next generation of the run, in this process. What it saves stands beside what was saved."""
        if self._world > 1:
            raise CheckpointError(
                f"this start has saved already, and its {self._world} ranks cannot agree on a step to go back to",
                self._home.url,
                hint="end all ranks and start the run again: that restores the newest committed step",
            )
        self.wait()
        now = self._generation

        def begin() -> Generation:
            return start_generation(self._tiers, run=now.run, layout=now.layout, newest=now.number)

        if self._drains is None:
            self._generation = begin()
        else:
            self._generation = self._drains.renew(begin)
            self._outward = self._drains.resume() or self._outward
        self._last = None
        self._has_saved = False

    def _stage(self, step: StepId) -> Staged:
        """Take the snapshot. If this rank cannot, rank 0 is told, so that it need not wait."""
        try:
            capture = self._state.capture()
            plan, deal = self._plan_for(capture)
            position = self._data.position(step.step - 1).to_json() if self._data is not None else None
            scalars = capture.scalars
            return Staged(
                attempt=Attempt(
                    run=self._generation.run,
                    id=step,
                    rank=self._rank,
                    world=self._world,
                    deal=deal,
                    deadline_s=self._options.deadline_s,
                ),
                plan=plan,
                image=self._snapshot.take(capture, plan),
                state=RankState(rng=capture.rng, scalars=scalars.private),
                position=position,
                shared=scalars.shared,
            )
        except BaseException as error:
            attempt = Attempt(self._generation.run, step, self._rank, self._world, "", self._options.deadline_s)
            give_up(self._home, attempt, f"the snapshot failed: {_name(error)}")
            raise

    def _plan_for(self, capture: Capture) -> tuple[SavePlan, str]:
        """What this rank writes, and the digest of the deal: as last time if the state has the same tensors."""
        entries = tuple(capture.entries)
        if self._plan is None or self._plan[0] != entries:
            if self._world == 1:
                _check_alone(entries)
            mine = own_entries(entries, self._rank, self._world)
            plan = plan_save(mine, self._rank, self._world, header_split_bytes=self._options.header_split_bytes)
            self._plan = (entries, plan, deal_digest(entries, self._world))
        return self._plan[1:]

    def _finish(self, staged: Staged, save: Save, passage: Passage | None) -> None:
        """The background thread's part. Whatever happens in it, the save is settled."""
        if not save.claim():
            return
        error: StokerError | None = SaveFailed(f"the save of step {save.step} was interrupted", self._home.url)
        try:
            error = publish(self._home, staged, save)
            if error is None and passage is not None:
                self._outward = passage
                if self._drains is not None and isinstance(passage, OwnPassage):
                    self._drains.begin(passage)
            with self._lock:
                was = self._stats
                self._stats = replace(
                    was,
                    committed=was.committed + (error is None),
                    failed=was.failed + (error is not None),
                    written_bytes=was.written_bytes + save.written_bytes,
                    last_committed_step=save.step if error is None else was.last_committed_step,
                )
            self._ledger.add(Counter.CHECKPOINT_BYTES, save.written_bytes)
            self._ledger.add(Counter.CHECKPOINTS_FAILED if error else Counter.CHECKPOINTS_COMMITTED, 1)
        finally:
            save.settle(error)


def _name(error: BaseException) -> str:
    """An error in one text, also one that says nothing, as KeyboardInterrupt does."""
    return text_of(error) or type(error).__name__


def _check_alone(entries: Sequence[TensorEntry]) -> None:
    parts = [entry.name for entry in entries if entry.share is Share.CHUNK and entry.shape != entry.global_shape]
    if parts:
        raise LayoutError(
            f"{len(parts)} tensors are spread over several ranks, {parts[0]!r} first, but the layout has one rank",
            hint="give every process its own rank: start with torchrun, or pass layout=stoker.Layout(...)",
        )
