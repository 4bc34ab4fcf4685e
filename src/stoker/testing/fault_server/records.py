"""The record of every request, so that tests can count them."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from fnmatch import fnmatchcase

from stoker.testing.fault_server.faults import Fault
from stoker.testing.fault_server.wire import Request


@dataclass(frozen=True, slots=True)
class Record:
    """One request. `number` counts from 1; `fault` is the name of what it met, or empty.

    `key` is the prefix of a listing, `range` the header. `outcome`: "open" while it is not over, then "answered",
    "cut", "reset", or "gone" if the client went away or the server was closed meanwhile.
    `status` is 0 while there is no answer. `received_bytes` and `sent_bytes` count bodies as they are on the wire.
    """

    number: int
    method: str
    operation: str
    bucket: str
    key: str
    range: str
    fault: str
    status: int
    outcome: str
    received_bytes: int
    sent_bytes: int


class Entry:
    """A record while the request goes on; each field is set before the client can know of it."""

    def __init__(self, number: int, operation: str, request: Request) -> None:
        self._number = number
        self._operation = operation
        self._request = (request.method, request.bucket, request.subject, request.headers.get("range", ""))
        self.fault: Fault | None = None
        self.status = 0
        self.outcome: str = "open"
        self.received_bytes = 0
        self.sent_bytes = 0

    def record(self) -> Record:
        """What is known so far."""
        method, bucket, key, span = self._request
        fault = "" if self.fault is None else type(self.fault).__name__
        told = (self.status, self.outcome, self.received_bytes, self.sent_bytes)
        return Record(self._number, method, self._operation, bucket, key, span, fault, *told)


class Journal:
    """The records of a server, in the order in which the requests came. Thread-safe."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._count = 0
        self._lock = threading.Lock()

    def open(self, operation: str, request: Request) -> Entry:
        """Begin a record; gives the request its id."""
        with self._lock:
            self._count += 1
            request.id = f"{self._count:016X}"
            entry = Entry(self._count, operation, request)
            self._entries.append(entry)
        return entry

    def records(self, operation: str = "*", key: str = "*") -> list[Record]:
        """Records of requests whose operation and key fit the patterns."""
        with self._lock:
            entries = list(self._entries)
        records = [entry.record() for entry in entries]
        return [r for r in records if fnmatchcase(r.operation, operation) and fnmatchcase(r.key, key)]

    def clear(self) -> None:
        """Forget the records; numbers go on."""
        with self._lock:
            self._entries.clear()
