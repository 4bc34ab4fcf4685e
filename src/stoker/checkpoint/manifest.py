"""Receipts and manifests: what one rank wrote, and what a step consists of. The JSON that makes tensors a checkpoint.

Written as canonical JSON, so the same state gives the same bytes; read with every field checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, TypeAlias, TypeVar

import msgspec

from stoker.checkpoint.layout import CHECKPOINT_FORMAT, StepId
from stoker.checkpoint.state import Json
from stoker.errors import DigestMismatch, FormatError, NewerFormat
from stoker.io.buffers import ReadBuffer, view
from stoker.io.checksum import CHUNK_BYTES, chunk_digests, root_digest
from stoker.values import canonical_json, json_digest

_HEX: Final = frozenset("0123456789abcdef")
_DIGEST_CHARACTERS: Final = 32

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class FileRecord(msgspec.Struct, frozen=True):
    """A file of a step: `root` is xxh3_128 over the digests of its 4 MiB chunks."""

    name: str
    bytes: Count
    root: str


class WrittenFile(msgspec.Struct, frozen=True):
    """A file as its writer knows it: with the xxh3_128 of each 4 MiB chunk."""

    name: str
    bytes: Count
    root: str
    chunks: tuple[str, ...]


class RankState(msgspec.Struct, frozen=True):
    """What belongs to one rank and is no tensor."""

    rng: Json
    scalars: Mapping[str, Json]


class Receipt(msgspec.Struct, frozen=True):
    """What one rank wrote for a step. The last thing it writes."""

    format: int
    step: Count
    generation: Count
    rank: Count
    world: Count
    deal: str
    files: tuple[WrittenFile, ...]
    state: RankState


class Manifest(msgspec.Struct, frozen=True):
    """What a step consists of. Its presence, under the step's final name, is the commit."""

    format: int
    run: str
    step: Count
    generation: Count
    world: Count
    ranks: tuple[Count, ...]
    position: Json
    files: tuple[FileRecord, ...]
    state: Mapping[str, Json]
    digest: str = ""

    @property
    def id(self) -> StepId:
        """The step it is of."""
        return StepId(generation=self.generation, step=self.step)


class RunRecord(msgspec.Struct, frozen=True):
    """run.json: written once, by the first generation."""

    format: int
    name: str
    started: str


class GenerationRecord(msgspec.Struct, frozen=True):
    """gen-NNNN.json: one start of the run, and the step that all its ranks go on from."""

    format: int
    world: Count
    restore: Count | None
    restore_generation: Count | None
    started: str


class CommittedRecord(msgspec.Struct, frozen=True):
    """committed.json: the first step that was committed in the run, so that steps that vanish are missed."""

    format: int
    generation: Count
    step: Count


class EndedRecord(msgspec.Struct, frozen=True):
    """ended.json: the generation in which the run came to its end, and the last step it had saved then."""

    format: int
    generation: Count
    step: Count | None = None


class Note(msgspec.Struct, frozen=True):
    """Why a rank gave a step up."""

    format: int
    rank: Count
    reason: str


Record = TypeVar("Record", bound=msgspec.Struct)


def describe_bytes(name: str, data: ReadBuffer) -> FileRecord:
    """The record of a small file from its bytes."""
    flat = view(data)
    return FileRecord(name, len(flat), root_digest(chunk_digests(flat)))


def encode(record: msgspec.Struct) -> bytes:
    """The canonical JSON of a record, and a line end."""
    return canonical_json(msgspec.to_builtins(record)) + b"\n"


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest's canonical JSON; `digest` becomes the sha256 of the canonical JSON of all the rest."""
    body = msgspec.to_builtins(manifest)
    del body["digest"]
    return canonical_json(body | {"digest": json_digest(body)}) + b"\n"


def decode(data: bytes, kind: type[Record], where: str) -> Record:
    """Read a record of `kind`. Raises NewerFormat for a later format, FormatError for anything that is not one."""
    return _convert(_parse(data, kind.__name__.lower(), where), kind, where)


def decode_receipt(data: bytes, where: str) -> Receipt:
    """Read a receipt. Also raises FormatError for chunk digests that do not fit the file or its root."""
    receipt = decode(data, Receipt, where)
    for file in receipt.files:
        _check_name(file.name, where)
        fits = len(file.chunks) == -(-file.bytes // CHUNK_BYTES) and all(map(_is_digest, file.chunks))
        if not fits or root_digest(file.chunks) != file.root:
            raise FormatError(f"the chunk digests of {file.name!r} do not fit its {file.bytes:,} bytes or root", where)
    return receipt


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Read a manifest. Also raises DigestMismatch if it is not as it was written."""
    value = _parse(data, "manifest", where)
    manifest = _convert(value, Manifest, where)
    digest = json_digest({name: part for name, part in value.items() if name != "digest"})
    if digest != manifest.digest:
        raise DigestMismatch(f"the manifest has digest {digest}, its text says {manifest.digest!r}", where)
    for file in manifest.files:
        _check_name(file.name, where)
    return manifest


def _parse(data: bytes, what: str, where: str) -> dict[str, Json]:
    """Any JSON object of a format that is known; later formats are refused before their fields are looked at."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FormatError(f"not a {what}: {error}", where) from error
    version = value.get("format") if isinstance(value, dict) else None
    if type(version) is not int or version < 1:
        raise FormatError(f"not a {what}: its format is {version!r}", where)
    if version > CHECKPOINT_FORMAT:
        raise NewerFormat(
            f"the {what} has format {version}, and this release knows up to {CHECKPOINT_FORMAT}",
            where,
            hint="use a newer stoker",
        )
    return dict(value)


def _convert(value: dict[str, Json], kind: type[Record], where: str) -> Record:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise FormatError(f"not a {kind.__name__.lower()}: {error}", where) from error


def _check_name(name: str, where: str) -> None:
    if "/" in name or name in ("", ".", "..") or name.startswith(".tmp-"):
        raise FormatError(f"not a file of a step: {name!r}", where)


def _is_digest(text: str) -> bool:
    return len(text) == _DIGEST_CHARACTERS and _HEX.issuperset(text)
