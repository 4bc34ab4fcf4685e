"""The nvme tier's directory on this node: where it is, and what lies where in it.

::

    <nvme>/format                                 "stoker nvme 1"
    <nvme>/checkpoint/<run>/step-...              checkpoints, when no shared tier is given
    <nvme>/index/<hash>/                          indexes of data that came without one
    <nvme>/doctor/storage-<hash>.json             what `stoker doctor storage` measured of a mount
    <nvme>/run/<run>/rank-00012.lock              one process a rank, held by the kernel while it lives
    <nvme>/run/<run>/rank-00012.g0003.ledger      the account of waits
    <nvme>/run/<run>/rank-00012.g0003.1.ledger    one of another run of that name, set aside

The directory belongs to one user and is closed to others (0700): caches hold training data.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final, Self

from stoker.config_values import user_path
from stoker.errors import AccessDenied, ConfigError, NotFound, RunBusy
from stoker.io.atomic import make_dirs, rename_file, write_file
from stoker.io.lock import FileLock
from stoker.io.os_errors import translating
from stoker.ledger import Ledger, LedgerIdentity, ledger_name

FORMAT_NAME: Final = "stoker nvme"
FORMAT_VERSION: Final = 1

_ELSEWHERE: Final = "choose another with stoker.open(nvme=...) or STOKER_NVME"
_LEDGER: Final = re.compile(r"rank-(\d+)\.g(\d+)\.ledger\Z")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")


def default_nvme(environ: Mapping[str, str], uid: int) -> Path:
    """Where the nvme tier lies when nobody says.

    `$STOKER_NVME`, else `$SLURM_TMPDIR/stoker` (node-local scratch of a job), else the user's cache directory, else
    `$TMPDIR/stoker-<uid>` for a user without a home. Pure: the same environment gives the same place.
    """
    if environ.get("STOKER_NVME"):
        return Path(environ["STOKER_NVME"])
    if environ.get("SLURM_TMPDIR"):
        return Path(environ["SLURM_TMPDIR"]) / "stoker"
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "stoker"
    if environ.get("HOME"):
        return Path(environ["HOME"]) / ".cache" / "stoker"
    return Path(environ.get("TMPDIR") or "/tmp") / f"stoker-{uid}"  # noqa: S108  the last resort, 0700 and owner-checked


def check_run_name(name: object) -> str:
    """The name itself, if it can be a directory on every store. Raises ConfigError."""
    if not isinstance(name, str) or not _RUN_NAME.match(name) or name.endswith((".", ".partial")):
        raise ConfigError(
            f"not a run name: {name!r}", hint="letters, digits, '.', '_' and '-', at most 128, as in run-42"
        )
    return name


def check_shared(path: Path | None) -> Path | None:
    """The directory of the shared tier, absolute. It was asked for by name, so it must be there: nothing is made.

    A mount point whose file system is not mounted would otherwise take checkpoints onto the local disk. Raises
    NotFound, and ConfigError for a URL.
    """
    if path is None:
        return None
    _refuse_url("shared", path)
    path = user_path(path)
    with translating("cannot look into the shared tier", path):
        is_there, path = path.is_dir(), path.absolute()
    if not is_there:
        raise NotFound(
            "the directory of the shared tier is not there",
            where=str(path),
            hint="mount the file system, or make the directory once",
        )
    return path


def _refuse_url(tier: str, path: Path) -> None:
    if _URL.match(str(path)):  # Path has folded s3://bucket into s3:/bucket
        raise ConfigError(
            f"the {tier} tier is a directory, not a URL: {str(path)!r}",
            hint="a bucket is the object tier: stoker.open(object=...)",
        )


@dataclass(frozen=True, slots=True)
class NodeDirectory:
    """The opened directory of the nvme tier."""

    root: Path

    @classmethod
    def open(cls, root: Path) -> Self:
        """Make the directory if need be (0700), check that it is ours, and note the format.

        A directory of a format this release does not know is left alone: a sibling named after our format is used,
        nothing is migrated. Raises AccessDenied, also if it belongs to another user, CapacityError, StoreError,
        ConfigError.
        """
        _refuse_url("nvme", root)
        root = user_path(root)
        with translating("cannot use the directory of the nvme tier", root, hint=_ELSEWHERE):
            root = root.absolute()
            try:
                make_dirs(root, mode=0o700)
            except NotADirectoryError as error:
                raise ConfigError(
                    "the nvme tier is not a directory", error.filename or str(root), hint=_ELSEWHERE
                ) from error
            return cls._open(root)

    @classmethod
    def _open(cls, root: Path) -> Self:
        status = root.stat()
        if status.st_uid != os.geteuid():
            raise AccessDenied(
                f"the nvme tier belongs to user {status.st_uid}, not to {os.geteuid()}",
                str(root),
                hint=f"give each user a directory of their own: {_ELSEWHERE}",
            )
        mine = f"{FORMAT_NAME} {FORMAT_VERSION}\n"
        try:
            found = (root / "format").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            write_file(root / "format", mine.encode(), if_absent=False)
            return cls(root)
        if found == mine:
            return cls(root)
        suffix = f"-v{FORMAT_VERSION}"
        if root.name.endswith(suffix):
            raise ConfigError(
                f"the nvme tier {str(root)!r} has the unknown format {found.strip()[:40]!r}",
                hint="choose another directory",
            )
        return cls.open(root.with_name(root.name + suffix))

    @property
    def checkpoints_root(self) -> Path:
        """Where the runs lie whose checkpoints stay on this node."""
        return self.root / "checkpoint"

    @property
    def indexes(self) -> Path:
        """Where indexes lie that were made for this node alone."""
        return self.root / "index"

    @property
    def measurements(self) -> Path:
        """Where the doctor keeps what it measured of this node's storage."""
        return self.root / "doctor"

    def checkpoints(self, run: str) -> Path:
        """The home of one of them."""
        return self.checkpoints_root / run

    def run(self, run: str) -> Path:
        """Locks and ledgers of a run on this node."""
        return self.root / "run" / run

    def lock(self, run: str, rank: int) -> Path:
        """The file whose kernel lock says that a rank of the run lives on this node."""
        return self.run(run) / f"rank-{rank:05d}.lock"

    def claim(self, run: str, rank: int) -> FileLock:
        """Hold the lock of a rank of the run; the kernel frees it when the process ends.

        Raises RunBusy at once, AccessDenied, StoreError.
        """
        lock = FileLock(self.lock(run, rank))
        if not lock.try_acquire():
            if pid := lock.is_orphaned():
                raise RunBusy(
                    f"rank {rank} of run {run!r} is locked on this host: pid {pid} is gone; "
                    "a child of it still holds the lock",
                    where=str(lock.path),
                    hint="find it with lsof or fuser, as a DataLoader worker or a server left over, and end it; "
                    "or choose another run name",
                )
            raise RunBusy(
                f"rank {rank} of run {run!r} is already running on this host: {lock.holder()}",
                where=str(lock.path),
                hint="wait for it to end, stop it, or choose another run name",
            )
        return lock

    def ledger(self, run: str, rank: int, generation: int) -> Path:
        """The account of waits of one rank in one generation."""
        return self.run(run) / ledger_name(rank, generation)

    def open_ledger(self, identity: LedgerIdentity) -> Ledger:
        """Begin the ledger of a rank, for whoever holds its lock; in memory alone if the run has no name.

        What stands in its way is set aside. Raises AccessDenied, CapacityError, StoreError.
        """
        if not identity.run:
            return Ledger.create(None, identity)
        self.set_aside_ledgers(identity.run, identity.rank, identity.generation)
        return Ledger.create(self.ledger(identity.run, identity.rank, identity.generation), identity)

    def set_aside_ledgers(self, run: str, rank: int, generation: int) -> list[Path]:
        """Make way for the ledger of `generation`; for whoever holds the rank's lock. Returns the new names.

        A ledger of this generation or a later one that is there already is of another run of that name: its home was
        elsewhere, or has been put back to an earlier state. It gets a name that reports pass over; nothing is lost.
        Raises AccessDenied, StoreError.
        """
        folder, moved = self.run(run), []
        with translating("cannot set an old ledger aside", folder), suppress(FileNotFoundError):
            for old in sorted(folder.iterdir()):  # unlike a glob, it says when the folder is closed
                match = _LEDGER.match(old.name)
                if match is not None and int(match[1]) == rank and int(match[2]) >= generation:
                    moved.append(_set_aside(old))
        if moved:
            import logging  # noqa: PLC0415  3 ms that only who is warned waits for

            logging.getLogger("stoker.tier").warning(
                "run %r was at generation %d or later on this node before, with another home or state: "
                "%d of its ledgers are set aside as %s and the like, and not part of reports",
                run,
                generation,
                len(moved),
                moved[0],
            )
        return moved


def _set_aside(path: Path) -> Path:
    for number in count(1):
        target = path.with_name(f"{path.name.removesuffix('.ledger')}.{number}.ledger")
        try:
            rename_file(path, target)
        except FileExistsError:
            continue
        return target
    raise AssertionError("numbers do not end")
