"""How a step becomes complete: ranks leave receipts, rank 0 writes the manifest and renames. No barrier, no collective.

What others may have made is looked for in listings, never by name: NFS remembers for a minute that a name was absent.

Who may do what keeps a step from being torn: only rank 0 commits or gives a step up. A rank that has left its receipt
removes nothing until rank 0 has given the step up. A rank that cannot write says so in a note that rank 0 finds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from stoker import crash
from stoker.checkpoint.layout import (
    CHECKPOINT_FORMAT,
    COMMITTED_KEY,
    MANIFEST_NAME,
    Home,
    StepId,
    parse_generation,
    parse_receipt,
    receipt_name,
)
from stoker.checkpoint.manifest import (
    CommittedRecord,
    FileRecord,
    Manifest,
    Note,
    Receipt,
    decode,
    decode_receipt,
    describe_bytes,
    encode,
    encode_manifest,
)
from stoker.checkpoint.state import Json
from stoker.errors import AlreadyExists, Fenced, NotFound, SaveFailed, StokerError, TimedOut
from stoker.store.base import Store
from stoker.units import format_seconds
from stoker.values import Key

FIRST_PAUSE_S: Final = 0.005
LONGEST_PAUSE_S: Final = 1.0
OUTCOME_RATIO: Final = 1.25  # rank 0 may have taken its snapshot later, and its word counts

_NAMED: Final = 5
_log = logging.getLogger("stoker.checkpoint")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One rank's part in saving one step."""

    run: str
    id: StepId
    rank: int
    world: int
    deal: str
    deadline_s: float


