"""Walking a tar archive by its headers: what lies where in it, without reading what the members hold.

Nothing is ever extracted. Memory is bounded by one window and one extended header, time by the size of the object.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, TypeAlias

from stoker.dataset.formats.tar import BLOCK_BYTES, padding
from stoker.dataset.formats.tar_header import SPARSE, TarHeader, parse_block, parse_pax, pax_size
from stoker.errors import FormatError, Truncated
from stoker.store.base import Store
from stoker.units import KIB, MIB
from stoker.values import Key, ObjectInfo

MemberKind: TypeAlias = Literal["file", "folder", "link", "device", "sparse", "other"]

META_MAX_BYTES: Final = 1 * MIB  # of one pax header or long name: 4 KiB is the longest path there is
META_HEADERS_MAX: Final = 16  # before one member
WINDOW_MIN_BYTES: Final = 4 * KIB
WINDOW_MAX_BYTES: Final = 1 * MIB
_HEADERS_MIN: Final = 4  # in the largest window, or it is not worth its bytes
_BYTES_PER_S: Final = 200 * MIB  # what reading on is taken to bring; a request costs the store's latency

_ZEROS: Final = bytes(BLOCK_BYTES)
_KINDS: Final[dict[bytes, MemberKind]] = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",
    b"1": "link",
    b"2": "link",
    b"3": "device",
    b"4": "device",
    b"6": "device",
    b"5": "folder",
    b"S": "sparse",
}
_EMPTY_KINDS: Final = frozenset({"folder", "link", "device"})  # whatever size their headers state
_EXTENDED: Final = frozenset({b"x", b"X", b"g", b"L", b"K"})


class TarMember(NamedTuple):
    """One member: its name as stored; where it starts (extended headers included), where its content lies, its end."""

    name: bytes
    kind: MemberKind
    start: int
    offset: int
    size: int
    stop: int


@dataclass(slots=True)
class _Extended:
    """What extended headers say of the member that follows; `pending` if any of them is for that member alone."""

    name: bytes | None = None
    size: bytes | None = None
    sparse: bool = False
    pending: bool = False

    def take(self, records: dict[bytes, bytes]) -> None:
        self.name = records.get(b"path", self.name) or None
        self.size = records.get(b"size", self.size) or None
        self.sparse = self.sparse or SPARSE in records


class TarWalk:
    """The members of the tar archive `info`, in order; iterate it once. `end` is then where the archive ended.

    The archive ends with a block of zeros or with the object. Raises FormatError naming object and byte for what is
    no header, Truncated where the object ends inside a member, and StoreError.
    """

    def __init__(self, store: Store, info: ObjectInfo) -> None:
        self.end = 0
        self._size = info.size_bytes
        self._name = f"{info.key} in {store.url}"
        self._window = _Window(store, info)
        self._global = _Extended()

    def __iter__(self) -> Iterator[TarMember]:
        if not self._size:
            raise FormatError("an empty object is no tar archive", self._name)
        while (member := self._next(self.end)) is not None:
            self.end = member.stop
            yield member

    def _next(self, start: int) -> TarMember | None:
        """The member whose first header is at `start`, or None at the end of the archive."""
        at, said = start, replace(self._global)
        for _ in range(META_HEADERS_MAX):
            if at == self._size or (block := self._take(at, BLOCK_BYTES)) == _ZEROS:
                if said.pending:
                    raise FormatError("the archive ends between an extended header and its member", self._where(at))
                return None
            header = parse_block(block, self._where(at))
            if header.type not in _EXTENDED:
                return self._member(header, start, at, said)
            at = self._extend(header, at, said)
        raise FormatError(f"more than {META_HEADERS_MAX} extended headers stand before one member", self._where(at))

    def _extend(self, header: TarHeader, at: int, said: _Extended) -> int:
        """Take in an extended header at `at`; returns where the next one is."""
        if header.size > META_MAX_BYTES:
            what = f"an extended header claims {header.size:,} bytes, more than the {META_MAX_BYTES:,} that make sense"
            raise FormatError(what, self._where(at))
        data = self._take(at + BLOCK_BYTES, header.size)
        if header.type == b"L":
            said.name = data.partition(b"\0")[0]
        elif header.type != b"K":  # the target of a link: links are not followed
            records = parse_pax(data, self._where(at))
            said.take(records)
            if header.type == b"g":
                self._global.take(records)
        said.pending = said.pending or header.type != b"g"
        return at + BLOCK_BYTES + header.size + padding(header.size)

    def _member(self, header: TarHeader, start: int, at: int, said: _Extended) -> TarMember:
        name = header.name if said.name is None else said.name
        size = header.size if said.size is None else pax_size(said.size, self._where(at))
        kind = _KINDS.get(header.type, "other")
        if kind == "file" and name.endswith(b"/"):
            kind = "folder"  # as v7 says it
        if kind == "file" and said.sparse:
            kind = "sparse"
        offset = at + BLOCK_BYTES
        while header.continued:  # more of the map of a sparse file
            block = self._take(offset, BLOCK_BYTES)
            offset += BLOCK_BYTES
            if not block[504]:
                break
        if kind in _EMPTY_KINDS:
            size = 0
        stop = offset + size + padding(size)
        if stop > self._size:
            what = f"member {name[:200].decode(errors='replace')!r} reaches to byte {stop:,}"
            raise Truncated(f"{what}, the object ends at byte {self._size:,}", self._where(at))
        return TarMember(name, kind, start, offset, size, stop)

    def _take(self, at: int, count: int) -> bytes:
        if at + count > self._size:
            what = f"the archive ends inside a header: it has {self._size:,} bytes, {at + count:,} are needed"
            raise Truncated(what, self._where(at))
        return self._window.take(at, count)

    def _where(self, at: int) -> str:
        return f"byte {at} of {self._name}"


class _Window:
    """The bytes around the last header. It doubles while headers stand close together, as those of small members do.

    Two headers are close if the largest window holds several such, and reading what lies between takes less time than
    one more request. Of members that are larger only the headers are read, 4 KiB each.
    """

    def __init__(self, store: Store, info: ObjectInfo) -> None:
        self._store = store
        self._key: Key = info.key
        self._size = info.size_bytes
        self._close_bytes = min(int(store.limits.latency_s * _BYTES_PER_S), WINDOW_MAX_BYTES // _HEADERS_MIN)
        self._taken = 0  # where the last header ended
        self._length = WINDOW_MIN_BYTES
        self._start = 0
        self._data = b""

    def take(self, at: int, count: int) -> bytes:
        """Bytes [at, at + count) of the object, which has them. Never asked for what lies before the last ones."""
        stop = self._start + len(self._data)
        if at + count > stop:
            close = at - self._taken <= self._close_bytes
            self._length = min(self._length * 2, WINDOW_MAX_BYTES) if close else WINDOW_MIN_BYTES
            target = bytearray(min(max(self._length, count), self._size - at))
            self._store.read_into(self._key, at, target)
            self._start, self._data = at, bytes(target)
        self._taken = at + count
        return self._data[at - self._start : at - self._start + count]
