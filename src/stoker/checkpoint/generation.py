"""Starting a run, or starting it again: take the next generation, end the older ones, decide where all ranks go on."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, cast

from stoker import crash
from stoker.checkpoint.commit import check_newest, promote
from stoker.checkpoint.inventory import Inventory, choose_step, flaw, look_everywhere, take_inventory
from stoker.checkpoint.layout import CHECKPOINT_FORMAT, ENDED_KEY, RUN_KEY, Home, StepId, generation_key
from stoker.checkpoint.manifest import EndedRecord, GenerationRecord, RunRecord, decode, encode
from stoker.checkpoint.state import Json, Rendezvous
from stoker.checkpoint.tiers import Tiers
from stoker.errors import (
    AccessDenied,
    AlreadyExists,
    CheckpointError,
    ConfigError,
    Fenced,
    FormatError,
    LayoutError,
    NewerFormat,
    NotFound,
    StokerError,
)
from stoker.store.base import Store
from stoker.values import Layout

START_DEADLINE_S: Final = 600.0
_TRIES: Final = 100
_TOPIC: Final = "generation"
_log = logging.getLogger("stoker.checkpoint")


@dataclass(frozen=True, slots=True)
class Generation:
    """One start of a run, the same on all its ranks: `restore` is the step they go on from.

    `committed` says whether any step was ever committed in the run, so that a run whose steps are lost is told from
    one that begins.
    """

    run: str
    number: int
    layout: Layout
    restore: StepId | None = None
    committed: bool = False


def start_generation(
    home: Home | Tiers,
    *,
    run: str,
    layout: Layout,
    rendezvous: Rendezvous | None = None,
    deadline_s: float = START_DEADLINE_S,
    newest: int | None = None,
) -> Generation:
    """Begin a generation of `run`, on every rank: rank 0 does it and the others hear of it.

    Its record is written, if absent, to every tier. Older generations are fenced: what they left whole is finished, all
    else they left nearby is removed. Raises LayoutError for several ranks without a `rendezvous`, TimedOut if rank 0 is
    not heard of within `deadline_s`, NewerFormat, CheckpointError on every rank if rank 0 fails. A process that goes
    back, alone, says which generation it is in as `newest`: Fenced if any tier knows a newer one.
    """
    tiers = Tiers.of(home)
    if layout.dp_size == 1:
        number, restore, committed = _start(tiers, run, layout, newest)
        return Generation(run, number, layout, restore, committed)
    if rendezvous is None:
        raise LayoutError(
            f"{layout.dp_size} ranks have no way to hear which generation rank 0 began",
            where=f"run {run!r}",
            hint="start them with torchrun, or call torch.distributed.init_process_group() first",
        )
    told: Json = None
    if layout.dp_rank == 0:
        try:
            number, restore, committed = _start(tiers, run, layout)
        except StokerError as error:
            rendezvous.broadcast(_TOPIC, {"error": str(error)}, deadline_s)
            raise
        told = {
            "number": number,
            "restore": None if restore is None else [restore.generation, restore.step],
            "committed": committed,
        }
    heard = rendezvous.broadcast(_TOPIC, told, deadline_s)
    if "error" in heard:
        raise CheckpointError(f"rank 0 could not start the run: {heard['error']}", tiers.near.url)
    restore = None if heard["restore"] is None else StepId(*heard["restore"])
    return Generation(run, heard["number"], layout, restore, heard["committed"])


def end_run(home: Home | Tiers, generation: Generation) -> None:
    """Note that training is through its data: `ended.json`, kept from the first generation that came so far.

    It names the last step there is, so that a run whose steps are lost later is not taken for one that never saved.
    """
    tiers = Tiers.of(home)
    steps = look_everywhere(tiers).steps
    record = EndedRecord(CHECKPOINT_FORMAT, generation.number, steps[-1].step if steps else None)
    for store in tiers.farthest_first:
        with suppress(AlreadyExists):
            store.write(ENDED_KEY, encode(record), if_absent=True)
            crash.point("generation-run-ended")


def _start(tiers: Tiers, run: str, layout: Layout, newest: int | None = None) -> tuple[int, StepId | None, bool]:
    """The number taken, the step to restore, and whether any step was ever committed."""
    own = newest
    started = datetime.now(UTC).isoformat(timespec="seconds")
    for store in tiers.farthest_first:
        _claim_run(store, run, started)
    number = 0
    for _ in range(_TRIES):
        before = look_everywhere(tiers)
        if own is not None:
            for store in tiers.farthest_first:
                check_newest(store, own)
        number = max(number, before.newest_generation) + 1
        restore = _choose(tiers, before, number)
        record = GenerationRecord(
            format=CHECKPOINT_FORMAT,
            world=layout.dp_size,
            restore=restore.step if restore else None,
            restore_generation=restore.generation if restore else None,
            started=started,
        )
        try:
            for store in tiers.farthest_first:
                store.write(generation_key(number), encode(record), if_absent=True)
                crash.point("generation-begun")
        except AlreadyExists:
            if own is not None:  # also where a listing does not show it yet
                raise Fenced(
                    f"generation {own} is over: generation {number} of the run has begun", tiers.near.url
                ) from None
            _log.info("generation %d of run %r was begun by another process just now", number, run)
            continue
        own = number if newest is not None else None
        _end_older(tiers.near, number)
        _sweep(tiers)
        after = look_everywhere(tiers)
        # Until our record was there, an older generation could still commit: then our record names the wrong step.
        if _choose(tiers, after, number) == restore:
            return number, restore, before.committed
        _log.info("a step of run %r was committed while generation %d began: beginning again", run, number)
    raise CheckpointError(
        f"no generation could be begun in {_TRIES} tries",
        tiers.near.url,
        hint="other processes start the same run over and over",
    )


def _claim_run(home: Store, run: str, started: str) -> None:
    record = RunRecord(format=CHECKPOINT_FORMAT, name=run, started=started)
    try:
        home.write(RUN_KEY, encode(record), if_absent=True)
    except AlreadyExists:
        where = f"{home.url}/{RUN_KEY}"
        found = _read_run(home, run, where)
        if found.name != run:
            raise ConfigError(f"the folder belongs to run {found.name!r}, not {run!r}", where) from None
    except AccessDenied as error:
        hint = "each start of a run notes itself in its folder, also to go on from what lies there"
        raise AccessDenied(error.what, error.where, "; ".join(text for text in (error.hint, hint) if text)) from error
    else:
        crash.point("generation-run-named")


def _read_run(home: Store, run: str, where: str) -> RunRecord:
    try:
        return decode(home.read(RUN_KEY), RunRecord, where)
    except NewerFormat:
        raise
    except FormatError as error:
        raise FormatError(
            f"it cannot be read whose run this is: {error.what}",
            where,
            hint=f"if the folder is that of run {run!r}, remove this file: the next start writes it again",
        ) from error


def _choose(tiers: Tiers, inventory: Inventory, number: int) -> StepId | None:
    """The step that generation `number` goes on from: whole in any tier, or whole but for its final name."""
    partials, steps = set(inventory.partials), set(inventory.steps)

    def is_whole(step: StepId) -> bool:
        if step in partials and not flaw(tiers.near, step.partial, step):
            return True
        problem = ""
        for store in tiers.nearest_first:
            found = flaw(store, step.name, step)
            if not found:
                return True
            problem = problem or found
        if step in steps:
            _log.warning("step %s cannot be restored and is passed over: %s", step.name, problem)
        return False

    found = (*inventory.steps, *inventory.partials, *inventory.unfinished)
    return choose_step((step for step in found if step.generation < number), is_whole)


def _end_older(home: Home, number: int) -> None:
    """Finish whole steps of generations before `number`, remove everything else they left."""
    found = take_inventory(home)
    for step in found.partials:
        if step.generation < number:
            _end_partial(home, step)
    for step in found.aborted:
        if step.generation < number:
            home.delete_tree(step.aborted)
            crash.point("generation-note-removed")
    for step in found.undrained:
        if step.generation < number:
            home.delete_tree(step.undrained)
            crash.point("generation-drain-note-removed")


def _sweep(tiers: Tiers) -> None:
    """Remove what killed writers left under temporary names: nearby, and also in a far tier that is a directory."""
    for store in tiers.nearest_first:
        if store.limits.promotes:
            cast("Home", store).sweep()


def _end_partial(home: Home, step: StepId) -> None:
    try:
        problem = flaw(home, step.partial, step)
        if not problem:
            promote(home, step)
            _log.info("finished step %s, which was whole but for its name", step.name)
            return
    except NotFound:  # another process that starts the run finished or removed it just now
        return
    except AlreadyExists:
        problem = "there is another under its name"
    home.delete_tree(step.partial)
    crash.point("generation-partial-removed")
    _log.info("removed step %s, which was not whole: %s", step.partial, problem)
