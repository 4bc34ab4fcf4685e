"""One save after its snapshot: the handle the user holds, and the work the background thread does for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from stoker import crash
from stoker.checkpoint.commit import Attempt, await_outcome, check_wanted, commit, give_up, remove_partial
from stoker.checkpoint.layout import CHECKPOINT_FORMAT, Home, SavePlan, receipt_name
from stoker.checkpoint.manifest import RankState, Receipt, encode
from stoker.checkpoint.passage import Passage
from stoker.checkpoint.state import Json
from stoker.checkpoint.tiers import FAR_NAME
from stoker.checkpoint.writer import write_file
from stoker.errors import AlreadyExists, ConfigError, Fenced, SaveFailed, StokerError, TimedOut, brief
from stoker.units import format_seconds
from stoker.values import Key

_SAVED_BEFORE: Final = (
    "this start has saved the step before, and nothing is overwritten: save a later step, or restore() first"
)
_log = logging.getLogger("stoker.checkpoint")


@dataclass(frozen=True, slots=True)
class Staged:
    """A snapshot and all that goes with it. `image` is the slab's: nothing may follow it once the files are written."""

    attempt: Attempt
    plan: SavePlan
    image: memoryview
    state: RankState
    position: Json
    shared: Mapping[str, Json]


class Save:
    """A save under way. `step` is the number of batches done; the directory is `step-{step:08d}.g{generation:04d}`.

    `tier` is where it commits; with a `passage` it goes on to the far tier from there.
    """

    def __init__(self, step: int, *, tier: str, limit_s: float, passage: Passage | None = None) -> None:
        self.step = step
        self._tier = tier
        self._limit_s = limit_s
        self._passage = passage
        self._lock = threading.Lock()
        self._begun = False  # the background thread has it, and will settle it
        self._written = threading.Event()
        self._settled = threading.Event()
        self._error: StokerError | None = None
        self._told = False
        self.written_bytes = 0

    @property
    def staged(self) -> bool:
        """Whether this rank's snapshot is still in memory, being written."""
        return not self._written.is_set()

    @property
    def reached(self) -> tuple[str, ...]:
        """The tiers that hold the complete step, as far as this rank knows: none yet, the first, or both."""
        if not self._settled.is_set() or self._error is not None:
            return ()
        return (self._tier, FAR_NAME) if self._passage is not None and self._passage.reached else (self._tier,)

    @property
    def error(self) -> StokerError | None:
        """Why the save was given up, if it was."""
        return self._error

    @property
    def settled(self) -> bool:
        """Whether the save is over, committed or given up."""
        return self._settled.is_set()

    def __repr__(self) -> str:
        if self._error is not None:
            state = f"given up: {self._error.what}"
        elif self.settled:
            state = f"committed to {' and '.join(self.reached)}"
        else:
            state = "being written" if self.staged else "written, waiting for the other ranks"
        return f"<Save of step {self.step}: {state}>"

    def wait(self, until: str | None = None) -> None:
        """Wait until the whole step is durable and visible in tier `until` (default: where it commits).

        Raises SaveFailed, Fenced or TimedOut if it will not be, ConfigError for a tier that this run does not have.
        """
        self.wait_settled(until)
        if self._error is not None:
            self._told = True
            raise self._error
        if until == FAR_NAME and self._passage is not None:
            self._passage.wait(self._limit_s)

    def wait_settled(self, until: str | None = None) -> None:
        """Wait until the save is over where it commits, well or not. Raises TimedOut; ConfigError for `until`."""
        tiers = (self._tier,) if self._passage is None else (self._tier, FAR_NAME)
        if until is not None and until not in tiers:
            raise ConfigError(
                f"this run does not save to tier {until!r}", hint=f"wait for {' or '.join(map(repr, tiers))}"
            )
        if not self._settled.wait(self._limit_s):
            raise self._late("was not settled")

    def wait_written(self) -> None:
        """Wait until the slab is free again. Raises TimedOut."""
        if not self._written.wait(self._limit_s):
            raise self._late("was not written")

    def take_failure(self) -> StokerError | None:
        """The error of this save, if it was given up and nobody was told yet."""
        if self._error is None or self._told:
            return None
        self._told = True
        return self._error

    def claim(self) -> bool:
        """The background thread begins: from here on it settles the save. False if it was abandoned before."""
        with self._lock:
            self._begun = not self._settled.is_set()
            return self._begun

    def abandon(self, error: StokerError) -> bool:
        """Settle a save that no thread has begun; False, and nothing done, if one has."""
        with self._lock:
            if not self._begun:
                self.settle(error)
            return not self._begun

    def mark_written(self, written_bytes: int) -> None:
        """The snapshot is on storage: the slab may be used again."""
        self.written_bytes = written_bytes
        self._written.set()

    def settle(self, error: StokerError | None) -> None:
        """The save is over: committed, or given up because of `error`."""
        self._error = error
        self._written.set()
        self._settled.set()

    def _late(self, what: str) -> TimedOut:
        return TimedOut(
            f"the save of step {self.step} {what} within {format_seconds(self._limit_s)}",
            hint="storage hangs; the save goes on if it comes back",
        )


