"""One tar archive that exists becomes the samples of one object: names become keys and fields, places are noted."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from stoker.dataset.formats.tar_walk import TarMember, TarWalk
from stoker.dataset.layout import Int64s
from stoker.dataset.listing import Globs
from stoker.dataset.names import FIELD_LIMIT, PATH_MAX_BYTES, is_meta, is_reserved_field, split_path
from stoker.dataset.offsets import OffsetsBuilder, OffsetsTable, Place
from stoker.dataset.tables import Table
from stoker.errors import DatasetError
from stoker.io.checksum import crc32c
from stoker.store.base import Store
from stoker.units import MIB
from stoker.values import Key, ObjectInfo

_PIECE_BYTES: Final = 1 * MIB
_TRAILING_BYTES: Final = 1 * MIB  # more behind the end than any tar pads with
_EXAMPLES: Final = 3
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

NAMELESS: Final = "without an extension, or with nothing before it"
TWICE: Final = "sharing key and extension with another (case does not count in extensions)"
APART: Final = "standing apart from others of the same key in one archive"
RESERVED: Final = "with extensions that WebDataset readers use themselves"
UNUSABLE: Final = "with names that no sample can have (not UTF-8, control characters, '..', absolute, too long)"
SPARSE: Final = "stored as sparse files, whose bytes do not lie in a row"


@dataclass(frozen=True, slots=True)
class Choice:
    """Which files are samples (globs over names or paths, as in `pack`), and whether their checksums are taken."""

    include: Globs
    exclude: Globs
    checksums: bool

    def takes(self, path: str) -> bool:
        """Whether a file is wanted. No `include` at all wants every file."""
        name = path.rpartition("/")[2]
        wanted = self.include.empty or self.include.match(path, name)
        return wanted and not self.exclude.match(path, name)


@dataclass(slots=True)
class Tally:
    """What could not be taken: counts and first examples of each problem; and what was left out, by reason."""

    problems: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    fields: Counter[str] = field(default_factory=Counter)

    def refuse(self, problem: str, example: str, count: int = 1) -> None:
        """Count files that cannot be taken."""
        self.problems[problem] += count
        examples = self.examples.setdefault(problem, [])
        if len(examples) < _EXAMPLES:
            examples.append(example)

    def add(self, other: Tally) -> None:
        """Add what another counted."""
        for problem, count in other.problems.items():
            self.problems[problem] += count
            kept = self.examples.setdefault(problem, [])
            kept += other.examples[problem][: _EXAMPLES - len(kept)]
        self.skipped += other.skipped
        self.fields += other.fields


@dataclass(frozen=True, slots=True, eq=False)
class Indexed:
    """One object of a data set to be, and the table of files that it is made of, if it is.

    `extents` are int64[samples], bytes from one sample to the next; `version` what the object will be held to.
    """

    key: Key
    size_bytes: int
    version: str
    extents: Int64s
    offsets: OffsetsTable
    tally: Tally
    files: Table | None = None


def index_tar(store: Store, info: ObjectInfo, choice: Choice) -> Indexed:
    """Walk one archive. Reads headers only, unless checksums are wanted.

    A sample reaches from its first header to that of the next sample, the first one from byte 0. Raises FormatError,
    Truncated, StoreError; names that cannot be taken are counted in the tally.
    """
    walk, samples = TarWalk(store, info), _Samples(store, info, choice)
    for member in walk:
        samples.take(member)
    trailing = info.size_bytes - walk.end
    if trailing > _TRAILING_BYTES:
        samples.tally.skipped["bytes behind the end of an archive"] += trailing
    return samples.build()


def usable_path(name: bytes) -> str | None:
    """The path that a member's name means, without `./` and doubled slashes; None if no sample can have it.

    Nothing is ever written to such a path: it becomes a key. What would be dangerous elsewhere is refused all the
    same, for a key may be used as a name by others.
    """
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return None
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if not parts or ".." in parts or text.startswith("/") or _CONTROL.search(text) or len(name) > PATH_MAX_BYTES:
        return None
    return "/".join(parts)


class _Samples:
    """Collects the samples of one archive."""

    def __init__(self, store: Store, info: ObjectInfo, choice: Choice) -> None:
        self.tally = Tally()
        self._store = store
        self._info = info
        self._choice = choice
        self._builder = OffsetsBuilder(checksums=choice.checksums)
        self._starts: list[int] = []
        self._end = 0
        self._keys: set[str] = set()
        self._key = ""
        self._places: list[Place] = []
        self._fields: set[str] = set()

    def take(self, member: TarMember) -> None:
        """The next member: a field of the sample under way, or of a new one, or nothing for us."""
        if member.kind not in ("file", "sparse"):
            if member.kind != "folder":
                self.tally.skipped[f"members that are no files ({member.kind})"] += 1
            return
        path = usable_path(member.name)
        shown = path or member.name[:200].decode(errors="backslashreplace")
        if not self._choice.takes(shown):
            return
        if path is not None and is_meta(path):
            self.tally.skipped["members under a first component like __x__, as WebDataset does"] += 1
            return
        key, name = split_path(path or "")
        problem = self._problem(member, path, key, name)
        if problem:
            self.tally.refuse(problem, f"{shown!r} at byte {member.start} of {self._info.key}")
            return
        if key != self._key:
            self._finish()
            self._key = key
            self._keys.add(key)
            self._starts.append(member.start)
        self._places.append(Place(name, member.offset, member.size, self._checksum(member)))
        self._fields.add(name)
        self._end = member.stop
        self.tally.fields[name] += 1
        check_fields(self.tally, self._info.key)

    def build(self) -> Indexed:
        """The object. One without samples has no offsets, and is left out of the data set."""
        self._finish()
        starts = np.array([0, *self._starts[1:], self._end], dtype=np.int64)
        return Indexed(
            key=self._info.key,
            size_bytes=self._info.size_bytes,
            version="" if self._choice.checksums else self._info.version,
            extents=np.diff(starts) if self._starts else np.zeros(0, dtype=np.int64),
            offsets=self._builder.build(),
            tally=self.tally,
        )

    def _problem(self, member: TarMember, path: str | None, key: str, name: str) -> str:
        if path is None:
            return UNUSABLE
        if not key or not name:
            return NAMELESS
        if is_reserved_field(name):
            return RESERVED
        if member.kind == "sparse":
            return SPARSE
        if key != self._key:
            return APART if key in self._keys else ""
        return TWICE if name in self._fields else ""

    def _checksum(self, member: TarMember) -> int:
        if not self._choice.checksums:
            return 0
        return checksum_of(self._store, self._info.key, member.offset, member.size)

    def _finish(self) -> None:
        if self._places:
            self._builder.add(self._key, self._places)
            self._places, self._fields = [], set()


def check_fields(tally: Tally, where: str) -> None:
    """Raise DatasetError for more different fields than make sense: before a table gets a column for each."""
    if len(tally.fields) > FIELD_LIMIT:
        rare = ", ".join(repr(name[:80]) for name, _ in tally.fields.most_common()[: -_EXAMPLES - 1 : -1])
        raise DatasetError(
            f"the files have more than {FIELD_LIMIT} different extensions, such as {rare}",
            where,
            "an extension is all after the first dot of a name; choose the files: --include GLOB",
        )


def checksum_of(store: Store, key: Key, offset: int, size: int) -> int:
    """The crc32c of a part of an object; holds 1 MiB. Raises StoreError, Truncated."""
    buffer = memoryview(bytearray(min(size, _PIECE_BYTES)))
    crc = 0
    for start in range(offset, offset + size, _PIECE_BYTES):
        piece = buffer[: min(_PIECE_BYTES, offset + size - start)]
        store.read_into(key, start, piece)
        crc = crc32c(piece, crc)
    return crc
