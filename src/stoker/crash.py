"""Named crash points: the places between two durable operations where a process may die.

A crash point costs one comparison unless the process was started to die (or to be watched). The crash suite
(`stoker.testing.crash`) finds every `point("...")` in the source, runs the work once to record the order of points and
durable operations, and then kills a fresh process at each.

Environment: ``STOKER_CRASH=name`` kills this process with SIGKILL at the first pass of that point,
``STOKER_CRASH=name:3`` at the third pass, ``STOKER_CRASH=*:17`` at the seventeenth pass of any point.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Literal, NamedTuple


class Event(NamedTuple):
    """One thing that happened: a `point` passed, or a `durable` operation done."""

    kind: Literal["point", "durable"]
    name: str
    what: str = ""


class _Crash:
    def __init__(self, spec: str | None) -> None:
        self.lock = threading.Lock()
        self.trace: list[Event] | None = None
        self.arm(spec)

    def arm(self, spec: str | None) -> None:
        name, _, nth = (spec or "").partition(":")
        self.name = name
        self.countdown = int(nth or "1") if name else 0
        self.active = bool(name) or self.trace is not None

    def hit(self, name: str) -> None:
        with self.lock:
            if self.trace is not None:
                self.trace.append(Event("point", name))
            if self.name not in (name, "*"):
                return
            self.countdown -= 1
            if self.countdown == 0:
                os.kill(os.getpid(), signal.SIGKILL)


_crash = _Crash(os.environ.get("STOKER_CRASH"))


def point(name: str) -> None:
    """Mark a place where the process may die. `name` is a literal, unique in the source."""
    if _crash.active:
        _crash.hit(name)


def durable(operation: str, what: str) -> None:
    """Record that a durable `operation` (fsync, rename, link, unlink, mkdir, fsync-dir) was done on `what`."""
    if _crash.trace is not None:
        with _crash.lock:
            _crash.trace.append(Event("durable", operation, what))


def arm(spec: str | None) -> None:
    """Set the point to die at, as the environment variable would; None disarms."""
    _crash.arm(spec)


def start_trace() -> list[Event]:
    """Record from now on; returns the list that grows."""
    _crash.trace = []
    _crash.active = True
    return _crash.trace


def stop_trace() -> None:
    """Stop recording."""
    _crash.trace = None
    _crash.active = bool(_crash.name)
