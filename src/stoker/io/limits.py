"""What the system gives no more of (memory, threads, open files), as an error that says which, and what helps."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from stoker.errors import CapacityError, StokerError, text_of

_NO_THREAD: Final = "can't start new thread"  # CPython has no type for it
_HINTS: Final = {
    "memory": "ask for less, or raise the limit of memory (ulimit -v, or that of the job)",
    "thread": "raise the limit of processes (ulimit -u) or of memory",
    "open file": "raise the limit of open files (ulimit -n)",
}


def shortage(error: BaseException, doing: str, where: str = "") -> CapacityError | None:
    """The error for one that says that the system gave too little, met while `doing` something (as in "cannot open the
    run"); None for any other, and for an error of stoker.
    """
    short = _short_of(error)
    if short is None:
        return None
    said = _said(error)
    return CapacityError(f"{doing}: no {short} to be had{f': {said}' if said else ''}", where, _HINTS[short])


@contextmanager
def within_limits(doing: str, where: str = "") -> Iterator[None]:
    """Raise what `shortage` makes of an error inside the block; others pass."""
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        found = shortage(error, doing, where)
        if found is None:
            raise
        raise found from error


def start_thread(thread: threading.Thread, doing: str) -> None:
    """Start it. Raises CapacityError if the system gives no thread."""
    with within_limits(doing):
        thread.start()


def _short_of(error: BaseException) -> str | None:
    if isinstance(error, StokerError):
        return None
    if isinstance(error, MemoryError):
        return "memory"
    if isinstance(error, RuntimeError) and text_of(error) == _NO_THREAD:
        return "thread"
    if isinstance(error, OSError):
        if error.errno == errno.ENOMEM:
            return "memory"
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return "open file"
    return None


def _said(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return text_of(error)
