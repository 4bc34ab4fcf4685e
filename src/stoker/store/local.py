"""`LocalStore`: objects as files under a directory, on a local or a mounted file system."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from stoker.errors import AlreadyExists, ClosedError, ConfigError, NotFound, StokerError, StoreError, Truncated
from stoker.io import atomic
from stoker.io.atomic import TEMP_PREFIX, AtomicFile
from stoker.io.buffers import ReadBuffer, WriteBuffer, view
from stoker.io.os_errors import translate, translating, unnameable
from stoker.store.base import StoreLimits
from stoker.store.descriptors import Descriptors, OpenFile
from stoker.units import MIB, format_bytes
from stoker.values import ByteRange, Key, ObjectInfo

if TYPE_CHECKING:  # whose samples are small never loads them
    from stoker.io.choose import Engine
    from stoker.store.engines import Engines, EngineStats

IF_ABSENT_MAX_BYTES: Final = 64 * MIB
OPEN_FILES: Final = 64
_NEVER_BYTES: Final = 1 << 63

_CANNOT_TELL: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})  # of RWF_NOWAIT
_LIMITS: Final = StoreLimits(if_absent_max_bytes=IF_ABSENT_MAX_BYTES, promotes=True, latency_s=100e-6)


class LocalStore:
    """Objects as plain files below `root`: key `a/b` is the file `<root>/a/b`.

    Reads go straight into the caller's buffer through descriptors that are kept open. Names that begin with `.tmp-`
    are unfinished writes and never objects; `sweep` removes those of dead writers. Links are not followed, below the
    root. With `create` the root is made now, otherwise by the first write.

    `engine`: whether large objects pass the page cache by. "buffered" (default) is right for what is read again and
    again, as data sets are; "auto" for what is written and read once: large reads and writes go directly where the
    file system, the memory and the page cache allow, and `stats` says why not where they do not; "direct" raises
    UnsupportedError where it is not possible. `read` and `write`, for small objects, use the page cache always.
    """

    def __init__(self, root: Path | str, *, create: bool = False, engine: Engine = "buffered") -> None:
        with translating("cannot use the directory", Path(root)):
            self.root = Path(os.path.realpath(Path(root)))
        self._base = f"{self.root}/" if self.root.name else "/"
        self._descriptors = Descriptors(OPEN_FILES)
        self._engine = engine
        self._one_choice = threading.Lock()
        self._choices: Engines | None = None
        self._direct_least = _NEVER_BYTES if engine == "buffered" else self._engines().least_bytes
        self._closed = False
        with translating("cannot use the directory", self.root):
            if self.root.exists() and not self.root.is_dir():
                raise StoreError("a file, where a folder is needed", str(self.root), "give the folder it lies in")
            if create:
                atomic.make_dirs(self.root)
            if engine != "buffered":
                self._engines().check(self.root)

    @property
    def url(self) -> str:
        """The root directory."""
        return str(self.root)

    @property
    def limits(self) -> StoreLimits:
        """A small read costs about 0.1 ms; directories can be promoted."""
        return _LIMITS

    def stat(self, key: Key) -> ObjectInfo:
        """Size and version (size and modification time in ns). Raises NotFound, AccessDenied."""
        path = self._place(key)
        with _reading(key, path):
            state = os.lstat(path)
            if stat.S_ISLNK(state.st_mode):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if not stat.S_ISREG(state.st_mode):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return _info(Key(key), state)

    def read_into(self, key: Key, start: int, buffer: WriteBuffer) -> None:
        """Fill `buffer` with the object's bytes from `start` on, by preadv into it. Raises NotFound, Truncated.

        UnsupportedError if direct I/O was asked for by name and is not possible.
        """
        path = self._place(key)
        rest = view(buffer)
        # Without context managers, which cost as much as all else here besides the copy.
        try:
            file = self._descriptors.acquire(path)
            try:
                if len(rest) < self._direct_least:
                    count = os.preadv(file.fd, [rest], start)
                    if count == len(rest) > 0:
                        return
                    start, rest = start + count, rest[count:]
                self._read_rest(key, path, file, start, rest)
            finally:
                self._descriptors.release(file)
        except StokerError:  # some are an OSError too
            raise
        except OSError as error:
            raise _translated(error, key, path) from error

    def _read_rest(self, key: Key, path: str, file: OpenFile, start: int, rest: memoryview) -> None:
        """What one preadv did not fill: large reads, and those that end early."""
        if not rest and start > (size := os.fstat(file.fd).st_size):
            raise _truncated(key, path, start, size)
        if len(rest) >= self._direct_least:
            direct_count = self._engines().read(file, path, start, rest)
            if direct_count is not None:
                start += direct_count
                rest = rest[direct_count:]
        _fill(key, path, file.fd, start, rest)

    def read_each(self, keys: Sequence[Key], starts: Sequence[int], buffers: Sequence[memoryview]) -> None:
        """Fill each buffer from its start on, through the page cache, one preadv each. Raises NotFound, Truncated."""
        files: dict[Key, OpenFile] = {}
        preadv = os.preadv
        key = keys[0] if keys else Key("none")
        try:
            for key, start, buffer in zip(keys, starts, buffers, strict=True):
                file = files.get(key)
                if file is None:
                    file = files[key] = self._descriptors.acquire(self._place(key))
                count = preadv(file.fd, (buffer,), start)
                if count != len(buffer):
                    _fill(key, self._place(key), file.fd, start + count, buffer[count:])
        except StokerError:  # some are an OSError too
            raise
        except OSError as error:
            raise _translated(error, key, self._place(key)) from error
        finally:
            for file in files.values():
                self._descriptors.release(file)

    def read_cached(
        self, key: Key, starts: Sequence[int], buffers: Sequence[memoryview], digest: Callable[[memoryview], int]
    ) -> list[int] | None:
        """Fill buffers as long as the page cache has their bytes, one preadv each; returns `digest` of those.

        None where the file system cannot say so, or reads go past the page cache. Finding the file costs 4 us, and to
        learn that bytes are not cached 13 us (ext4). What is missing in any other way counts as not cached.
        """
        if self._engine != "buffered":
            return None
        found: list[int] = []
        try:
            file = self._descriptors.acquire(self._place(key))
            try:
                fd, preadv, flags = file.fd, os.preadv, os.RWF_NOWAIT
                for start, buffer in zip(starts, buffers, strict=True):
                    if preadv(fd, (buffer,), start, flags) != len(buffer):
                        break
                    found.append(digest(buffer))
            finally:
                self._descriptors.release(file)
        except StokerError:
            raise
        except OSError as error:
            if error.errno in _CANNOT_TELL:
                return None
        return found

    def read(self, key: Key, range: ByteRange | None = None) -> bytes:  # noqa: A002  the field's word
        """The object, or a range of it. Raises NotFound, Truncated."""
        path = self._place(key)
        with _reading(key, path), self._descriptors.open(path) as file:
            fd = file.fd
            size = os.fstat(fd).st_size
            start, stop = (0, size) if range is None else (range.start, range.stop)
            if stop > size:
                raise _truncated(key, path, stop, size)
            parts = []
            while start < stop:
                parts.append(os.pread(fd, stop - start, start))
                if not parts[-1]:
                    raise _truncated(key, path, stop, start)
                start += len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, key: Key, data: ReadBuffer, *, if_absent: bool = False) -> ObjectInfo:
        """Store `data` under `key`, atomically and durably; costs two fsyncs. Raises AlreadyExists if `if_absent`."""
        path = self._locate(key)
        size = view(data).nbytes
        if if_absent and size > IF_ABSENT_MAX_BYTES:
            raise ConfigError(
                f"{format_bytes(size)} are too many for a write that must be the first: "
                f"at most {format_bytes(IF_ABSENT_MAX_BYTES)}",
                where=f"{key!r} in {self.url}",
                hint="write large objects with writer(), and a small one last that stands for them",
            )
        with translating(f"cannot write {str(key)!r}", path, needed_bytes=size):
            return _info(Key(key), atomic.write_file(path, data, if_absent=if_absent))

    def writer(self, key: Key, *, size_bytes: int = 0) -> LocalWriter:  # noqa: ARG002  there are no parts
        """Write a large object piece by piece."""
        return LocalWriter(Key(key), self._locate(key), self._engines())

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key begins with `prefix`; only the directories that can hold some are walked."""
        self._check_open()
        return self._list(prefix)

    def delete(self, key: Key) -> None:
        """Remove an object, durably; no error if it is not there."""
        path = self._locate(key)
        with translating(f"cannot delete {str(key)!r}", path):
            try:
                atomic.remove_file(path)
            except (IsADirectoryError, NotADirectoryError):  # a prefix, or below an object: no object there
                return

    def path(self, key: Key) -> Path | None:
        """The file that holds the object, or would."""
        return self._locate(key)

    def promote(self, source: str, target: str) -> None:
        """Rename directory `source` to `target`, atomically and durably. Raises NotFound, AlreadyExists."""
        old, new = self._locate(Key(source)), self._locate(Key(target))
        with translating(f"cannot rename {source!r} to {target!r}", old):
            try:
                atomic.rename_dir(old, new)
            except NotADirectoryError as error:
                raise NotFound(f"cannot rename {source!r}: not a directory", str(old)) from error
            except FileExistsError as error:
                raise AlreadyExists(f"cannot rename {source!r}: {target!r} is there already", str(new)) from error

    def delete_tree(self, prefix: str) -> None:
        """Remove directory `prefix` and all under it: it vanishes as a whole, then its files are removed one by one."""
        path = self._locate(Key(prefix))
        with translating(f"cannot delete {prefix!r}", path):
            try:
                atomic.remove_tree(path)
            except NotADirectoryError:
                return

    def list_dirs(self, prefix: str = "") -> Iterator[str]:
        """Names of the directories directly under directory `prefix`; nothing if it is not there.

        Links count, wherever they lead: a directory may have been moved elsewhere, and is missed if that is not there.
        """
        base = self._locate(Key(prefix)) if prefix else self._checked_root()
        with translating(f"cannot list {prefix!r}", base):
            entries = _entries(base)
        return (entry.name for entry in entries if entry.is_dir(follow_symlinks=False) or entry.is_symlink())

    def sweep(self, prefix: str = "") -> int:
        """Remove what killed writers left under directory `prefix` (empty: everywhere); returns how much it was."""
        base = self._locate(Key(prefix)) if prefix else self._checked_root()
        with translating(f"cannot sweep {prefix!r}", base):
            return atomic.sweep(base)

    def stats(self) -> EngineStats:
        """How large reads and writes went, directly or through the page cache, and why."""
        return self._engines().stats()

    def _engines(self) -> Engines:
        from stoker.io.choose import check_engine  # noqa: PLC0415  4 ms that no reader of small samples needs to spend
        from stoker.store.engines import Engines  # noqa: PLC0415

        with self._one_choice:
            if self._choices is None:
                self._choices = Engines(check_engine(self._engine))
            return self._choices

    def close(self) -> None:
        """Close the kept descriptors. Idempotent."""
        self._closed = True
        self._descriptors.close()

    def _list(self, prefix: str) -> Iterator[ObjectInfo]:
        directory, slash, _ = prefix.rpartition("/")
        try:
            base = self.root / Key(directory) if slash else self.root
        except ConfigError:  # no key can begin like this
            return
        with translating(f"cannot list {prefix!r}", base):
            yield from _walk(base, f"{directory}/" if slash else "", prefix)

    def _locate(self, key: str) -> Path:
        return Path(self._place(key))

    def _place(self, key: str) -> str:
        """The file of `key`, as a text: making a Path costs as much as reading a small object."""
        self._check_open()
        key = Key(key)
        if TEMP_PREFIX in key and any(part.startswith(TEMP_PREFIX) for part in key.split("/")):
            raise ConfigError(f"not a key for an object: {str(key)!r}: {TEMP_PREFIX}* are unfinished files", self.url)
        return f"{self._base}{key}"

    def _checked_root(self) -> Path:
        self._check_open()
        return self.root

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the store is closed", self.url)


