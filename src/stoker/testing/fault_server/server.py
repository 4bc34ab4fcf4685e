"""`FaultServer`: an S3-compatible server on loopback that does wrong what a script says."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from stoker.errors import InternalError
from stoker.testing.fault_server.connection import Connection, Playing, Stage
from stoker.testing.fault_server.listing import PAGE_MAX_KEYS
from stoker.testing.fault_server.objects import Condition, Objects, StoredObject, md5
from stoker.testing.fault_server.operations import Operations
from stoker.testing.fault_server.pace import Waiting
from stoker.testing.fault_server.records import Journal, Record
from stoker.testing.fault_server.script import Script

HOST: Final = "127.0.0.1"
BACKLOG: Final = 1024
CLOSE_S: Final = 5.0


class FaultServer:
    """`with FaultServer(script) as server:` serves `server.bucket` at `server.url` until the block ends.

    A thread a connection. `directory`: its files are the objects of the bucket, which takes no writes then; else they
    are in memory. `page_keys`: the most that a page of a listing holds. Signatures are not checked.

    With a latency of 20 ms, 64 connections and two busy cores it gave 3,000 answers of 2 KB a second, each 0.5 ms late
    in the median and one in a hundred by 10 to 30 ms; rates of 1 MB/s on each of 64 connections were right to 1 %.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        bucket: str = "bucket",
        directory: Path | None = None,
        port: int = 0,
        page_keys: int = PAGE_MAX_KEYS,
    ) -> None:
        self.bucket = bucket
        self._objects = Objects(bucket, directory)
        self._waiting = Waiting()
        self._stage = Stage(Operations(self._objects, page_keys), Journal(), self._waiting, Playing(script or Script()))
        self._clients: dict[threading.Thread, socket.socket] = {}
        self._lock = threading.Lock()
        self._listener = socket.create_server((HOST, port), backlog=BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, name=f"fault-server-{self.port}", daemon=True)
        self._accepting.start()

    @property
    def url(self) -> str:
        """http://127.0.0.1:PORT."""
        return f"http://{HOST}:{self.port}"

    @property
    def environ(self) -> dict[str, str]:
        """The usual variables with which clients reach the server."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def connection_count(self) -> int:
        """Connections that are open now."""
        with self._lock:
            return len(self._clients)

    def play(self, script: Script) -> None:
        """Go on with another script, its counts at nought. Requests under way keep to the old one."""
        self._stage.play(script)

    def requests(self, operation: str = "*", key: str = "*") -> list[Record]:
        """Records of the requests so far whose operation and key fit the patterns, in the order they came in.

        A request is there once its head has come; its record is complete before the client has the last byte.
        """
        return self._stage.journal.records(operation, key)

    def forget_requests(self) -> None:
        """Begin the record anew."""
        self._stage.journal.clear()

    def put(self, key: str, data: bytes) -> str:
        """Store an object, past all faults; its ETag, with quotes."""
        etag = f'"{md5(data).hex()}"'
        self._objects.put(self.bucket, key, StoredObject(memoryview(data), etag, time.time()), Condition())
        return etag

    def get(self, key: str) -> bytes | None:
        """The bytes of an object, past all faults, or None."""
        found = self._objects.find(self.bucket, key)
        return None if found is None else bytes(found.data)

    def keys(self, prefix: str = "") -> list[str]:
        """The keys that begin with `prefix`, in the order of their bytes."""
        return self._objects.keys(self.bucket, prefix)

    def close(self) -> None:
        """End all connections, also those that a fault holds, and their threads. Idempotent. At most 5 s."""
        self._waiting.close()
        with contextlib.suppress(OSError):  # closed before
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        until_s = time.monotonic() + CLOSE_S
        self._accepting.join(CLOSE_S)
        with self._lock:
            clients = dict(self._clients)
        for client in clients.values():
            with contextlib.suppress(OSError):  # the client or its thread was faster
                client.shutdown(socket.SHUT_RDWR)
        for thread in clients:
            thread.join(max(0.0, until_s - time.monotonic()))
        left = [thread.name for thread in (self._accepting, *clients) if thread.is_alive()]
        if left:
            raise InternalError(f"{len(left)} threads of the fault server did not end in {CLOSE_S:g} s", self.url)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # the listener was closed
                return
            thread = threading.Thread(target=self._serve, args=(client,), name=f"fault-client-{self.port}", daemon=True)
            with self._lock:
                self._clients[thread] = client
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        try:
            Connection(client, self._stage).serve()
        finally:
            with self._lock:
                self._clients.pop(threading.current_thread(), None)
