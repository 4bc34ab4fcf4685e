"""Signals of a stall from the counters of two moments. Pure.

Only what both moments have, or what a text says of its own window (PSI averages, mountstats since the mount), becomes a
signal; a counter that went back, as after a restart, is missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from stoker.doctor.signal_texts import Calls, Counters, Disk, Mount, metadata_of
from stoker.doctor.stall_signs import Signals
from stoker.doctor.texts import real

_NOT_A_DEVICE: Final = re.compile(r"(md|dm-|loop|ram|zram|sr|fd|drbd|bcache)\d+.*")
_BYTES_OF: Final = {"GBps": 1e9, "MBps": 1e6, "Gbps": 1e9 / 8, "Mbps": 1e6 / 8}
_PERIODS_MIN: Final = 10
_IDLE: Final = 3  # user, nice, system, idle, iowait, irq, softirq, steal: proc(5)
_IOWAIT: Final = 4
_SYSTEM: Final = (2, 5, 6)
_GUESTS_AT: Final = 8  # guest time is part of user time
_UTIL_SURE_PERCENT: Final = 50.0


@dataclass(frozen=True)
class Facts:
    """What is known of the node besides counters.

    Attributes:
        window_s: Between the moments; None: taken from the texts where they say.
        ceilings: Bytes/s that a block device (or "": the path) can deliver, from a data sheet or a measurement.
        link_rates: Bytes/s of a network interface or RDMA port; "": of the only one.
        mount: Only this mount counts, if it is among those of the texts.
        devices: Only these block devices count; None: all.
        cpus_per_gpu: None if one of the two is not known.
    """

    window_s: float | None = None
    ceilings: Mapping[str, float] = field(default_factory=dict)
    link_rates: Mapping[str, float] = field(default_factory=dict)
    mount: str = ""
    devices: frozenset[str] | None = None
    cpus_per_gpu: float | None = None


def facts_of_meta(text: str, devices: Sequence[str] = ()) -> Facts:
    """What a `meta.json` beside samples says: `window_s`, and rates of `hw` by their unit. Nothing else counts.

    A rate that begins with the name of a device is its own; one in bits is of a link (`nic`, if named), one in bytes of
    the storage. A demand is no ceiling.
    """
    try:
        meta = json.loads(text)
    except (ValueError, RecursionError):
        return Facts()
    if not isinstance(meta, dict):
        return Facts()
    hardware = meta.get("hw")
    ceilings: dict[str, float] = {}
    links: dict[str, float] = {}
    hardware = hardware if isinstance(hardware, dict) else {}
    for key, value in hardware.items():
        match = re.search(r"_?(GBps|MBps|Gbps|Mbps)$", key)
        number = _number(value)
        if match is None or not number or "demand" in key:
            continue
        rate = number * _BYTES_OF[match[1]]
        if match[1].endswith("Bps"):
            device = next((d for d in sorted(devices, key=len, reverse=True) if key.startswith(f"{d}_")), "")
            ceilings[device] = rate
        else:
            nic = hardware.get("nic")
            links[nic if isinstance(nic, str) else ""] = rate
    return Facts(_number(meta.get("window_s")), ceilings, links, str(meta.get("path") or ""))


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return real(value) if isinstance(value, str) else None
    return float(value) if abs(value) < 1e300 else None  # noqa: PLR2004 - no inf, no nan


def measure(before: Counters, after: Counters, facts: Facts) -> Signals:
    """The signals of the window between two moments."""
    window_s = facts.window_s or _clock_of(before, after)
    values: dict[str, float | None] = {"cpus_per_gpu": facts.cpus_per_gpu}
    for part in (_gpus, _cpus, _pressures, _disks, _network, _file_systems):
        values |= part(before, after, facts, window_s)
    values |= _ceiling(values, after, facts)
    if after.cufile and after.cufile[0]:
        reads, copied = after.cufile
        if before.cufile and reads > before.cufile[0]:
            reads, copied = reads - before.cufile[0], copied - before.cufile[1]
        values["posix_ratio"] = _share(copied, reads)
    return Signals(**{name: value for name, value in values.items() if not name.startswith("_")})


def _clock_of(before: Counters, after: Counters) -> float | None:
    """The window by the clock that llite prints, or by the age of a mount."""
    if before.llite_clock_s is not None and after.llite_clock_s is not None:
        return _positive(after.llite_clock_s - before.llite_clock_s)
    for name, mount in after.mounts.items():
        earlier = before.mounts.get(name)
        if mount.age_s is not None:
            return _positive(mount.age_s - ((earlier.age_s or 0.0) if earlier else 0.0))
    return None


def _gpus(_before: Counters, after: Counters, _facts: Facts, _window_s: float | None) -> dict[str, float | None]:
    """Means over GPUs. Profiling fields that are all nought while kernels run are stuck; a ratio above 1 is none."""
    means = {name: sum(values) / len(values) for name, values in after.gauges.items()}
    util = means.get("util")
    util_ratio = None if util is None or util > 100 else util / 100  # noqa: PLR2004 - percent
    profiled = {name: m if (m := means.get(name)) is not None and m <= 1 else None for name in ("sm", "gr")}
    if util is not None and util > _UTIL_SURE_PERCENT and not any(profiled.values()):
        profiled = {"sm": None, "gr": None}
    bounds = [bound for bound in (profiled["gr"], util_ratio) if bound is not None]
    return {"sm_active_ratio": profiled["sm"], "gpu_busy_ratio": min(bounds) if bounds else None}


def _cpus(before: Counters, after: Counters, _facts: Facts, _window_s: float | None) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    if before.cpu and len(before.cpu) == len(after.cpu):
        spent = [later - earlier for earlier, later in zip(before.cpu, after.cpu, strict=True)][:_GUESTS_AT]
        total, idle = sum(spent), sum(spent[_IDLE : _IOWAIT + 1])
        if total > 0 and min(spent) >= 0:
            found["cpu_busy_ratio"] = (total - idle) / total
            kernel = sum(spent[i] for i in _SYSTEM if i < len(spent))
            found["cpu_system_ratio"] = _share(kernel, total - idle)
    periods = after.cgroup.get("nr_periods", 0) - before.cgroup.get("nr_periods", 0)
    if periods >= _PERIODS_MIN and "nr_throttled" in after.cgroup:
        found["throttled_ratio"] = _share(after.cgroup["nr_throttled"] - before.cgroup.get("nr_throttled", 0), periods)
    return found


def _pressures(before: Counters, after: Counters, _facts: Facts, window_s: float | None) -> dict[str, float | None]:
    """Of the window if both moments have totals, else the average that the kernel keeps of the last 10 s."""
    found: dict[str, float | None] = {}
    for name, key in (("io full", "io_full_ratio"), ("cpu some", "cpu_some_ratio")):
        if name not in after.pressure:
            continue
        average, total_us = after.pressure[name]
        found[key] = min(1.0, average / 100)
        if name in before.pressure and window_s and total_us >= before.pressure[name][1]:
            found[key] = min(1.0, (total_us - before.pressure[name][1]) / 1e6 / window_s)
    return found


def _disks(before: Counters, after: Counters, facts: Facts, window_s: float | None) -> dict[str, float | None]:
    """Of whole block devices, not of what is made of them: their bytes summed, the busiest one's use and queue."""
    names = [n for n in after.disks if n in before.disks and _is_leaf(n, after.disks)]
    if facts.devices is not None:
        names = [n for n in names if n in facts.devices]
    pairs = [(before.disks[n], after.disks[n]) for n in names]
    grown = [(a, b) for a, b in pairs if b.reads >= a.reads and b.busy_ms >= a.busy_ms]
    if not grown or not window_s:
        return {}
    reads = sum(b.reads - a.reads for a, b in grown)
    read_bytes = sum(b.read_bytes - a.read_bytes for a, b in grown)
    busiest = max(grown, key=lambda pair: pair[1].busy_ms - pair[0].busy_ms)
    return {
        "device_util_ratio": min(1.0, (busiest[1].busy_ms - busiest[0].busy_ms) / 1000 / window_s),
        "device_queue_count": max(0.0, (busiest[1].weighted_ms - busiest[0].weighted_ms) / 1000 / window_s),
        "storage_bytes_per_s": max(0, read_bytes) / window_s,
        "request_bytes": read_bytes / reads if reads else None,
        "_device_ratio": _device_ratio(before.disks, after.disks, facts, window_s),
    }


