"""Files that appear whole or not at all, and stay: the only place that syncs, renames, links, removes or makes
directories.

Every durable operation is reported to `crash.durable` and followed by a crash point, so that the crash suite can kill
the process between any two. Functions raise OSError as the kernel gives it; stores translate.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from stoker import crash
from stoker.errors import ClosedError, StoreError, UnsupportedError
from stoker.io import ofd
from stoker.io.buffers import ReadBuffer, view
from stoker.io.host import host_id

if TYPE_CHECKING:
    from stoker.io.choose import Engine, EngineChoice

TEMP_PREFIX: Final = ".tmp-"
FOREIGN_TEMP_S: Final = 24 * 3600.0  # locks of another host may be invisible here: its files must be this old to go

_FILE_MODE: Final = 0o644
_DIR_MODE: Final = 0o755
_TEMP_TRIES: Final = 100
_NO_DIR_SYNC: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP})
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_AT_FDCWD: Final = -100
_RENAME_NOREPLACE: Final = 1

_stamp_lock = threading.Lock()
_last_stamp_ns = 0


class AtomicFile:
    """A file under a temporary name beside `target`, locked while it is written, invisible until `commit`.

    Missing parent directories are made. Leaving the `with` block without a commit removes the temporary file; after
    SIGKILL the next `sweep` does. Not thread-safe: one writer, one thread at a time.

    `engine` is how large files are written; what was chosen for this one is known after `commit`, as `self.engine`.
    """

    def __init__(self, target: Path, engine: Engine = "buffered") -> None:
        from stoker.io.direct import FileWriter  # noqa: PLC0415  2 ms that only who writes needs to spend

        self.target = target
        self.size_bytes = 0
        self.engine: EngineChoice | None = None
        make_dirs(target.parent)
        self._fd, self._temp = _open_temp(target.parent)
        self._out = FileWriter(self._fd, engine, str(target))

    def write(self, data: ReadBuffer) -> None:
        """Append all of `data`. Raises OSError, ClosedError after commit or discard.

        UnsupportedError if direct I/O was asked for by name and is not possible.
        """
        self._check_open()
        self._out.write(data)
        self.size_bytes += view(data).nbytes

    def commit(self, *, if_absent: bool = False) -> os.stat_result:
        """Make the bytes durable, then visible under `target`, then the name durable; returns the file's stat.

        Replaces an existing file as a whole, or with `if_absent` raises FileExistsError: exactly one of several
        writers wins. Raises UnsupportedError where the file system can neither link nor rename without replacing.
        """
        self._check_open()
        self.engine = self._out.finish()
        with contextlib.suppress(OSError):  # a file system without settable times keeps its own, coarser one
            stamp = _next_stamp_ns()
            os.utime(self._fd, ns=(stamp, stamp))
        os.fsync(self._fd)
        crash.durable("fsync", str(self._temp))
        crash.point("atomic-synced")
        # Opened before the name appears: whoever waited for it may rename the directory at once (a checkpoint's last
        # receipt is there, so the step is promoted), and then its old path leads nowhere.
        with _opened_dir(self.target.parent) as directory_fd:
            if if_absent:
                self._publish_new()
            else:
                self._temp.replace(self.target)
                crash.durable("rename", str(self.target))
                crash.point("atomic-renamed")
            _sync_opened_dir(directory_fd, self.target.parent)
        result = os.fstat(self._fd)
        self._close()
        return result

    def discard(self) -> None:
        """Remove the temporary file; no effect after `commit`."""
        if self._fd < 0:
            return
        with contextlib.suppress(FileNotFoundError):  # its directory was renamed or removed, or a commit came half-way
            self._temp.unlink()
            crash.durable("unlink", str(self._temp))
            crash.point("atomic-discarded")
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def _publish_new(self) -> None:
        try:
            os.link(self._temp, self.target)
        except FileExistsError:
            if not self._is_target():  # NFS answers a repeated request with EEXIST though the first one made the link
                raise
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            _rename_noreplace(self._temp, self.target)
            crash.durable("rename", str(self.target))
            crash.point("atomic-renamed-new")
            return
        crash.durable("link", str(self.target))
        crash.point("atomic-linked")
        self._temp.unlink()
        crash.durable("unlink", str(self._temp))
        crash.point("atomic-unlinked")

    def _is_target(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._fd), self.target.lstat())
        except FileNotFoundError:
            return False

    def _check_open(self) -> None:
        if self._fd < 0:
            raise ClosedError("the file is committed or discarded", str(self.target))

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)


def write_file(path: Path, data: ReadBuffer, *, if_absent: bool = False) -> os.stat_result:
    """Store `data` at `path`, atomically and durably, making parent directories; returns the file's stat.

    Raises OSError; FileExistsError if `if_absent` and something is there.
    """
    with AtomicFile(path) as file:
        file.write(data)
        return file.commit(if_absent=if_absent)


def fsync_dir(directory: Path) -> None:
    """Make the names in `directory` durable. File systems that cannot sync a directory are taken at their word."""
    with _opened_dir(directory) as fd:
        _sync_opened_dir(fd, directory)


@contextlib.contextmanager
def _opened_dir(directory: Path) -> Iterator[int]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _sync_opened_dir(fd: int, directory: Path) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_DIR_SYNC:
            raise
    crash.durable("fsync-dir", str(directory))
    crash.point("dir-synced")


def make_dirs(directory: Path, mode: int = _DIR_MODE) -> None:
    """Make `directory` and its missing parents, each durable in its own parent. Raises NotADirectoryError."""
    missing = []
    at = directory.absolute()  # so that the way up ends at the root
    while not at.is_dir():
        missing.append(at)
        at = at.parent
    for new in reversed(missing):
        try:
            new.mkdir(mode)
        except FileExistsError:
            if not new.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "a file is in the way of a directory", str(new)) from None
        else:
            crash.durable("mkdir", str(new))
            crash.point("dir-made")
        fsync_dir(new.parent)  # also for one that another process made just now: it may not have come this far


def rename_dir(source: Path, target: Path) -> None:
    """Rename directory `source` to `target`, atomically and durably; parents of `target` are made.

    rename(2) itself refuses a directory that holds anything (and takes the place of an empty one), on every file
    system, so no race is left. Raises FileExistsError, FileNotFoundError, NotADirectoryError if `source` is a file.
    """
    if not stat.S_ISDIR(source.lstat().st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "not a directory", str(source))
    make_dirs(target.parent)
    fsync_dir(source)
    try:
        source.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise FileExistsError(errno.EEXIST, "something is there already", str(target)) from error
        raise
    crash.durable("rename", str(target))
    crash.point("tree-renamed")
    fsync_dir(target.parent)
    if source.parent != target.parent:
        fsync_dir(source.parent)


def rename_file(source: Path, target: Path) -> None:
    """Rename file `source` to `target` in the same directory, durably, never over another file.

    Where the file system cannot refuse by itself, `target` is looked up first: the caller keeps others away. Raises
    FileExistsError, FileNotFoundError.
    """
    try:
        _rename_noreplace(source, target)
    except UnsupportedError:
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        source.rename(target)
    crash.durable("rename", str(target))
    crash.point("file-renamed")
    fsync_dir(target.parent)


def remove_file(path: Path) -> bool:
    """Remove the file at `path`, durably; False if nothing was there. Raises IsADirectoryError and other OSErrors."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    crash.durable("unlink", str(path))
    crash.point("file-removed")
    fsync_dir(path.parent)
    return True


