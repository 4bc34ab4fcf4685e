"""What the doctor looks at: a node's files, folders and commands, live or captured.

Everything a check learns comes through a `Node`, so that it can be recorded, replayed and tested. What cannot be had is
`Missing(reason)`, a value: hidden /sys, no rights, no such tool, a timeout are answers, never exceptions. Parsers get
texts and never see a node. Nodes only read.
"""

from __future__ import annotations

import os
import platform
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from stoker.io.host import cpu_count

READ_LIMIT_BYTES: Final = 1 << 20
COMMAND_LIMIT_S: Final = 1.8
COMMAND_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/cuda/gds/tools"


@dataclass(frozen=True)
class Missing:
    """What could not be had, and why: `no such file`, `permission denied`, `no such command`, `timed out ...`."""

    reason: str

    @property
    def denied(self) -> bool:
        """Whether more rights would have helped."""
        return "permission" in self.reason or "not permitted" in self.reason


@dataclass(frozen=True)
class Output:
    """What a command printed, and its exit status."""

    stdout: str
    stderr: str = ""
    status: int = 0


@dataclass(frozen=True)
class PathStat:
    """A file as `stat` sees it; devices are `major:minor`.

    `kind` is one of file, directory, character, block, link, other.
    """

    kind: str
    mode: int = 0
    uid: int = 0
    size_bytes: int = 0
    device: str = "0:0"
    special: str = "0:0"


@dataclass(frozen=True)
class Space:
    """Room in a file system. `free_bytes` is what this user may still write."""

    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Host:
    """What the process itself knows: its user, architecture, kernel release, and how many CPUs it may run on."""

    uid: int
    machine: str
    kernel: str
    cpu_count: int


class Node(Protocol):
    """A node, live or captured. Paths are absolute, as on the node. No method raises for what is not there."""

    def read(self, path: str, limit_bytes: int = READ_LIMIT_BYTES) -> str | Missing:
        """The text of a file, at most `limit_bytes` of it; bytes that are no UTF-8 are replaced."""
        ...

    def read_tail(self, path: str, limit_bytes: int = READ_LIMIT_BYTES) -> str | Missing:
        """The last `limit_bytes` of a file that grows."""
        ...

    def read_bytes(self, path: str, limit_bytes: int = READ_LIMIT_BYTES) -> bytes | Missing:
        """The bytes of a file that is no text. A capture keeps none of them."""
        ...

    def listing(self, path: str) -> tuple[str, ...] | Missing:
        """The names in a folder, sorted."""
        ...

    def link(self, path: str) -> str | Missing:
        """The real path of `path`, links followed: how /sys says what belongs to what."""
        ...

    def stat(self, path: str) -> PathStat | Missing:
        """`stat` of a path, links followed. May wait for a dead network mount: ask /proc/self/mountinfo first."""
        ...

    def readable(self, path: str) -> bool:
        """Whether this user may read the path."""
        ...

    def space(self, path: str) -> Space | Missing:
        """Room in the file system of a path. May wait as `stat` may."""
        ...

    def run(self, argv: Sequence[str]) -> Output | Missing:
        """Run a command that only reads, without stdin, in the C locale, for at most `COMMAND_LIMIT_S`.

        A command that ends with an error has an Output with its status; one that is not there is Missing.
        """
        ...

    def environment(self) -> Mapping[str, str]:
        """The environment of this process."""
        ...

    def host(self) -> Host | Missing:
        """What the process knows of itself."""
        ...

    def clock_s(self) -> float:
        """Seconds since the epoch; that of a capture is when it was made."""
        ...


