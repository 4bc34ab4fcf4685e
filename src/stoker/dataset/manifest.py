"""`manifest.json`: the last file of a data set to be written, and what makes the folder one."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from stoker.dataset.layout import BLOCK_MAX_BYTES, BLOCK_MIN_BYTES
from stoker.errors import DatasetError, DigestMismatch, FormatError, NewerFormat, NotFound
from stoker.io.os_errors import translating
from stoker.store.base import Store
from stoker.units import format_count
from stoker.values import ByteRange, Key, canonical_json

MANIFEST_KEY: Final = Key("manifest.json")
OBJECTS_KEY: Final = Key("objects.arrow")
BLOCKS_KEY: Final = Key("blocks.arrow")
PACK_KEY: Final = Key(".pack.json")

FORMAT: Final = "stoker-dataset"
VERSION: Final = 1
ORDER_VERSION: Final = 1

_MAX_BYTES: Final = 4 << 20  # 256 fields with long names take a tenth of it
_Count = Annotated[int, Meta(ge=0, le=2**62)]
_Positive = Annotated[int, Meta(ge=1, le=2**62)]
_Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
_Name = Annotated[str, Meta(min_length=1, max_length=4096)]


@dataclass(frozen=True, slots=True)
class FieldSchema:
    """One field of the samples: how many have it, the bytes of all of them, and of the largest."""

    name: _Name
    sample_count: _Positive
    total_bytes: _Count
    max_bytes: _Count


@dataclass(frozen=True, slots=True)
class TableDigests:
    """sha256 over the raw columns of the tables; the objects table holds those of the offset tables."""

    objects: _Sha256
    blocks: _Sha256


@dataclass(frozen=True, slots=True, repr=False)
class Manifest:
    """What a data set is, as far as it fits a page; immutable, and named by its `digest`.

    `total_bytes` counts the content of all fields, without tar headers. `parent` is the digest of the manifest this
    one was derived from, if any.
    """

    sample_count: _Positive
    object_count: _Positive
    block_count: _Positive
    total_bytes: _Count
    block_bytes: Annotated[int, Meta(ge=BLOCK_MIN_BYTES, le=BLOCK_MAX_BYTES)]
    fields: tuple[FieldSchema, ...]
    tables: TableDigests
    parent: _Sha256 | None = None
    order_version: int = ORDER_VERSION

    @property
    def digest(self) -> str:
        """sha256 of the canonical JSON of everything else: the identity of the data set."""
        return hashlib.sha256(canonical_json(self._body())).hexdigest()

    def __repr__(self) -> str:
        fields = ", ".join(map(repr, self.field_names))
        return f"<Manifest {self.digest[:12]}: {format_count(self.sample_count, 'sample')} with {fields}>"

    @property
    def field_names(self) -> tuple[str, ...]:
        """Names of the fields, sorted."""
        return tuple(field.name for field in self.fields)

    def encode(self) -> bytes:
        """The text of manifest.json: indented, keys sorted, the digest among them."""
        body = self._body() | {"digest": self.digest}
        return (json.dumps(body, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()

    def _body(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION, **asdict(self)}


_KEYS: Final = frozenset({"format", "version", "digest", *Manifest.__dataclass_fields__})


def decode_manifest(text: bytes, where: str) -> Manifest:
    """The manifest in the text of a manifest.json.

    Raises FormatError, NewerFormat for a version this release does not know, DigestMismatch if it was altered.
    """
    try:
        body = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"manifest.json is not JSON: {error}", where) from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise FormatError(f"manifest.json is not the manifest of a data set: its format is not {FORMAT!r}", where)
    for name, known in (("version", VERSION), ("order_version", ORDER_VERSION)):
        _check_version(name, body.get(name), known, where)
    if body.keys() != _KEYS:
        odd = sorted(body.keys() ^ _KEYS)
        raise FormatError(f"manifest.json lacks these keys or should not have them: {', '.join(map(repr, odd))}", where)
    stated = body.pop("digest")
    try:
        manifest = msgspec.convert({name: body[name] for name in Manifest.__dataclass_fields__}, Manifest)
    except msgspec.ValidationError as error:
        raise FormatError(f"manifest.json is not valid: {error}", where) from error
    if stated != manifest.digest:
        raise DigestMismatch(f"manifest.json was altered: its digest is {manifest.digest}, it says {stated!r}", where)
    _check_sense(manifest, where)
    return manifest


def read_manifest(store: Store) -> Manifest:
    """The manifest of the data set in `store`.

    Raises DatasetError if there is none, NotFound if the place is not there at all, and as `decode_manifest`.
    """
    where = f"{MANIFEST_KEY} in {store.url}"
    try:
        size = store.stat(MANIFEST_KEY).size_bytes
        if size > _MAX_BYTES:
            raise FormatError(f"manifest.json is {size} bytes long; {_MAX_BYTES} is the most that makes sense", where)
        return decode_manifest(store.read(MANIFEST_KEY, ByteRange(0, size)), where)
    except NotFound as error:
        raise _not_a_dataset(store) from error


def is_manifest(store: Store) -> bool:
    """Whether the manifest.json in `store`, which is there, says that it is one of a data set, of any version."""
    if store.stat(MANIFEST_KEY).size_bytes > _MAX_BYTES:
        return False
    try:
        body = msgspec.json.decode(store.read(MANIFEST_KEY))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(body, dict) and body.get("format") == FORMAT


def check_there(store: Store) -> None:
    """Raise NotFound if the place is not there at all: no such folder, or no object under the URL."""
    manifest = store.path(MANIFEST_KEY)
    if manifest is not None:
        with translating("cannot look into the folder", manifest.parent):
            is_there = manifest.parent.is_dir()
        if not is_there:
            raise NotFound("no such folder", store.url, "check the path")
    elif next(iter(store.list()), None) is None:
        raise NotFound("nothing is stored there", store.url, "check the URL")


def holds(store: Store, key: Key) -> bool:
    """Whether an object is stored under `key`."""
    try:
        store.stat(key)
    except NotFound:
        return False
    return True


def _not_a_dataset(store: Store) -> DatasetError:
    if holds(store, PACK_KEY):
        hint = "run what was writing it again: a stoker pack goes on where it stopped"
        return DatasetError("not a data set yet: it was not written to its end", store.url, hint)
    from stoker.tier.holdings import RUN_NAME  # noqa: PLC0415  only for an error

    check_there(store)
    if holds(store, Key(RUN_NAME)):
        hint = "stoker verify URL checks its checkpoints, stoker report RUN says what it waited for"
        return DatasetError("not a data set, but the folder of a run", store.url, hint)
    hint = "for tars or files as they are: stoker index URL; for new shards: stoker pack SOURCE DESTINATION"
    return DatasetError("not a data set: there is no manifest.json", store.url, hint)


def _check_version(name: str, value: Any, known: int, where: str) -> None:
    if type(value) is not int or value < 1:
        raise FormatError(f"manifest.json has no {name}: {value!r}", where)
    if value > known:
        raise NewerFormat(
            f"the data set has {name} {value}, this release of stoker knows {known}", where, "use a newer stoker"
        )


def _check_sense(manifest: Manifest, where: str) -> None:
    """Raise FormatError unless the numbers agree with each other."""
    names = manifest.field_names
    problems = {
        "block_bytes is not a power of two": manifest.block_bytes & (manifest.block_bytes - 1),
        "there are more blocks than samples": manifest.block_count > manifest.sample_count,
        "there are more objects than blocks": manifest.object_count > manifest.block_count,
        "the fields are not sorted, or one stands twice": list(names) != sorted(set(names)),
        "total_bytes is not the sum over the fields": manifest.total_bytes
        != sum(field.total_bytes for field in manifest.fields),
        "there is no field, or one with a slash in its name": not names or any("/" in name for name in names),
    }
    for field in manifest.fields:
        most = field.sample_count * field.max_bytes
        problems[f"field {field.name!r} has impossible numbers"] = (
            field.sample_count > manifest.sample_count or not field.max_bytes <= field.total_bytes <= most
        )
    for problem, found in problems.items():
        if found:
            raise FormatError(f"manifest.json makes no sense: {problem}", where)