def remove_tree(directory: Path) -> bool:
    """Remove `directory` and everything under it, durably; False if it was not there.

    It vanishes as a whole first (renamed to a temporary name), so that a killed removal never leaves a part visible;
    `sweep` finishes what is left. Links are removed, not followed.
    """
    doomed = directory.with_name(_temp_name())
    try:
        if not stat.S_ISDIR(directory.lstat().st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", str(directory))
        directory.rename(doomed)
    except FileNotFoundError:
        return False
    crash.durable("rename", str(doomed))
    crash.point("tree-hidden")
    fsync_dir(directory.parent)
    _remove_entries(doomed)
    fsync_dir(directory.parent)
    return True


def sweep(directory: Path, *, now_s: float | None = None) -> int:
    """Remove what killed writers and removals left anywhere under `directory`; returns how many files and trees.

    A temporary file of this host goes when its lock is free, one of another host (or where locks do not exist) when
    it was last written 24 h before `now_s` (seconds since the epoch; default: now). Safe beside live writers.
    """
    now_s = time.time() if now_s is None else now_s
    count = 0
    for path, is_dir in _temps(directory):
        if is_dir:
            _remove_entries(path)
            count += 1
        else:
            count += _sweep_file(path, now_s)
    if count:
        import logging  # noqa: PLC0415  3 ms that only who has something to say waits for

        logging.getLogger("stoker.io").info("removed %d unfinished files under %s", count, directory)
    return count


def _temps(directory: Path) -> Iterator[tuple[Path, bool]]:
    for root, dirs, files in os.walk(directory):
        doomed = [name for name in dirs if name.startswith(TEMP_PREFIX)]
        dirs[:] = [name for name in dirs if not name.startswith(TEMP_PREFIX)]
        for name in doomed:
            yield Path(root, name), True
        for name in files:
            if name.startswith(TEMP_PREFIX):
                yield Path(root, name), False


def _sweep_file(path: Path, now_s: float) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # gone, a link, or not ours to touch
        return False
    try:
        old = now_s - os.fstat(fd).st_mtime > FOREIGN_TEMP_S
        if not (old or path.name.startswith(f"{TEMP_PREFIX}{host_id()}-")):
            return False
        try:
            if not ofd.try_lock(fd):
                return False
        except OSError as error:
            if not (old and ofd.is_unsupported(error)):
                return False
        # The lock is ours: a writer that had not locked yet finds its file gone and takes another name, and one that
        # has finished left nothing under this name.
        try:
            path.unlink()
        except OSError:
            return False
        crash.durable("unlink", str(path))
        crash.point("temp-swept")
        return True
    finally:
        os.close(fd)


def _remove_entries(doomed: Path) -> None:
    """Remove a hidden tree; others may be removing it as well."""
    for root, dirs, files, fd in os.fwalk(doomed, topdown=False, follow_symlinks=False):
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=fd)
                crash.durable("unlink", f"{root}/{name}")
                crash.point("tree-file-removed")
        for name in dirs:
            _remove_entry_dir(name, f"{root}/{name}", fd)
    _remove_entry_dir(str(doomed), str(doomed), None)


