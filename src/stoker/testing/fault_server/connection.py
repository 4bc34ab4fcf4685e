"""One connection: requests come in, meet their faults, and are answered step by step."""

from __future__ import annotations

import array
import contextlib
import fcntl
import socket
import struct
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from email.utils import formatdate
from typing import Final

from stoker.testing.fault_server.control import Control
from stoker.testing.fault_server.faults import Fault, Flip, Reset, Stall, Trickle, WrongClock
from stoker.testing.fault_server.operations import Operations, operation_of
from stoker.testing.fault_server.pace import Closing, Pace, Waiting
from stoker.testing.fault_server.records import Entry, Journal
from stoker.testing.fault_server.reply import End, Pause, Plan, Reply, Send, flipped, head_of, plan_reply
from stoker.testing.fault_server.script import Chooser, Script
from stoker.testing.fault_server.wire import BadRequest, Gone, Inbound, Request

PIECE_BYTES: Final = 1 << 20
JOIN_BYTES: Final = 64 << 10  # a body up to this goes out together with its headers
_DRAIN_S: Final = 1.0


class Playing:
    """A script that is being played: its chooser, and the paces that all connections share, each way."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.chooser = Chooser(script)
        total = script.total_bytes_per_s
        self.total_in = None if total is None else Pace(total)
        self.total_out = None if total is None else Pace(total)

    def paces(self, fault: Fault | None, total: Pace | None) -> list[Pace]:
        """What one body must keep to."""
        rate = fault.bytes_per_s if isinstance(fault, Trickle) else self.script.bytes_per_s
        own = [] if rate is None else [Pace(rate)]
        return own if total is None else [*own, total]


@dataclass
class Stage:
    """What the connections of a server share; `playing` is replaced as a whole."""

    operations: Operations
    journal: Journal
    waiting: Waiting
    playing: Playing

    def play(self, script: Script) -> None:
        """Go on with another script, its counts at nought."""
        self.playing = Playing(script)


class _Reset(Exception):
    """The connection ends now, by a reset."""


class Connection:
    """Serves one client until it closes, or a fault or the server's end closes the connection."""

    def __init__(self, client: socket.socket, stage: Stage) -> None:
        self._client = client
        self._stage = stage
        self._inbound = Inbound(client)

    def serve(self) -> None:
        """Answer requests until the connection ends; it is closed then."""
        with self._client:
            try:
                self._client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while self._one():
                    pass
            except _Reset:
                self._reset()
            except BadRequest as error:
                self._refuse(error)
            except (Gone, Closing, OSError):  # the client or the server went away; the entry says so
                return

    def _one(self) -> bool:
        """Serve one request; whether another may follow."""
        request = self._inbound.head()
        if request is None:
            return False
        came_s = time.monotonic()
        if request.bucket == Control.BUCKET:
            self._inbound.body(request)
            self._client.sendall(Control(self._stage.journal, self._stage.play).answer(request))
            return True
        operation = operation_of(request)
        entry = self._stage.journal.open(operation, request)
        try:
            return self._serve(request, operation, entry, came_s)
        except (Gone, Closing, OSError):
            entry.outcome = "gone"
            raise

    def _serve(self, request: Request, operation: str, entry: Entry, came_s: float) -> bool:
        playing = self._stage.playing
        fault, fraction = playing.chooser.choose(request.method, operation, request.subject)
        entry.fault = fault
        met = fault
        if request.has_body:
            self._receive(request, entry, playing)
            if isinstance(fault, Flip) and request.body:
                request.body = bytes(flipped(bytearray(request.body), fault, fraction))
            if _is_of_upload(fault, request):
                met = None
            came_s = time.monotonic()
        if isinstance(met, Reset) and not met.done and request.method not in ("GET", "HEAD"):
            met = Reset()  # nothing is done, so nothing may say so
        reply = self._stage.operations.perform(operation, request, met)
        ahead_s = met.ahead_s if isinstance(met, WrongClock) else 0.0
        stamps = ("x-amz-request-id", request.id), ("Date", formatdate(time.time() + ahead_s, usegmt=True))
        reply = replace(reply, headers=(*stamps, *reply.headers))
        self._stage.waiting.until(came_s + playing.script.latency_s)
        plan = plan_reply(reply, met, fraction)
        if not isinstance(met, Reset) or met.after_bytes is not None:
            entry.status = reply.status
        self._take(plan, entry, playing.paces(met, playing.total_out))
        return not isinstance(plan.steps[-1], End) and request.headers.get("connection", "").lower() != "close"

    def _receive(self, request: Request, entry: Entry, playing: Playing) -> None:
        if request.headers.get("expect", "").lower() == "100-continue":
            self._client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        fault = entry.fault if _is_of_upload(entry.fault, request) else None
        gate = _UploadGate(entry, fault, playing.paces(entry.fault, playing.total_in), self._stage.waiting)
        self._inbound.body(request, gate)
        gate.end()

    def _take(self, plan: Plan, entry: Entry, paces: Sequence[Pace]) -> None:
        """Take the steps; the entry is complete before the last byte leaves."""
        last_send = max((n for n, step in enumerate(plan.steps) if isinstance(step, Send)), default=-1)
        if last_send < 0:
            entry.outcome = plan.outcome
        for number, step in enumerate(plan.steps):
            if isinstance(step, Pause):
                self._stage.waiting.until(time.monotonic() + step.seconds)
            elif isinstance(step, Send):
                self._send(step, entry, paces, plan.outcome if number == last_send else "open")
            elif step.reset:
                raise _Reset

    def _send(self, step: Send, entry: Entry, paces: Sequence[Pace], outcome: str) -> None:
        head, body = step.head, step.body
        if head and (not len(body) or (len(body) <= JOIN_BYTES and not paces)):
            entry.sent_bytes += len(body)
            entry.outcome = outcome
            self._client.sendall(head + body)
            return
        if head:
            self._client.sendall(head)
        piece_bytes = min([PIECE_BYTES, *(pace.piece_bytes for pace in paces)])
        for start in range(0, len(body), piece_bytes):
            piece = body[start : start + piece_bytes]
            if paces:
                self._stage.waiting.until(max(pace.due_s(len(piece)) for pace in paces))
            entry.sent_bytes += len(piece)
            if start + len(piece) == len(body):
                entry.outcome = outcome
            self._client.sendall(piece)

    def _reset(self) -> None:
        """End by RST; what was sent before has arrived."""
        unsent = array.array("i", [0])
        until_s = time.monotonic() + _DRAIN_S
        while time.monotonic() < until_s and not self._stage.waiting.is_closed:
            fcntl.ioctl(self._client, termios.TIOCOUTQ, unsent)
            if not unsent[0]:
                break
            time.sleep(0.001)
        self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _refuse(self, error: BadRequest) -> None:
        reply = Reply(400, (("Connection", "close"),), memoryview(str(error).encode()))
        with contextlib.suppress(OSError):  # it is closed anyway
            self._client.sendall(head_of(reply) + reply.body)


