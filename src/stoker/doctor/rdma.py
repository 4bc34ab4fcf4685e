"""RDMA ports: `ibstat`, `rdma link`, and the counters in /sys/class/infiniband.

Sources: infiniband-diags ibstat(8); iproute2 rdma-link(8); Documentation/ABI/stable/sysfs-class-infiniband: data
counters are in words of 4 octets; mlx5 hw_counters from the kernel's documentation and NVIDIA's counter guide.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from stoker.doctor import network_ids as ids
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.kinds import LINE_UNKNOWN, Sample
from stoker.doctor.texts import real, tree, whole

WORD_BYTES: Final = 4
SATURATED_RATIO: Final = 0.85
STUCK: Final = (1 << 32) - 1
LOSS: Final = (
    *("out_of_buffer", "out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err"),
    *("port_xmit_discards", "port_rcv_errors", "symbol_error", "link_downed", "link_error_recovery"),
)
CONGESTION: Final = ("np_cnp_sent", "rp_cnp_handled", "port_xmit_wait", "roce_slow_restart", "roce_adp_retrans")
_ACTIVE: Final = ("active", "active_defer")
_DOWN: Final = ("down", "nop", "no state")
_WAITING: Final = ("init", "initialize", "initializing", "armed")
_PORT_FILE: Final = re.compile(r"/infiniband/([^/]+)/ports/(\d{1,4})/(.+)$")
_LINK_LINE: Final = re.compile(r"^\s*(?:\d+/\d+:\s*|link )(\S+)/(\d+):?\s.*?state (\S+)(?:.*?physical_state (\S+))?")
_FULL_LANES: Final = 4
_HALF_LANES: Final = 2


@dataclass(frozen=True)
class Port:
    """An RDMA port. `rate_gbps` in Gb/s, `lanes` as in 4X; None where it is not printed."""

    device: str
    number: str
    state: str
    physical: str = ""
    rate_gbps: float | None = None
    lanes: int | None = None
    layer: str = ""
    model: str = ""
    netdev: str = ""
    line: str = ""

    @property
    def name(self) -> str:
        """As in mlx5_0/1."""
        return f"{self.device}/{self.number}"

    @property
    def is_active(self) -> bool:
        """Whether it carries data."""
        return self.state.lower() in _ACTIVE


def judge_ports(ports: Sequence[Port], source: str) -> list[Finding]:
    """The state of each port, and of those that are up whether they are as fast as they could be."""
    found: list[Finding] = []
    for port in ports:
        found.append(_judge_state(port, Evidence(port.line, source)))
        if port.is_active and port.layer != "Ethernet" and port.lanes is not None and port.lanes < _FULL_LANES:
            found.append(_judge_lanes(port, port.lanes, Evidence(port.line, source)))
        if port.netdev:
            found.append(
                ids.RDMA_NETDEV.info(port.name, f"is network device {port.netdev}", Evidence(port.line, source))
            )
    for model in {p.model for p in ports if p.model}:
        alike = [p for p in ports if p.model == model and p.is_active and p.rate_gbps]
        best = max((p.rate_gbps or 0 for p in alike), default=0)
        for port in alike:
            if port.rate_gbps is not None and port.rate_gbps < best:
                what = f"runs at {port.rate_gbps:g} Gb/s, another {model} at {best:g} Gb/s"
                found.append(ids.RDMA_RATE.warn(port.name, what, Evidence(port.line, source)))
    return found


def _judge_lanes(port: Port, lanes: int, line: Evidence) -> Finding:
    """Of InfiniBand: with Ethernet, lanes go by the speed. HDR100 and NDR200 have two by design."""
    if lanes == _HALF_LANES:
        return ids.RDMA_RATE.info(port.name, "runs 2X: HDR100 and NDR200 do; any other lost half of its lanes", line)
    return ids.RDMA_RATE.warn(port.name, f"runs {lanes}X, with fewer than {_FULL_LANES} lanes", line)


def _judge_state(port: Port, line: Evidence) -> Finding:
    state = port.state.lower()
    if port.is_active:
        rate = f" at {port.rate_gbps:g} Gb/s" if port.rate_gbps is not None else ""
        return ids.RDMA_PORT.ok(port.name, f"is up{rate}" + (f" ({port.layer})" if port.layer else ""), line)
    if state in _DOWN:
        rate = f"; the rate of {port.rate_gbps:g} Gb/s that it prints means nothing" if port.rate_gbps else ""
        return ids.RDMA_PORT.warn(port.name, f"is down ({port.physical or 'no reason given'}){rate}", line)
    if state in _WAITING:
        return ids.RDMA_PORT.warn(port.name, f"has a link but is not set up ({port.state}): no subnet manager?", line)
    return LINE_UNKNOWN.unknown(port.name, f"its state {port.state!r} is not understood", line)


# ---- ibstat


def detect_ibstat(text: str) -> bool:
    """Whether it is the output of ibstat."""
    return bool(re.search(r"^CA '[^']+'", text, re.MULTILINE))


def parse_ibstat(text: str) -> list[Port]:
    """The ports. One without a state is left out."""
    found: list[Port] = []
    device, model, number = "", "", ""
    values: dict[str, str] = {}

    def take() -> None:
        if device and number and "State" in values:
            shown = f"Port {number}: " + ", ".join(f"{k}: {v}" for k, v in values.items() if k in _SHOWN)
            found.append(
                Port(
                    device=device,
                    number=number,
                    state=values["State"],
                    physical=values.get("Physical state", ""),
                    rate_gbps=real(values.get("Rate")),
                    layer=values.get("Link layer", ""),
                    model=model,
                    line=f"CA '{device}' {shown}",
                )
            )

    for line in text.splitlines():
        head, port = re.match(r"CA '([^']+)'", line), re.match(r"\s+Port (\d{1,4}):\s*$", line)
        if head or port:
            take()
            values = {}
            number = port[1] if port else ""
            device, model = (head[1], "") if head else (device, model)
            continue
        key, colon, value = line.strip().partition(":")
        if colon and key == "CA type":
            model = value.strip()
        elif colon and number:
            values[key] = value.strip()
    take()
    return found


_SHOWN: Final = ("State", "Physical state", "Rate", "Link layer")


def explain_ibstat(text: str, source: str) -> list[Finding]:
    """States and rates."""
    ports = parse_ibstat(text)
    return judge_ports(ports, source) if ports else [_no_ports(text, source)]


def _no_ports(text: str, source: str) -> Finding:
    first = next((line for line in text.splitlines() if line.strip()), "")
    return LINE_UNKNOWN.unknown("RDMA", "no port with a state is in it", Evidence(first, source))


# ---- rdma link


def detect_link(text: str) -> bool:
    """Whether it is the output of `rdma link`, as text or JSON."""
    if any(isinstance(row, dict) and "ifname" in row and "physical_state" in row for row in _rows(text)):
        return True
    return bool(re.search(r"^(?:\d+/\d+: |link )\S+/\d+:? .*?state \S+ physical_state ", text, re.MULTILINE))


def parse_link(text: str) -> list[Port]:
    """The ports; rows without name or state are left out."""
    found = []
    for row in _rows(text):
        if isinstance(row, dict) and isinstance(row.get("ifname"), str) and isinstance(row.get("state"), str):
            netdev = row.get("netdev")
            found.append(
                Port(
                    device=row["ifname"].partition("/")[0],
                    number=str(row.get("port", "?")),
                    state=row["state"],
                    physical=str(row.get("physical_state", "")),
                    netdev=netdev if isinstance(netdev, str) else "",
                    line=json.dumps(row),
                )
            )
    for line in text.splitlines():
        match = _LINK_LINE.match(line)
        if match:
            netdev = re.search(r"\snetdev (\S+)", line)
            found.append(
                Port(match[1], match[2], match[3], match[4] or "", netdev=netdev[1] if netdev else "", line=line)
            )
    return found


def _rows(text: str) -> list[Any]:
    if not text.lstrip().startswith("["):
        return []
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return rows if isinstance(rows, list) else []


def explain_link(text: str, source: str) -> list[Finding]:
    """States, and which network devices they are."""
    ports = parse_link(text)
    return judge_ports(ports, source) if ports else [_no_ports(text, source)]


# ---- /sys/class/infiniband


@dataclass(frozen=True)
class PortFiles:
    """The files of a port by their path below it, and the port itself if it has a state."""

    device: str
    number: str
    files: Mapping[str, str]
    port: Port | None

    def counter(self, name: str) -> int | None:
        """A counter of either folder; None if it is not there or no number."""
        for folder in ("counters", "hw_counters"):
            value = whole(self.files.get(f"{folder}/{name}"))
            if value is not None:
                return value
        return None


def detect_tree(text: str) -> bool:
    """Whether a flattened tree has RDMA ports."""
    return any(_PORT_FILE.search(path) for path in tree(text))


def ports_of(files: Mapping[str, str]) -> list[PortFiles]:
    """The ports in files by absolute path, as in a tree or on a node."""
    grouped: dict[tuple[str, str], dict[str, str]] = {}
    for path, value in files.items():
        match = _PORT_FILE.search(path)
        if match:
            grouped.setdefault((match[1], match[2]), {})[match[3]] = value
    return [PortFiles(d, n, values, _port(d, n, values)) for (d, n), values in grouped.items()]


def _port(device: str, number: str, values: Mapping[str, str]) -> Port | None:
    if "state" not in values:
        return None
    rate = re.match(r"\s*([\d.]{1,12})\s*Gb/sec(?:\s*\((\d{1,2})X)?", values.get("rate", ""))
    _, _, state = values["state"].partition(":")
    _, _, physical = values.get("phys_state", "").partition(":")
    return Port(
        device=device,
        number=number,
        state=state.strip() or values["state"],
        physical=physical.strip(),
        rate_gbps=real(rate[1]) if rate else None,
        lanes=whole(rate[2]) if rate and rate[2] else None,
        layer=values.get("link_layer", ""),
        line=", ".join(f"{k} {values[k]}" for k in ("state", "phys_state", "rate", "link_layer") if k in values),
    )


def explain_tree(text: str, source: str) -> list[Finding]:
    """States; of counters what is above zero since they began, which says nothing of now."""
    return judge_files(ports_of(tree(text)), source)


def judge_files(ports: Sequence[PortFiles], source: str) -> list[Finding]:
    """States of ports, and their counters at one moment."""
    found = judge_ports([p.port for p in ports if p.port], source)
    for port in ports:
        name = f"{port.device}/{port.number}"
        grown = {key: count for key in (*LOSS, *CONGESTION) if (count := port.counter(key))}
        if grown:
            line = Evidence(", ".join(f"{k} {v}" for k, v in grown.items()), source)
            what = (
                "counters of loss or congestion are above zero since they began; only growth counts: take two samples"
            )
            found.append(ids.RDMA_LOSS.info(name, what, line))
        for key, value in port.files.items():
            known = key.rpartition("/")[2] in (*LOSS, *CONGESTION, "port_rcv_data", "port_xmit_data")
            if "counters/" in key and known and whole(value) is None:
                line = Evidence(f"{key} {value}", source)
                found.append(LINE_UNKNOWN.unknown(name, "a counter is no number", line))
    return found


def compare_tree(before: Sample, after: Sample, seconds: float | None) -> list[Finding]:
    """What the ports carried, and which counters grew."""
    earlier = {(p.device, p.number): p for p in ports_of(tree(before.text))}
    found: list[Finding] = []
    for port in ports_of(tree(after.text)):
        old = earlier.get((port.device, port.number))
        if old is not None:
            found += _compare_rate(old, port, seconds, after.source)
            found += _compare_counters(old, port, after.source)
    return found


def _delta(old: PortFiles, new: PortFiles, key: str) -> int | None:
    first, second = old.counter(key), new.counter(key)
    if first is None or second is None or second < first or second == STUCK:
        return None
    return second - first


def _compare_rate(old: PortFiles, new: PortFiles, seconds: float | None, source: str) -> list[Finding]:
    found: list[Finding] = []
    name = f"{new.device}/{new.number}"
    rate = new.port.rate_gbps if new.port else None
    for key, verb in (("port_rcv_data", "received"), ("port_xmit_data", "sent")):
        words = _delta(old, new, key)
        line = Evidence(f"counters/{key} {old.counter(key)} -> {new.counter(key)} words of 4 octets", source)
        if words is None:
            if old.counter(key) is not None or new.counter(key) is not None:
                found.append(ids.COUNTERS_UNSEEN.unknown(name, f"how much it {verb} cannot be told", line))
        elif not seconds:
            what = f"{verb} {words * WORD_BYTES / 1e9:.3g} GB in an unknown time: give the seconds for a rate"
            found.append(ids.COUNTERS_UNSEEN.unknown(name, what, line))
        else:
            found.append(_judge_rate(name, verb, words * WORD_BYTES / seconds, rate, line))
    return found


def _judge_rate(name: str, verb: str, bytes_per_s: float, rate_gbps: float | None, line: Evidence) -> Finding:
    what = f"{verb} {bytes_per_s / 1e9:.3g} GB/s"
    if not rate_gbps:
        return ids.LINK_RATE.info(name, what, line)
    share = bytes_per_s * 8 / (rate_gbps * 1e9)
    what += f", {share:.0%} of {rate_gbps:g} Gb/s"
    if share >= SATURATED_RATIO:
        return ids.LINK_SATURATED.warn(name, f"{what}: the link is saturated", line)
    return ids.LINK_RATE.info(name, what, line)


def _compare_counters(old: PortFiles, new: PortFiles, source: str) -> list[Finding]:
    name = f"{new.device}/{new.number}"
    found: list[Finding] = []
    seen = 0
    for keys, known, meaning in ((LOSS, ids.RDMA_LOSS, "loss"), (CONGESTION, ids.RDMA_CONGESTION, "congestion")):
        grown: list[str] = []
        for key in keys:
            if new.counter(key) is None and old.counter(key) is None:
                continue
            delta = _delta(old, new, key)
            if delta is None:
                line = Evidence(f"{key} {old.counter(key)} -> {new.counter(key)}", source)
                found.append(ids.COUNTERS_UNSEEN.unknown(name, f"{key} is stuck, went back, or is in one sample", line))
                continue
            seen += 1
            if delta:
                grown.append(f"{key} {old.counter(key)} -> {new.counter(key)} (+{delta})")
        if grown:
            lines = [Evidence(line, source) for line in grown]
            found.append(
                known.warn(name, f"counters of {meaning} grew: {', '.join(g.split()[0] for g in grown)}", *lines)
            )
    if seen and not found:
        found.append(ids.RDMA_LOSS.ok(name, f"none of {seen} counters of loss and congestion grew"))
    elif not seen and not found:
        what = "no counters of loss and congestion that are known: congestion is not excluded"
        found.append(ids.COUNTERS_UNSEEN.unknown(name, what))
    return found
