"""Stores around another store: one that is slow, one that keeps a record, one that fails when told to.

Each passes StoreSuite, promotes if the inner store does, and can be put around any other.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, Self, cast

from stoker.errors import InternalError, StokerError
from stoker.io.buffers import ReadBuffer, WriteBuffer, view
from stoker.store.base import ObjectWriter, PromotingStore, Store, StoreLimits
from stoker.values import ByteRange, Key, ObjectInfo

Verb = Literal["stat", "read", "write", "commit", "discard", "list", "delete", "promote", "delete_tree"]


class WrappedStore:
    """Passes everything on to `inner`; the base of the stores here."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    @property
    def url(self) -> str:
        """Where the inner store is."""
        return self.inner.url

    @property
    def limits(self) -> StoreLimits:
        """What the inner store can do."""
        return self.inner.limits

    def stat(self, key: Key) -> ObjectInfo:
        """Size and version. Raises NotFound."""
        return self.inner.stat(key)

    def read_into(self, key: Key, start: int, buffer: WriteBuffer) -> None:
        """Fill `buffer` with the object's bytes from `start` on. Raises NotFound, Truncated."""
        self.inner.read_into(key, start, buffer)

    def read(self, key: Key, range: ByteRange | None = None) -> bytes:  # noqa: A002  the field's word
        """The object, or a range of it. Raises NotFound, Truncated."""
        return self.inner.read(key, range)

    def write(self, key: Key, data: ReadBuffer, *, if_absent: bool = False) -> ObjectInfo:
        """Store `data` under `key`. Raises AlreadyExists if `if_absent`."""
        return self.inner.write(key, data, if_absent=if_absent)

    def writer(self, key: Key, *, size_bytes: int = 0) -> ObjectWriter:
        """Write an object piece by piece."""
        return self.inner.writer(key, size_bytes=size_bytes)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key begins with `prefix`."""
        return self.inner.list(prefix)

    def delete(self, key: Key) -> None:
        """Remove an object."""
        self.inner.delete(key)

    def path(self, key: Key) -> Path | None:
        """The file that holds the object, where there is one."""
        return self.inner.path(key)

    def promote(self, source: str, target: str) -> None:
        """Rename directory `source` to `target`, if the inner store promotes."""
        self._promoting().promote(source, target)

    def delete_tree(self, prefix: str) -> None:
        """Remove directory `prefix`, if the inner store promotes."""
        self._promoting().delete_tree(prefix)

    def list_dirs(self, prefix: str = "") -> Iterator[str]:
        """Names of the directories under `prefix`, if the inner store promotes."""
        return self._promoting().list_dirs(prefix)

    def sweep(self, prefix: str = "") -> int:
        """Remove what killed writers left under `prefix`; nothing, if the inner store keeps no files."""
        return self._promoting().sweep(prefix) if self.inner.limits.promotes else 0

    def close(self) -> None:
        """Close the inner store."""
        self.inner.close()

    def _promoting(self) -> PromotingStore:
        if not self.inner.limits.promotes:
            raise InternalError("the store cannot promote: ask limits.promotes first", self.url)
        return cast("PromotingStore", self.inner)


class WrappedWriter:
    """Passes everything on to the inner writer."""

    def __init__(self, inner: ObjectWriter) -> None:
        self.inner = inner

    def write(self, data: ReadBuffer) -> None:
        """Append bytes."""
        self.inner.write(data)

    def commit(self) -> ObjectInfo:
        """Make the object durable and visible."""
        return self.inner.commit()

    def discard(self) -> None:
        """Forget the object."""
        self.inner.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()


class SlowStore(WrappedStore):
    """Every read takes `read_s` longer, every write or commit `write_s`; reads do not hold each other up.

    `limits.latency_s` says so, as that of a store far away would. `read_count` and `read_bytes` count.
    """

    def __init__(self, inner: Store, read_s: float = 0.03, write_s: float = 0.0) -> None:
        super().__init__(inner)
        self.read_s = read_s
        self.write_s = write_s
        self.read_count = 0
        self.read_bytes = 0
        self._lock = threading.Lock()

    @property
    def limits(self) -> StoreLimits:
        """The inner limits with `read_s` more of latency."""
        inner = self.inner.limits
        return replace(inner, latency_s=inner.latency_s + self.read_s)

    def read_into(self, key: Key, start: int, buffer: WriteBuffer) -> None:
        """Fill `buffer`, after the delay."""
        time.sleep(self.read_s)
        self.inner.read_into(key, start, buffer)
        self._count(view(buffer).nbytes)

    def read(self, key: Key, range: ByteRange | None = None) -> bytes:  # noqa: A002  the field's word
        """The object, or a range of it, after the delay."""
        time.sleep(self.read_s)
        data = self.inner.read(key, range)
        self._count(len(data))
        return data

    def write(self, key: Key, data: ReadBuffer, *, if_absent: bool = False) -> ObjectInfo:
        """Store `data`, after the delay."""
        time.sleep(self.write_s)
        return self.inner.write(key, data, if_absent=if_absent)

    def writer(self, key: Key, *, size_bytes: int = 0) -> ObjectWriter:
        """A writer whose commit is delayed."""
        return _SlowWriter(self.inner.writer(key, size_bytes=size_bytes), self.write_s)

    def _count(self, size_bytes: int) -> None:
        with self._lock:
            self.read_count += 1
            self.read_bytes += size_bytes


class _SlowWriter(WrappedWriter):
    def __init__(self, inner: ObjectWriter, write_s: float) -> None:
        super().__init__(inner)
        self._write_s = write_s

    def commit(self) -> ObjectInfo:
        time.sleep(self._write_s)
        return super().commit()


class StoreWrite(NamedTuple):
    """One change made through a RecordingStore.

    `verb`: write, commit (of a writer), discard (of a writer that had bytes), delete, promote or delete_tree; `key`:
    the object, or "source -> target"; `size_bytes`: bytes handed to the store.
    """

    verb: Verb
    key: str
    size_bytes: int


class RecordingStore(WrappedStore):
    """Records in `writes` every change that succeeded, and how many bytes were handed over in between."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.writes: list[StoreWrite] = []

    @property
    def written_bytes(self) -> int:
        """Bytes handed to the store so far, those of discarded writers too."""
        return sum(write.size_bytes for write in self.writes)

    def write(self, key: Key, data: ReadBuffer, *, if_absent: bool = False) -> ObjectInfo:
        """Store `data`, and record it."""
        info = self.inner.write(key, data, if_absent=if_absent)
        self.writes.append(StoreWrite("write", str(key), info.size_bytes))
        return info

    def writer(self, key: Key, *, size_bytes: int = 0) -> ObjectWriter:
        """A writer that is recorded when it commits, or when it is discarded with bytes in it."""
        return _RecordingWriter(self.inner.writer(key, size_bytes=size_bytes), str(key), self.writes)

    def delete(self, key: Key) -> None:
        """Remove an object, and record it."""
        self.inner.delete(key)
        self.writes.append(StoreWrite("delete", str(key), 0))

    def promote(self, source: str, target: str) -> None:
        """Rename a directory, and record it."""
        super().promote(source, target)
        self.writes.append(StoreWrite("promote", f"{source} -> {target}", 0))

    def delete_tree(self, prefix: str) -> None:
        """Remove a directory, and record it."""
        super().delete_tree(prefix)
        self.writes.append(StoreWrite("delete_tree", prefix, 0))


