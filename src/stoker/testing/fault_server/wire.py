"""Requests as they come in: heads, bodies of known length, chunked bodies, and the chunks of aws-chunked in them."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

HEAD_MAX_BYTES: Final = 64 << 10
BODY_MAX_BYTES: Final = 6 << 30  # what S3 takes in one request is 5 GiB
_RECEIVE_BYTES: Final = 64 << 10


class BadRequest(Exception):
    """What came is not HTTP as it should be; the connection is of no further use."""


class Gone(Exception):
    """The client closed the connection in the middle of a request."""


@dataclass(slots=True)
class Request:
    """One request: what the first line, the headers and later the body say. Header names are in lower case."""

    method: str
    bucket: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    id: str = ""
    body: bytes | bytearray = b""
    trailers: dict[str, str] = field(default_factory=dict)

    @property
    def subject(self) -> str:
        """The key; of a listing its prefix."""
        return self.key or self.query.get("prefix", "")

    @property
    def has_body(self) -> bool:
        """Whether bytes follow the head."""
        return "transfer-encoding" in self.headers or self.headers.get("content-length", "0") != "0"


class Gate(Protocol):
    """Asked before each piece of a body is received: it may sleep, or raise."""

    def before(self, done_bytes: int) -> int:
        """How many bytes may be received at once now, at least 1, after `done_bytes` of the body."""

    def after(self, size_bytes: int) -> None:
        """So many were received."""


class Inbound:
    """The receiving side of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = bytearray()

    def head(self) -> Request | None:
        """The next request without its body, or None when the client has closed. Raises BadRequest, Gone."""
        text = self._until(b"\r\n\r\n")
        return None if text is None else parse_head(text)

    def body(self, request: Request, gate: Gate | None = None) -> None:
        """Receive the body into `request.body`, its chunks taken apart. Raises BadRequest, Gone."""
        headers = request.headers
        if "chunked" in headers.get("transfer-encoding", "").lower():
            request.body = b"".join(self._chunks(gate, request.trailers))
        else:
            length = _number(headers.get("content-length", "0"), 10)
            request.body = self._exactly(length, gate, 0)
        if is_aws_chunked(headers):
            request.body = decode_aws_chunked(request.body, request.trailers)

    def _chunks(self, gate: Gate | None, trailers: dict[str, str]) -> Iterator[bytearray]:
        total = 0
        while size := _number(self._line().partition(b";")[0], 16):
            if total + size > BODY_MAX_BYTES:
                raise BadRequest("the body is too large")
            yield self._exactly(size, gate, total)
            total += size
            if self._line():
                raise BadRequest("a chunk does not end where it said")
        while line := self._line():
            name, _, value = line.decode("latin-1").partition(":")
            trailers[name.strip().lower()] = value.strip()

    def _exactly(self, size: int, gate: Gate | None, before: int) -> bytearray:
        if size > BODY_MAX_BYTES:
            raise BadRequest("the body is too large")
        data = bytearray(size)
        done = 0
        with memoryview(data) as target:
            while done < size:
                allowed = size - done if gate is None else min(gate.before(before + done), size - done)
                if self._buffer:
                    got = min(allowed, len(self._buffer))
                    target[done : done + got] = self._buffer[:got]
                    del self._buffer[:got]
                else:
                    got = self._connection.recv_into(target[done : done + allowed])
                    if not got:
                        raise Gone
                done += got
                if gate is not None:
                    gate.after(got)
        return data

    def _line(self) -> bytes:
        line = self._until(b"\r\n")
        if line is None:
            raise Gone
        return line

    def _until(self, end: bytes) -> bytes | None:
        """Bytes up to `end`, without it; None if the client closed before the first of them."""
        seen = 0
        while (at := self._buffer.find(end, max(0, seen - len(end)))) < 0:
            seen = len(self._buffer)
            if seen > HEAD_MAX_BYTES:
                raise BadRequest("the head is too large")
            piece = self._connection.recv(_RECEIVE_BYTES)
            if not piece:
                if self._buffer:
                    raise Gone
                return None
            self._buffer += piece
        found = bytes(self._buffer[:at])
        del self._buffer[: at + len(end)]
        return found


def parse_head(text: bytes) -> Request:
    """A request from its first line and headers: path-style, `/bucket/key?query`. Raises BadRequest."""
    first, *lines = text.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):  # noqa: PLR2004  method, target, version
        raise BadRequest(f"not the first line of a request: {first!r}")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadRequest(f"not a header: {line!r}")
        headers[name.strip().lower()] = value.strip()
    if words[2] == "HTTP/1.0":
        headers.setdefault("connection", "close")
    parts = urlsplit(words[1]) if not words[1].startswith("/") else None
    path, _, query = (words[1] if parts is None else f"{parts.path}?{parts.query}").partition("?")
    bucket, _, key = path.removeprefix("/").partition("/")
    return Request(
        method=words[0],
        bucket=unquote(bucket),
        key=unquote(key),
        query=dict(parse_qsl(query, keep_blank_values=True)),
        headers=headers,
    )


def is_aws_chunked(headers: Mapping[str, str]) -> bool:
    """Whether the body is a row of chunks inside of what HTTP carries, each with a signature, or with a trailer."""
    encodings = headers.get("content-encoding", "").lower()
    return "aws-chunked" in encodings or headers.get("x-amz-content-sha256", "").startswith("STREAMING-")


def decode_aws_chunked(data: bytes | bytearray, trailers: dict[str, str]) -> bytes:
    """The payload of an aws-chunked body; what follows it goes into `trailers`. Signatures are not looked at."""
    pieces, at = [], 0
    with memoryview(data) as rest:
        while True:
            end = data.find(b"\r\n", at)
            if end < 0:
                raise BadRequest("an aws-chunked body ends early")
            size = _number(bytes(rest[at:end]).partition(b";")[0], 16)
            at = end + 2
            if not size:
                break
            if data[at + size : at + size + 2] != b"\r\n":
                raise BadRequest("a chunk of an aws-chunked body does not end where it said")
            pieces.append(bytes(rest[at : at + size]))
            at += size + 2
        for line in bytes(rest[at:]).split(b"\r\n"):
            name, colon, value = line.decode("latin-1").partition(":")
            if colon:
                trailers[name.strip().lower()] = value.strip()
    return b"".join(pieces)


def _number(text: bytes | str, base: int) -> int:
    digits = text.decode("latin-1") if isinstance(text, bytes) else text
    try:
        value = int(digits.strip(), base)
    except ValueError as error:
        raise BadRequest(f"not a length: {digits!r}") from error
    if value < 0:
        raise BadRequest(f"not a length: {digits!r}")
    return value