def _remove_entry_dir(name: str, what: str, parent_fd: int | None) -> None:
    try:
        os.rmdir(name, dir_fd=parent_fd)
    except FileNotFoundError:
        return
    except NotADirectoryError:  # a link to a directory is listed among the directories
        os.unlink(name, dir_fd=parent_fd)
    crash.durable("rmdir", what)
    crash.point("tree-dir-removed")


def _temp_name() -> str:
    return f"{TEMP_PREFIX}{host_id()}-{os.urandom(8).hex()}"


def _open_temp(directory: Path) -> tuple[int, Path]:
    """A new, locked temporary file. A sweep may see it before it is locked: then it is gone, and another is made."""
    for _ in range(_TEMP_TRIES):
        path = directory / _temp_name()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(path, flags, _FILE_MODE)
        try:
            locked = ofd.try_lock(fd)
        except OSError as error:
            if not ofd.is_unsupported(error):
                os.close(fd)
                path.unlink(missing_ok=True)
                raise
            return fd, path
        if locked and os.fstat(fd).st_nlink > 0:
            return fd, path
        os.close(fd)
    raise StoreError(
        f"{_TEMP_TRIES} temporary files in a row were removed while they were made",
        str(directory),
        hint="something removes new files there",
    )


def _next_stamp_ns() -> int:
    """The time in ns, never the same twice: two files of one size, made within a kernel tick, differ in it."""
    global _last_stamp_ns  # noqa: PLW0603  one clock for the process
    with _stamp_lock:
        _last_stamp_ns = max(_last_stamp_ns + 1, time.time_ns())
        return _last_stamp_ns


def _rename_noreplace(source: Path, target: Path) -> None:
    code = _renameat2(source, target, _RENAME_NOREPLACE)
    if code in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        raise UnsupportedError(
            "the file system can neither link nor rename without replacing, so that one of several writers wins",
            str(target),
            hint="keep the home of runs on a file system with hard links (ext4, XFS, NFS, Lustre, ...)",
        )
    if code:
        raise OSError(code, os.strerror(code), str(target))


def _renameat2(source: Path, target: Path, flags: int) -> int:
    """renameat2(2), which Python does not have; returns errno, 0 for done."""
    import ctypes  # noqa: PLC0415  1 ms, for the few that need it

    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        return errno.ENOSYS
    done = function(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flags)
    return 0 if done == 0 else ctypes.get_errno()
