"""Bringing a training state back: read and verify everything, then hand it over."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from stoker.checkpoint.generation import Generation
from stoker.checkpoint.inventory import other_step, read_manifest
from stoker.checkpoint.layout import MANIFEST_NAME, Home, StepId, parse_private
from stoker.checkpoint.load_plan import Assembly, StoredChunk, describe, index_chunks, plan_load
from stoker.checkpoint.manifest import Manifest, Receipt, WrittenFile
from stoker.checkpoint.read import StepReader, read_receipts, worst
from stoker.checkpoint.state import Feed, Json, Scalars, TrainingState
from stoker.checkpoint.tiers import Tiers
from stoker.dataset.position import Position
from stoker.errors import (
    CheckpointError,
    FormatError,
    IntegrityError,
    InternalError,
    NewerFormat,
    NotFound,
    StokerError,
    StoreError,
)
from stoker.io.limits import within_limits
from stoker.io.safetensors import Header
from stoker.store.base import Store

READ_THREADS: Final = 8
_log = logging.getLogger("stoker.checkpoint")


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore moved: bytes of tensors handed over, bytes read and verified for it.

    `store`: the nearest that holds the step; `fallback_files`: how many files were read from another one in part.
    """

    restored_bytes: int
    verified_bytes: int
    store: Store
    fallback_files: int


@within_limits("cannot restore")
def restore_step(home: Home | Tiers, generation: Generation, state: TrainingState, data: Feed | None) -> Restored:
    """Bring `state` and `data` to the step that `generation` goes on from, on this rank.

    Bytes come from the nearest tier whose copy of them is right. Nothing live is touched before every byte is
    verified and everything is known to fit. Needs memory for one more copy of this rank's state. Raises as
    `Checkpoint.restore` says.
    """
    step, layout = generation.restore, generation.layout
    if step is None:
        raise InternalError("there is no step to restore")
    reader, manifest, store = _open_step(Tiers.of(home), step, generation.run)
    receipts = read_receipts(reader, manifest)
    files = [file for receipt in receipts for file in receipt.files]
    with ThreadPoolExecutor(READ_THREADS, "stoker-restore") as pool:
        headers = list(pool.map(lambda file: _read_header(reader, file), files))
        verified_bytes = sum(header.verified_bytes for header in headers)
        chunks = index_chunks([header.header for header in headers], [header.offsets for header in headers])
        source = layout.dp_rank % manifest.world
        mine = _visible(chunks, source, manifest.world)
        scalars = Scalars(shared=manifest.state, private=receipts[source].state.scalars)
        wanted = state.wanted({name: describe(found) for name, found in mine.items()}, scalars)
        position = _check_position(manifest, data)
        plan = plan_load(wanted, mine)
        assembly = Assembly(plan)
        counts = pool.map(lambda number: assembly.read(reader, number, files[number]), plan.transfers)
        verified_bytes += sum(counts)
    if data is not None and position is not None:
        data.seek(position)
    state.load(assembly.tensors, scalars)
    _restore_rng(state, manifest, receipts, layout.dp_rank)
    return Restored(sum(entry.nbytes for entry in wanted), verified_bytes, store, len(reader.fallbacks))


def advise(tiers: Tiers, step: StepId, error: StokerError) -> None:
    """Let the error of a damaged step say how to go on: nothing goes back to an older step without being told."""
    if isinstance(error, NewerFormat):
        return
    try:
        other = other_step(tiers, step)
    except StokerError:  # what is wrong with the home is not what is to be told
        return
    if other is None:
        then = f"no other step is whole: bring {step.name} back from a copy, or start under another run name"
    else:
        out_of = "the run's folder" if tiers.far is None else "the run's folders in both tiers"
        then = f"bring {step.name} back from a copy; or move it out of {out_of} and start again, from {other.name}"
    error.hint = f"{error.hint}; {then}" if error.hint else then


