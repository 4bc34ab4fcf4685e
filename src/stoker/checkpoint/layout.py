"""Names and places of a run's checkpoints: what is called what in the home, and what lies where in a rank's files.

Pure. The words are those of docs/reference/checkpoint-format.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, Self

from stoker.checkpoint.state import Share, TensorEntry
from stoker.errors import CheckpointError
from stoker.io.safetensors import TensorSpec, build_header, dtype_bytes
from stoker.store.base import PromotingStore
from stoker.units import MIB
from stoker.values import Key

CHECKPOINT_FORMAT: Final = 1
HEADER_SPLIT_BYTES: Final = 50 * MIB
RUN_KEY: Final = Key("run.json")
COMMITTED_KEY: Final = Key("committed.json")
ENDED_KEY: Final = Key("ended.json")
MANIFEST_NAME: Final = "MANIFEST.json"

_STEP: Final = re.compile(r"step-(\d{8,})\.g(\d{4,})")
_GENERATION: Final = re.compile(r"gen-(\d{4,})\.json")
_RECEIPT: Final = re.compile(r"rank-(\d{5,})\.json")
_PRIVATE: Final = re.compile(r"(.+)\.rank-(\d{5,})")
_ENTRY_BYTES: Final = 160  # of a tensor's two entries in a header: braces, words, byte positions up to 2^63
_FRAME_BYTES: Final = 512  # of the rest of a header


class Home(PromotingStore, Protocol):
    """Where a run's checkpoints live: a store that renames directories, rooted at the run's folder."""

    def sweep(self, prefix: str = "") -> int:
        """Remove what killed writers left under directory `prefix`; returns how much it was."""


@dataclass(frozen=True, slots=True, order=True)
class StepId:
    """A saved step: `step` batches done, saved by `generation`. Ordered as restores choose: generation first."""

    generation: int
    step: int

    @property
    def name(self) -> str:
        """The directory of the complete step."""
        return f"step-{self.step:08d}.g{self.generation:04d}"

    @property
    def partial(self) -> str:
        """The directory of the step while it is being written."""
        return f"{self.name}.partial"

    @property
    def aborted(self) -> str:
        """The directory that holds a note of each rank that gave the step up."""
        return f"{self.name}.aborted"

    @property
    def undrained(self) -> str:
        """The directory that holds rank 0's note of why the step did not reach the far tier."""
        return f"{self.name}.undrained"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """The step whose directory is called `name`, or None if it is not such a name."""
        match = _STEP.fullmatch(name)
        return cls(generation=int(match[2]), step=int(match[1])) if match else None


def generation_key(number: int) -> Key:
    """The key of the record of generation `number`."""
    return Key(f"gen-{number:04d}.json")


def parse_generation(key: str) -> int | None:
    """The number of the generation whose record has this key, or None."""
    match = _GENERATION.fullmatch(key)
    return int(match[1]) if match else None


def receipt_name(rank: int) -> str:
    """The file in which `rank` says what it wrote."""
    return f"rank-{rank:05d}.json"


def parse_receipt(name: str) -> int | None:
    """The rank whose receipt has this file name, or None."""
    match = _RECEIPT.fullmatch(name)
    return int(match[1]) if match else None


def tensors_name(rank: int, world: int, index: int) -> str:
    """The `index`-th file of tensors of `rank`; the first has no number."""
    return f"rank-{rank:05d}-of-{world:05d}{f'.{index}' if index else ''}.safetensors"


def private_name(name: str, rank: int, world: int) -> str:
    """Under which name a tensor that belongs to `rank` alone is stored. With one rank: its own."""
    return f"{name}.rank-{rank:05d}" if world > 1 else name


def parse_private(name: str) -> tuple[str, int] | None:
    """(name, rank) of a stored tensor that belonged to one of several ranks, or None for one of all ranks."""
    match = _PRIVATE.fullmatch(name) if name.startswith("extra.") else None
    return (match[1], int(match[2])) if match else None


@dataclass(frozen=True, slots=True)
class TensorImage:
    """Where one tensor's bytes go: [start, stop) of the image. `source` is its name in the training state."""

    source: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class FileImage:
    """One file as bytes [start, stop) of the image: the header, then its tensors."""

    name: str
    header: bytes
    start: int
    stop: int
    tensors: tuple[TensorImage, ...]


@dataclass(frozen=True, slots=True)
class SavePlan:
    """What one rank writes for a step: its files, one after the other in an image of `size_bytes`."""

    files: tuple[FileImage, ...]
    size_bytes: int


def plan_save(
    entries: Iterable[TensorEntry], rank: int, world: int, *, header_split_bytes: int = HEADER_SPLIT_BYTES
) -> SavePlan:
    """Lay out the tensors that `rank` of `world` writes. Larger dtypes come first: so all are aligned, in every file.

    A new file begins where a header would pass `header_split_bytes`. Raises CheckpointError for a name that occurs
    twice, FormatError for a dtype that safetensors does not have.
    """
    stored = {}
    for entry in entries:
        name = private_name(entry.name, rank, world) if entry.share is Share.PRIVATE else entry.name
        if name in stored:
            raise CheckpointError(f"two tensors of the training state are named {name!r}", hint="rename one of them")
        stored[name] = entry
    order = sorted(stored, key=lambda name: (-dtype_bytes(stored[name].dtype), name))
    files: list[FileImage] = []
    at = 0
    for names in _split(order, stored, header_split_bytes):
        image = _image(tensors_name(rank, world, len(files)), at, names, stored)
        files.append(image)
        at = image.stop
    return SavePlan(tuple(files), at)


def _split(order: Sequence[str], stored: dict[str, TensorEntry], limit_bytes: int) -> Iterable[list[str]]:
    part: list[str] = []
    size = _FRAME_BYTES
    for name in order:
        cost = _header_cost(name, stored[name])
        if part and size + cost > limit_bytes:
            yield part
            part, size = [], _FRAME_BYTES
        part.append(name)
        size += cost
    if part:
        yield part


def _header_cost(name: str, entry: TensorEntry) -> int:
    """An upper bound of what a tensor adds to a header, its entry among the offsets included."""
    quoted = json.dumps(name, ensure_ascii=False)
    again = json.dumps(quoted, ensure_ascii=False)
    numbers = len(str(entry.shape)) + len(str(entry.offsets))
    return len(quoted.encode()) + len(again.encode()) + numbers + _ENTRY_BYTES


def _image(name: str, start: int, names: Sequence[str], stored: dict[str, TensorEntry]) -> FileImage:
    specs = [TensorSpec(n, stored[n].dtype, stored[n].shape) for n in names]
    offsets = {n: {"saved_offsets": list(stored[n].offsets)} for n in names}
    sharding = json.dumps(offsets, separators=(",", ":"), ensure_ascii=False)
    header = build_header(specs, {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": sharding})
    at = start + len(header)
    tensors = []
    for n, spec in zip(names, specs, strict=True):
        tensors.append(TensorImage(stored[n].name, at, at + spec.nbytes))
        at += spec.nbytes
    return FileImage(name, header, start, at, tuple(tensors))