def _device_ratio(before: Mapping[str, Disk], after: Mapping[str, Disk], facts: Facts, window_s: float) -> float | None:
    """The highest share that a device reaches of its own ceiling."""
    shares = [
        (after[name].read_bytes - before[name].read_bytes) / window_s / ceiling
        for name, ceiling in facts.ceilings.items()
        if name in before and name in after and ceiling > 0
    ]
    return max(shares) if shares else None


def _is_leaf(name: str, names: Mapping[str, object]) -> bool:
    part = re.fullmatch(r"(.*\d)p\d+|([a-z]+)\d+", name)
    whole = next((w for w in part.groups() if w), "") if part else ""
    return not _NOT_A_DEVICE.fullmatch(name) and whole not in names


def _network(before: Counters, after: Counters, facts: Facts, window_s: float | None) -> dict[str, float | None]:
    found: dict[str, float | None] = {
        "rtt_growth_ratio": after.rtt_growth,
        "path_health_ratio": None if after.path_health is None else min(1.0, after.path_health / 1000),
        "link_ratio": _fullest_link(before, after, facts, window_s),
    }
    sent = after.tcp.get("OutSegs", 0) - before.tcp.get("OutSegs", 0)
    if before.tcp and sent > 0 and "RetransSegs" in after.tcp:
        found["retransmit_ratio"] = _share(after.tcp["RetransSegs"] - before.tcp.get("RetransSegs", 0), sent)
    drops = [
        _share(now.drops - then.drops, now.packets - then.packets + now.drops - then.drops)
        for name, now in after.links.items()
        if (then := before.links.get(name)) and name != "lo" and now.packets > then.packets
    ]
    found["drop_ratio"] = max((d for d in drops if d is not None), default=None)
    if before.ports and after.ports:
        marks = [
            port.congestion_count - before.ports[n].congestion_count
            for n, port in after.ports.items()
            if n in before.ports
        ]
        found["congestion_count"] = float(max(0, sum(marks))) if marks else None
    if before.pause_us and window_s:
        paused = [us - before.pause_us[n] for n, us in after.pause_us.items() if n in before.pause_us]
        found["pause_ratio"] = min(1.0, max(0, *paused) / 1e6 / window_s) if paused else None
    return found


