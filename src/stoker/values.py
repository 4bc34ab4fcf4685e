"""The small frozen values every room speaks in. No I/O, no clock."""

from __future__ import annotations

import json
import operator
import os
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from stoker.errors import ConfigError, LayoutError

KEY_MAX_BYTES: Final = 1024  # S3's limit on a key, in UTF-8


class Key(str):
    """A validated object name: relative, `/`-separated, NFC, no empty, `.` or `..` part, no control characters.

    The same rules on every store, so that what is written to one can be copied to any other.
    Raises ConfigError naming the rule that is broken.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        """Check `text` and make it a key; a key stays as it is."""
        if isinstance(text, cls):
            return text
        problem = _key_problem(text)
        if problem:
            raise ConfigError(f"not an object key: {text!r}: {problem}")
        return super().__new__(cls, text)


def _key_problem(text: str) -> str:
    if not text:
        return "it is empty"
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if len(encoded) > KEY_MAX_BYTES:
        return f"it is longer than {KEY_MAX_BYTES} bytes"
    if any(part in ("", ".", "..") for part in text.split("/")):
        return "a part between slashes is empty, '.' or '..'"
    if any(ord(c) < 32 or ord(c) == 127 for c in text):  # noqa: PLR2004  ASCII control characters
        return "it holds a control character"
    if not unicodedata.is_normalized("NFC", text):
        return "it is not in Unicode form NFC"
    return ""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes [start, stop) of an object. The only way to say "part of"."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise ConfigError(f"not a byte range: [{self.start}, {self.stop})")

    @property
    def length(self) -> int:
        """Bytes in the range."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store knows of one object; `version` changes whenever its bytes do."""

    key: Key
    size_bytes: int
    version: str


class StageTimes(NamedTuple):
    """When a batch passed each stage (`perf_counter_ns`): its fetch began, was done, decoded, mapped.

    A stage's time includes queueing for it. A batch without a map has `mapped_ns == decoded_ns`.
    """

    planned_ns: int
    fetched_ns: int
    decoded_ns: int
    mapped_ns: int


def canonical_json(value: Any) -> bytes:
    """The one JSON text of a value: keys sorted, no white space, UTF-8, no NaN. Digests are taken of it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def json_digest(value: Any) -> str:
    """sha256, in hex, of the canonical JSON of a value."""
    import hashlib  # noqa: PLC0415  2 ms that a trainer need not wait for before it starts its feeder

    return hashlib.sha256(canonical_json(value)).hexdigest()


def whole_number(value: Any) -> int | None:
    """`value` as int if it is a whole number of any type (numpy's are); None for others, True and False among them."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def path_text(name: str, value: Any) -> str:
    """A path or URL that a caller gave as `name`, as text. Raises ConfigError for what is neither; an empty one would
    be the working directory.
    """
    if isinstance(value, str | os.PathLike):
        text = os.fspath(value)
        if text and isinstance(text, str) and "\0" not in text:
            return text
    raise ConfigError(f"{name} is {value!r}", hint="it must be a path or URL, as str or pathlib.Path")


@dataclass(frozen=True, slots=True)
class Layout:
    """Where this process stands: data-parallel rank of `dp_size`, on `node` of `nodes`.

    Peers that must see the same samples (tensor, context or pipeline parallel) share one `dp_rank`.
    """

    dp_rank: int = 0
    dp_size: int = 1
    node: int = 0
    nodes: int = 1

    def __post_init__(self) -> None:
        for name in ("dp_rank", "dp_size", "node", "nodes"):
            number = whole_number(getattr(self, name))
            if number is None:
                raise LayoutError(f"{name} is {getattr(self, name)!r}", hint="give a whole number")
            object.__setattr__(self, name, number)
        if not (0 <= self.dp_rank < self.dp_size and 0 <= self.node < self.nodes <= self.dp_size):
            raise LayoutError(
                f"impossible layout: rank {self.dp_rank} of {self.dp_size} on node {self.node} of {self.nodes}",
                hint="ranks count from 0 to dp_size - 1, nodes from 0 to nodes - 1, and a node has at least one rank",
            )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        """The layout torchrun or `srun` describes in `environ`; one rank when neither does.

        torchrun: RANK, WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE. Slurm (a step, not an allocation): SLURM_PROCID,
        SLURM_NTASKS, SLURM_NODEID, SLURM_NNODES with SLURM_STEP_ID. Raises LayoutError for half a description.
        """
        if _by_torchrun(environ):
            return cls._read(environ, "torchrun", ("RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"))
        if _by_slurm(environ):
            return cls._read(environ, "Slurm", ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_NODEID", "SLURM_NNODES"))
        return cls()

    @staticmethod
    def is_described(environ: Mapping[str, str]) -> bool:
        """Whether torchrun or `srun` started this process, as `environ` has it."""
        return _by_torchrun(environ) or _by_slurm(environ)

    @classmethod
    def _read(cls, environ: Mapping[str, str], launcher: str, names: tuple[str, str, str, str]) -> Self:
        numbers = []
        for name, default in zip(names, (None, None, "0", "1"), strict=True):
            text = environ.get(name, default)
            if text is None or not text.isdigit():
                raise LayoutError(
                    f"{launcher} environment is incomplete: {name} is {text!r}",
                    where=f"environment variables {', '.join(names)}",
                    hint="start with torchrun or srun, unset them, or pass layout=stoker.Layout(...)",
                )
            numbers.append(int(text))
        rank, size, node, nodes = numbers
        return cls(dp_rank=rank, dp_size=size, node=node, nodes=nodes)


def check_layout(given: object) -> None:
    """Raise LayoutError for what is no layout."""
    if not isinstance(given, Layout):
        hint = "give a stoker.Layout, as Layout(dp_rank=0, dp_size=8); of a mesh: stoker.torch.layout(mesh)"
        raise LayoutError(f"layout is {given!r:.100}", hint=hint)


def _by_torchrun(environ: Mapping[str, str]) -> bool:
    return "RANK" in environ or "WORLD_SIZE" in environ


def _by_slurm(environ: Mapping[str, str]) -> bool:
    return "SLURM_PROCID" in environ and environ.get("SLURM_STEP_ID", "").isdigit()