@dataclass(frozen=True)
class LiveNode:
    """This machine, or a folder that looks like one: there no command is run and no environment is seen."""

    root: Path = field(default=Path("/"))

    def read(self, path: str, limit_bytes: int = READ_LIMIT_BYTES) -> str | Missing:
        """The text of a file."""
        return self._text(path, limit_bytes, 0)

    def read_tail(self, path: str, limit_bytes: int = READ_LIMIT_BYTES) -> str | Missing:
        """The end of a file."""
        return self._text(path, limit_bytes, -limit_bytes)

    def read_bytes(self, path: str, limit_bytes: int = READ_LIMIT_BYTES) -> bytes | Missing:
        """The bytes of a file."""
        return self._read(path, limit_bytes, 0)

    def _text(self, path: str, limit_bytes: int, start: int) -> str | Missing:
        found = self._read(path, limit_bytes, start)
        return found if isinstance(found, Missing) else found.decode("utf-8", "replace")

    def _read(self, path: str, limit_bytes: int, start: int) -> bytes | Missing:
        try:
            # Not to wait for a writer, should the path be a pipe.
            fd = os.open(self._at(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
            with open(fd, "rb", buffering=0) as file:  # noqa: PTH123 - a descriptor
                if start < 0:
                    file.seek(max(0, file.seek(0, os.SEEK_END) + start))
                parts: list[bytes] = []
                left = limit_bytes
                while left > 0 and (part := file.read(left)):
                    parts.append(part)
                    left -= len(part)
        except (OSError, ValueError) as error:
            return _missing(error)
        return b"".join(parts)

    def listing(self, path: str) -> tuple[str, ...] | Missing:
        """The names in a folder."""
        try:
            return tuple(sorted(entry.name for entry in Path(self._at(path)).iterdir()))
        except (OSError, ValueError) as error:
            return _missing(error)

    def link(self, path: str) -> str | Missing:
        """The real path."""
        try:
            found = os.path.realpath(self._at(path), strict=True)
        except (OSError, ValueError) as error:
            return _missing(error)
        if self.root == Path("/"):
            return found
        relative = os.path.relpath(found, os.path.realpath(self.root))
        return Missing("leads out of the folder") if relative.startswith("..") else "/" + relative

    def stat(self, path: str) -> PathStat | Missing:
        """What stat says."""
        try:
            found = Path(self._at(path)).stat()
        except (OSError, ValueError) as error:
            return _missing(error)
        return PathStat(
            kind=_kind(found.st_mode),
            mode=stat.S_IMODE(found.st_mode),
            uid=found.st_uid,
            size_bytes=found.st_size,
            device=f"{os.major(found.st_dev)}:{os.minor(found.st_dev)}",
            special=f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}",
        )

    def readable(self, path: str) -> bool:
        """Whether the path may be read."""
        try:
            return os.access(self._at(path), os.R_OK)
        except ValueError:
            return False

    def space(self, path: str) -> Space | Missing:
        """Room in the file system."""
        try:
            found = os.statvfs(self._at(path))
        except (OSError, ValueError) as error:
            return _missing(error)
        return Space(total_bytes=found.f_blocks * found.f_frsize, free_bytes=found.f_bavail * found.f_frsize)

    def run(self, argv: Sequence[str]) -> Output | Missing:
        """What a command prints."""
        if self.root != Path("/"):
            return Missing("not run: only the files of a folder are looked at")
        environment = {**os.environ, "LC_ALL": "C", "PATH": os.environ.get("PATH", "") + ":" + COMMAND_PATH}
        try:
            done = subprocess.run(  # noqa: S603 - argv is a literal of a check; no shell
                list(argv),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=COMMAND_LIMIT_S,
                env=environment,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Missing(f"timed out after {COMMAND_LIMIT_S:g} s")
        except FileNotFoundError:
            return Missing("no such command")
        except (OSError, ValueError) as error:
            return _missing(error)
        out, err = (data[:READ_LIMIT_BYTES].decode("utf-8", "replace") for data in (done.stdout, done.stderr))
        return Output(out, err, done.returncode)

    def environment(self) -> Mapping[str, str]:
        """The environment."""
        return dict(os.environ) if self.root == Path("/") else {}

    def host(self) -> Host | Missing:
        """What the process knows of itself."""
        return Host(os.geteuid(), platform.machine(), platform.release(), cpu_count())

    def clock_s(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def _at(self, path: str) -> str:
        return path if self.root == Path("/") else str(self.root / path.lstrip("/"))


def _kind(mode: int) -> str:
    tests = {
        "file": stat.S_ISREG,
        "directory": stat.S_ISDIR,
        "character": stat.S_ISCHR,
        "block": stat.S_ISBLK,
        "link": stat.S_ISLNK,
    }
    return next((name for name, test in tests.items() if test(mode)), "other")


def _missing(error: OSError | ValueError) -> Missing:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Missing("no such file")
    text = error.strerror if isinstance(error, OSError) else None
    return Missing((text or str(error)).lower())
