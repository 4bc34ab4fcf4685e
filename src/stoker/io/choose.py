"""Which way bytes take between memory and a file: through the page cache, or directly (O_DIRECT). The choice is pure;
what it goes by is asked of the kernel here as well.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, cast, get_args

from stoker.errors import ConfigError, UnsupportedError

Engine: TypeAlias = Literal["auto", "direct", "buffered"]
Effective: TypeAlias = Literal["direct", "buffered"]

ENGINES: Final[tuple[str, ...]] = get_args(Engine)
USUAL_BLOCK: Final = 4096  # where the kernel does not say: right for every disk sold today

_STATX_BYTES: Final = 256
_STATX_DIOALIGN: Final = 0x2000  # Linux 6.1
_STATX_MASK_AT: Final = 0
_STATX_ALIGN_AT: Final = 0x98  # of memory, then of offsets
_WORDS: Final = struct.Struct("=I"), struct.Struct("=II")
_AT_EMPTY_PATH: Final = 0x1000
_NAMES: Final = {0x01021994: "tmpfs", 0x858458F6: "ramfs", 0x794C7630: "overlay"}
_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
_STATFS_WORDS: Final = 64  # more than struct statfs has on any platform


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """What was asked for, what is done, and why."""

    requested: Engine
    effective: Effective
    reason: str


@dataclass(frozen=True, slots=True)
class Alignment:
    """What direct I/O wants: addresses in memory, and offsets and lengths in the file, that are multiples of these."""

    memory_bytes: int = USUAL_BLOCK
    offset_bytes: int = USUAL_BLOCK


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What the kernel says of an open file: `file_system` is named only where it matters (tmpfs, ramfs, overlay);
    no `alignment`: it does no direct I/O.
    """

    file_system: str
    alignment: Alignment | None


def check_engine(text: str, where: str = "") -> Engine:
    """The engine called `text`. Raises ConfigError naming the known."""
    if text in ENGINES:
        return cast("Engine", text)
    raise ConfigError(f"unknown engine {text!r}", where, hint=f"give {', '.join(ENGINES)}")


def choose(requested: Engine, facts: FileFacts) -> EngineChoice:
    """What to do with a large read or write. Pure.

    `auto` stays away from overlays: which file system is below, and whether it stays that one, is not known. By name
    it is tried there.
    """
    if requested == "buffered":
        return EngineChoice(requested, "buffered", "asked for")
    if facts.file_system in _IN_MEMORY:
        return EngineChoice(requested, "buffered", f"{facts.file_system} keeps files in memory")
    if facts.alignment is None:
        return EngineChoice(requested, "buffered", "the file system does no direct I/O (statx)")
    if requested == "direct":
        return EngineChoice(requested, "direct", "asked for")
    if facts.file_system == "overlay":
        return EngineChoice(requested, "buffered", "an overlay may change the file system below it")
    return EngineChoice(requested, "direct", f"O_DIRECT, aligned to {facts.alignment.offset_bytes} bytes")


def refused(requested: Engine, at: str) -> EngineChoice:
    """The choice that is left when the kernel refuses O_DIRECT `at` some point, whatever it said before."""
    return EngineChoice(requested, "buffered", f"the file system refuses O_DIRECT at {at} (EINVAL)")


def insist(choice: EngineChoice, where: str) -> EngineChoice:
    """The same choice. Raises UnsupportedError if direct I/O was asked for by name and is not what is done."""
    if choice.requested == "direct" and choice.effective != "direct":
        raise UnsupportedError(
            f"direct I/O was asked for but is not possible: {choice.reason}",
            where,
            hint='use another file system, or engine "auto", which falls back and says so',
        )
    return choice


def facts_of(fd: int) -> FileFacts:
    """What the kernel says of the open file `fd`; the usual alignment where it does not say. Costs 3 us."""
    libc = ctypes.CDLL(None, use_errno=True)
    return FileFacts(_file_system(libc, fd), _alignment(libc, fd))


def _file_system(libc: ctypes.CDLL, fd: int) -> str:
    found = (ctypes.c_long * _STATFS_WORDS)()
    if libc.fstatfs(fd, found) != 0:
        return ""
    return _NAMES.get(found[0] & 0xFFFFFFFF, "")


def _alignment(libc: ctypes.CDLL, fd: int) -> Alignment | None:
    """None only if the kernel knows that there is no direct I/O; a file system that does not say is tried."""
    call = getattr(libc, "statx", None)
    found = (ctypes.c_ubyte * _STATX_BYTES)()
    if call is None or call(fd, b"", _AT_EMPTY_PATH, ctypes.c_uint(_STATX_DIOALIGN), found) != 0:
        return Alignment()
    (mask,) = _WORDS[0].unpack_from(found, _STATX_MASK_AT)
    if not mask & _STATX_DIOALIGN:
        return Alignment()
    memory, offset = _WORDS[1].unpack_from(found, _STATX_ALIGN_AT)
    return Alignment(memory, offset) if memory and offset else None
