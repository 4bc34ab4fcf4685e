"""A server, and clients of it that hide nothing."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from stoker.testing.fault_server import FaultServer, Rule, Script


@dataclass(frozen=True)
class Answered:
    status: int
    headers: http.client.HTTPMessage
    body: bytes


class Client:
    """Requests to one server, each over a connection of its own unless `connection` is given."""

    def __init__(self, server: FaultServer) -> None:
        self.server = server

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=20)

    def request(self, method, path, body=None, headers=None, connection=None) -> Answered:
        own = self.connect() if connection is None else connection
        try:
            own.request(method, path, body, headers or {})
            answer = own.getresponse()
            return Answered(answer.status, answer.headers, answer.read())
        finally:
            if connection is None:
                own.close()

    def get(self, key, span=None, **headers) -> Answered:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.request("GET", f"/bucket/{key}", None, named | ({"Range": f"bytes={span}"} if span else {}))

    def raw(self, text: bytes) -> tuple[bytes, str]:
        """What comes back for `text` until the connection ends, and how it ends: "closed" or "reset"."""
        with contextlib.closing(socket.create_connection(("127.0.0.1", self.server.port), timeout=20)) as connection:
            connection.sendall(text)
            got = b""
            try:
                while piece := connection.recv(65536):
                    got += piece
            except ConnectionResetError:
                return got, "reset"
            return got, "closed"

    def raw_get(self, key="key") -> tuple[bytes, str]:
        return self.raw(f"GET /bucket/{key} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())


@pytest.fixture
def server() -> Iterator[FaultServer]:
    """A server without faults; no thread of it is left after the test."""
    with FaultServer() as server:
        yield server
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("fault-")]
    assert left == []


@pytest.fixture
def client(server) -> Client:
    return Client(server)


@pytest.fixture
def play(server):
    """Play faults: `play(fault)` for every request, `play(rule, rule)`, or `play(latency_s=...)`."""

    def play(*rules, **settings) -> None:
        made = tuple(rule if isinstance(rule, Rule) else Rule(rule) for rule in rules)
        server.play(Script(rules=made, **settings))

    return play


@pytest.fixture
def client_of():
    return Client
