"""Answers, and what a fault makes of one: the steps that a connection then takes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

from stoker.testing.fault_server.faults import (
    Cut,
    Fault,
    Flip,
    Reset,
    Stall,
    WrongLength,
    WrongRange,
)

Header = tuple[str, str]

_XML_TYPE: Final = ("Content-Type", "application/xml")
_EMPTY: Final = memoryview(b"")


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. `length`: what Content-Length says where the body is not sent (HEAD), else None."""

    status: int
    headers: tuple[Header, ...] = ()
    body: memoryview = _EMPTY
    length: int | None = None


class Send(NamedTuple):
    """Send headers, if there are any, and a part of the body."""

    head: bytes
    body: memoryview


class Pause(NamedTuple):
    """Send nothing for so long."""

    seconds: float


class End(NamedTuple):
    """End the connection: by a reset, or as a server does that is done."""

    reset: bool


Step = Send | Pause | End


class Plan(NamedTuple):
    """What a connection does, and the word for it in the record."""

    steps: tuple[Step, ...]
    outcome: str


def plan_reply(reply: Reply, fault: Fault | None, fraction: float) -> Plan:
    """The steps that send `reply` as `fault` has it; `fraction` in [0, 1) places what the fault leaves open."""
    body, length = reply.body, len(reply.body)
    if isinstance(fault, Flip) and length:
        return _whole(replace(reply, body=flipped(body, fault, fraction)))
    if isinstance(fault, WrongRange):
        return _whole(replace(reply, headers=_shifted(reply.headers, fault.shift)))
    head = head_of(reply)
    if isinstance(fault, WrongLength):
        said = length if reply.length is None else reply.length
        wrong = Send(head_of(replace(reply, length=max(0, said + fault.by))), body)
        return Plan((wrong, End(reset=False)) if length else (wrong,), "answered")
    if isinstance(fault, Cut):
        if not length:
            return Plan((Send(head[: len(head) // 2], _EMPTY), End(reset=False)), "cut")
        return Plan((Send(head, body[: min(fault.after_bytes, length - 1)]), End(reset=False)), "cut")
    if isinstance(fault, Reset):
        sent: tuple[Step, ...] = ()
        if fault.after_bytes is not None:
            sent = (Send(head, body[: fault.after_bytes]),)
        return Plan((*sent, End(reset=True)), "reset")
    if isinstance(fault, Stall):
        if fault.after_bytes is None or not length:
            return Plan((Pause(fault.seconds), Send(head, body)), "answered")
        at = min(fault.after_bytes, length - 1)
        return Plan((Send(head, body[:at]), Pause(fault.seconds), Send(b"", body[at:])), "answered")
    return _whole(reply)


def _whole(reply: Reply) -> Plan:
    return Plan((Send(head_of(reply), reply.body),), "answered")


def head_of(reply: Reply) -> bytes:
    """The status line and the headers, as they go over the wire."""
    length = len(reply.body) if reply.length is None else reply.length
    lines = [f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in reply.headers]
    if reply.status not in (204, 304):
        lines.append(f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def flipped(body: memoryview | bytearray, fault: Flip, fraction: float) -> memoryview:
    """A copy of `body`, not empty, with one bit of one byte flipped."""
    copy = bytearray(body)
    at = int(fraction * len(copy)) if fault.at is None else fault.at % len(copy)
    copy[at] ^= 1 << int(fraction * 8)
    return memoryview(copy)


def xml_reply(status: int, text: str, headers: tuple[Header, ...] = ()) -> Reply:
    """An answer whose body is XML."""
    return Reply(
        status, (_XML_TYPE, *headers), memoryview(('<?xml version="1.0" encoding="UTF-8"?>\n' + text).encode())
    )


def error_xml(code: str, message: str, extra: Mapping[str, str]) -> str:
    """The XML of an error."""
    fields = {"Code": code, "Message": message} | dict(extra)
    return "<Error>" + "".join(element(name, value) for name, value in fields.items()) + "</Error>"


def element(name: str, value: str | int) -> str:
    """One XML element with a text in it."""
    return f"<{name}>{escape(str(value))}</{name}>"


def _with(headers: tuple[Header, ...], name: str, value: str) -> tuple[Header, ...]:
    """The headers with another value for `name`, where it is there."""
    return tuple((known, value if known == name else old) for known, old in headers)


def _shifted(headers: tuple[Header, ...], shift: int) -> tuple[Header, ...]:
    found = dict(headers).get("Content-Range", "")
    span, _, size = found.removeprefix("bytes ").partition("/")
    start, dash, stop = span.partition("-")
    if not dash:
        return headers
    return _with(headers, "Content-Range", f"bytes {int(start) + shift}-{int(stop) + shift}/{size}")
