"""The signs of each bottleneck: which signal, past which threshold, with which weight. Pure values.

Every test is monotone in each of its signals, and None where a signal that it needs is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from stoker.units import KIB, MIB, format_bytes


class Bottleneck(StrEnum):
    """What can hold up data on its way to a GPU."""

    THROUGHPUT = "throughput"
    NETWORK = "network"
    METADATA = "metadata"
    CPU_STAGING = "cpu-staging"


@dataclass(frozen=True, slots=True)
class Signals:
    """What was measured between two samples; None: not seen. Ratios are 0..1.

    Attributes:
        utilisation_ratio: Compute / (compute + wait) of the training loop, by stoker's ledger.
        decode_wait_ratio: Part of the loop's waits, saves apart, that was for decoding and mapping samples.
        sm_active_ratio: DCGM SM_ACTIVE, mean of the GPUs.
        gpu_busy_ratio: Time in which any kernel ran (GR_ENGINE_ACTIVE or GPU_UTIL), mean: an upper bound of the former.
        storage_bytes_per_s, ceiling_bytes_per_s: What was read, and what the device or mount can do.
        device_util_ratio, device_queue_count: Of the busiest block device; requests in flight, mean.
        io_full_ratio: Time in which all tasks waited for I/O (PSI).
        request_bytes: Mean size of a read.
        link_ratio: Received of the rate of the fullest link.
        other_traffic_ratio: Of what the busiest link moved, the part that is not of the storage mounts.
        retransmit_ratio: TCP segments sent again, of those sent.
        drop_ratio: Packets dropped by a network interface, of those received.
        pause_ratio: Time in which a peer or this host was told to stop sending.
        congestion_count: RDMA congestion notifications handled.
        read_rtt_s: Round trip of a read of a network file system.
        rtt_growth_ratio: Round trip now over the least ever seen on the same TCP connection.
        path_health_ratio: Least health of a storage network's interfaces (LNet), 1 is healthy.
        connection_count: Connections of the storage mount.
        metadata_ops_ratio: Metadata operations for each read.
        metadata_time_ratio: Part of the time in file-system calls that was spent on metadata.
        open_latency_ratio: Mean time of an open over that of a read.
        object_bytes: Mean bytes read an open.
        posix_ratio: Reads that cuFile sent through the CPU, of its reads.
        cpu_busy_ratio, cpu_system_ratio: Of all CPU time; the second is of the busy time.
        cpu_some_ratio: Time in which a task waited for a CPU (PSI).
        throttled_ratio: Periods in which the cgroup's CPU limit stopped it.
        cpus_per_gpu: CPUs that this process may use for each GPU.
    """

    utilisation_ratio: float | None = None
    decode_wait_ratio: float | None = None
    sm_active_ratio: float | None = None
    gpu_busy_ratio: float | None = None
    storage_bytes_per_s: float | None = None
    ceiling_bytes_per_s: float | None = None
    device_util_ratio: float | None = None
    device_queue_count: float | None = None
    io_full_ratio: float | None = None
    request_bytes: float | None = None
    link_ratio: float | None = None
    other_traffic_ratio: float | None = None
    retransmit_ratio: float | None = None
    drop_ratio: float | None = None
    pause_ratio: float | None = None
    congestion_count: float | None = None
    read_rtt_s: float | None = None
    rtt_growth_ratio: float | None = None
    path_health_ratio: float | None = None
    connection_count: float | None = None
    metadata_ops_ratio: float | None = None
    metadata_time_ratio: float | None = None
    open_latency_ratio: float | None = None
    object_bytes: float | None = None
    posix_ratio: float | None = None
    cpu_busy_ratio: float | None = None
    cpu_system_ratio: float | None = None
    cpu_some_ratio: float | None = None
    throttled_ratio: float | None = None
    cpus_per_gpu: float | None = None

    @property
    def ceiling_ratio(self) -> float | None:
        """What was read, of what can be."""
        if self.storage_bytes_per_s is None or not self.ceiling_bytes_per_s:
            return None
        return self.storage_bytes_per_s / self.ceiling_bytes_per_s

    @property
    def user_ratio(self) -> float | None:
        """The part of the busy CPU time that was not the kernel's."""
        return None if self.cpu_system_ratio is None else 1 - self.cpu_system_ratio


@dataclass(frozen=True, slots=True)
class Sign:
    """A sign of a bottleneck, or against it; `weight` in hundredths, `shows` is only called if the test answered."""

    name: str
    bottleneck: Bottleneck
    weight: int
    test: Callable[[Signals], bool | None]
    shows: Callable[[Signals], str]


_Value = Callable[[Signals], float | None]


def _at_least(value: _Value, limit: float) -> Callable[[Signals], bool | None]:
    def test(signals: Signals) -> bool | None:
        found = value(signals)
        return None if found is None else found >= limit

    return test


def _below(value: _Value, limit: float) -> Callable[[Signals], bool | None]:
    def test(signals: Signals) -> bool | None:
        found = value(signals)
        return None if found is None else found < limit

    return test


