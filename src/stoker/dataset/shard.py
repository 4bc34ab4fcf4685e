"""One shard being written, and one being read back: tar members in a row, each field's place and crc32c noted."""

from __future__ import annotations

from types import TracebackType
from typing import Final, NamedTuple, Self

from stoker.dataset.formats.tar import TRAILER, member_bytes, member_header, padding
from stoker.dataset.offsets import Place
from stoker.errors import FormatError, InternalError
from stoker.io.buffers import ReadBuffer, view
from stoker.io.checksum import crc32c
from stoker.store.base import Store
from stoker.units import MIB
from stoker.values import Key

PIECE_BYTES: Final = 1 * MIB


class Member(NamedTuple):
    """One field of one sample, as it stands in a shard."""

    path: str
    field: str
    size: int


class ShardWriter:
    """Writes members to one object, piece by piece; invisible until `finish`. Holds at most 1 MiB."""

    def __init__(self, store: Store, key: Key) -> None:
        self.size_bytes = 0
        self._writer = store.writer(key)
        self._buffer = bytearray()
        self._member: Member | None = None
        self._start = self._left = self._crc = 0

    def begin(self, member: Member) -> None:
        """Start a member; exactly `member.size` bytes must follow through `add`, then `end`."""
        self._put(member_header(member.path, member.size))
        self._member, self._start, self._left, self._crc = member, self.size_bytes, member.size, 0

    def add(self, data: ReadBuffer) -> None:
        """The next bytes of the member."""
        piece = view(data)
        self._left -= len(piece)
        self._crc = crc32c(piece, self._crc)
        self._put(piece)

    def end(self) -> Place:
        """Finish the member; returns where its content lies."""
        assert self._member is not None
        if self._left:
            raise InternalError(f"member {self._member.path!r} is {self._left} bytes short of its header")
        self._put(bytes(padding(self._member.size)))
        return Place(self._member.field, self._start, self._member.size, self._crc)

    def finish(self) -> int:
        """End the archive, make it durable and visible; returns its size."""
        self._put(TRAILER)
        self._flush()
        self._writer.commit()
        return self.size_bytes

    def discard(self) -> None:
        """Forget the shard; no effect after `finish`."""
        self._writer.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def _put(self, data: bytes | memoryview) -> None:
        self.size_bytes += len(data)
        if len(self._buffer) + len(data) > PIECE_BYTES:
            self._flush()
        if len(data) >= PIECE_BYTES:
            self._writer.write(data)
        else:
            self._buffer += data

    def _flush(self) -> None:
        if self._buffer:
            self._writer.write(self._buffer)
            self._buffer = bytearray()


class PlaceCounter:
    """Where members lie when they are written in a row; the checksum is left 0."""

    def __init__(self) -> None:
        self.size_bytes = 0

    def next(self, member: Member) -> Place:
        """The place of the next member."""
        self.size_bytes += member_bytes(member.path, member.size)
        return Place(member.field, self.size_bytes - member.size - padding(member.size), member.size, 0)


class ShardReader:
    """Reads back a shard whose members are known, in order, to find their checksums. Holds at most 1 MiB."""

    def __init__(self, store: Store, key: Key) -> None:
        self._store = store
        self._key = key
        self._counter = PlaceCounter()
        self._piece = memoryview(bytearray(PIECE_BYTES))

    def next(self, member: Member) -> Place:
        """The place of the next member. Raises FormatError if another stands there, and StoreError."""
        at = self._counter.size_bytes
        place = self._counter.next(member)
        found = bytearray(place.offset - at)
        self._store.read_into(self._key, at, found)
        if found != member_header(member.path, member.size):
            where = f"{self._key} in {self._store.url}"
            raise FormatError(f"the member at byte {at} is not {member.path!r}", where)
        crc = 0
        for start in range(place.offset, place.offset + member.size, PIECE_BYTES):
            piece = self._piece[: min(PIECE_BYTES, place.offset + member.size - start)]
            self._store.read_into(self._key, start, piece)
            crc = crc32c(piece, crc)
        return place._replace(crc32c=crc)
