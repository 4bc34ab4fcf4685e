"""Child processes: another interpreter that runs a module of stoker, at the other end of a channel.

No fork of this process, no multiprocessing, nothing of the user's main module. The child has a process group of its
own, so that Ctrl-C in a terminal does not reach it; it ends when its channel does. What it writes to stderr is shown as
ever, and its last words are kept for the error that tells of its end.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import select
import signal
import site
import subprocess
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Final, NamedTuple

from stoker.errors import CapacityError, StokerError, UnsupportedError
from stoker.io.channel import Channel
from stoker.io.memfd import anonymous_file

_SHOWN_MAX_CHARACTERS: Final = 600
_LEAVE_S: Final = 1.0
_CRASHES: Final = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE})
_NEEDED: Final = ("crc32c", "msgspec", "numpy", "xxhash")


class Ended(NamedTuple):
    """How a process ended: `code` is its exit code, or minus the number of the signal that ended it."""

    code: int

    def __str__(self) -> str:
        if self.code >= 0:
            return f"exit code {self.code}"
        with contextlib.suppress(ValueError):
            return signal.Signals(-self.code).name
        return f"signal {-self.code}"

    @property
    def reason(self) -> str:
        """What is usually behind a signal; "" for an exit code, which only the last words explain."""
        if self.code >= 0:
            return ""
        if -self.code == signal.SIGKILL:
            return "SIGKILL is often the kernel short of memory"
        return "a library crashed in it" if -self.code in _CRASHES else f"another process sent it {self}"


class Child:
    """A running child; made by `start`. Attributes: `pid`, and `channel`, our end."""

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel, words_fd: int) -> None:
        self.pid = process.pid
        self.channel = channel
        self._process = process
        _running[process.pid] = process
        self._words_fd = words_fd

    @classmethod
    def start(cls, module: str, environ: Mapping[str, str] | None = None, *, dies_with_thread: bool = False) -> Child:
        """Start `python -m module`, which calls `enter` (io/entry.py) first, with the variables `environ` besides.

        With `dies_with_thread` the kernel kills it when the thread that started it ends: right for the main thread
        alone. Raises UnsupportedError where there is no interpreter to start, CapacityError if the system refuses.
        """
        _reap()
        if not sys.executable or getattr(sys, "frozen", False):
            raise UnsupportedError(
                "there is no Python interpreter to start a child process with",
                where=f"sys.executable is {sys.executable!r}",
                hint="a program that is frozen, or holds the interpreter in itself, must do without",
            )
        with contextlib.ExitStack() as stack, contextlib.ExitStack() as on_error:
            try:
                channel, theirs = Channel.pair()
            except OSError as error:
                raise _not_started(error) from error
            stack.callback(theirs.close)
            on_error.callback(channel.close)
            words_fd = anonymous_file("stoker-stderr")
            on_error.callback(os.close, words_fd)
            passed = [theirs.fileno()]
            with contextlib.suppress(OSError):  # a process may be without a stderr
                passed.append(os.dup(2))
                stack.callback(os.close, passed[-1])
            parent = os.getpid() if dies_with_thread else 0
            command = [sys.executable, *_program(module), *map(str, (parent, *passed))]
            try:
                process = subprocess.Popen(  # noqa: S603  our own interpreter and module
                    command,
                    stdin=subprocess.DEVNULL,
                    stderr=words_fd,
                    pass_fds=passed,
                    process_group=0,
                    env={**(environ or {}), **_environment()},
                )
            except OSError as error:
                raise _not_started(error) from error
            on_error.pop_all()
        return cls(process, channel, words_fd)

    def is_stopped(self) -> bool:
        """Whether it was stopped by a signal and does nothing until it is continued."""
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
        return False

    def end(self, timeout_s: float) -> Ended:
        """Tell it to end, wait, and kill it if it has not ended after `timeout_s`, or at once if it is stopped and
        hears nothing; returns how it ended. What it sent before can still be received. Idempotent.
        """
        self.channel.shut()
        if self.is_stopped() or not self._wait(timeout_s):
            self._process.kill()
            self._process.wait()
        _reap()
        return Ended(self._process.returncode)

    def close(self) -> None:
        """Let go of the channel, in which no thread may be, and of the last words. Idempotent.

        One that was not ended is told so, and is then on its own. Takes no lock: a garbage collection may call it.
        """
        self.channel.shut()
        self.channel.close()
        if self._process.returncode is None:
            _leaving.add(self.pid)
        if self._words_fd >= 0:
            os.close(self._words_fd)
            self._words_fd = -1

    def last_words(self) -> str:
        """The end of what it wrote to stderr."""
        if self._words_fd < 0:
            return ""
        size = os.fstat(self._words_fd).st_size
        begin = max(0, size - 4 * _SHOWN_MAX_CHARACTERS)
        text = os.pread(self._words_fd, size - begin, begin).decode(errors="replace").strip()
        return text[-_SHOWN_MAX_CHARACTERS:]

    def __del__(self) -> None:
        self.close()

    def _wait(self, timeout_s: float) -> bool:
        """Whether it has ended; a process descriptor tells at once, where the kernel has them."""
        if self._process.poll() is not None:
            return True
        try:
            fd = os.pidfd_open(self.pid)
        except OSError:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
            return self._process.returncode is not None
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            poll.poll(timeout_s * 1000)
        finally:
            os.close(fd)
        return self._process.poll() is not None


_running: dict[int, subprocess.Popen[bytes]] = {}  # all that are not known to have ended; none is lost to a collection
_leaving: set[int] = set()  # those among them whose channel is closed


def _reap() -> None:
    """Let the kernel forget the children that have ended."""
    for pid, process in list(_running.items()):
        if process.poll() is not None:
            _running.pop(pid, None)
            _leaving.discard(pid)


@atexit.register
def _reap_all() -> None:
    """At the end of this process: those that were told to end do, or are killed; the others live on. Threads that let
    go of a feeder may still run, and reap, too.
    """
    for pid, process in list(_running.items()):
        if pid in _leaving:
            try:
                process.wait(_LEAVE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        elif process.poll() is None:
            process.returncode = 0  # nobody here will wait for it: a Popen would complain of that


def _not_started(error: OSError) -> StokerError:
    what = f"cannot start a child process: {(error.strerror or str(error)).lower()}"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        hint = "sys.executable is not there: was the environment moved, or replaced while this ran?"
        return UnsupportedError(what, where=sys.executable, hint=hint)
    if error.errno in (errno.ENOEXEC, errno.ELIBBAD):
        return UnsupportedError(what, where=sys.executable, hint="sys.executable is no program of this machine")
    if error.errno in (errno.EACCES, errno.EPERM):
        return UnsupportedError(what, where=sys.executable, hint="this process may not run its own interpreter")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return CapacityError(what, where=sys.executable, hint="raise the limit of open files (ulimit -n)")
    return CapacityError(what, where=sys.executable, hint="raise the limit of processes (ulimit -u) or of memory")


def _environment() -> dict[str, str]:
    """The environment of a child: in it `import stoker` finds what this process runs, and what it needs at once,
    wherever that was found. A program may have changed its sys.path by hand.
    """
    environ = dict(os.environ)
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if missing := _missing_roots(paths):
        environ["PYTHONPATH"] = os.pathsep.join([*missing, *paths])
    return environ


def _program(module: str) -> list[str]:
    """What an interpreter is told to run a module, and that it looks for modules where this one does.

    It reads no PYTHONPATH if this one was told to read none (-E, -I): what is missing is then said in the program.
    """
    flags = sys.flags
    told = ["-E"] if flags.ignore_environment else []
    told += ["-s"] if flags.no_user_site else []
    told += ["-S"] if flags.no_site else []
    told += ["-B"] if flags.dont_write_bytecode else []
    told += ["-O"] * flags.optimize
    told += ["-Xutf8"] if flags.utf8_mode else []
    told += ["-P"]
    if flags.ignore_environment and (missing := _missing_roots([])):
        text = f"import runpy, sys; sys.path[:0] = {missing!r}; runpy.run_module({module!r}, run_name='__main__')"
        return [*told, "-c", text]
    return [*told, "-m", module]


def _missing_roots(paths: list[str]) -> list[str]:
    """Where stoker and what it needs at once lie, if a child does not look there by itself, nor in `paths`."""
    roots = [str(Path(__file__).parents[2]), *filter(None, map(_root_of, _NEEDED))]
    known = set(paths)
    if not sys.flags.no_site:
        known.update(site.getsitepackages())
        if not sys.flags.no_user_site:
            known.add(site.getusersitepackages())
    return [root for root in dict.fromkeys(roots) if root not in known]


def _root_of(package: str) -> str:
    """The folder that this process would import a package from; "" if it is in none."""
    with contextlib.suppress(ImportError):
        spec = _spec_of(package)
        if spec is not None and spec.origin:
            return str(Path(spec.origin).parents[1])
    return ""


def _spec_of(package: str) -> ModuleSpec | None:
    """As importlib.util.find_spec, which takes 1 ms to load, has it."""
    if package in sys.modules:
        return getattr(sys.modules[package], "__spec__", None)  # a module that was made by hand has none
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)  # what a program put there for older versions of Python has none
        spec: ModuleSpec | None = find(package, None) if find is not None else None
        if spec is not None:
            return spec
    return None