def _all(*tests: Callable[[Signals], bool | None]) -> Callable[[Signals], bool | None]:
    """Three-valued and: one that is absent decides."""

    def test(signals: Signals) -> bool | None:
        answers = [t(signals) for t in tests]
        if False in answers:
            return False
        return None if None in answers else True

    return test


def _percent(value: _Value, text: str) -> Callable[[Signals], str]:
    return lambda signals: text.format(f"{value(signals) or 0:.1%}")


def _number(value: _Value, text: str, factor: float = 1.0) -> Callable[[Signals], str]:
    return lambda signals: text.format(f"{(value(signals) or 0) * factor:.3g}")


def _bytes(value: _Value, text: str) -> Callable[[Signals], str]:
    return lambda signals: text.format(format_bytes(int(value(signals) or 0)))


_saturated: Final = _all(_at_least(lambda s: s.device_util_ratio, 0.95), _at_least(lambda s: s.device_queue_count, 16))
_idle_device: Final = _below(lambda s: s.device_util_ratio, 0.6)
_LINK_FULL: Final = _at_least(lambda s: s.link_ratio, 0.85)
_T, _N, _M, _C = Bottleneck

SIGNS: Final[tuple[Sign, ...]] = (
    Sign(
        "at-ceiling",
        _T,
        40,
        _at_least(lambda s: s.ceiling_ratio, 0.85),
        _percent(lambda s: s.ceiling_ratio, "{} of what the storage can deliver was read"),
    ),
    Sign(
        "device-saturated",
        _T,
        30,
        _saturated,
        _percent(lambda s: s.device_util_ratio, "the busiest device was in use {} of the time"),
    ),
    Sign(
        "io-pressure",
        _T,
        20,
        _at_least(lambda s: s.io_full_ratio, 0.2),
        _percent(lambda s: s.io_full_ratio, "all tasks waited for I/O {} of the time"),
    ),
    Sign(
        "large-reads",
        _T,
        10,
        _at_least(lambda s: s.request_bytes, 128 * KIB),
        _bytes(lambda s: s.request_bytes, "a read has {}"),
    ),
    Sign("link-full", _N, 45, _LINK_FULL, _percent(lambda s: s.link_ratio, "{} of a link's rate was received")),
    Sign(
        "shared-link",
        _N,
        10,
        _all(_at_least(lambda s: s.link_ratio, 0.5), _at_least(lambda s: s.other_traffic_ratio, 0.2)),
        _percent(lambda s: s.other_traffic_ratio, "{} of what the link moves is other traffic than the mount's"),
    ),
    Sign(
        "tcp-retransmits",
        _N,
        25,
        _at_least(lambda s: s.retransmit_ratio, 0.001),
        _percent(lambda s: s.retransmit_ratio, "{} of TCP segments were sent again"),
    ),
    Sign(
        "link-paused",
        _N,
        35,
        _at_least(lambda s: s.pause_ratio, 0.05),
        _percent(lambda s: s.pause_ratio, "a link was paused {} of the time"),
    ),
    Sign(
        "congestion-marks",
        _N,
        25,
        _at_least(lambda s: s.congestion_count, 1),
        _number(lambda s: s.congestion_count, "{} congestion notifications were handled"),
    ),
    Sign(
        "packet-drops",
        _N,
        15,
        _at_least(lambda s: s.drop_ratio, 0.0001),
        _percent(lambda s: s.drop_ratio, "{} of packets were dropped on receipt"),
    ),
    Sign(
        "slow-round-trips",
        _N,
        20,
        _at_least(lambda s: s.read_rtt_s, 0.02),
        _number(lambda s: s.read_rtt_s, "a read of the mount takes {} ms on the wire and in the server", 1e3),
    ),
    Sign(
        "round-trips-grown",
        _N,
        20,
        _at_least(lambda s: s.rtt_growth_ratio, 5),
        _number(lambda s: s.rtt_growth_ratio, "round trips take {} times the least seen"),
    ),
    Sign(
        "path-unhealthy",
        _N,
        20,
        _below(lambda s: s.path_health_ratio, 1),
        _percent(lambda s: s.path_health_ratio, "the storage network's health is {}"),
    ),
    Sign(
        "one-connection",
        _N,
        10,
        _below(lambda s: s.connection_count, 2),
        _number(lambda s: s.connection_count, "the mount has {} connections"),
    ),
    Sign(
        "metadata-time",
        _M,
        35,
        _at_least(lambda s: s.metadata_time_ratio, 0.5),
        _percent(lambda s: s.metadata_time_ratio, "{} of the time in file-system calls went to metadata"),
    ),
    Sign(
        "metadata-operations",
        _M,
        25,
        _at_least(lambda s: s.metadata_ops_ratio, 2),
        _number(lambda s: s.metadata_ops_ratio, "{} metadata operations for each read"),
    ),
    Sign(
        "slow-opens",
        _M,
        20,
        _at_least(lambda s: s.open_latency_ratio, 3),
        _number(lambda s: s.open_latency_ratio, "an open takes {} times a read"),
    ),
    Sign(
        "small-files",
        _M,
        15,
        _below(lambda s: s.object_bytes, MIB),
        _bytes(lambda s: s.object_bytes, "a file gives {}"),
    ),
    Sign(
        "far-from-ceiling",
        _M,
        10,
        _below(lambda s: s.ceiling_ratio, 0.3),
        _percent(lambda s: s.ceiling_ratio, "{} of what the storage can deliver was read"),
    ),
    Sign(
        "waits-for-decoding",
        _C,
        60,
        _at_least(lambda s: s.decode_wait_ratio, 0.5),
        _percent(lambda s: s.decode_wait_ratio, "{} of the loop's waits were for decoding, by its ledger"),
    ),
    Sign(
        "cufile-copies",
        _C,
        35,
        _at_least(lambda s: s.posix_ratio, 1e-9),
        _percent(lambda s: s.posix_ratio, "{} of cuFile's reads were copied by the CPU"),
    ),
    Sign(
        "cpu-throttled",
        _C,
        30,
        _at_least(lambda s: s.throttled_ratio, 0.1),
        _percent(lambda s: s.throttled_ratio, "the CPU limit stopped this cgroup in {} of its periods"),
    ),
    Sign(
        "cpu-busy",
        _C,
        20,
        _at_least(lambda s: s.cpu_busy_ratio, 0.8),
        _percent(lambda s: s.cpu_busy_ratio, "CPUs were busy {} of the time"),
    ),
    Sign(
        "cpu-pressure",
        _C,
        20,
        _at_least(lambda s: s.cpu_some_ratio, 0.4),
        _percent(lambda s: s.cpu_some_ratio, "tasks waited for a CPU {} of the time"),
    ),
    Sign(
        "kernel-copies",
        _C,
        15,
        _all(_at_least(lambda s: s.cpu_busy_ratio, 0.8), _at_least(lambda s: s.cpu_system_ratio, 0.4)),
        _percent(lambda s: s.cpu_system_ratio, "{} of the busy CPU time was the kernel's"),
    ),
    Sign(
        "decoding",
        _C,
        15,
        _all(_at_least(lambda s: s.cpu_busy_ratio, 0.8), _at_least(lambda s: s.user_ratio, 0.6), _idle_device),
        _percent(lambda s: s.user_ratio, "{} of the busy CPU time was user code's, with storage idle"),
    ),
    Sign(
        "storage-idle",
        _C,
        10,
        _idle_device,
        _percent(lambda s: s.device_util_ratio, "the busiest device was in use {} of the time"),
    ),
    Sign(
        "few-cpus",
        _C,
        10,
        _below(lambda s: s.cpus_per_gpu, 4),
        _number(lambda s: s.cpus_per_gpu, "{} CPUs for each GPU"),
    ),
)

