"""The requests a store makes of its bucket, each failure translated.

Each is made once, but where an operation takes several: then those behind the first are made again by themselves, so
that an operation of three requests fails as seldom as one of a single one. Names here are whole: they hold the store's
prefix.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from stoker.errors import NotFound, PreconditionFailed, StokerError, Truncated, Unavailable, UnsupportedError
from stoker.io.buffers import ReadBuffer, view
from stoker.store.object_client import ObjectClient, translating
from stoker.store.object_errors import answers_whole
from stoker.store.retries import Retries
from stoker.units import MIB

if TYPE_CHECKING:
    from stoker.store.object_client import GetOptions, GetResult, ObjectMeta

CHUNK_BYTES: Final = 4 * MIB  # 64 MiB from loopback: 22 ms of CPU in pieces of 1 to 4 MiB, 67 ms in one
LIST_CHUNK: Final = 1000
PROMPT_BYTES: Final = 4 * MIB  # what takes longer to send than a server may be silent, at less than 140 KB/s
TOKEN: Final = "stoker-token"  # noqa: S105  the name of the metadata that says who wrote an object first

_PLAIN: Final = re.compile(r"[A-Za-z0-9/._=+-]+")  # names that the client gives to the server as they are
_DISORDER: Final = "\0"


@dataclass(frozen=True, slots=True)
class Stored:
    """What a server says of an object: its size, its ETag without quotes, and who wrote it, if that was noted."""

    size_bytes: int
    etag: str
    token: str | None = None


class Bucket:
    """Requests to one bucket. `where`: its URL with the prefix, for messages. Thread-safe.

    `retries`: by what is made again what nobody else can make again.
    """

    def __init__(self, client: ObjectClient, where: str, retries: Retries) -> None:
        self.client = client
        self.where = where
        self.retries = retries
        self._answers_ranges = False  # whether a range has ever been answered with one

    def head(self, name: str, key: str) -> Stored:
        """What is stored under `name`. Raises NotFound, AccessDenied."""
        with translating(f"no object {key!r}", self.where):
            result = self.client.requests().get(name, options={"head": True})
        return self._checked(result, f"cannot see {key!r}")

    def look(self, name: str, key: str) -> Stored:
        """The same, made again until it has an answer: for an operation of which this is not the first request."""
        return self.retries.run(lambda: self.head(name, key))

    def put(self, name: str, key: str, data: ReadBuffer, *, token: str | None = None) -> str | None:
        """Store `data` in one request; the ETag, or None if the server does not tell."""
        attributes = {TOKEN: token} if token else None
        with translating(f"cannot write {key!r}", self.where):
            client = self.client.puts() if view(data).nbytes > PROMPT_BYTES else self.client.requests()
            result = client.put(name, data, attributes=attributes, use_multipart=False)
        return _bare(result["e_tag"]) or None

    def put_first(self, name: str, key: str, data: ReadBuffer, token: str) -> str | None:
        """Store `data` if nothing is there, as the server understands it. Raises AlreadyExists."""
        with translating(f"cannot write {key!r}", self.where):
            result = self.client.requests().put(
                name, data, attributes={TOKEN: token}, mode="create", use_multipart=False
            )
        return _bare(result["e_tag"]) or None

    def delete(self, name: str, key: str) -> None:
        """Remove an object; no error if it is not there."""
        try:
            with translating(f"cannot delete {key!r}", self.where):
                self.client.requests().delete(name)
        except NotFound:  # some servers say so, most do not
            return

    def list(self, directory: str) -> Iterator[ObjectMeta]:
        """All objects below `directory` (empty: all of the bucket), a page of up to 1,000 at a time.

        An answer that is no listing (an error sent as a 200) looks to the client like one that ends. So the end is
        asked for once more, from just before the last name: that must come again, and nothing behind it. What is empty
        is asked for twice. In the same way a listing goes on where a page failed. Both where names come in order, as S3
        promises them; else a page that fails is to begin all anew.
        """
        last, quiet = "", 0
        series = self.retries.begin()
        while quiet < (1 if last else 2):
            quiet += 1
            try:
                for page in self._pages_behind(directory, last):
                    series.moved()
                    self.retries.budget.give()
                    last, quiet = _last_in_order(last, [meta["path"] for meta in page]), 0
                    yield from page
            except StokerError as error:
                if not _PLAIN.fullmatch(last):
                    raise
                series.failed(error)
                quiet = 0
            if last and not _PLAIN.fullmatch(last):
                return

    def _pages_behind(self, directory: str, last: str) -> Iterator[Sequence[ObjectMeta]]:
        """What comes behind `last`, if that is not empty, in an answer that shows `last`, unless it was removed."""
        shown = not last
        for page in self._pages(directory, _before(last)):
            behind = []
            for meta in page:
                if meta["path"] > last:
                    shown = shown or self._is_gone(last, directory)
                    behind.append(meta)
                elif meta["path"] == last:
                    shown = True
                elif shown:
                    raise Unavailable(f"cannot list {directory!r}: names came in order, and then not", self.where)
            if behind:
                yield behind
        if not shown:
            self._is_gone(last, directory)

    def _is_gone(self, name: str, directory: str) -> bool:
        """True, if there is no object `name` any more, which a listing did not show. Raises Unavailable if there is."""
        try:
            self.head(name, name)
        except NotFound:
            return True
        raise Unavailable(f"cannot list {directory!r}: what came does not show {name!r}, which is there", self.where)

    def _pages(self, directory: str, after: str) -> Iterator[Sequence[ObjectMeta]]:
        doing = f"cannot list {directory!r}"
        with translating(doing, self.where):
            pages = iter(self.client.requests().list(directory or None, offset=after or None, chunk_size=LIST_CHUNK))
        while True:
            with translating(doing, self.where):
                page = next(pages, None)
            if page is None:
                return
            yield page

    def whole(self, name: str, key: str) -> Iterator[bytes]:
        """The bytes of an object, in pieces; all of them, or Unavailable.

        Asked for as a range that has no end: the answer to that says twice how long the object is, so that one whose
        length is wrong is noticed. One request more for an empty object, and at a server that does not know ranges.
        """
        try:
            result = self._get(name, key, {"range": {"offset": 0}})
        except Truncated as error:
            if self.look(name, key).size_bytes:
                raise Unavailable(f"cannot read {key!r}: it was empty, and is not any more", self.where) from error
            return
        except UnsupportedError as error:
            if not answers_whole(error):
                raise
            result = self._get(name, key, {})
            found, told = self.look(name, key), _stored(result)
            if (found.size_bytes, found.etag) != (told.size_bytes, told.etag):
                raise Unavailable(f"cannot read {key!r}: {told} came, {found} is there", self.where) from error
        else:
            self._answers_ranges = True
        yield from self._body(result, key, result.meta["size"])

    def part(self, name: str, key: str, start: int, stop: int, pin: Pin) -> Iterator[bytes]:
        """Bytes [start, stop) of an object, in pieces, of the version that `pin` saw first; not empty.

        Raises Truncated if the object ends earlier, PreconditionFailed if it is another version, Unavailable if the
        answer is not what it says, UnsupportedError at a server that does not know ranges.
        """
        options: GetOptions = {"range": (start, stop)}
        if pin.etag is not None:
            options["if_match"] = f'"{pin.etag}"'
        try:
            result = self._get(name, key, options)
        except Truncated as error:
            raise truncated(key, self.where, stop, error) from error
        except UnsupportedError as error:
            if answers_whole(error) and (self._answers_ranges or self._try_range(name, key)):
                raise Unavailable(f"cannot read {key!r}: what came for a range was not one", error.where) from error
            raise
        self._answers_ranges = True
        size = result.meta["size"]
        pin.check(_stored(result), key, self.where)
        if stop > size:
            raise Truncated(f"object {key!r} ends at byte {size:,}, wanted up to {stop:,}", self.where)
        yield from self._body(result, key, stop - start)

    def _try_range(self, name: str, key: str) -> bool:
        """Whether the server knows ranges, or it was a page that came instead of one: by two more requests, or so many
        as are made at most, all of which it must answer without a range.

        Raises what the first says if it is no object, and the others if they are neither a range nor an object.
        """
        self.look(name, key)

        def try_it() -> None:
            try:
                self._get(name, key, {"range": (0, 1)})
            except UnsupportedError as error:
                if answers_whole(error):
                    raise Unavailable(error.what, error.where) from error
                raise

        try:
            self.retries.run(try_it)
        except Unavailable as error:
            if isinstance(error.__cause__, UnsupportedError):
                return False
            raise
        self._answers_ranges = True
        return True

    def _get(self, name: str, key: str, options: GetOptions) -> GetResult:
        try:
            with translating(f"cannot read {key!r}", self.where):
                result = self.client.requests().get(name, options=options)
        except NotFound as error:
            raise NotFound(f"no object {key!r}", error.where, error.hint) from error
        self._checked(result, f"cannot read {key!r}")
        return result

    def _checked(self, result: GetResult, doing: str) -> Stored:
        """What is stored. Raises Unavailable for an answer without ETag: an error or a proxy's page, sent as a 200."""
        stored = _stored(result)
        if not stored.etag:
            raise Unavailable(f"{doing}: the answer has no ETag, so it is not an object", self.where)
        return stored

    def _body(self, result: GetResult, key: str, length: int) -> Iterator[bytes]:
        doing, got = f"cannot read {key!r}", 0
        pieces = iter(result.stream(min_chunk_size=CHUNK_BYTES)) if length else iter(())
        while True:
            with translating(doing, self.where):
                piece = next(pieces, None)
            if piece is None:
                break
            got += len(piece)
            if got > length:
                break
            yield piece
        if got != length:
            raise Unavailable(f"{doing}: {got:,} bytes came, {length:,} were announced", self.where)


