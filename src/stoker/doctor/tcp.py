"""TCP: /proc/net/snmp, `ss -tin`, /proc/net/dev.

Sources: proc(5); ss(8); RFC 4022 for the names in snmp. The columns of snmp are told by its head line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from stoker.doctor import network_ids as ids
from stoker.doctor.finding import Evidence, Finding, Severity
from stoker.doctor.kinds import LINE_UNKNOWN, Sample
from stoker.doctor.texts import real, whole

RETRANSMITS_WARN: Final = 0.001
RETRANSMITS_FAIL: Final = 0.01
JUMBO_BYTES: Final = 8000
_RTT_TIMES: Final = 5
_RECEIVER_PERCENT: Final = 10
_FEW_SEGMENTS: Final = 1000
# Servers of storage by their well-known ports.
STORAGE_PORTS: Final = {
    2049: "NFS",
    988: "Lustre",
    4420: "NVMe over TCP",
    3260: "iSCSI",
    445: "SMB",
    8003: "BeeGFS",
    8005: "BeeGFS",
    6789: "Ceph",
    3300: "Ceph",
}
_ONE_IS_FEW: Final = (2049,)
_NET_DEV_COLUMNS: Final = 16


# ---- /proc/net/snmp


def detect_snmp(text: str) -> bool:
    """Whether it is /proc/net/snmp."""
    return bool(re.search(r"^Tcp: .*RetransSegs", text, re.MULTILINE))


def parse_snmp(text: str) -> dict[str, int]:
    """The values of Tcp by their names in the head line; empty if head and values do not fit."""
    rows = [line.split()[1:] for line in text.splitlines() if line.startswith("Tcp:")]
    for head, values in pairwise(rows):
        numbers = [whole(value) for value in values]
        if "RetransSegs" in head and len(head) == len(values) and None not in numbers:
            return {name: number for name, number in zip(head, numbers, strict=True) if number is not None}
    return {}


def _snmp_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.startswith("Tcp:")), "")


def explain_snmp(text: str, source: str) -> list[Finding]:
    """The share sent again since the boot, which is a fact and no verdict."""
    values = parse_snmp(text)
    line = Evidence(_snmp_line(text), source)
    out, again = values.get("OutSegs"), values.get("RetransSegs")
    if out is None or again is None:
        return [LINE_UNKNOWN.unknown("TCP", "the columns of Tcp and their values do not fit", line)]
    share = f", {again / out:.2%}" if out > 0 else ""
    what = f"{again} of {out} segments were sent again since the boot{share}; for now, take two samples"
    return [ids.TCP_RETRANSMITS.info("TCP", what, line)]


def compare_snmp(before: Sample, after: Sample, _seconds: float | None) -> list[Finding]:
    """The share sent again between two samples."""
    old, new = parse_snmp(before.text), parse_snmp(after.text)
    line = Evidence(_snmp_line(after.text), after.source)
    names = ("OutSegs", "RetransSegs")
    if any(name not in values for values in (old, new) for name in names):
        return []
    out, again = (new[name] - old[name] for name in names)
    if out < 0 or again < 0:
        return [ids.COUNTERS_UNSEEN.unknown("TCP", "counters went back: not of one boot, or not in this order", line)]
    if out == 0 and again == 0:
        return [ids.TCP_RETRANSMITS.info("TCP", "nothing was sent between the samples", line)]
    return [judge_retransmits("TCP", again, out, line)]


def judge_retransmits(subject: str, again: int, out: int, line: Evidence) -> Finding:
    """By the share of what was sent again: 1% fails, 0.1% warns. Few segments never fail."""
    share = again / max(out, again, 1)
    what = f"{again} of {out} segments were sent again, {share:.2%}"
    severity = Severity.OK
    if share >= RETRANSMITS_WARN:
        severity = Severity.FAIL if share >= RETRANSMITS_FAIL and out >= _FEW_SEGMENTS else Severity.WARN
        what += ": the network is congested or loses packets"
    return ids.TCP_RETRANSMITS.found(severity, subject, what, line)


# ---- ss -tin


@dataclass(frozen=True)
class Connection:
    """An established connection. `values` are its `key:value` words; lines are the two that ss prints."""

    peer: str
    port: int
    values: dict[str, str]
    lines: tuple[str, str]

    def number(self, key: str) -> float | None:
        """A value as a number; its unit and what follows a / are cut off."""
        match = re.match(r"[\d.]{1,30}", self.values.get(key, ""))
        return real(match[0]) if match else None


_SOCKET_WORDS: Final = 5  # state, two queues, local, peer


def detect_ss(text: str) -> bool:
    """Whether it is the output of ss -ti."""
    return bool(re.search(r"^(?=.*\scwnd:\d)(?=.*\srto:\d)", text, re.MULTILINE)) and bool(
        re.search(r"^(?:State|ESTAB|[A-Z]+-?[A-Z]*)\s+(?:Recv-Q|\d+)\s", text, re.MULTILINE)
    )


def parse_ss(text: str) -> list[Connection]:
    """Established connections with their details, on the line that follows or on the same."""
    found = []
    lines = text.splitlines()
    for line, after in pairwise([*lines, ""]):
        words = line.split(None, _SOCKET_WORDS)
        if line[:1].isspace() or len(words) < _SOCKET_WORDS or not words[0].upper().startswith("ESTAB"):
            continue
        peer, _, number = words[4].rpartition(":")
        port = whole(number)
        if not peer or port is None or None in (whole(words[1]), whole(words[2])):
            continue
        details = after if after[:1].isspace() else " ".join(words[_SOCKET_WORDS:])
        values = {m[1]: m[2] for m in re.finditer(r"(?:^|\s)([a-z_]+):(\S+)", details)}
        found.append(Connection(peer.strip("[]"), port, values, (line, details)))
    return found


def rtt_growth(text: str) -> float | None:
    """How many times its least the round trip of a connection takes now, of the one that grew most; None if unseen."""
    pairs = [(one.number("rtt"), one.number("minrtt")) for one in parse_ss(text)]
    return max((now / least for now, least in pairs if now is not None and least), default=None)


def explain_ss(text: str, source: str) -> list[Finding]:
    """The connections to storage servers; all of them, if none has a port of storage."""
    connections = parse_ss(text)
    if not connections:
        first = next((line for line in text.splitlines() if line.strip()), "")
        return [LINE_UNKNOWN.unknown("TCP", "no established connection is in it", Evidence(first, source))]
    return judge_connections(connections, source) or [
        ids.TCP_FINE.info("TCP", f"{len(connections)} connections, none to a port of storage that is known")
    ]


def judge_connections(connections: Sequence[Connection], source: str) -> list[Finding]:
    """Findings of the connections to ports of storage, by server."""
    servers: dict[tuple[str, int], list[Connection]] = {}
    for one in connections:
        if one.port in STORAGE_PORTS:
            servers.setdefault((one.peer, one.port), []).append(one)
    found: list[Finding] = []
    for (peer, port), group in servers.items():
        found += _judge_server(f"{STORAGE_PORTS[port]} {peer}", port, group, source)
    return found


def _judge_server(subject: str, port: int, group: Sequence[Connection], source: str) -> list[Finding]:
    found: list[Finding] = []
    head = Evidence(group[0].lines[0], source)
    if len(group) == 1 and port in _ONE_IS_FEW:
        what = f"one TCP connection to port {port} carries all: no nconnect"
        found.append(ids.TCP_ONE.warn(subject, what, head))
    for one in group:
        found += _judge_connection(subject, one, Evidence(one.lines[1], source))
    sizes = sorted({int(size) for one in group if (size := one.number("pmtu"))})
    if sizes:
        jumbo = all(size >= JUMBO_BYTES for size in sizes)
        what = f"path MTU {', '.join(map(str, sizes))}: jumbo frames are {'on' if jumbo else 'not on'}"
        line = Evidence(group[0].lines[1], source)
        found.append(ids.MTU.ok(subject, what, line) if jumbo else ids.MTU.info(subject, what, line))
    what = f"{len(group)} connection{'s' if len(group) > 1 else ''}"
    again = [one for one in group if "retrans" in one.values]
    what += "" if again else ", nothing sent again"
    found.append(ids.TCP_FINE.info(subject, what, head))
    return found


def _judge_connection(subject: str, one: Connection, line: Evidence) -> list[Finding]:
    found: list[Finding] = []
    if "retrans" in one.values:  # only there if something was sent again; segs_out counts both
        total = whole(one.values["retrans"].rpartition("/")[2])
        sent = one.number("segs_out") or one.number("data_segs_out")
        if total is None or sent is None:
            found.append(LINE_UNKNOWN.unknown(subject, "what was sent again is not understood", line))
        else:
            found.append(judge_retransmits(subject, total, int(sent), line))
    rtt, best = one.number("rtt"), one.number("minrtt")
    if rtt and best and rtt >= _RTT_TIMES * best and rtt >= 1:
        what = f"a round trip takes {rtt:g} ms, {rtt / best:.0f} times the best of {best:g} ms"
        found.append(ids.TCP_STALLED.warn(subject, what, line))
    limited = re.search(r"\(([\d.]{1,9})%\)", one.values.get("rwnd_limited", ""))
    share = real(limited[1]) if limited else None
    if share is not None and share >= _RECEIVER_PERCENT:
        found.append(ids.TCP_STALLED.warn(subject, f"the receiver's window was full {share:g}% of the time", line))
    return found


# ---- /proc/net/dev


def detect_net_dev(text: str) -> bool:
    """Whether it is /proc/net/dev."""
    return bool(re.search(r"^Inter-\|\s+Receive\s+\|\s+Transmit", text, re.MULTILINE))


def parse_net_dev(text: str) -> dict[str, tuple[int, ...]]:
    """The 16 numbers of each interface but lo: 8 received (bytes, packets, errors, drops ...), 8 sent."""
    found = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        numbers = [whole(word) for word in rest.split()]
        if colon and len(numbers) == _NET_DEV_COLUMNS and name.strip() != "lo":
            values = tuple(number for number in numbers if number is not None)
            if len(values) == _NET_DEV_COLUMNS:
                found[name.strip()] = values
    return found


def explain_net_dev(text: str, source: str) -> list[Finding]:
    """Lines that are not understood; totals since the boot say nothing of now."""
    known = parse_net_dev(text)
    found = []
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        if colon and rest.split() and name.strip() not in (*known, "lo") and "|" not in line:
            found.append(
                LINE_UNKNOWN.unknown("network", "a line of interfaces is not understood", Evidence(line, source))
            )
    for name, values in known.items():
        dropped = f"; dropped {values[3]} of what came" if values[3] else ""
        what = f"received {values[0]} bytes since the boot{dropped}; for now, take two samples"
        found.append(ids.LINK_RATE.info(name, what))
    return found


def compare_net_dev(before: Sample, after: Sample, seconds: float | None) -> list[Finding]:
    """What interfaces carried, and drops and errors that grew."""
    old, new = parse_net_dev(before.text), parse_net_dev(after.text)
    found: list[Finding] = []
    for name, values in new.items():
        if name not in old:
            continue
        deltas = [b - a for a, b in zip(old[name], values, strict=True)]
        line = Evidence(f"{name}: " + " ".join(map(str, values)), after.source)
        if min(deltas) < 0:
            found.append(ids.COUNTERS_UNSEEN.unknown(name, "counters went back: not of one boot", line))
            continue
        if any(deltas[at] for at in (2, 3, 4, 10, 11, 12)):
            errors, dropped, overruns = (deltas[at] + deltas[at + 8] for at in (2, 3, 4))
            what = f"{dropped} packets dropped, {errors} errors, {overruns} overruns"
            found.append(ids.NIC_DROPS.warn(name, what, line))
        if seconds:
            what = f"received {deltas[0] / seconds / 1e9:.3g} GB/s, sent {deltas[8] / seconds / 1e9:.3g} GB/s"
            found.append(ids.LINK_RATE.info(name, what, line))
    return found