_DECODES: Final = _at_least(lambda s: s.decode_wait_ratio, 0.5)
_DECODES_SHOWN: Final = _percent(lambda s: s.decode_wait_ratio, "{} of the loop's waits were for decoding")

# What speaks against a bottleneck; the weight is the same for all. The ledger's word counts twice.
CONTRADICTIONS: Final[tuple[Sign, ...]] = (
    Sign(
        "tcp-retransmits",
        _T,
        30,
        _at_least(lambda s: s.retransmit_ratio, 0.001),
        _percent(lambda s: s.retransmit_ratio, "{} of TCP segments were sent again"),
    ),
    Sign(
        "metadata-time",
        _T,
        30,
        _at_least(lambda s: s.metadata_time_ratio, 0.5),
        _percent(lambda s: s.metadata_time_ratio, "{} of the time in file-system calls went to metadata"),
    ),
    Sign(
        "cpu-busy",
        _T,
        30,
        _at_least(lambda s: s.cpu_busy_ratio, 0.7),
        _percent(lambda s: s.cpu_busy_ratio, "CPUs were busy {} of the time"),
    ),
    Sign(
        "device-saturated",
        _N,
        30,
        _saturated,
        _percent(lambda s: s.device_util_ratio, "a local device was in use {} of the time"),
    ),
    Sign(
        "large-reads",
        _M,
        30,
        _at_least(lambda s: s.object_bytes, 16 * MIB),
        _bytes(lambda s: s.object_bytes, "a file gives {}"),
    ),
    Sign(
        "device-saturated",
        _C,
        30,
        _saturated,
        _percent(lambda s: s.device_util_ratio, "the busiest device was in use {} of the time"),
    ),
    Sign("link-full", _C, 30, _LINK_FULL, _percent(lambda s: s.link_ratio, "{} of a link's rate was received")),
    *(Sign("waits-for-decoding", b, 30, _DECODES, _DECODES_SHOWN) for b in (_T, _N, _M)),
    *(Sign("only-decoding", b, 30, _DECODES, _DECODES_SHOWN) for b in (_T, _N, _M)),
)

# Past the limit, not only near it.
SEVERE: Final[Mapping[Bottleneck, Callable[[Signals], bool | None]]] = {
    _T: _at_least(lambda s: s.ceiling_ratio, 0.95),
    _N: _at_least(lambda s: s.retransmit_ratio, 0.01),
    _M: _at_least(lambda s: s.metadata_time_ratio, 0.8),
    _C: _at_least(lambda s: s.throttled_ratio, 0.5),
}
