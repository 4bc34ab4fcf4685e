"""An object written piece by piece: one request if it is small, an upload in parts if it is not."""

from __future__ import annotations

import contextlib
import logging
from functools import partial
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

_log = logging.getLogger("stoker.store")


class ObjectUpload:
    """An object being written in parts of `part_bytes`, of which `parts_in_flight` are on their way at once.

    Memory: (parts_in_flight + 1) * part_bytes. What is shorter than a part is held until `commit`, and is one request.
    Invisible until `commit`; `discard` aborts the upload, so that the server keeps no parts. The client sends a part
    again by itself: nobody else can. All else is made again by the retries of the bucket. The object carries a token
    as metadata, by which `commit` knows it though the answer was lost.
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
        self._held_bytes = 0
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
        """Make the object durable, then visible; of parts one request more, for its version. Raises AccessDenied.

        After a failure that leaves open whether it was done, what lies there says so by its token.
        """
        self._check_open()
        self._flush()
        self._done = True  # whatever comes: if the file cannot be closed, the client aborts the upload itself
        held, self._held = self._held, None
        stored = self._end() if held is None else self._put(held)
        if stored.size_bytes != self._size_bytes:
            raise self._other_size(stored)
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
        if self._held is None:
            with self._translating():
                self._opened().write(data)
            return
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes >= self._part_bytes:
            self._bucket.retries.run(partial(self._begin, self._held))
            self._held = None  # the upload has its id: from here on the client sends again what fails

    def _begin(self, held: list[bytes]) -> None:
        """Begin an upload with `held`, which is enough for its first part.

        Where the answer breaks off before the upload has an id, the client gives up at once: then all goes into
        another upload. The one whose id was lost is left to the bucket's rules.
        """
        with contextlib.suppress(StokerError):
            self._abort()
        try:
            with self._translating():
                for data in held:
                    self._opened().write(data)
        except StokerError as error:
            error.is_given_up = not was_answered(error)  # then the client itself has asked as often as it may
            raise

    def _put(self, held: list[bytes]) -> Stored:
        """Store the object by one request; what is stored then."""
        data = held[0] if len(held) == 1 else b"".join(held)

        def put() -> str | None:
            return self._bucket.put(self._name, self._key, data, token=self._token)

        try:
            etag = self._bucket.retries.run(put)
        except (Throttled, TimedOut, Unavailable) as error:
            return self._find(error)
        return self._look() if etag is None else Stored(len(data), etag)

    def _end(self) -> Stored:
        """End the upload; what is stored then."""
        try:
            with self._translating():
                self._opened().close()
        except (Throttled, TimedOut, Unavailable) as error:
            return self._find(error)
        return self._look()

    def _find(self, error: StokerError) -> Stored:
        """What is stored, if it is this writer's though its last answer was `error`, which else is raised."""
        with contextlib.suppress(StokerError):
            found = self._look()
            if found.token == self._token:
                return found
        raise error

    def _look(self) -> Stored:
        """What is stored, looked at again where that has a length that this writer's object cannot have."""

        def look() -> Stored:
            found = self._bucket.head(self._name, self._key)
            if found.size_bytes != self._size_bytes and found.token in (None, self._token):
                raise self._other_size(found)
            return found

        try:
            return self._bucket.retries.run(look)
        except NotFound as error:
            raise Unavailable(f"cannot write {str(self._key)!r}: it is gone again", error.where) from error

    def _other_size(self, found: Stored) -> Unavailable:
        return Unavailable(
            f"cannot write {str(self._key)!r}: {self._size_bytes:,} bytes were sent, {found.size_bytes:,} are there",
            self._bucket.where,
            "another writer replaced the object, or the server lost a part",
        )

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
