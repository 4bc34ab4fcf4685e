"""Counters from texts, for the attribution of a stall. Pure: a line that is not understood counts for nothing. What a
subject of the doctor reads is read by it.

Every line is known by its own form, so that files may come alone, joined, or with lines missing. Formats: the kernel's
Documentation (iostats, psi, cgroup-v2, proc_net), nfs-utils mountstats, Lustre lprocfs_stats, DCGM field names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from stoker.doctor import (
    cgroup,
    dcgm,
    diskstats,
    ethtool,
    gds_stats,
    lustre,
    mountstats,
    pressure,
    proc_stat,
    rdma,
    tcp,
)
from stoker.doctor.texts import fields, sections, tree, whole

SECTOR_BYTES: Final = 512
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
    gauges: dict[str, list[float]] = field(default_factory=dict)  # as dcgm.py calls it -> value of each GPU
    cufile: tuple[int, int] | None = None  # reads, of them by the CPU
    cgroup: dict[str, int] = field(default_factory=dict)
    pause_us: dict[str, int] = field(default_factory=dict)
    rtt_growth: float | None = None
    path_health: int | None = None


def read_counters(texts: Iterable[str]) -> Counters:
    """All counters in the texts; of one that comes twice the later counts."""
    found = Counters()
    for text in texts:
        for body in sections(text).values():
            _read_processors(found, body)
            _read_storage(found, body)
            _read_network(found, body)
            _read_gpus(found, body)
        _read_pressure(found, text)
        _read_ports(found, text)
        _read_cufile(found, text)
    return found


def _read_processors(found: Counters, body: str) -> None:
    found.cgroup |= cgroup.throttling(body)
    ticks = proc_stat.parse(body)
    if ticks:
        found.cpu = tuple(ticks.values())


def _read_network(found: Counters, body: str) -> None:
    found.tcp |= tcp.parse_snmp(body)
    found.pause_us |= ethtool.pause_durations_us(body)
    growth, health = tcp.rtt_growth(body), lustre.path_health(body)
    if growth is not None:
        found.rtt_growth = max(found.rtt_growth or 0.0, growth)
    if health is not None:
        found.path_health = health if found.path_health is None else min(found.path_health, health)
    for name, n in tcp.parse_net_dev(body).items():
        found.links[name] = Link(n[0], n[1], n[3], n[8])


def _read_storage(found: Counters, body: str) -> None:
    for name, disk in diskstats.parse(body).items():
        read_bytes = disk.read_sectors * SECTOR_BYTES
        found.disks[name] = Disk(disk.reads, read_bytes, disk.read_ms, disk.busy_ms, disk.queue_ms)
    for mount in mountstats.parse(body):
        found.mounts[mount.point] = _mount(mount)
    for counters in lustre.parse_stats(body).values():
        for name, counter in counters.items():
            _add_call(found, name, counter)
    clock_s = lustre.snapshot_s(body)
    if clock_s is not None:
        found.llite_clock_s = clock_s


def _add_call(found: Counters, name: str, counter: lustre.ClientCounter) -> None:
    total = counter.total or 0
    if counter.unit == "bytes":
        if name == "read_bytes":
            found.llite_bytes_read = (found.llite_bytes_read or 0) + total
            found.llite.setdefault(name, Calls(counter.count, 0))
        return
    before = found.llite.get(name, Calls(0, 0))
    total_us = total if counter.unit in lustre.MICROSECONDS else 0
    found.llite[name] = Calls(before.count + counter.count, before.total_us + total_us)


def _mount(mount: mountstats.NfsMount) -> Mount:
    operations = mount.operations
    reads = [operations[name] for name in ("READ", "READ_PLUS") if name in operations]
    return Mount(
        age_s=None if mount.age_s is None else float(mount.age_s),
        connection_count=len(mount.transports),
        bytes_read=sum(read.received_bytes for read in reads),
        bytes_moved=sum(one.sent_bytes + one.received_bytes for one in operations.values()),
        read_rtt_us=sum(read.rtt_ms for read in reads) * 1000,
        calls={name: Calls(one.count, one.total_ms * 1000) for name, one in operations.items()},
    )


def _read_gpus(found: Counters, body: str) -> None:
    """Values of each GPU; what DCGM has no value for is left out."""
    for metrics in dcgm.parse(body)[0].values():
        for name in ("sm", "gr", "util"):
            if name in metrics.values:
                found.gauges.setdefault(name, []).append(metrics.values[name])


def _read_pressure(found: Counters, text: str) -> None:
    for one in pressure.parse(text)[0]:
        total_us = whole(fields(one.line).get("total"))
        if one.resource and total_us is not None:
            found.pressure[f"{one.resource} {one.word}"] = (one.avg10_percent, total_us)


def _read_ports(found: Counters, text: str) -> None:
    """RDMA ports of a flattened /sys/class/infiniband."""
    for files in rdma.ports_of(tree(text)):
        words = files.counter("port_rcv_data")
        rate_gbps = files.port.rate_gbps if files.port is not None else None
        found.ports[f"{files.device}/{files.number}"] = Port(
            received_bytes=None if words is None else words * 4,  # counted in words of 32 bits
            rate_bytes_per_s=rate_gbps * 1e9 / 8 if rate_gbps else None,
            congestion_count=files.counter("rp_cnp_handled") or 0,
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