def publish(home: Home, staged: Staged, save: Save) -> StokerError | None:
    """Write the snapshot and see the step through; the error if it was given up. Does not raise, does not settle."""
    attempt = staged.attempt
    received = False
    try:
        written_bytes = _write(home, staged)
        received = True
        staged.image.release()  # the next snapshot may need, and replace, the slab
        save.mark_written(written_bytes)
        if attempt.rank == 0:
            commit(home, attempt, staged.position, staged.shared)
        else:
            await_outcome(home, attempt)
    except Exception as error:  # noqa: BLE001  the thread's boundary: the next save, wait() or close() raises it
        return _fail(home, attempt, error if received else _cause(home, attempt, error), received=received)
    return None


def _cause(home: Home, attempt: Attempt, error: Exception) -> Exception:
    """Why writing failed: if rank 0 gave the step up or a newer generation began, the directory vanished under it."""
    try:
        check_wanted(home, attempt)
    except (SaveFailed, Fenced) as reason:
        return reason
    except StokerError:
        return error
    return error


def _write(home: Home, staged: Staged) -> int:
    attempt = staged.attempt
    if attempt.world == 1:
        home.delete_tree(attempt.id.partial)  # of an earlier try that failed
    files = []
    for file in staged.plan.files:
        check_wanted(home, attempt)
        files.append(write_file(home, attempt.id, file, staged.image))
    receipt = Receipt(
        format=CHECKPOINT_FORMAT,
        step=attempt.id.step,
        generation=attempt.id.generation,
        rank=attempt.rank,
        world=attempt.world,
        deal=attempt.deal,
        files=tuple(files),
        state=staged.state,
    )
    data = encode(receipt)
    home.write(Key(f"{attempt.id.partial}/{receipt_name(attempt.rank)}"), data)
    crash.point("checkpoint-receipt-written")
    return sum(file.bytes for file in files) + len(data)


def _fail(home: Home, attempt: Attempt, error: Exception, *, received: bool) -> StokerError:
    """Tidy up as far as this rank may, and make an error of the room of any other."""
    what = error.what if isinstance(error, StokerError) else brief(error)
    if isinstance(error, Fenced):
        if not received:  # without this rank's receipt the step cannot be whole, so nobody is finishing it
            remove_partial(home, attempt)
    elif attempt.rank and isinstance(error, SaveFailed):  # rank 0 gave it up
        remove_partial(home, attempt)
    elif attempt.rank == 0 or not received:
        give_up(home, attempt, what)
    if isinstance(error, SaveFailed | TimedOut | Fenced):
        failure: StokerError = error
    else:
        failure = SaveFailed(
            f"the save of step {attempt.id.step} failed on rank {attempt.rank}: {what}",
            error.where if isinstance(error, StokerError) else home.url,
            _SAVED_BEFORE if isinstance(error, AlreadyExists) else error.hint if isinstance(error, StokerError) else "",
        )
        failure.__cause__ = error
    _log.warning("step %d is not saved (the next save raises this): %s", attempt.id.step, failure.what)
    return failure
