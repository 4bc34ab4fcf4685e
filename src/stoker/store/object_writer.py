"""An object written piece by piece: one request if it is small, an upload in parts if it is not."""

from __future__ import annotations

import contextlib
import logging
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from stoker.errors import CapacityError, ClosedError, NotFound, StokerError, Unavailable
from stoker.io.buffers import ReadBuffer, view
from stoker.store.object_bucket import Bucket
from stoker.store.object_client import translating
from stoker.store.object_options import PARTS_MAX
from stoker.units import MIB, format_bytes
from stoker.values import Key, ObjectInfo

if TYPE_CHECKING:
    from stoker.store.object_client import WritableFile

GATHER_BYTES: Final = MIB  # smaller pieces are put together, so that a part is not thousands of them

_log = logging.getLogger("stoker.store")


class ObjectUpload:
    """An object being written in parts of `part_bytes`, of which `parts_in_flight` are on their way at once.

    Memory: (parts_in_flight + 1) * part_bytes. Invisible until `commit`; `discard` aborts the upload, so that the
    server keeps no parts. The client sends a part again by itself: nobody else can.
    """

    def __init__(self, bucket: Bucket, name: str, key: Key, part_bytes: int, parts_in_flight: int) -> None:
        self._bucket = bucket
        self._name = name
        self._key = key
        self._part_bytes = part_bytes
        self._parts_in_flight = parts_in_flight
        self._gathered = bytearray()
        self._size_bytes = 0
        self._file: WritableFile | None = None
        self._done = False

    def write(self, data: ReadBuffer) -> None:
        """Append bytes, copied. Raises CapacityError beyond 10,000 parts, AccessDenied, ClosedError after the end."""
        self._check_open()
        piece = view(data)
        limit = self._part_bytes * PARTS_MAX
        if self._size_bytes + piece.nbytes > limit:
            raise CapacityError(
                f"cannot write {str(self._key)!r}: an object of {PARTS_MAX:,} parts of "
                f"{format_bytes(self._part_bytes)} holds {format_bytes(limit)}",
                self._bucket.where,
                "larger parts hold more: ObjectOptions(part_bytes=...), STOKER_S3_PART_BYTES",
            )
        self._size_bytes += piece.nbytes
        if len(self._gathered) + piece.nbytes < GATHER_BYTES:
            self._gathered += piece
            return
        self._flush()
        # The client keeps what it is given until it is sent, and does not copy: it must be bytes of our own.
        self._send(data if type(data) is bytes else bytes(piece))

    def commit(self) -> ObjectInfo:
        """Make the object durable, then visible; one request more, for its version. Raises AccessDenied."""
        self._check_open()
        self._flush()
        file = self._opened()
        self._done = True  # whatever comes: if the file cannot be closed, the client aborts the upload itself
        with self._translating():
            file.close()
        try:
            stored = self._bucket.head(self._name, self._key)
        except NotFound as error:
            raise Unavailable(f"cannot write {str(self._key)!r}: it is gone again", error.where) from error
        if stored.size_bytes != self._size_bytes:
            raise Unavailable(
                f"cannot write {str(self._key)!r}: {self._size_bytes:,} bytes were sent, "
                f"{stored.size_bytes:,} are there",
                self._bucket.where,
                "another writer replaced the object, or the server lost a part",
            )
        return ObjectInfo(self._key, stored.size_bytes, stored.etag)

    def discard(self) -> None:
        """Abort the upload; no effect after `commit`. What cannot be aborted now is left to the bucket's rules."""
        if self._done:
            return
        self._done = True
        self._gathered.clear()
        if self._file is None:
            return
        aborted = InterruptedError("discarded")  # leaving the file's block with an error is how an upload is aborted
        try:
            with self._translating(), contextlib.suppress(InterruptedError), self._file:
                raise aborted
        except StokerError as error:
            _log.warning("an upload could not be aborted; a lifecycle rule of the bucket should: %s", error.what)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def _flush(self) -> None:
        if self._gathered:
            self._send(bytes(self._gathered))
            self._gathered.clear()

    def _send(self, data: bytes) -> None:
        with self._translating():
            self._opened().write(data)

    def _opened(self) -> WritableFile:
        if self._file is None:
            self._file = self._bucket.client.open_writer(self._name, self._part_bytes, self._parts_in_flight)
        return self._file

    def _translating(self) -> contextlib.AbstractContextManager[None]:
        return translating(f"cannot write {str(self._key)!r}", self._bucket.where)

    def _check_open(self) -> None:
        if self._done:
            raise ClosedError("the object is committed or discarded", f"{str(self._key)!r} in {self._bucket.where}")