class _RecordingWriter(WrappedWriter):
    def __init__(self, inner: ObjectWriter, key: str, writes: list[StoreWrite]) -> None:
        super().__init__(inner)
        self._key = key
        self._writes = writes
        self._size_bytes = 0

    def write(self, data: ReadBuffer) -> None:
        super().write(data)
        self._size_bytes += view(data).nbytes

    def commit(self) -> ObjectInfo:
        info = super().commit()
        self._writes.append(StoreWrite("commit", self._key, self._size_bytes))
        self._size_bytes = 0
        return info

    def discard(self) -> None:
        super().discard()
        if self._size_bytes:
            self._writes.append(StoreWrite("discard", self._key, self._size_bytes))
            self._size_bytes = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """Raise a copy of `error` instead of doing `verb`, on keys that begin with `prefix`.

    `skip` such operations succeed first, then `count` fail (None: all from then on). With `after_bytes` only bytes
    count: write() and the writers hand over that many in all, the write that would pass them fails (a full disk).
    "read" stands for read and read_into, "write" for write() and for each write of a writer.
    """

    verb: Verb
    error: StokerError
    prefix: str = ""
    skip: int = 0
    count: int | None = 1
    after_bytes: int | None = None


class _ArmedFault:
    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.seen_count = 0
        self.seen_bytes = 0

    def strikes(self, verb: Verb, key: str, size_bytes: int) -> bool:
        fault = self.fault
        if fault.verb != verb or not key.startswith(fault.prefix):
            return False
        if fault.after_bytes is not None:
            if self.seen_bytes + size_bytes > fault.after_bytes:
                return True
            self.seen_bytes += size_bytes
            return False
        self.seen_count += 1
        past = self.seen_count - fault.skip
        return past > 0 and (fault.count is None or past <= fault.count)