def derive_entropy(seed: int, rank: int, step: int) -> int:
    """64 bits for the random numbers of a rank that had none at this step; the same on every try."""
    text = f"stoker rng {seed} {rank} {step}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big")


def seed_of(position: Json) -> int:
    """The seed of the data a run trained on, as its position records it; 0 where none is recorded."""
    segments = position.get("segments") if isinstance(position, dict) else None
    fields = segments[-1].get("fields") if segments else None
    seed = fields.get("seed") if fields else None
    return seed if isinstance(seed, int) else 0


def _open_step(tiers: Tiers, step: StepId, run: str) -> tuple[StepReader, Manifest, Store]:
    """A reader over all tiers that hold the step, its manifest, and the nearest of these tiers."""
    failures: list[StoreError | IntegrityError] = []
    held: list[tuple[Store, Manifest]] = []
    for store in tiers.nearest_first:
        try:
            held.append((store, read_manifest(store, step.name, step)))
        except NewerFormat:
            raise
        except (StoreError, IntegrityError) as error:
            failures.append(error)
    if not held:
        raise worst(failures)
    store, manifest = held[0]
    others = [other for other, found in held[1:] if found.digest == manifest.digest]
    reader = StepReader(store, step.name, others)
    if manifest.run != run:
        raise CheckpointError(f"the step is of run {manifest.run!r}, not {run!r}", reader.where(""))
    if failures and store is not tiers.near and not isinstance(failures[0], NotFound):
        reader.note_fallback(MANIFEST_NAME, store, failures[0])
    return reader, manifest, store


@dataclass(frozen=True, slots=True)
class _FileHeader:
    header: Header
    offsets: Mapping[str, Sequence[int]]
    verified_bytes: int


def _read_header(reader: StepReader, file: WrittenFile) -> _FileHeader:
    """The header of a file, and what it says of where its chunks begin in their tensors."""
    header, verified_bytes = reader.header(file)
    try:
        value = json.loads(header.metadata["DCP_SHARDING_INFO"])
        found = {name: tuple(entry["saved_offsets"]) for name, entry in value.items()}
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise FormatError(f"no usable DCP_SHARDING_INFO: {error!r}", reader.where(file.name)) from error
    if not all(type(at) is int and at >= 0 for starts in found.values() for at in starts):
        raise FormatError("DCP_SHARDING_INFO holds offsets that are no counts", reader.where(file.name))
    return _FileHeader(header, found, verified_bytes)


def _visible(chunks: Mapping[str, list[StoredChunk]], rank: int, world: int) -> dict[str, list[StoredChunk]]:
    """The tensors as the state of `rank` names them: its own private ones, none of other ranks."""
    if world == 1:
        return dict(chunks)
    found = {}
    for name, parts in chunks.items():
        private = parse_private(name)
        if private is None:
            found[name] = parts
        elif private[1] == rank:
            found[private[0]] = parts
    return found


def _check_position(manifest: Manifest, data: Feed | None) -> Position | None:
    if data is None:
        if manifest.position is not None:
            raise CheckpointError(
                f"step {manifest.step} was saved with a position in the data, and is restored without data=",
                hint="pass the training loader as data=; to train on other data, begin a run of another name",
            )
        return None
    if manifest.position is None:
        raise CheckpointError(
            f"step {manifest.step} was saved without a position in the data",
            hint="it was saved by a checkpoint without data=; restore it without, too",
        )
    return Position.from_json(manifest.position)


def _restore_rng(state: TrainingState, manifest: Manifest, receipts: Sequence[Receipt], rank: int) -> None:
    if rank < manifest.world:
        state.load_rng(receipts[rank].state.rng)
        return
    _log.warning(
        "rank %d did not exist when step %d was saved by %d ranks: its random numbers come from (seed, rank, step)%s",
        *(rank, manifest.step, manifest.world),
        f", its extra state from rank {rank % manifest.world}" if receipts[0].state.scalars else "",
    )
    state.seed_rng(derive_entropy(seed_of(manifest.position), rank, manifest.step))
