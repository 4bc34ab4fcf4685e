"""What the kernel says, as an error of stoker: the one place where errno values are given a meaning."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from stoker.errors import (
    AccessDenied,
    AlreadyExists,
    CapacityError,
    ConfigError,
    NotFound,
    StokerError,
    StoreError,
    TimedOut,
    Unavailable,
)
from stoker.units import format_bytes

_DENIED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_AWAY: Final = frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.ENOTCONN,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.ECONNABORTED,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EREMOTEIO,
        errno.ESHUTDOWN,
    }
)
_HINTS: Final = {
    errno.EACCES: "check owner and mode of the directories on the way",
    errno.EPERM: "the file system, or a flag of the file, forbids it",
    errno.EROFS: "the file system is mounted read-only",
    errno.ENOLCK: "the file system has no locks",
    errno.ENOTDIR: "a name cannot be both a file and a directory",
    errno.EISDIR: "a name cannot be both a file and a directory",
    errno.ELOOP: "links are not followed: put the file itself there",
    errno.ENAMETOOLONG: "a part of a name between slashes has at most 255 bytes on most file systems",
    errno.EMFILE: "raise the limit of open files: ulimit -n",
    errno.ENFILE: "raise the limit of open files of the host: sysctl fs.file-max",
}


def translate(
    error: OSError, doing: str, where: Path, *, needed_bytes: int | None = None, hint: str = ""
) -> StokerError:
    """The StokerError for `error`, met while `doing` something (as in "cannot write 'a/b'") at `where`.

    For a full disk the text says how much is free, and how much was needed if `needed_bytes` is given. `hint` is what
    the user can do besides what the kernel's answer suggests.
    """
    code = error.errno or 0
    reason = (error.strerror or str(error) or type(error).__name__).lower()
    what, place = f"{doing}: {reason}", str(where)
    hint = "; ".join(text for text in (_HINTS.get(code, ""), hint) if text)
    if code == errno.ENOENT:
        return NotFound(what, place, hint)
    if code == errno.EEXIST:
        return AlreadyExists(what, place, hint)
    if code in _DENIED:
        return AccessDenied(what, place, hint)
    if code in _FULL:
        return CapacityError(f"{what}{_space(where, needed_bytes)}", place, hint or _capacity_hint(code))
    if code in _AWAY:
        return Unavailable(what, place, hint or "see the kernel log; a mount may be gone")
    if code == errno.ETIMEDOUT:
        return TimedOut(what, place, hint)
    return StoreError(what, place, hint)


@contextmanager
def translating(doing: str, where: Path, *, needed_bytes: int | None = None, hint: str = "") -> Iterator[None]:
    """Raise what `translate` makes of an OSError inside the block, and `unnameable` of a name that no file can have;
    errors of stoker pass.
    """
    try:
        yield
    except StokerError:
        raise
    except ValueError as error:
        found = unnameable(error, doing, where)
        if found is None:
            raise
        raise found from error
    except OSError as error:
        raise translate(error, doing, where, needed_bytes=needed_bytes, hint=hint) from error


def unnameable(error: ValueError, doing: str, where: Path) -> ConfigError | None:
    """The error for a name that the kernel cannot be told, met while `doing` something; None for any other error."""
    if isinstance(error, UnicodeEncodeError):
        what = f"{doing}: this process can write no such name in {error.encoding}"
        return ConfigError(what, ascii(str(where)), "set PYTHONUTF8=1, or LC_ALL=C.UTF-8")
    if "null" in str(error):
        return ConfigError(f"{doing}: a name holds no zero byte", ascii(str(where)))
    return None


def _space(where: Path, needed_bytes: int | None) -> str:
    free = _free_bytes(where)
    parts = []
    if needed_bytes is not None:
        parts.append(f"{format_bytes(needed_bytes)} needed")
    if free is not None:
        parts.append(f"{format_bytes(free)} free on the file system")
    return f" ({', '.join(parts)})" if parts else ""


def _free_bytes(where: Path) -> int | None:
    for place in (where, *where.parents):
        try:
            state = os.statvfs(place)
        except OSError:
            continue
        return state.f_bavail * state.f_frsize
    return None


def _capacity_hint(code: int) -> str:
    if code == errno.EDQUOT:
        return "the quota of the user, group or project is used up"
    if code == errno.EFBIG:
        return "the limit on the size of one file is reached: ulimit -f"
    return "free some space, or choose another place"
