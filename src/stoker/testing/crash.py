"""Kill work at every place where it may die, and see what is left.

::

    events = crash.trace(work)                      # once, to the end
    crash.assert_point_between_durables(events)     # no two durable operations without a point between
    for spec in crash.every_pass(events):           # "*:1", "*:2", ...
        assert crash.run_killed(work, spec) == crash.KILLED
        ...                                         # reopen: whole or absent, and the next run continues
"""

from __future__ import annotations

import ast
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NoReturn

from stoker import crash
from stoker.crash import Event

__all__ = ["KILLED", "Child", "Event", "assert_point_between_durables", "every_pass", "points", "run_killed", "trace"]

KILLED: Final = int(signal.SIGKILL)  # the wait status of a process that died of it
DEADLINE_S: Final = 60


def points(package_root: Path) -> list[str]:
    """The names of all crash points in the source under `package_root`, sorted.

    Raises AssertionError for a name that is not a literal, or that stands in two places.
    """
    found: dict[str, str] = {}
    for path in sorted(package_root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes(), filename=str(path))):
            if not (isinstance(node, ast.Call) and _is_point(node.func)):
                continue
            place = f"{path.relative_to(package_root)}:{node.lineno}"
            name = _literal(node)
            if name is None:
                raise AssertionError(f"the name of a crash point is not a literal: {place}")
            if name in found:
                raise AssertionError(f"crash point {name!r} stands in two places: {found[name]} and {place}")
            found[name] = place
    return sorted(found)


def trace(work: Callable[[], object]) -> list[Event]:
    """Run `work` to its end in this process; the points it passed and the durable operations it did, in order."""
    events = crash.start_trace()
    try:
        work()
    finally:
        crash.stop_trace()
    return events


def assert_point_between_durables(events: Sequence[Event]) -> None:
    """Raise AssertionError naming the first two durable operations that no crash point separates."""
    last: Event | None = None
    for event in events:
        if event.kind == "point":
            last = None
            continue
        if last is not None:
            raise AssertionError(
                f"no crash point between {last.name} of {last.what!r} and {event.name} of {event.what!r}"
            )
        last = event


def every_pass(events: Sequence[Event]) -> Iterator[str]:
    """The specs that kill at the first, second, ... pass of any point in `events`."""
    count = sum(event.kind == "point" for event in events)
    return (f"*:{nth}" for nth in range(1, count + 1))


def run_killed(work: Callable[[], object], spec: str | None) -> int:
    """Run `work` in a forked child that dies by SIGKILL at `spec` (see `stoker.crash`); returns its wait status.

    KILLED if it died there, 0 if it came to its end without passing the point. The child never returns into the
    caller's code: no test framework, no atexit. Raises AssertionError with the child's stderr if it failed in any
    other way, or took more than 60 s. The caller should have no other threads.
    """
    return Child(work, spec).wait()


class Child:
    """A forked child that does `work`, as `run_killed` has it; `pid` is there to be killed at any moment."""

    def __init__(self, work: Callable[[], object], spec: str | None = None) -> None:
        self._spec = spec
        self._stderr_fd = os.memfd_create("stoker-crash-stderr", os.MFD_CLOEXEC)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and newer: fork in a threaded process
            self.pid = os.fork()
        if self.pid == 0:
            _run_child(work, spec, self._stderr_fd)

    def wait(self) -> int:
        """Its wait status, 0 or KILLED; AssertionError with what it said for any other end. To be called once."""
        try:
            _, status = os.waitpid(self.pid, 0)
            if status in (0, KILLED):
                return status
            said = os.pread(self._stderr_fd, 1 << 20, 0).decode(errors="replace").strip()
        finally:
            os.close(self._stderr_fd)
        code = os.waitstatus_to_exitcode(status)
        reason = f"took more than {DEADLINE_S} s" if code == -signal.SIGALRM else f"ended with {code}"
        raise AssertionError(f"the child for {self._spec!r} {reason}; it said:\n{said}")


def _run_child(work: Callable[[], object], spec: str | None, stderr_fd: int) -> NoReturn:
    try:
        os.dup2(stderr_fd, 2)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(DEADLINE_S)
        crash.arm(spec)
        work()
    except BaseException:  # noqa: BLE001  a process boundary: nothing may unwind into the caller's frames
        os.write(2, traceback.format_exc().encode(errors="replace"))
        os._exit(1)
    os._exit(0)


def _is_point(function: ast.expr) -> bool:
    """Whether this is `crash.point`, the one way to write it."""
    return (
        isinstance(function, ast.Attribute)
        and function.attr == "point"
        and isinstance(function.value, ast.Name)
        and function.value.id == "crash"
    )


def _literal(call: ast.Call) -> str | None:
    if len(call.args) == 1 and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str):
        return call.args[0].value
    return None