def _fullest_link(before: Counters, after: Counters, facts: Facts, window_s: float | None) -> float | None:
    if not window_s:
        return None
    rates = dict(facts.link_rates)
    only = rates.pop("", None)
    got = {
        n: now.received_bytes - before.links[n].received_bytes
        for n, now in after.links.items()
        if n in before.links and n != "lo"
    }
    for name, port in after.ports.items():
        earlier = before.ports.get(name)
        if earlier and port.received_bytes is not None and earlier.received_bytes is not None:
            got[name] = port.received_bytes - earlier.received_bytes
            if port.rate_bytes_per_s:
                rates.setdefault(name, port.rate_bytes_per_s)
    if only and got:
        rates.setdefault(max(got, key=lambda n: got[n]), only)
    shares = [got[n] / window_s / rate for n, rate in rates.items() if rate > 0 and got.get(n, -1) >= 0]
    return max(shares) if shares else None


def _file_systems(before: Counters, after: Counters, facts: Facts, window_s: float | None) -> dict[str, float | None]:
    """Of the mount asked about, else of the NFS mount that read most, else of Lustre."""
    moved = {name: _since(mount, before.mounts.get(name)) for name, mount in after.mounts.items()}
    chosen = facts.mount if facts.mount in moved else max(moved, key=lambda n: moved[n].bytes_read, default="")
    if chosen and (moved[chosen].bytes_read or not after.llite):
        return _nfs(moved[chosen], window_s) | {"other_traffic_ratio": _other_traffic(before, after, moved.values())}
    if not after.llite:
        return {}
    calls = {n: _less(c, before.llite.get(n)) for n, c in after.llite.items()}
    if any(c.count < 0 for c in calls.values()) or not before.llite:
        return {}
    total = (after.llite_bytes_read or 0) - (before.llite_bytes_read or 0)
    return _mix(calls, "open", "read", total, nfs=False) | (
        {"storage_bytes_per_s": total / window_s} if window_s and total > 0 else {}
    )


