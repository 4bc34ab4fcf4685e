"""An object written piece by piece: one request if it is small, an upload in parts if it is not."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from stoker.errors import CapacityError, ClosedError, NotFound, StokerError, Throttled, TimedOut, Unavailable
from stoker.io.buffers import ReadBuffer, view
from stoker.store.object_bucket import TOKEN, Bucket, Stored, new_token
from stoker.store.object_client import translating
from stoker.store.object_errors import was_answered
from stoker.store.object_options import PARTS_MAX
from stoker.units import MIB, format_bytes
from stoker.values import Key, ObjectInfo

if TYPE_CHECKING:
    from stoker.store.object_client import WritableFile

GATHER_BYTES: Final = MIB  # smaller pieces are put together, so that a part is not thousands of them
LOOKS_MAX: Final = 3  # at what was written, if it does not look as it should
ANEW_MAX: Final = 2  # times that an upload is begun anew; the client waits and asks again by itself besides

_log = logging.getLogger("stoker.store")


class ObjectUpload:
    """An object being written in parts of `part_bytes`, of which `parts_in_flight` are on their way at once.

    Memory: (parts_in_flight + 1) * part_bytes. Invisible until `commit`; `discard` aborts the upload, so that the
    server keeps no parts. The client sends a part again by itself: nobody else can. The object carries a token as
    metadata, by which `commit` knows it though the answer was lost.
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
        self._token = new_token()
        self._held: list[bytes] | None = []  # all that was given, until the server has begun an upload in parts
        self._anew_count = 0
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
        """Make the object durable, then visible; one request more, for its version. Raises AccessDenied.

        After a failure that leaves open whether it was done, what lies there says so by its token.
        """
        self._check_open()
        self._flush()
        self._done = True  # whatever comes: if the file cannot be closed, the client aborts the upload itself
        stored = self._end()
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
        self._held = None
        try:
            self._abort()
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
        if self._held is not None:
            self._held.append(data)
        self._put([data])
        if self._held is not None and sum(map(len, self._held)) >= self._part_bytes:
            self._held = None  # the upload has its id: from here on the client sends again what fails

    def _put(self, pieces: Sequence[bytes], *, last: bool = False) -> None:
        """Give `pieces` to the client, and with `last` end the object.

        Where an answer breaks off before the upload has an id, the client gives up at once: then all goes into
        another upload. The one whose id was lost is left to the bucket's rules.
        """
        while True:
            try:
                with self._translating():
                    file = self._opened()
                    for piece in pieces:
                        file.write(piece)
                    if last:
                        file.close()
            except Unavailable as error:
                if self._held is None or self._anew_count == ANEW_MAX or not was_answered(error):
                    raise
                self._anew_count += 1
                with contextlib.suppress(StokerError):
                    self._abort()
                pieces = self._held
            else:
                return

    def _end(self) -> Stored:
        """End the object; what is stored then, also if that is all there is to know it by."""
        try:
            self._put([], last=True)
        except (Throttled, TimedOut, Unavailable):
            with contextlib.suppress(StokerError):
                found = self._look()
                if found.token == self._token:
                    return found
            raise
        try:
            return self._look()
        except NotFound as error:
            raise Unavailable(f"cannot write {str(self._key)!r}: it is gone again", error.where) from error

    def _look(self) -> Stored:
        """What is stored; looked at again where that is a page, or has a length that cannot be."""
        for _ in range(LOOKS_MAX - 1):
            with contextlib.suppress(Unavailable):
                found = self._bucket.head_written(self._name, self._key)
                if found.size_bytes == self._size_bytes:
                    return found
        return self._bucket.head_written(self._name, self._key)

    def _abort(self) -> None:
        """Abort the upload, if there is one."""
        if self._file is None:
            return
        file, self._file = self._file, None
        aborted = InterruptedError("discarded")  # leaving the file's block with an error is how an upload is aborted
        with self._translating(), contextlib.suppress(InterruptedError), file:
            raise aborted

    def _opened(self) -> WritableFile:
        if self._file is None:
            self._file = self._bucket.client.open_writer(
                self._name, self._part_bytes, self._parts_in_flight, {TOKEN: self._token}
            )
        return self._file

    def _translating(self) -> contextlib.AbstractContextManager[None]:
        return translating(f"cannot write {str(self._key)!r}", self._bucket.where)

    def _check_open(self) -> None:
        if self._done:
            raise ClosedError("the object is committed or discarded", f"{str(self._key)!r} in {self._bucket.where}")