class _UploadGate:
    """Counts the body of a request, keeps its pace, and meets it with what its fault does on the way in."""

    def __init__(self, entry: Entry, fault: Fault | None, paces: Sequence[Pace], waiting: Waiting) -> None:
        self._entry = entry
        self._fault = fault
        self._paces = paces
        self._waiting = waiting
        self._piece_bytes = min([PIECE_BYTES, *(pace.piece_bytes for pace in paces)])

    def before(self, done_bytes: int) -> int:
        fault = self._fault
        if not isinstance(fault, Reset | Stall) or fault.after_bytes is None:
            return self._piece_bytes
        if done_bytes >= fault.after_bytes:
            self.end()
            return self._piece_bytes
        return min(self._piece_bytes, fault.after_bytes - done_bytes)

    def after(self, size_bytes: int) -> None:
        self._entry.received_bytes += size_bytes
        if self._paces:
            self._waiting.until(max(pace.due_s(size_bytes) for pace in self._paces))

    def end(self) -> None:
        """The place of the fault is reached, at the latest at the end of the body."""
        fault, self._fault = self._fault, None
        if isinstance(fault, Stall):
            self._waiting.until(time.monotonic() + fault.seconds)
        elif isinstance(fault, Reset):
            self._entry.outcome = "reset"
            raise _Reset


def _is_of_upload(fault: Fault | None, request: Request) -> bool:
    """Whether the fault is met by the body of the request, not of the answer."""
    if not request.has_body:
        return False
    if isinstance(fault, Stall):
        return fault.after_bytes is not None
    return isinstance(fault, Flip) or (isinstance(fault, Reset) and fault.after_bytes is not None and not fault.done)