class Pin:
    """The version of an object that one read began with; `etag` is None until the first answer."""

    def __init__(self, etag: str | None = None) -> None:
        self.etag = etag

    def check(self, stored: Stored, key: str, where: str) -> None:
        """Note the version at first; then raise PreconditionFailed if it is another (some servers do not look)."""
        if self.etag is None:
            self.etag = stored.etag or None
        elif stored.etag != self.etag:
            raise PreconditionFailed(
                f"object {key!r} changed while it was read: version {stored.etag!r}, was {self.etag!r}", where
            )


def _last_in_order(last: str, names: Sequence[str]) -> str:
    """The last of `names`, if they come in order behind `last`; else, and ever after, `_DISORDER`."""
    if last == _DISORDER or any(later <= earlier for earlier, later in pairwise([last, *names])):
        return _DISORDER
    return names[-1] if names else last


def _before(name: str) -> str:
    """A name just before `name`, which is plain: fewer are between them than a page holds. Empty for the empty one."""
    return f"{name[:-1]}{chr(ord(name[-1]) - 1)}zz" if name else ""


def new_token() -> str:
    """A text that nobody else has."""
    return secrets.token_hex(16)


def truncated(key: str, where: str, stop: int, cause: Truncated) -> Truncated:
    """What a range that begins at or behind the end of the object means."""
    return Truncated(f"object {key!r} ends before byte {stop:,}", cause.where or where)


def version_of(meta: Mapping[str, object]) -> str:
    """The version of an object in a listing: its ETag without quotes."""
    etag = meta["e_tag"]
    return _bare(etag if isinstance(etag, str) else None)


def _stored(result: GetResult) -> Stored:
    meta = result.meta
    return Stored(meta["size"], _bare(meta["e_tag"]), dict(result.attributes).get(TOKEN))


def _bare(etag: str | None) -> str:
    return (etag or "").removeprefix("W/").strip('"')