def _other_traffic(before: Counters, after: Counters, mounts: Iterable[Mount]) -> float | None:
    """Of what went over the busiest link, both ways, the part that no NFS mount moved."""
    moved = [
        now.received_bytes - then.received_bytes + now.sent_bytes - then.sent_bytes
        for name, now in after.links.items()
        if (then := before.links.get(name)) and name != "lo"
    ]
    total = max(moved, default=0)
    return _share(max(0, total - sum(mount.bytes_moved for mount in mounts)), total)


def _nfs(mount: Mount, window_s: float | None) -> dict[str, float | None]:
    read = mount.calls.get("READ") or mount.calls.get("READ_PLUS")
    found = _mix(mount.calls, "OPEN", "READ", mount.bytes_read, nfs=True)
    found["connection_count"] = float(mount.connection_count) if mount.connection_count else None
    if read and read.count > 0:
        found["read_rtt_s"] = mount.read_rtt_us / read.count / 1e6
        found["request_bytes"] = mount.bytes_read / read.count
    if window_s and mount.bytes_read > 0:
        found["storage_bytes_per_s"] = mount.bytes_read / window_s
    return found


def _mix(calls: dict[str, Calls], open_name: str, read_name: str, total: int, *, nfs: bool) -> dict[str, float | None]:
    metadata, data = metadata_of(calls, nfs=nfs)
    opened, read = calls.get(open_name), calls.get(read_name)
    found: dict[str, float | None] = {}
    if data.count > 0:
        found["metadata_ops_ratio"] = metadata.count / data.count
        if data.total_us > 0:
            found["metadata_time_ratio"] = _share(metadata.total_us, metadata.total_us + data.total_us)
    if opened and opened.count > 0 and total > 0:
        found["object_bytes"] = total / opened.count
        if read and read.count > 0 and read.total_us > 0 and opened.total_us > 0:
            found["open_latency_ratio"] = opened.total_us / opened.count / (read.total_us / read.count)
    if data.count > 0 and total > 0:
        found["request_bytes"] = total / data.count
    return found


def _since(mount: Mount, earlier: Mount | None) -> Mount:
    """What a mount did since; all of it if it was not there before, or was mounted anew."""
    if earlier is None or earlier.bytes_read > mount.bytes_read:
        return mount
    return Mount(
        mount.age_s,
        mount.connection_count,
        mount.bytes_read - earlier.bytes_read,
        mount.bytes_moved - earlier.bytes_moved,
        mount.read_rtt_us - earlier.read_rtt_us,
        {name: _less(call, earlier.calls.get(name)) for name, call in mount.calls.items()},
    )


def _less(now: Calls, then: Calls | None) -> Calls:
    return now if then is None else Calls(now.count - then.count, now.total_us - then.total_us)


def _ceiling(values: Mapping[str, float | None], _after: Counters, facts: Facts) -> dict[str, float | None]:
    """A ceiling that makes the share right: of the device that is nearest to its own, or of the path as a whole."""
    speed, share = values.get("storage_bytes_per_s"), values.get("_device_ratio")
    if speed and share:
        return {"ceiling_bytes_per_s": speed / share}
    return {"ceiling_bytes_per_s": facts.ceilings.get("")}


def _share(part: float, whole: float) -> float | None:
    return min(1.0, part / whole) if whole > 0 and part >= 0 else None


def _positive(seconds: float) -> float | None:
    return seconds if seconds > 0 else None
