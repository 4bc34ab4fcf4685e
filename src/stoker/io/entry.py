"""What a child process does first: the other half of `stoker.io.child`, without what it takes to start one."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Final, TextIO

from stoker.errors import InternalError
from stoker.io.channel import Channel

_WORDS_MAX_BYTES: Final = 64 << 10
_PR_SET_PDEATHSIG: Final = 1


def enter(arguments: Sequence[str]) -> Channel:
    """What a child does first: ignore Ctrl-C, keep its last words, and find its end of the channel."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # it may write to a terminal that it is in the background of
    try:
        parent, fd, *stderr = map(int, arguments)
        channel = Channel(socket.socket(fileno=fd))
    except (ValueError, OSError) as error:
        raise InternalError("this module is started by stoker itself, as a child process") from error
    os.set_inheritable(fd, False)
    if parent:
        _die_with(parent)
    if stderr:
        words = os.dup(2)
        os.dup2(stderr[0], 2)
        os.close(stderr[0])
        sys.stderr = _Words(sys.stderr, words)
        faulthandler.enable(words)
    return channel


def _die_with(parent: int) -> None:
    """Be killed when the thread that started this process ends, also if this one holds the interpreter lock then."""
    import ctypes  # noqa: PLC0415  20 ms that no other process needs to spend

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


class _Words(io.TextIOBase):
    """stderr, of which the last words are kept as well."""

    def __init__(self, shown: TextIO, fd: int) -> None:
        self._shown = shown
        self._fd = fd
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        with self._lock:
            if os.fstat(self._fd).st_size > _WORDS_MAX_BYTES:
                os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, text.encode(errors="replace"), os.fstat(self._fd).st_size)
        with contextlib.suppress(OSError):  # a terminal may be gone
            self._shown.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._shown.flush()

    def fileno(self) -> int:
        return self._shown.fileno()
