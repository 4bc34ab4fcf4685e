"""A server that says what a test wants it to say, byte for byte."""

from __future__ import annotations

import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from email.utils import formatdate

import pytest

DATE = formatdate(0, usegmt=True)


class CannedServer:
    """Answers one request a connection, with the next of `replies`; the last is repeated. Keeps the requests.

    A reply is bytes, or a function that gets the connection. `RESET` cuts the connection hard.
    """

    def __init__(
        self, replies: list[bytes | Callable[[socket.socket], None]], tls: ssl.SSLContext | None = None
    ) -> None:
        self.replies = replies
        self.requests: list[bytes] = []
        self._tls = tls
        self._lock = threading.Lock()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    @property
    def endpoint(self) -> str:
        scheme = "https" if self._tls else "http"
        return f"{scheme}://127.0.0.1:{self._socket.getsockname()[1]}"

    def environ(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_ALLOW_HTTP": "true",
        }

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._accepting.join()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._answer, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _answer(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(10)  # a client that is never heard of again must not hold the test up
                stream = self._tls.wrap_socket(connection, server_side=True) if self._tls else connection
                with stream:
                    request = _read_request(stream)
                    if not request:
                        return
                    with self._lock:
                        self.requests.append(request)
                        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
                    if callable(reply):
                        reply(stream)
                    else:
                        stream.sendall(reply)
        except OSError:  # the client went away, which some tests are about
            return


def _read_request(stream: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        got = stream.recv(65536)
        if not got:
            return b""
        data += got
    head, _, body = data.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    while len(body) < length:
        got = stream.recv(65536)
        if not got:
            return b""
        body += got
    return head + b"\r\n\r\n" + body


class Replies:
    """Makes replies."""

    @staticmethod
    def error(status: int, code: str = "", message: str = "", headers: str = "", *, extra: str = "") -> bytes:
        body = (
            f"<Error><Code>{code}</Code><Message>{message}</Message><RequestId>REQ-1</RequestId>{extra}</Error>"
            if code
            else ""
        )
        return (
            f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{headers}\r\n{body}".encode()
        )

    @staticmethod
    def part(data: bytes, start: int, size: int, etag: str = "e1", *, says: int | None = None) -> bytes:
        """Bytes of an object of `size` from `start` on, as an answer that announces `says` bytes."""
        length = len(data) if says is None else says
        place = f"bytes {start}-{start + length - 1}/{size}"
        return (
            f"HTTP/1.1 206 X\r\nContent-Length: {length}\r\nContent-Range: {place}\r\n"
            f'ETag: "{etag}"\r\nLast-Modified: {DATE}\r\nConnection: close\r\n\r\n'
        ).encode() + data

    @staticmethod
    def whole(data: bytes = b"", etag: str = "e1", headers: str = "", *, says: int | None = None) -> bytes:
        length = len(data) if says is None else says
        return (
            f'HTTP/1.1 200 X\r\nContent-Length: {length}\r\nETag: "{etag}"\r\nLast-Modified: {DATE}\r\n'
            f"Connection: close\r\n{headers}\r\n"
        ).encode() + data

    @staticmethod
    def reset(stream: socket.socket) -> None:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    @staticmethod
    def stall(stream: socket.socket) -> None:
        """Say nothing until the client goes away."""
        while stream.recv(65536):
            pass


@pytest.fixture
def replies() -> type[Replies]:
    return Replies


@pytest.fixture
def canned() -> Iterator[Callable[..., CannedServer]]:
    """Makes servers that answer what they are given."""
    servers: list[CannedServer] = []

    def make(*replies: bytes | Callable[[socket.socket], None], tls: ssl.SSLContext | None = None) -> CannedServer:
        servers.append(CannedServer(list(replies), tls))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch):
    """Clients look into the environment of the process too: nothing of whoever runs the tests may be there."""
    import os

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A certificate that signed itself, for 127.0.0.1, and a context that serves with it."""
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]
    command += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no openssl to make a certificate with")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return folder / "cert.pem", context