class LocalWriter:
    """An object being written to a temporary file beside its place."""

    def __init__(self, key: Key, path: Path, engines: Engines) -> None:
        self._key = key
        self._path = path
        self._engines = engines
        with self._translating():
            self._file = AtomicFile(path, engines.requested)

    def write(self, data: ReadBuffer) -> None:
        """Append bytes. Raises CapacityError, AccessDenied, ClosedError after commit or discard."""
        with self._translating(view(data).nbytes):
            self._file.write(data)

    def commit(self) -> ObjectInfo:
        """Make the object durable, then visible."""
        with self._translating(self._file.size_bytes):
            info = _info(self._key, self._file.commit())
        if self._file.engine is not None:
            self._engines.note(self._file.engine, str(self._path))
        return info

    def discard(self) -> None:
        """Remove what was written; no effect after `commit`."""
        with self._translating():
            self._file.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def _translating(self, needed_bytes: int | None = None) -> AbstractContextManager[None]:
        return translating(f"cannot write {str(self._key)!r}", self._path, needed_bytes=needed_bytes)


@contextmanager
def _reading(key: str, path: str) -> Iterator[None]:
    """Raise what an OSError inside the block means for a reader of `key`: an object that is not there is NotFound."""
    try:
        yield
    except StokerError:
        raise
    except OSError as error:
        raise _translated(error, key, path) from error
    except ValueError as error:
        found = unnameable(error, f"cannot read {str(key)!r}", Path(path))
        if found is None:
            raise
        raise found from error


