"""/proc/self/mountstats: what NFS mounts do. Pure.

Source: net/sunrpc/stats.c of the kernel and nfs-utils' mountstats. Columns of an operation: operations, transmissions,
major timeouts, bytes sent, bytes received, queue ms, round-trip ms, total ms, and since 5.3 errors. One `xprt` line a
connection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from stoker.doctor import filesystem_ids as ids
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.kinds import LINE_UNKNOWN, Sample
from stoker.doctor.mounts import one_tcp
from stoker.doctor.operation_mix import OperationMix, judge_mix
from stoker.doctor.texts import whole

_DEVICE: Final = re.compile(r"^device (.+) mounted on (.+) with fstype (nfs4?)\b(.*)$")
_ANY_DEVICE: Final = re.compile(r"^device .+ mounted on .+ with fstype \S+")
_OPERATION: Final = re.compile(r"^\s*([A-Z][A-Z0-9_]+):\s+(\d[\d\s]*)$")
_COLUMNS: Final = 8
_TRANSPORTS: Final = ("tcp", "udp", "rdma", "local")
_DATA: Final = ("READ", "WRITE")
_NEITHER: Final = ("NULL", "COMMIT", "SEQUENCE", "RENEW")
_RETRANSMIT_RATIO: Final = 0.001


@dataclass(frozen=True)
class NfsOperation:
    """Counters of one kind of operation since the mount."""

    line: str
    count: int
    transmissions: int
    timeouts: int
    sent_bytes: int
    received_bytes: int
    queue_ms: int
    rtt_ms: int
    total_ms: int

    def less(self, before: NfsOperation) -> NfsOperation | None:
        """What was done since `before`; None where a counter went back."""
        names = ("count", "transmissions", "timeouts", "sent_bytes", "received_bytes", "queue_ms", "rtt_ms", "total_ms")
        values = [getattr(self, name) - getattr(before, name) for name in names]
        return None if min(values) < 0 else NfsOperation(self.line, *values)


_NOTHING: Final = NfsOperation("", 0, 0, 0, 0, 0, 0, 0, 0)


@dataclass
class NfsMount:
    """One NFS mount. `transports`: one a connection: tcp, rdma, ..."""

    source: str
    point: str
    head: str
    age_s: int | None = None
    options: dict[str, str] = field(default_factory=dict)
    transports: list[str] = field(default_factory=list)
    connection_lines: list[str] = field(default_factory=list)
    operations: dict[str, NfsOperation] = field(default_factory=dict)
    strange: list[str] = field(default_factory=list)


def detect(text: str) -> bool:
    """Whether it is mountstats."""
    return any(_ANY_DEVICE.match(line) for line in text.splitlines())


def parse(text: str) -> list[NfsMount]:
    """The NFS mounts in their order."""
    found: list[NfsMount] = []
    inside = False
    for line in text.splitlines():
        head = _DEVICE.match(line)
        if _ANY_DEVICE.match(line):
            inside = head is not None
        if head:
            found.append(NfsMount(head[1], head[2], line))
        elif inside and line.strip():
            _add(found[-1], line)
    return found


def _add(mount: NfsMount, line: str) -> None:
    key, _, rest = line.strip().partition(":")
    operation = _OPERATION.match(line)
    if key == "opts":
        mount.options = {o.partition("=")[0]: o.partition("=")[2] for o in rest.strip().split(",")}
    elif key == "age":
        mount.age_s = whole(rest)
    elif key == "xprt" and rest.split():
        mount.transports.append(rest.split()[0])
        mount.connection_lines.append(line.strip())
    elif operation:
        numbers = [whole(word) for word in operation[2].split()]
        n = [number for number in numbers if number is not None]
        if len(n) < _COLUMNS:
            mount.strange.append(line)
        else:
            mount.operations[operation[1]] = NfsOperation(line.strip(), *n[:_COLUMNS])


def explain(text: str, source: str) -> list[Finding]:
    """What all NFS mounts did since they were mounted."""
    mounts = parse(text)
    if not mounts:
        line = next((line for line in text.splitlines() if line.strip()), "")
        if detect(text):
            return [ids.NFS_IO.info("NFS", "no NFS mount", Evidence(line, source), fix="")]
        return [LINE_UNKNOWN.unknown("NFS", "no mountstats in a form that is known", Evidence(line, source))]
    return [finding for mount in mounts for finding in judge(mount, source)]


def judge(mount: NfsMount, source: str) -> list[Finding]:
    """Findings of one mount, since it was mounted."""
    found = [
        LINE_UNKNOWN.unknown(mount.point, "an operation is not understood", Evidence(s, source)) for s in mount.strange
    ]
    return found + _connections(mount, source) + judge_work(mount.point, mount.operations, source)


def _connections(mount: NfsMount, source: str) -> list[Finding]:
    lines = [Evidence(line, source) for line in mount.connection_lines]
    kinds = sorted(set(mount.transports))
    if not kinds:
        return [LINE_UNKNOWN.unknown(mount.point, "its connections are not told", Evidence(mount.head, source))]
    found: list[Finding] = []
    asked = mount.options.get("proto", "")
    if asked and any(kind in _TRANSPORTS and kind != asked.rstrip("6") for kind in kinds):
        what = f"connections are {', '.join(kinds)}, the option says {asked}"
        found.append(ids.NFS_DIFFERS.warn(mount.point, what, *lines))
    many = f"{len(lines)} connection{'' if len(lines) == 1 else 's'}"
    many += f" (nconnect={mount.options['nconnect']})" if mount.options.get("nconnect") else ""
    if kinds == ["rdma"]:
        found.append(ids.NFS_RDMA.ok(mount.point, f"{many}, all of them RDMA", *lines))
    elif kinds == ["tcp"]:
        found.append(ids.NFS_NOT_RDMA.info(mount.point, f"{many} over tcp: GPUDirect is not engaged", *lines))
        if len(lines) == 1:
            found.append(one_tcp(mount.point, lines[0]))
    else:
        found.append(ids.NFS_NOT_RDMA.unknown(mount.point, f"{many} over {', '.join(kinds)}", *lines))
    return found


def judge_work(
    subject: str, operations: dict[str, NfsOperation], source: str, between_s: float | None = None
) -> list[Finding]:
    """Findings about operations: since the mount, or of a difference and the time it took."""
    found: list[Finding] = []
    read = operations.get("READ")
    if read and read.count:
        found += _reads(subject, read, Evidence(read.line, source), between_s)
    sent = sum(o.count for o in operations.values())
    again = sum(max(0, o.transmissions - o.count) for o in operations.values())
    if sent and again / sent >= _RETRANSMIT_RATIO:
        worst = max(operations.values(), key=lambda o: o.transmissions - o.count)
        what = f"{again / sent:.2%} of the requests were sent again"
        found.append(ids.NFS_RETRANS.warn(subject, what, Evidence(worst.line, source)))
    if "READ" not in operations:  # the kernel lists every operation: the text is cut
        return found
    data = [o for name, o in operations.items() if name in _DATA]
    metadata = [o for name, o in operations.items() if name not in (*_DATA, *_NEITHER)]
    mix = OperationMix(
        sum(o.count for o in data),
        sum(o.count for o in metadata),
        sum(o.total_ms for o in data),
        sum(o.total_ms for o in metadata),
    )
    return found + judge_mix(subject, mix, [Evidence(o.line, source) for o in (*data, *metadata) if o.count])


def _reads(subject: str, read: NfsOperation, line: Evidence, between_s: float | None) -> list[Finding]:
    rtt_ms, queue_ms, kib = (
        read.rtt_ms / read.count,
        read.queue_ms / read.count,
        read.received_bytes / read.count / 1024,
    )
    speed = f", {read.received_bytes / between_s / 1e9:.2f} GB/s" if between_s and between_s > 0 else ""
    what = f"READ: round trip {rtt_ms:.2f} ms, {queue_ms:.2f} ms in the client's queue, {kib:.0f} KiB each{speed}"
    if queue_ms > rtt_ms:
        return [ids.NFS_QUEUE.warn(subject, what, line)]
    return [ids.NFS_IO.info(subject, what, line, fix="")]


def compare(before: Sample, after: Sample, between_s: float | None) -> list[Finding]:
    """What each mount did between two moments; the age of a mount tells the time between them if nobody else does."""
    first = {(m.source, m.point): m for m in parse(before.text)}
    found: list[Finding] = []
    for mount in parse(after.text):
        earlier = first.get((mount.source, mount.point))
        if earlier is None:
            continue
        seconds = between_s
        if seconds is None and mount.age_s is not None and earlier.age_s is not None:
            seconds = float(mount.age_s - earlier.age_s)
        done = {}
        for name, operation in mount.operations.items():
            less = operation.less(earlier.operations.get(name, _NOTHING))
            if less is None:
                line = Evidence(operation.line, after.source)
                found.append(ids.NFS_IO.unknown(mount.point, f"the counters of {name} went back", line))
            else:
                done[name] = less
        found += judge_work(f"{mount.point} between the two", done, after.source, seconds)
    return found
