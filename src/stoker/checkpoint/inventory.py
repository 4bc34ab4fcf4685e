"""What a run's home holds: generations, complete steps, steps under way; and which step a restart goes on from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from stoker.checkpoint.layout import COMMITTED_KEY, ENDED_KEY, MANIFEST_NAME, Home, StepId, parse_generation
from stoker.checkpoint.manifest import (
    CommittedRecord,
    EndedRecord,
    GenerationRecord,
    Manifest,
    Record,
    decode,
    decode_manifest,
)
from stoker.checkpoint.tiers import Tiers
from stoker.errors import FormatError, IntegrityError, NewerFormat, NotFound
from stoker.store.base import Store
from stoker.values import Key

_log = logging.getLogger("stoker.checkpoint")


@dataclass(frozen=True, slots=True)
class Inventory:
    """Names found in a home. `steps` have their final name, `partials` have not, `aborted` were given up.

    `undrained` have a note that they did not reach the far tier. `unfinished` are, in a far tier, steps whose manifest
    was not seen. The record of a generation that cannot be read is None; `noted` says whether the run has noted a
    commit.
    """

    generations: Mapping[int, GenerationRecord | None]
    steps: tuple[StepId, ...]
    partials: tuple[StepId, ...]
    aborted: tuple[StepId, ...]
    ended_step: int | None
    noted: bool
    undrained: tuple[StepId, ...] = ()
    unfinished: tuple[StepId, ...] = ()

    @property
    def newest_generation(self) -> int:
        """The highest generation that began, or of which anything is left; 0 for none."""
        found = (*self.steps, *self.partials, *self.aborted, *self.unfinished)
        return max([*self.generations, *(step.generation for step in found)], default=0)

    @property
    def committed(self) -> bool:
        """Whether anything says that a step was ever committed in this run, readable or not."""
        restored = any(record is not None and record.restore is not None for record in self.generations.values())
        return bool(self.steps) or self.noted or restored or self.ended_step is not None


def take_inventory(home: Home) -> Inventory:
    """Look at the names in `home` and the records of its generations. Raises NewerFormat.

    A record that is damaged is passed over, said: names alone number the generations and tell the steps.
    """
    found: dict[str, list[StepId]] = {"": [], "partial": [], "aborted": [], "undrained": []}
    for name in home.list_dirs():
        base, _, kind = name.rpartition(".")
        if kind not in found or not base:
            base, kind = name, ""
        step = StepId.parse(base)
        if step is not None:
            found[kind].append(step)
    return Inventory(
        _generations(home),
        tuple(sorted(found[""])),
        tuple(sorted(found["partial"])),
        tuple(sorted(found["aborted"])),
        _ended_step(home),
        _find(home, COMMITTED_KEY, CommittedRecord)[0],
        tuple(sorted(found["undrained"])),
    )


def take_far_inventory(store: Store) -> Inventory:
    """The same of a far tier, where a step has one name from its first file on.

    The listing only names candidates: whether one is whole, `flaw` says. Cost: a listing of all files of all steps.
    """
    seen: dict[StepId, bool] = {}
    for info in store.list("step-"):
        name, _, file = info.key.partition("/")
        step = StepId.parse(name)
        if step is not None:
            seen[step] = seen.get(step, False) or file == MANIFEST_NAME
    return Inventory(
        _generations(store),
        tuple(sorted(step for step, committed in seen.items() if committed)),
        (),
        (),
        _ended_step(store),
        _find(store, COMMITTED_KEY, CommittedRecord)[0],
        unfinished=tuple(sorted(step for step, committed in seen.items() if not committed)),
    )


def look_everywhere(tiers: Tiers) -> Inventory:
    """What all tiers hold together; `partials`, `aborted` and `undrained` are those of the near one."""
    near = take_inventory(tiers.near)
    if tiers.far is None:
        return near
    far = take_far_inventory(tiers.far)
    numbers = {*near.generations, *far.generations}
    return replace(
        near,
        generations={number: near.generations.get(number) or far.generations.get(number) for number in numbers},
        steps=tuple(sorted({*near.steps, *far.steps})),
        ended_step=far.ended_step if near.ended_step is None else near.ended_step,
        noted=near.noted or far.noted,
        unfinished=far.unfinished,
    )


def choose_step(steps: Iterable[StepId], is_whole: Callable[[StepId], bool]) -> StepId | None:
    """The step to go on from: of the whole ones that with the highest generation, then the highest step. Pure.

    `is_whole` is asked from the best on, and not again once it said yes.
    """
    return next((step for step in sorted(set(steps), reverse=True) if is_whole(step)), None)


def other_step(tiers: Tiers, step: StepId) -> StepId | None:
    """The step, whole in some tier, that a start would go on from if `step` were not there."""

    def is_whole(found: StepId) -> bool:
        return any(not flaw(store, found.name, found) for store in tiers.nearest_first)

    return choose_step((found for found in look_everywhere(tiers).steps if found != step), is_whole)


def flaw(home: Store, directory: str, step: StepId) -> str:
    """Why `directory` does not hold all of `step`, in words; empty if it does: manifest, every file, its size.

    Digests are checked when the step is read. Raises NewerFormat for a manifest of a later format.
    """
    try:
        manifest = read_manifest(home, directory, step)
    except NotFound:
        return "it has no manifest"
    except NewerFormat:
        raise
    except IntegrityError as error:
        return error.what
    for file in manifest.files:
        try:
            size = home.stat(Key(f"{directory}/{file.name}")).size_bytes
        except NotFound:
            return f"{file.name!r} is not there"
        if size != file.bytes:
            return f"{file.name!r} has {size:,} of {file.bytes:,} bytes"
    return ""


def read_manifest(home: Store, directory: str, step: StepId) -> Manifest:
    """The manifest in `directory`. Raises NotFound, NewerFormat, DigestMismatch; FormatError if it is not of `step`."""
    key = Key(f"{directory}/{MANIFEST_NAME}")
    return check_manifest(home.read(key), step, f"{home.url}/{key}")


def check_manifest(data: bytes, step: StepId, where: str) -> Manifest:
    """The manifest of `step` from its text. Raises NewerFormat, DigestMismatch, FormatError."""
    manifest = decode_manifest(data, where)
    if manifest.id != step:
        raise FormatError(f"the manifest is of step {manifest.step}, generation {manifest.generation}", where)
    if manifest.ranks != tuple(range(manifest.world)):
        raise FormatError(f"the manifest lists {len(manifest.ranks)} of {manifest.world} ranks", where)
    return manifest


def _generations(home: Store) -> dict[int, GenerationRecord | None]:
    generations = {}
    for info in home.list("gen-"):
        number = parse_generation(info.key)
        if number is not None:
            generations[number] = _read(home, info.key, GenerationRecord)
    return generations


def _ended_step(home: Store) -> int | None:
    _, record = _find(home, ENDED_KEY, EndedRecord)
    return None if record is None else record.step


def _find(home: Store, key: Key, kind: type[Record]) -> tuple[bool, Record | None]:
    """Whether a record is there, and what it says if it can be read. Looks in the listing: see `commit`."""
    if any(info.key == key for info in home.list(key)):
        return True, _read(home, key, kind)
    return False, None


def _read(home: Store, key: Key, kind: type[Record]) -> Record | None:
    """A record; None, said, if it is damaged. Raises NewerFormat."""
    try:
        return decode(home.read(key), kind, f"{home.url}/{key}")
    except NewerFormat:
        raise
    except FormatError as error:
        _log.warning("%s cannot be read, and the start goes on without it: %s", key, error.what)
        return None
