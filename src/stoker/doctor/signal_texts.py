"""Counters from texts, for the attribution of a stall. Pure: a line that is not understood counts for nothing.

Every line is known by its own form, so that files may come alone, joined, or with lines missing. Formats: the kernel's
Documentation (iostats, psi, cgroup-v2, proc_net), nfs-utils mountstats, Lustre lprocfs_stats, DCGM field names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from stoker.doctor import gds_stats
from stoker.doctor.texts import real, sections, whole

SECTOR_BYTES: Final = 512
_DISK: Final = re.compile(r"\s*\d+\s+\d+\s+(\S+)((?:\s+\d{1,30}){11,17})\s*")
_LINK: Final = re.compile(r"\s*(\S+?):((?:\s*\d{1,30}){1}(?:\s+\d{1,30}){15})\s*")
_CPU: Final = re.compile(r"cpu((?:\s+\d{1,30}){4,10})\s*")
_PRESSURE: Final = re.compile(r"(some|full) avg10=([\d.,]+) .*?total=(\d{1,30})")
_CALL: Final = re.compile(r"(\w+)\s+(\d{1,30}) samples \[(\w+)\]((?:\s+\d{1,40})*)\s*")
_RPC: Final = re.compile(r"\s*([A-Z_]+):((?:\s+\d{1,30}){8,9})\s*")
_MOUNT: Final = re.compile(r"device (\S+) mounted on (\S+) with fstype (\S+)")
_GAUGE: Final = re.compile(r"(DCGM_FI_\w+)\{([^}]*)\}\s+(\S+)")
_PORT: Final = re.compile(r"/sys/class/infiniband/([^/]+)/ports/(\d+)/(.+)")
_PAUSE: Final = re.compile(r"\s*([rt]x_prio\d_pause_duration):\s*(\d{1,30})\s*")
_RTT: Final = re.compile(r"\brtt:([\d.]+)/.*\bminrtt:([\d.]+)")
_HEALTH: Final = re.compile(r"\s*health value:\s*(\d{1,6})\s*")
_NID: Final = re.compile(r"\s*-? ?nid:\s*(\S+)")
_BLANK_MIN: Final = 9e18  # DCGM's values for what is not supported
_DATA_CALLS: Final = frozenset(
    {"read", "write", "read_bytes", "write_bytes", "mmap", "page_fault", "brw_read", "brw_write"}
)
_NFS_DATA: Final = frozenset({"READ", "WRITE", "COMMIT", "NULL", "READ_PLUS"})


@dataclass(frozen=True, slots=True)
class Disk:
    """A line of /proc/diskstats."""

    reads: int
    read_bytes: int
    read_ms: int
    busy_ms: int
    weighted_ms: int


@dataclass(frozen=True, slots=True)
class Link:
    """A line of /proc/net/dev: bytes, packets and drops received, and bytes sent."""

    received_bytes: int
    packets: int
    drops: int
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class Calls:
    """An operation: how often, and the microseconds it took in all; 0 where the text has no times."""

    count: int
    total_us: int


@dataclass(frozen=True, slots=True)
class Mount:
    """An NFS mount of mountstats: seconds since it was mounted, its connections, its operations.

    `bytes_read` is what reads received, `bytes_moved` what all operations sent and received.
    """

    age_s: float | None
    connection_count: int
    bytes_read: int
    bytes_moved: int
    read_rtt_us: int
    calls: dict[str, Calls]


@dataclass(frozen=True, slots=True)
class Port:
    """An RDMA port. Bytes, not the words that the kernel counts."""

    received_bytes: int | None
    rate_bytes_per_s: float | None
    congestion_count: int


@dataclass
class Counters:
    """What the texts of one moment hold."""

    disks: dict[str, Disk] = field(default_factory=dict)
    links: dict[str, Link] = field(default_factory=dict)
    ports: dict[str, Port] = field(default_factory=dict)
    cpu: tuple[int, ...] = ()
    pressure: dict[str, tuple[float, int]] = field(default_factory=dict)  # "io full" -> avg10 in percent, total in us
    tcp: dict[str, int] = field(default_factory=dict)
    llite: dict[str, Calls] = field(default_factory=dict)
    llite_bytes_read: int | None = None
    llite_clock_s: float | None = None
    mounts: dict[str, Mount] = field(default_factory=dict)
    gauges: dict[str, list[float]] = field(default_factory=dict)  # DCGM field -> value of each GPU
    cufile: tuple[int, int] | None = None  # reads, of them by the CPU
    cgroup: dict[str, int] = field(default_factory=dict)
    pause_us: dict[str, int] = field(default_factory=dict)
    rtt_growth: float | None = None
    path_health: int | None = None


def read_counters(texts: Iterable[str]) -> Counters:
    """All counters in the texts; of one that comes twice the later counts."""
    found = Counters()
    for text in texts:
        for name, body in sections(text).items():
            _read_lines(found, name, body)
            _read_tcp(found, body)
            _read_mounts(found, body)
        _read_ports(found, text)
        _read_cufile(found, text)
    return found


def _read_lines(found: Counters, name: str, body: str) -> None:
    nid = ""
    for line in body.splitlines():
        _read_storage(found, line)
        _read_network(found, line)
        if match := _CPU.fullmatch(line):
            found.cpu = tuple(map(int, match[1].split()))
        elif match := _PRESSURE.match(line):
            average, about = real(match[2]), re.search(r"\b(io|cpu|memory)\b", name)
            if about and average is not None:
                found.pressure[f"{about[1]} {match[1]}"] = (average, int(match[3]))
        elif match := _GAUGE.match(line):
            _read_gauge(found, match[1], match[3])
        elif match := re.fullmatch(r"(nr_periods|nr_throttled) (\d{1,30})\s*", line):
            found.cgroup[match[1]] = int(match[2])
        elif match := _NID.match(line):
            nid = match[1]
        elif (match := _HEALTH.fullmatch(line)) and not nid.endswith("@lo"):
            health = int(match[1])
            found.path_health = health if found.path_health is None else min(found.path_health, health)


def _read_network(found: Counters, line: str) -> None:
    if match := _LINK.fullmatch(line):
        numbers = list(map(int, match[2].split()))
        found.links[match[1]] = Link(numbers[0], numbers[1], numbers[3], numbers[8])
    elif match := _PAUSE.fullmatch(line):
        found.pause_us[match[1]] = int(match[2])
    elif match := _RTT.search(line):
        now, least = real(match[1]), real(match[2])
        if now is not None and least:
            found.rtt_growth = max(found.rtt_growth or 0.0, now / least)


def _read_storage(found: Counters, line: str) -> None:
    if match := _DISK.fullmatch(line):
        n = list(map(int, match[2].split()))
        found.disks[match[1]] = Disk(n[0], n[2] * SECTOR_BYTES, n[3], n[9], n[10])
    elif match := _CALL.fullmatch(line):
        count, unit, numbers = int(match[2]), match[3].strip(), list(map(int, match[4].split()))
        # min, max, sum and, from some release on, the sum of squares
        total = numbers[2] if len(numbers) >= 3 else 0  # noqa: PLR2004 - the third is the sum
        if unit == "bytes":
            if match[1] == "read_bytes":
                found.llite_bytes_read = (found.llite_bytes_read or 0) + total
                found.llite.setdefault("read_bytes", Calls(count, 0))
            return
        before = found.llite.get(match[1], Calls(0, 0))
        scale = {"usec": 1, "usecs": 1, "us": 1}.get(unit, 0)
        found.llite[match[1]] = Calls(before.count + count, before.total_us + total * scale)
    elif match := re.match(r"snapshot_time:?\s+(\d{1,20}(?:\.\d{1,9})?)", line):
        found.llite_clock_s = real(match[1])


def _read_gauge(found: Counters, name: str, text: str) -> None:
    """A GPU's value; what is blank, no number or past what a number can be is left out."""
    value = real(text)
    if value is not None and 0 <= value < _BLANK_MIN:
        found.gauges.setdefault(name, []).append(value)