class Patience:
    """Pauses that grow from 5 ms to 1 s, until a deadline."""

    def __init__(
        self,
        deadline_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._end = clock() + deadline_s
        self._pause_s = FIRST_PAUSE_S

    def pause(self) -> bool:
        """Wait a little; False, at once, when the deadline has passed."""
        left = self._end - self._clock()
        if left <= 0:
            return False
        self._sleep(min(self._pause_s, left))
        self._pause_s = min(self._pause_s * 1.5, LONGEST_PAUSE_S)
        return True


def check_newest(home: Store, generation: int) -> None:
    """Raise Fenced if a newer generation of the run has begun."""
    newest = max((parse_generation(info.key) or 0 for info in home.list("gen-")), default=0)
    if newest > generation:
        raise Fenced(
            f"generation {generation} is over: generation {newest} of the run has begun",
            home.url,
            hint="stop this process; the newer one goes on from the last complete step",
        )


def check_wanted(home: Home, attempt: Attempt) -> None:
    """Raise SaveFailed if rank 0 has given the step up, Fenced if a newer generation has begun."""
    note = _notes(home, attempt).get(0)
    if note is not None and attempt.rank:
        raise SaveFailed(f"step {attempt.id.step} was given up by rank 0: {note.reason}", home.url)
    check_newest(home, attempt.id.generation)


def commit(home: Home, attempt: Attempt, position: Json, shared: Mapping[str, Json]) -> None:
    """Rank 0: wait for every rank's receipt, check them, write the manifest, make the step visible.

    Raises SaveFailed naming the rank that failed, or whose receipt did not come in `deadline_s`; Fenced.
    """
    try:
        receipts = _await_receipts(home, attempt)
    except Fenced:
        remove_partial(home, attempt)
        raise
    crash.point("commit-receipts-complete")
    files = _check_receipts(home, attempt, receipts)
    manifest = Manifest(
        format=CHECKPOINT_FORMAT,
        run=attempt.run,
        step=attempt.id.step,
        generation=attempt.id.generation,
        world=attempt.world,
        ranks=tuple(range(attempt.world)),
        position=position,
        files=tuple(files),
        state=shared,
    )
    home.write(Key(f"{attempt.id.partial}/{MANIFEST_NAME}"), encode_manifest(manifest))
    crash.point("commit-manifest-written")
    # A generation that began before this look may have removed the data, and then the manifest goes as well. One that
    # begins later, or has not come so far, finds a whole step and finishes it: nothing may be removed under it.
    gone = _find_gone(home, attempt.id.partial, manifest)
    try:
        check_newest(home, attempt.id.generation)
    except Fenced:
        if gone:
            remove_partial(home, attempt)
        raise
    if gone:
        raise SaveFailed(f"{len(gone)} files of step {attempt.id.step} were removed, {gone[0]!r} first", home.url)
    promote(home, attempt.id)
    leave_evidence(home, attempt.id)


def promote(home: Home, step: StepId) -> None:
    """Give a whole step its final name: the commit. Fine if another process did it just now.

    Raises AlreadyExists if the name is taken by another directory.
    """
    try:
        home.promote(step.partial, step.name)
    except NotFound:
        if step.name not in home.list_dirs():
            raise
    crash.point("commit-promoted")


def leave_evidence(home: Store, step: StepId) -> None:
    """Note in a tier that the run has committed a step, once. The step is committed also where this fails."""
    try:
        if any(info.key == COMMITTED_KEY for info in home.list(COMMITTED_KEY)):
            return
        record = CommittedRecord(CHECKPOINT_FORMAT, step.generation, step.step)
        home.write(COMMITTED_KEY, encode(record), if_absent=True)
        crash.point("commit-evidence-written")
    except AlreadyExists:
        return
    except StokerError as error:
        _log.warning("could not note that the run has committed a step; the next save tries again: %s", error.what)


def await_outcome(home: Home, attempt: Attempt) -> None:
    """Every other rank: wait until rank 0 has committed the step. Raises SaveFailed, Fenced, TimedOut."""
    patience = Patience(attempt.deadline_s * OUTCOME_RATIO)
    while attempt.id.name not in home.list_dirs():
        try:
            check_wanted(home, attempt)
        except Fenced:
            if attempt.id.name in home.list_dirs():  # finished by the newer generation, or just before it
                return
            raise
        if not patience.pause():
            waited = format_seconds(attempt.deadline_s * OUTCOME_RATIO)
            raise TimedOut(
                f"waited {waited} for rank 0 to commit step {attempt.id.step}",
                home.url,
                hint="look at the log of rank 0; the data of this rank is written",
            )


def give_up(home: Home, attempt: Attempt, reason: str) -> None:
    """Say that the step will not be: rank 0 tells the others and removes it, another rank tells rank 0.

    Never raises: a home that refuses this too is only logged, and the next start cleans up.
    """
    told = attempt.world == 1 or _leave_note(home, attempt, reason)
    if attempt.rank == 0:
        remove_partial(home, attempt)
        if not told:  # the disk may have been full
            _leave_note(home, attempt, reason)


def remove_partial(home: Home, attempt: Attempt) -> None:
    """Remove what is written of a step that rank 0 has given up, or that a newer generation fenced. Never raises."""
    try:
        home.delete_tree(attempt.id.partial)
        crash.point("commit-partial-removed")
    except StokerError as error:
        _log.warning("could not remove step %d; the next start will: %s", attempt.id.step, error.what)


def note_undrained(home: Home, step: StepId, reason: str) -> None:
    """Rank 0: tell ranks that ask why a committed step does not come to the far tier. Never raises."""
    try:
        home.write(Key(f"{step.undrained}/{receipt_name(0)}"), encode(Note(CHECKPOINT_FORMAT, 0, reason)))
        crash.point("commit-drain-note-written")
    except StokerError as error:
        _log.warning("could not tell the other ranks about step %d: %s", step.step, error.what)


def read_undrained(home: Home, step: StepId) -> str | None:
    """Why rank 0 says that the step does not come to the far tier, or None."""
    if step.undrained not in home.list_dirs():
        return None
    key = Key(f"{step.undrained}/{receipt_name(0)}")
    try:
        return decode(home.read(key), Note, f"{home.url}/{key}").reason
    except NotFound:
        return None


def _leave_note(home: Home, attempt: Attempt, reason: str) -> bool:
    note = Note(CHECKPOINT_FORMAT, attempt.rank, reason)
    try:
        home.write(Key(f"{attempt.id.aborted}/{receipt_name(attempt.rank)}"), encode(note))
        crash.point("commit-note-written")
    except StokerError as error:
        _log.warning("could not tell the other ranks that step %d failed: %s", attempt.id.step, error.what)
        return False
    return True


def _await_receipts(home: Home, attempt: Attempt) -> dict[int, bytes]:
    """The receipts of all ranks."""
    patience = Patience(attempt.deadline_s)
    prefix = f"{attempt.id.partial}/"
    found: dict[int, bytes] = {}
    while True:
        for info in home.list(f"{prefix}rank-"):
            rank = parse_receipt(info.key.removeprefix(prefix))
            if rank is not None and rank < attempt.world and rank not in found:
                found[rank] = home.read(info.key)
        if len(found) == attempt.world:
            return found
        missing = [rank for rank in range(attempt.world) if rank not in found]
        for rank, note in sorted(_notes(home, attempt).items()):
            if rank in missing:
                raise SaveFailed(f"step {attempt.id.step} failed on rank {rank}: {note.reason}", home.url)
        check_newest(home, attempt.id.generation)
        if not patience.pause():
            waited = format_seconds(attempt.deadline_s)
            raise SaveFailed(
                f"step {attempt.id.step}: no receipt of {name_ranks(missing)} within {waited}",
                home.url,
                hint="the rank died, hangs or writes too slowly; its log says which",
            )


def _check_receipts(home: Home, attempt: Attempt, receipts: Mapping[int, bytes]) -> list[FileRecord]:
    """The files of the step, if every receipt is of this step and deal and every file has its size."""
    files = []
    deal = attempt.deal
    for rank, data in sorted(receipts.items()):
        name = receipt_name(rank)
        where = f"{home.url}/{attempt.id.partial}/{name}"
        receipt = decode_receipt(data, where)
        if (receipt.step, receipt.generation) != (attempt.id.step, attempt.id.generation) or (
            receipt.rank,
            receipt.world,
        ) != (rank, attempt.world):
            raise SaveFailed(
                f"the receipt of rank {rank} is of step {receipt.step}, generation {receipt.generation}, "
                f"rank {receipt.rank} of {receipt.world}",
                where,
            )
        if receipt.deal != deal:
            raise SaveFailed(
                f"ranks 0 and {rank} hold different tensors (names, shapes or dtypes), so they cannot be dealt",
                where,
                hint="plain tensors must be the same on every rank; what one rank has alone goes into extra=",
            )
        _check_sizes(home, attempt.id.partial, receipt)
        files += [FileRecord(file.name, file.bytes, file.root) for file in receipt.files]
        files.append(describe_bytes(name, data))
    return files


def _check_sizes(home: Home, directory: str, receipt: Receipt) -> None:
    for file in receipt.files:
        key = Key(f"{directory}/{file.name}")
        size = home.stat(key).size_bytes
        if size != file.bytes:
            raise SaveFailed(f"{file.name!r} has {size:,} bytes, rank {receipt.rank} wrote {file.bytes:,}", home.url)


def _find_gone(home: Home, directory: str, manifest: Manifest) -> list[str]:
    names = {info.key.rpartition("/")[2] for info in home.list(f"{directory}/")}
    return [file.name for file in manifest.files if file.name not in names]


def _notes(home: Home, attempt: Attempt) -> dict[int, Note]:
    if attempt.world == 1 or attempt.id.aborted not in home.list_dirs():
        return {}
    found = {}
    prefix = f"{attempt.id.aborted}/"
    for info in home.list(prefix):
        rank = parse_receipt(info.key.removeprefix(prefix))
        if rank is not None:
            found[rank] = decode(home.read(info.key), Note, f"{home.url}/{info.key}")
    return found


def name_ranks(ranks: Sequence[int]) -> str:
    """'rank 1', 'ranks 1, 2', 'ranks 0, 1, 2, 3, 4 and 7 more'."""
    named = ", ".join(str(rank) for rank in ranks[:_NAMED])
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {named}{more}"
