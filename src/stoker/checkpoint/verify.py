"""Verifying the steps of a run: manifest, receipts, sizes; and deep, every chunk through the reader of restores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

import numpy as np

from stoker.checkpoint.inventory import read_manifest, take_far_inventory
from stoker.checkpoint.layout import StepId
from stoker.checkpoint.manifest import Manifest, Receipt, WrittenFile
from stoker.checkpoint.read import Span, StepReader, read_receipts
from stoker.errors import IntegrityError, NewerFormat, NotFound, Truncated
from stoker.io.checksum import CHUNK_BYTES
from stoker.store.base import PromotingStore, Store
from stoker.values import Key

Progress: TypeAlias = Callable[[int, int], None]
"""Called with bytes done, and bytes in all, of the step under way."""

_PROBLEMS: Final = (IntegrityError, NotFound)


@dataclass(frozen=True, slots=True)
class StepFault:
    """One thing that is not as it should be in a step."""

    where: str
    error: str
    what: str


@dataclass(frozen=True, slots=True)
class VerifiedStep:
    """A step that was looked at: its name, files and bytes read, and what was found wrong."""

    name: str
    files: int
    read_bytes: int
    faults: tuple[StepFault, ...]


def verify_run(home: Store, *, deep: bool, progress: Progress | None = None) -> Iterator[VerifiedStep]:
    """Verify every committed step of a run, the oldest first, in any of its tiers. Steps under way are no steps.

    Costs a listing: in a tier whose directories cannot be renamed, of all files of all steps, of which those with a
    manifest count. Raises as `verify_step`.
    """
    for step in _committed(home):
        yield verify_step(home, step, deep=deep, progress=progress)


def _committed(home: Store) -> list[StepId]:
    if home.limits.promotes:
        names = cast("PromotingStore", home).list_dirs()
        return sorted(step for name in names if (step := StepId.parse(name)) is not None)
    return list(take_far_inventory(home).steps)


def verify_step(home: Store, step: StepId, *, deep: bool, progress: Progress | None = None) -> VerifiedStep:
    """Verify one committed step: manifest, receipts, and the size of every file; `deep` also every chunk's digest.

    Damage is returned, not raised, one fault a file. Raises NewerFormat, AccessDenied, Unavailable, TimedOut.
    """
    reader = StepReader(home, step.name)
    try:
        manifest = read_manifest(home, step.name, step)
        receipts = read_receipts(reader, manifest)
    except NewerFormat:
        raise
    except _PROBLEMS as error:
        return VerifiedStep(step.name, 0, 0, (_fault(error, reader.where("")),))
    return _verify_files(home, reader, manifest, receipts, progress if deep else None, deep=deep)


def _verify_files(
    home: Store,
    reader: StepReader,
    manifest: Manifest,
    receipts: list[Receipt],
    progress: Progress | None,
    *,
    deep: bool,
) -> VerifiedStep:
    name = manifest.id.name
    written = {file.name: file for receipt in receipts for file in receipt.files}
    total = sum(file.bytes for file in written.values())
    faults, read_bytes = [], 0
    for record in manifest.files:
        try:
            size = home.stat(Key(f"{name}/{record.name}")).size_bytes
            if size != record.bytes:
                raise Truncated(f"{record.name!r} has {size:,} of {record.bytes:,} bytes", reader.where(record.name))
            if deep and record.name in written:
                read_bytes += _read_all(reader, written[record.name])
        except NewerFormat:
            raise
        except _PROBLEMS as error:
            faults.append(_fault(error, reader.where(record.name)))
        if progress is not None:
            progress(read_bytes, total)
    return VerifiedStep(name, len(manifest.files), read_bytes, tuple(faults))


def _read_all(reader: StepReader, file: WrittenFile) -> int:
    """Read every chunk of a file, and its header; holds one chunk. Raises as `StepReader`."""
    scratch = np.empty(min(CHUNK_BYTES, file.bytes), np.uint8).data
    starts = range(0, file.bytes, CHUNK_BYTES)
    spans = [Span(at, min(at + CHUNK_BYTES, file.bytes), scratch[: min(CHUNK_BYTES, file.bytes - at)]) for at in starts]
    count = reader.fill(file, spans)
    reader.header(file)
    return count


def _fault(error: IntegrityError | NotFound, where: str) -> StepFault:
    return StepFault(error.where or where, type(error).__name__, error.what)