def _read_tcp(found: Counters, body: str) -> None:
    """/proc/net/snmp: a line of names, then one of values."""
    names: list[str] = []
    for line in body.splitlines():
        words = line.split()
        if words[:1] != ["Tcp:"]:
            continue
        if len(words) > 1 and not re.fullmatch(r"-?\d+", words[1]):
            names = words[1:]
        elif names:
            values = ((name, whole(word)) for name, word in zip(names, words[1:], strict=False))
            found.tcp |= {name: value for name, value in values if value is not None}


def _read_mounts(found: Counters, body: str) -> None:
    """NFS mounts of /proc/self/mountstats."""
    for block in re.split(r"^(?=device )", body, flags=re.MULTILINE):
        match = _MOUNT.match(block)
        if match is None or not match[3].startswith("nfs"):
            continue
        age = re.search(r"^\s*age:\s*(\d{1,20})", block, re.MULTILINE)
        calls: dict[str, Calls] = {}
        bytes_read = bytes_moved = read_rtt_us = 0
        for line in block.splitlines():
            rpc = _RPC.fullmatch(line)
            if rpc:
                # operations, transmissions, timeouts, sent, received, queue ms, round trip ms, whole ms, errors
                n = list(map(int, rpc[2].split()))
                calls[rpc[1]] = Calls(n[0], n[7] * 1000)
                bytes_moved += n[3] + n[4]
                if rpc[1] in ("READ", "READ_PLUS"):
                    bytes_read, read_rtt_us = bytes_read + n[4], read_rtt_us + n[6] * 1000
        connections = len(re.findall(r"^\s*xprt:\s", block, re.MULTILINE))
        age_s = float(age[1]) if age else None
        found.mounts[match[2]] = Mount(age_s, connections, bytes_read, bytes_moved, read_rtt_us, calls)


