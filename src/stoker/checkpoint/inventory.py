"""What a run's home holds: generations, complete steps, steps under way; and which step a restart goes on from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from stoker.checkpoint.layout import ENDED_KEY, MANIFEST_NAME, Home, StepId, parse_generation
from stoker.checkpoint.manifest import EndedRecord, GenerationRecord, Manifest, decode, decode_manifest
from stoker.errors import FormatError, IntegrityError, NewerFormat, NotFound
from stoker.values import Key


@dataclass(frozen=True, slots=True)
class Inventory:
    """Names found in a home. `steps` have their final name, `partials` have not, `aborted` were given up."""

    generations: Mapping[int, GenerationRecord]
    steps: tuple[StepId, ...]
    partials: tuple[StepId, ...]
    aborted: tuple[StepId, ...]
    ended_step: int | None

    @property
    def newest_generation(self) -> int:
        """The highest generation that began, or of which anything is left; 0 for none."""
        found = (*self.steps, *self.partials, *self.aborted)
        return max([*self.generations, *(step.generation for step in found)], default=0)

    @property
    def committed(self) -> bool:
        """Whether anything says that a step was ever committed in this run, readable or not."""
        restored = any(record.restore is not None for record in self.generations.values())
        return bool(self.steps) or restored or self.ended_step is not None


def take_inventory(home: Home) -> Inventory:
    """Look at the names in `home` and the records of its generations. Raises NewerFormat, FormatError."""
    generations = {}
    for info in home.list("gen-"):
        number = parse_generation(info.key)
        if number is not None:
            generations[number] = decode(home.read(info.key), GenerationRecord, f"{home.url}/{info.key}")
    found: dict[str, list[StepId]] = {"": [], "partial": [], "aborted": []}
    for name in home.list_dirs():
        base, _, kind = name.rpartition(".")
        if kind not in ("partial", "aborted"):
            base, kind = name, ""
        step = StepId.parse(base)
        if step is not None:
            found[kind].append(step)
    return Inventory(
        generations,
        tuple(sorted(found[""])),
        tuple(sorted(found["partial"])),
        tuple(sorted(found["aborted"])),
        _ended_step(home),
    )


def choose_step(steps: Iterable[StepId], is_whole: Callable[[StepId], bool]) -> StepId | None:
    """The step to go on from: of the whole ones that with the highest generation, then the highest step. Pure.

    `is_whole` is asked from the best on, and not again once it said yes.
    """
    return next((step for step in sorted(set(steps), reverse=True) if is_whole(step)), None)


def flaw(home: Home, directory: str, step: StepId) -> str:
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


def read_manifest(home: Home, directory: str, step: StepId) -> Manifest:
    """The manifest in `directory`. Raises NotFound, NewerFormat, DigestMismatch; FormatError if it is not of `step`."""
    key = Key(f"{directory}/{MANIFEST_NAME}")
    where = f"{home.url}/{key}"
    manifest = decode_manifest(home.read(key), where)
    if manifest.id != step:
        raise FormatError(f"the manifest is of step {manifest.step}, generation {manifest.generation}", where)
    if manifest.ranks != tuple(range(manifest.world)):
        raise FormatError(f"the manifest lists {len(manifest.ranks)} of {manifest.world} ranks", where)
    return manifest


def _ended_step(home: Home) -> int | None:
    for info in home.list(ENDED_KEY):
        if info.key == ENDED_KEY:
            return decode(home.read(ENDED_KEY), EndedRecord, f"{home.url}/{ENDED_KEY}").step
    return None