class FaultStore(WrappedStore):
    """Raises the errors of its `faults` where they say; `raised_count` counts them."""

    def __init__(self, inner: Store, faults: Iterable[Fault] = ()) -> None:
        super().__init__(inner)
        self.raised_count = 0
        self._faults = [_ArmedFault(fault) for fault in faults]
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> None:
        """Arm one more fault; it counts from now."""
        with self._lock:
            self._faults.append(_ArmedFault(fault))

    def clear(self) -> None:
        """Disarm all faults."""
        with self._lock:
            self._faults.clear()

    def check(self, verb: Verb, key: str, size_bytes: int = 0) -> None:
        """Raise the error of the first fault that strikes here."""
        with self._lock:
            for armed in self._faults:
                if armed.strikes(verb, key, size_bytes):
                    self.raised_count += 1
                    raise copy.copy(armed.fault.error)

    def stat(self, key: Key) -> ObjectInfo:
        """Size and version, or a fault."""
        self.check("stat", key)
        return self.inner.stat(key)

    def read_into(self, key: Key, start: int, buffer: WriteBuffer) -> None:
        """Fill `buffer`, or a fault."""
        self.check("read", key)
        self.inner.read_into(key, start, buffer)

    def read(self, key: Key, range: ByteRange | None = None) -> bytes:  # noqa: A002  the field's word
        """The object, or a range of it, or a fault."""
        self.check("read", key)
        return self.inner.read(key, range)

    def write(self, key: Key, data: ReadBuffer, *, if_absent: bool = False) -> ObjectInfo:
        """Store `data`, or a fault."""
        self.check("write", key, view(data).nbytes)
        return self.inner.write(key, data, if_absent=if_absent)

    def writer(self, key: Key, *, size_bytes: int = 0) -> ObjectWriter:
        """A writer whose writes and commit may fail."""
        return _FaultWriter(self.inner.writer(key, size_bytes=size_bytes), str(key), self)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key begins with `prefix`, or a fault."""
        self.check("list", prefix)
        return self.inner.list(prefix)

    def delete(self, key: Key) -> None:
        """Remove an object, or a fault."""
        self.check("delete", key)
        self.inner.delete(key)

    def promote(self, source: str, target: str) -> None:
        """Rename a directory, or a fault."""
        self.check("promote", source)
        super().promote(source, target)

    def delete_tree(self, prefix: str) -> None:
        """Remove a directory, or a fault."""
        self.check("delete_tree", prefix)
        super().delete_tree(prefix)


class _FaultWriter(WrappedWriter):
    def __init__(self, inner: ObjectWriter, key: str, store: FaultStore) -> None:
        super().__init__(inner)
        self._key = key
        self._store = store

    def write(self, data: ReadBuffer) -> None:
        self._store.check("write", self._key, view(data).nbytes)
        super().write(data)

    def commit(self) -> ObjectInfo:
        self._store.check("commit", self._key)
        return super().commit()