def _read_ports(found: Counters, text: str) -> None:
    """RDMA ports of a flattened /sys/class/infiniband."""
    ports: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        path, tab, value = line.partition("\t")
        match = _PORT.fullmatch("/" + path.strip().lstrip("/")) if tab else None
        if match:
            ports.setdefault(f"{match[1]}/{match[2]}", {})[match[3]] = value.strip()
    for name, values in ports.items():
        rate = real(values.get("rate", "").split(" ")[0])
        words = whole(values.get("counters/port_rcv_data"))
        found.ports[name] = Port(
            received_bytes=None if words is None else words * 4,  # counted in words of 32 bits
            rate_bytes_per_s=rate * 1e9 / 8 if rate and "Gb" in values["rate"] else None,
            congestion_count=whole(values.get("hw_counters/rp_cnp_handled")) or 0,
        )


def _read_cufile(found: Counters, text: str) -> None:
    reads = [gpu.counted["read"] for gpu in gds_stats.parse_stats(text) if "read" in gpu.counted]
    known = [counted for counted in reads if counted.posix is not None]
    if known:
        found.cufile = (sum(c.total for c in known), sum(c.posix or 0 for c in known))


def metadata_of(calls: dict[str, Calls], *, nfs: bool) -> tuple[Calls, Calls]:
    """(metadata, data) of a mount's operations."""
    data_names = _NFS_DATA if nfs else _DATA_CALLS
    metadata = [c for name, c in calls.items() if name not in data_names]
    data = [c for name, c in calls.items() if name in ("READ", "WRITE", "READ_PLUS", "read", "write")]
    if not data:  # a release without times of reads
        data = [c for name, c in calls.items() if name == "read_bytes"]
    return _sum(metadata), _sum(data)


def _sum(calls: list[Calls]) -> Calls:
    return Calls(sum(c.count for c in calls), sum(c.total_us for c in calls))