def _translated(error: OSError, key: str, path: str) -> StokerError:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return NotFound(f"no object {str(key)!r}", path)
    return translate(error, f"cannot read {str(key)!r}", Path(path))


def _fill(key: str, path: str, fd: int, start: int, rest: memoryview) -> None:
    """Fill `rest` from `start` on, in as many reads as that takes."""
    while rest:
        count = os.preadv(fd, (rest,), start)
        if count == 0:
            raise _truncated(key, path, start + len(rest), os.fstat(fd).st_size)
        start += count
        rest = rest[count:]


def _truncated(key: str, path: str, wanted: int, size: int) -> Truncated:
    return Truncated(f"object {str(key)!r} ends at byte {size:,}, wanted up to {wanted:,}", path)


def _info(key: Key, state: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, state.st_size, f"{state.st_size}-{state.st_mtime_ns}")


def _walk(directory: Path, base: str, prefix: str) -> Iterator[ObjectInfo]:
    """Objects under `directory`, whose keys begin with `base`, that begin with `prefix`."""
    for entry in _entries(directory):
        name = base + entry.name
        if entry.is_dir(follow_symlinks=False):
            if name.startswith(prefix) or prefix.startswith(f"{name}/"):
                yield from _walk(directory / entry.name, f"{name}/", prefix)
        elif name.startswith(prefix) and entry.is_file(follow_symlinks=False):
            try:
                yield _info(Key(name), entry.stat(follow_symlinks=False))
            except (ConfigError, FileNotFoundError):  # a name that no key can have, or gone since
                continue


def _entries(directory: Path) -> tuple[os.DirEntry[str], ...]:
    try:
        with os.scandir(directory) as found:
            return tuple(entry for entry in found if not entry.name.startswith(TEMP_PREFIX))
    except (FileNotFoundError, NotADirectoryError):
        return ()
