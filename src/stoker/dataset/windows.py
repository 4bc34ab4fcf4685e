"""Token windows by arithmetic: how flat files of tokens are cut, what a cut is called, and which blocks it makes. Pure.

A file is a header of `header_bytes` that nobody reads, and tokens of one type, little-endian, end to end. Window i of
it is tokens [i * seq_len, i * seq_len + seq_len + overlap). What is left at the end of a file is in no window.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Literal, SupportsIndex, TypeAlias, cast

import numpy as np

from stoker.dataset.layout import Int64s
from stoker.errors import ConfigError, FormatError
from stoker.values import ObjectInfo, json_digest

TokenType: TypeAlias = Literal["uint16", "uint32", "int32", "int64"]
TOKENS: Final = "tokens"  # the one field of a sample, and the kind of the data set
WINDOW_MAX_TOKENS: Final = 1 << 27  # 1 GiB of int64: a row that no batch holds
HEADER_MAX_BYTES: Final = 1 << 40

_NUMPY_NAMES: Final[Mapping[TokenType, str]] = MappingProxyType(
    {"uint16": "<u2", "uint32": "<u4", "int32": "<i4", "int64": "<i8"}
)
_PARTS: Final = ("kind", "dtype", "seq_len", "overlap", "header_bytes", "sha256")  # of a digest
_LIMITS: Final = (
    ("seq_len", 1, WINDOW_MAX_TOKENS),
    ("overlap", 0, WINDOW_MAX_TOKENS),
    ("header_bytes", 0, HEADER_MAX_BYTES),
)


@dataclass(frozen=True, slots=True)
class TokenWindows:
    """How files of tokens are cut. Plain numbers and text.

    Attributes:
        seq_len: tokens from the start of a window to that of the next one, at least 1.
        dtype: the type of a token in the files: uint16, uint32, int32 or int64, little-endian.
        overlap: tokens of the next window that each holds besides, at most `seq_len`.
        header_bytes: bytes at the start of each file that are no tokens.

    Raises ConfigError for a value out of range.
    """

    seq_len: int
    dtype: TokenType
    overlap: int = 0
    header_bytes: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in _NUMPY_NAMES:
            hint = f"there are {', '.join(_NUMPY_NAMES)}, little-endian"
            raise ConfigError(f"no type of tokens: {self.dtype!r}", hint=hint)
        for name, least, most in _LIMITS:
            object.__setattr__(self, name, _whole(name, getattr(self, name), least, most))
        if self.overlap > self.seq_len:
            what = f"overlap is {self.overlap}, more than the {self.seq_len} tokens from one window to the next"
            raise ConfigError(what, hint="overlap=1 gives inputs and targets; 0 nothing twice")

    @property
    def numpy_name(self) -> str:
        """Numpy's name of the type, with its byte order."""
        return _NUMPY_NAMES[self.dtype]

    @property
    def item_bytes(self) -> int:
        """Bytes of a token."""
        return int(self.numpy_name[-1])

    @property
    def length(self) -> int:
        """Tokens in a window."""
        return self.seq_len + self.overlap

    @property
    def window_bytes(self) -> int:
        """Bytes of a window."""
        return self.length * self.item_bytes

    @property
    def stride_bytes(self) -> int:
        """Bytes from the start of a window to that of the next one."""
        return self.seq_len * self.item_bytes

    def count_tokens(self, name: str, size_bytes: int) -> int:
        """The tokens of a file. Raises FormatError if its size cannot be, with the numbers."""
        rest = size_bytes - self.header_bytes
        if rest < 0:
            what = f"{name!r} has {size_bytes:,} bytes, fewer than its header of {self.header_bytes:,}"
            raise FormatError(what, hint="give header_bytes=0 if the files begin with tokens")
        if rest % self.item_bytes:
            head = f" after a header of {self.header_bytes:,}" if self.header_bytes else ""
            raise FormatError(
                f"{name!r} has {rest:,} bytes{head}: no whole number of {self.dtype} tokens of {self.item_bytes} bytes",
                hint=f"{rest % self.item_bytes} too many: is the type right, the header, and the file whole?",
            )
        return rest // self.item_bytes

    def count_windows(self, tokens: Int64s) -> Int64s:
        """The windows of files of int64[n] `tokens`."""
        return np.where(tokens < self.length, 0, (tokens - self.overlap) // self.seq_len)

    def extent(self, windows: Int64s) -> Int64s:
        """The bytes that int64[n] >= 1 `windows` in a row span."""
        return (windows - 1) * self.stride_bytes + self.window_bytes

    def digest(self, files: Sequence[ObjectInfo]) -> str:
        """The identity of the data set that these files make, at most 128 characters.

        `tokens:DTYPE:SEQ_LEN:OVERLAP:HEADER_BYTES:SHA256`: what a cut is stands in it, so that two can be told apart by
        name; the sha256 is that of the canonical JSON of all of it with the key, size and version of each file.
        """
        objects = [{"key": file.key, "size_bytes": file.size_bytes, "version": file.version} for file in files]
        sha256 = json_digest({"kind": TOKENS, **asdict(self), "objects": objects})
        return f"{TOKENS}:{self.dtype}:{self.seq_len}:{self.overlap}:{self.header_bytes}:{sha256}"


def name_type(dtype: TokenType | np.dtype[Any] | type[np.integer[Any]]) -> TokenType:
    """The name of a type that is given as numpy has it, `np.uint16` or `np.dtype("<u2")`; what is none stays as it is,
    for TokenWindows to refuse.
    """
    if isinstance(dtype, np.dtype) or (isinstance(dtype, type) and issubclass(dtype, np.generic)):
        known: dict[np.dtype[Any], TokenType] = {np.dtype(numpy): name for name, numpy in _NUMPY_NAMES.items()}
        return known.get(np.dtype(dtype), cast("TokenType", str(np.dtype(dtype))))
    return dtype


def tell_apart(was: str, now: str) -> list[str]:
    """What differs between two digests of token windows; nothing if one is of something else."""
    old, new = was.split(":"), now.split(":")
    if not (len(old) == len(new) == len(_PARTS) and old[0] == new[0] == TOKENS):
        return []
    pairs = zip(_PARTS[1:-1], old[1:-1], new[1:-1], strict=True)
    told = [f"{name} was {before}, is {after}" for name, before, after in pairs if before != after]
    return told or [f"the token files (their names, sizes or versions) were {old[-1][:12]!r}, are {new[-1][:12]!r}"]


@dataclass(frozen=True, eq=False)
class WindowBlocks:
    """The blocks of token files, as `BlockTable` has them: formats.md 1. Each column is made when it is asked for.

    A block is the longest run of windows of one file whose extent is <= `block_bytes`. `windows` int64[objects] are
    those of each file, at least 1.
    """

    cut: TokenWindows
    windows: Int64s
    block_bytes: int

    def __len__(self) -> int:
        return int(self._counts.sum())

    @cached_property
    def object(self) -> Int64s:
        """The file of each block."""
        return np.repeat(np.arange(len(self.windows)), self._counts)

    @cached_property
    def offset(self) -> Int64s:
        """Where each block begins in its file."""
        return self.cut.header_bytes + self._within() * self.cut.stride_bytes

    @cached_property
    def length(self) -> Int64s:
        """The bytes of each block; it shares those of the overlap with the next one."""
        return self.cut.extent(self.sample_count)

    @cached_property
    def first_sample(self) -> Int64s:
        """The first window of each block, counted through all files."""
        return np.cumsum(self.sample_count) - self.sample_count

    @cached_property
    def sample_count(self) -> Int64s:
        """The windows of each block."""
        counts = np.full(len(self), self._most, np.int64)
        counts[np.cumsum(self._counts) - 1] = self.windows - (self._counts - 1) * self._most
        return counts

    @property
    def _most(self) -> int:
        """The windows that fit a block."""
        return max(0, self.block_bytes - self.cut.window_bytes) // self.cut.stride_bytes + 1

    @cached_property
    def _counts(self) -> Int64s:
        """The blocks of each file."""
        return -(-self.windows // self._most)

    def _within(self) -> Int64s:
        """The first window of each block, counted from the start of its file."""
        return (np.arange(len(self)) - np.repeat(np.cumsum(self._counts) - self._counts, self._counts)) * self._most


def _whole(name: str, value: SupportsIndex | Any, least: int, most: int) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ConfigError(f"{name} is {value!r}", hint="it must be a whole number") from None
    if not least <= number <= most:
        raise ConfigError(f"{name} is {number}", hint=f"it must be {least} to {most:,}")
    return number
