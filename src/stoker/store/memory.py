"""`MemoryStore`: objects in the memory of this process, for tests and trials."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from stoker.errors import AlreadyExists, ClosedError, ConfigError, NotFound, Truncated
from stoker.io.buffers import ReadBuffer, WriteBuffer, view
from stoker.store.base import StoreLimits
from stoker.units import MIB, format_bytes
from stoker.values import ByteRange, Key, ObjectInfo

IF_ABSENT_MAX_BYTES: Final = 64 * MIB

_LIMITS: Final = StoreLimits(if_absent_max_bytes=IF_ABSENT_MAX_BYTES, promotes=False, latency_s=1e-6)


class MemoryContents:
    """The objects of a memory store: shared by all that are opened under one name."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[Key, tuple[bytes, ObjectInfo]] = {}
        self.version = 0

    def put(self, key: Key, data: bytes, *, if_absent: bool) -> ObjectInfo | None:
        """Store `data`; None if `if_absent` and something is there."""
        with self.lock:
            if if_absent and key in self.objects:
                return None
            self.version += 1
            info = ObjectInfo(key, len(data), str(self.version))
            self.objects[key] = (data, info)
            return info


class MemoryStore:
    """Objects as bytes in a dictionary. `contents`: what another MemoryStore holds, to see the same objects."""

    def __init__(self, name: str = "", contents: MemoryContents | None = None) -> None:
        self.contents = MemoryContents() if contents is None else contents
        self._url = f"memory://{name}"
        self._closed = False

    @property
    def url(self) -> str:
        """memory://NAME."""
        return self._url

    @property
    def limits(self) -> StoreLimits:
        """Nothing can be promoted: like an object store, not like a file system."""
        return _LIMITS

    def stat(self, key: Key) -> ObjectInfo:
        """Size and version. Raises NotFound."""
        return self._get(key)[1]

    def read_into(self, key: Key, start: int, buffer: WriteBuffer) -> None:
        """Fill `buffer` with the object's bytes from `start` on. Raises NotFound, Truncated."""
        target = view(buffer)
        target[:] = self._part(key, start, start + len(target))

    def read(self, key: Key, range: ByteRange | None = None) -> bytes:  # noqa: A002  the field's word
        """The object, or a range of it. Raises NotFound, Truncated."""
        if range is None:
            return self._get(key)[0]
        return bytes(self._part(key, range.start, range.stop))

    def write(self, key: Key, data: ReadBuffer, *, if_absent: bool = False) -> ObjectInfo:
        """Store a copy of `data`. Raises AlreadyExists if `if_absent` and something is there."""
        self._check_open()
        key, size = Key(key), view(data).nbytes
        if if_absent and size > IF_ABSENT_MAX_BYTES:
            raise ConfigError(
                f"{format_bytes(size)} are too many for a write that must be the first: "
                f"at most {format_bytes(IF_ABSENT_MAX_BYTES)}",
                where=f"{key!r} in {self.url}",
                hint="write large objects with writer(), and a small one last that stands for them",
            )
        info = self.contents.put(key, bytes(view(data)), if_absent=if_absent)
        if info is None:
            raise AlreadyExists(f"cannot write {str(key)!r}: it is there already", self.url)
        return info

    def writer(self, key: Key, *, size_bytes: int = 0) -> MemoryWriter:  # noqa: ARG002  there are no parts
        """Write an object piece by piece."""
        self._check_open()
        return MemoryWriter(Key(key), self.contents, self.url)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key begins with `prefix`, as they are now."""
        self._check_open()
        with self.contents.lock:
            found = [info for key, (_, info) in self.contents.objects.items() if key.startswith(prefix)]
        return iter(found)

    def delete(self, key: Key) -> None:
        """Remove an object; no error if it is not there."""
        self._check_open()
        with self.contents.lock:
            self.contents.objects.pop(Key(key), None)

    def path(self, key: Key) -> Path | None:
        """None: there are no files."""
        self._check_open()
        Key(key)
        return None

    def close(self) -> None:
        """Refuse further use of this store; the objects stay for others of the same name."""
        self._closed = True

    def _get(self, key: Key) -> tuple[bytes, ObjectInfo]:
        self._check_open()
        with self.contents.lock:
            found = self.contents.objects.get(Key(key))
        if found is None:
            raise NotFound(f"no object {str(key)!r}", self.url)
        return found

    def _part(self, key: Key, start: int, stop: int) -> memoryview:
        data, info = self._get(key)
        if stop > info.size_bytes:
            raise Truncated(f"object {str(key)!r} ends at byte {info.size_bytes:,}, wanted up to {stop:,}", self.url)
        return memoryview(data)[start:stop]

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the store is closed", self.url)


class MemoryWriter:
    """An object being collected."""

    def __init__(self, key: Key, contents: MemoryContents, url: str) -> None:
        self._key = key
        self._contents = contents
        self._url = url
        self._data: bytearray | None = bytearray()

    def write(self, data: ReadBuffer) -> None:
        """Append bytes. Raises ClosedError after commit or discard."""
        self._collected().extend(view(data))

    def commit(self) -> ObjectInfo:
        """Make the object visible."""
        info = self._contents.put(self._key, bytes(self._collected()), if_absent=False)
        if info is None:
            raise AlreadyExists(f"cannot write {str(self._key)!r}: it is there already", self._url)
        self._data = None
        return info

    def discard(self) -> None:
        """Forget what was written; no effect after `commit`."""
        self._data = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def _collected(self) -> bytearray:
        if self._data is None:
            raise ClosedError("the object is committed or discarded", f"{str(self._key)!r} in {self._url}")
        return self._data
