"""The network of a node: RDMA ports, TCP, the card that carries a path, and how near it is to the GPUs."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from stoker.doctor import ethtool, network_ids, rdma, tcp, topo
from stoker.doctor import network_ids as ids
from stoker.doctor.check import Check, Target
from stoker.doctor.finding import Evidence, Finding, Severity
from stoker.doctor.identity import MOUNTINFO, Mount, mount_of, parse_mountinfo
from stoker.doctor.kinds import Kind
from stoker.doctor.node import Missing, Node
from stoker.doctor.subject import Subject
from stoker.doctor.texts import whole

_INFINIBAND: Final = "/sys/class/infiniband"
_NET: Final = "/sys/class/net"
_SNMP: Final = "/proc/net/snmp"
_GPUS: Final = "/proc/driver/nvidia/gpus"
_TOPO: Final = ("nvidia-smi", "topo", "-m")
_SOCKETS: Final = ("ss", "-tin", "state", "established")
_FAST_MBPS: Final = 25_000
_STANDARD_MTU: Final = 1500
_NETWORK_FS: Final = ("nfs", "nfs4", "lustre", "ceph", "cifs", "smb3", "9p", "glusterfs", "beegfs", "wekafs")


# ---- what is read


def read_rdma(node: Node) -> dict[str, str]:
    """The files of all RDMA ports by path: state, rate, and the counters that are known; empty where /sys has none."""
    found: dict[str, str] = {}
    for device in _listing(node, _INFINIBAND):
        for port in _listing(node, f"{_INFINIBAND}/{device}/ports"):
            base = f"{_INFINIBAND}/{device}/ports/{port}"
            names = ["state", "phys_state", "rate", "link_layer", "counters/port_rcv_data", "counters/port_xmit_data"]
            for folder in ("counters", "hw_counters"):
                there = _listing(node, f"{base}/{folder}")
                names += [f"{folder}/{name}" for name in (*rdma.LOSS, *rdma.CONGESTION) if name in there]
            for name in names:
                text = node.read(f"{base}/{name}", 256)
                if isinstance(text, str):
                    found[f"{base}/{name}"] = text.strip()
    return found


def rdma_netdevs(node: Node) -> dict[str, str]:
    """Network device -> RDMA device."""
    return {
        netdev: device
        for device in _listing(node, _INFINIBAND)
        for netdev in _listing(node, f"{_INFINIBAND}/{device}/device/net")
    }


def _listing(node: Node, path: str) -> tuple[str, ...]:
    found = node.listing(path)
    return () if isinstance(found, Missing) else found


@dataclass(frozen=True)
class StorageCard:
    """The card that carries a path: its device, the RDMA device it is ("" if none), and how that is known."""

    netdev: str
    rdma_device: str
    server: str
    evidence: Evidence


def server_of(mount: Mount) -> str | None:
    """The address of a mount's server, if it is one; names are not looked up, for that can hang."""
    asked = [mount.option("addr") or "", mount.source.partition(":/")[0], mount.source.partition("@")[0]]
    for text in asked:
        try:
            return str(ipaddress.ip_address(text.strip("[]")))
        except ValueError:
            continue
    return None


def storage_card(node: Node, path: str) -> StorageCard | Missing | None:
    """The card that carries `path`; None if it lies on this machine."""
    text = node.read(MOUNTINFO)
    mount = mount_of(path, parse_mountinfo(text)) if isinstance(text, str) else None
    if mount is None or not (mount.fs_type in _NETWORK_FS or mount.fs_type.startswith("fuse.gluster")):
        return None
    server = server_of(mount)
    if server is None:
        return Missing("the mount does not show an address of its server")
    route = node.run(["ip", "route", "get", server])
    if isinstance(route, Missing):
        return Missing(f"ip route get {server}: {route.reason}")
    match = re.search(r"\bdev (\S+)", route.stdout)
    if match is None:
        return Missing(f"ip route get {server} names no device")
    line = Evidence(route.stdout.strip().partition("\n")[0], f"ip route get {server}")
    return StorageCard(match[1], rdma_netdevs(node).get(match[1], ""), server, line)


# ---- checks


def check_rdma(node: Node, _target: Target) -> list[Finding]:
    """C18: RDMA ports, their state, rate and counters. Nothing where there are none."""
    files = read_rdma(node)
    found = rdma.judge_files(rdma.ports_of(files), _INFINIBAND)
    for netdev, device in rdma_netdevs(node).items():
        line = Evidence(netdev, f"{_INFINIBAND}/{device}/device/net")
        found.append(ids.RDMA_NETDEV.info(device, f"is network device {netdev}", line))
    return found


def check_tcp(node: Node, _target: Target) -> list[Finding]:
    """C19: what was sent again, and the connections to storage servers."""
    found: list[Finding] = []
    text = node.read(_SNMP)
    if isinstance(text, str):
        found += tcp.explain_snmp(text, _SNMP)
    return found + tcp.judge_connections(read_connections(node), " ".join(_SOCKETS))


def read_connections(node: Node) -> list[tcp.Connection]:
    """The established connections of this network namespace; none where ss is not there."""
    sockets = node.run(_SOCKETS)
    if isinstance(sockets, Missing):
        return []
    # With a state asked for, ss leaves its column out.
    lines = [f"ESTAB {line}" if re.match(r"\d", line) else line for line in sockets.stdout.splitlines()]
    return tcp.parse_ss("\n".join(lines))


def check_path(node: Node, target: Target) -> list[Finding]:
    """C19: the card that carries the path: MTU, pauses, and whether the compute plane uses it too."""
    if not target.path:
        return []
    card = storage_card(node, target.path)
    if card is None:
        return []
    if isinstance(card, Missing):
        return [ids.NIC_STORAGE.unknown(target.path, f"which network card carries it cannot be told: {card.reason}")]
    known = f" ({card.rdma_device})" if card.rdma_device else ""
    found = [
        ids.NIC_STORAGE.info(target.path, f"server {card.server} is reached over {card.netdev}{known}", card.evidence)
    ]
    found += _judge_mtu(node, card)
    found += judge_shared(card, node.environment())
    found += _judge_distance(node, card)
    statistics = node.run(["ethtool", "-S", card.netdev])
    if not isinstance(statistics, Missing) and ethtool.detect(statistics.stdout):
        found += [f for f in ethtool.explain(statistics.stdout, f"ethtool -S {card.netdev}") if f.evidence]
    return found


def _judge_mtu(node: Node, card: StorageCard) -> list[Finding]:
    texts = {name: node.read(f"{_NET}/{card.netdev}/{name}", 64) for name in ("mtu", "speed", "operstate")}
    values = {name: text.strip() for name, text in texts.items() if isinstance(text, str)}
    mtu, speed = whole(values.get("mtu")), whole(values.get("speed"))
    if mtu is None:
        return []
    line = Evidence(", ".join(f"{k} {v}" for k, v in values.items()), f"{_NET}/{card.netdev}")
    if mtu <= _STANDARD_MTU and speed is not None and speed >= _FAST_MBPS:
        return [ids.MTU.warn(card.netdev, f"a link of {speed / 1000:g} Gb/s with an MTU of {mtu}", line)]
    narrow = [
        (int(size), one) for one in read_connections(node) if one.peer == card.server and (size := one.number("pmtu"))
    ]
    if narrow and (least := min(narrow, key=lambda pair: pair[0]))[0] < mtu:
        what = f"MTU {mtu}, but only {least[0]} on the way to {card.server}: the MTUs do not fit"
        return [ids.MTU.warn(card.netdev, what, line, Evidence(least[1].lines[1], " ".join(_SOCKETS)))]
    rate = f", {speed / 1000:g} Gb/s" if speed and speed > 0 else ""
    return [ids.MTU.info(card.netdev, f"MTU {mtu}{rate}", line)]


def judge_shared(card: StorageCard, environment: Mapping[str, str]) -> list[Finding]:
    """Whether NCCL is told to use the card of storage, by the environment this process has."""
    pairs = (("NCCL_IB_HCA", card.rdma_device), ("NCCL_SOCKET_IFNAME", card.netdev))
    for variable, device in pairs:
        value = environment.get(variable, "")
        if value and device and nccl_takes(value, device):
            line = Evidence(f"{variable}={value}", "environment")
            what = f"carries storage, and {variable} gives it to the compute plane"
            return [ids.NIC_SHARED.warn(device, what, line, card.evidence)]
    if card.rdma_device and not environment.get("NCCL_IB_HCA"):
        what = "carries storage; without NCCL_IB_HCA, NCCL takes every RDMA device, this one too"
        return [ids.NIC_SHARED.info(card.rdma_device, what, card.evidence)]
    return []


def nccl_takes(value: str, device: str) -> bool:
    """Whether a list of NCCL holds a device: prefixes; `=` before it whole names, `^` all but these; ports are cut."""
    excludes, exact = value.startswith("^"), "=" in value[:2]
    names = [part.partition(":")[0] for part in value.lstrip("^=").split(",") if part]
    held = any(device == name if exact else device.startswith(name) for name in names)
    return held != excludes


def check_affinity(node: Node, _target: Target) -> list[Finding]:
    """C10: whether the GPUs have near network cards. Nothing where there are no GPUs."""
    if isinstance(node.listing(_GPUS), Missing):
        return []
    matrix = node.run(_TOPO)
    if not isinstance(matrix, Missing) and topo.detect(matrix.stdout):
        return topo.judge(topo.parse(matrix.stdout), " ".join(_TOPO), ())
    return _judge_numa(node)


def _judge_distance(node: Node, card: StorageCard) -> list[Finding]:
    """The GPUs from which the card of a path lies across CPU sockets."""
    matrix = Missing("") if isinstance(node.listing(_GPUS), Missing) or not card.rdma_device else node.run(_TOPO)
    if isinstance(matrix, Missing):
        return []
    found = topo.judge(topo.parse(matrix.stdout), " ".join(_TOPO), (card.rdma_device,))
    return [finding for finding in found if finding.severity is Severity.WARN]


def _judge_numa(node: Node) -> list[Finding]:
    """By the NUMA nodes of GPUs and RDMA devices alone; -1 is unknown, and then nothing is said."""
    cards = {device: _numa(node, f"{_INFINIBAND}/{device}/device") for device in _listing(node, _INFINIBAND)}
    known = {device: at for device, at in cards.items() if at is not None}
    found: list[Finding] = []
    for gpu in _listing(node, _GPUS):
        path = f"/sys/bus/pci/devices/{gpu.lower()}"
        at = _numa(node, path)
        if at is None or len(known) < len(cards) or not cards:
            continue
        near = [device for device, where in known.items() if where == at]
        line = Evidence(f"GPU on {at}, " + ", ".join(f"{d} on {w}" for d, w in known.items()), f"{path}/numa_node")
        if near:
            found.append(ids.AFFINITY.info(f"GPU {gpu}", f"network cards of its NUMA node: {', '.join(near)}", line))
        else:
            found.append(ids.AFFINITY_FAR.warn(f"GPU {gpu}", "no network card is on its NUMA node", line))
    return found


def _numa(node: Node, device: str) -> int | None:
    text = node.read(f"{device}/numa_node", 32)
    number = whole(text.strip()) if isinstance(text, str) else None
    return number if number is not None and number >= 0 else None


KINDS: Final[Sequence[Kind]] = (
    Kind("ethtool", ethtool.detect, ethtool.explain, ethtool.compare),
    Kind("ibstat", rdma.detect_ibstat, rdma.explain_ibstat),
    Kind("rdma-link", rdma.detect_link, rdma.explain_link),
    Kind("sysfs-tree", rdma.detect_tree, rdma.explain_tree, rdma.compare_tree),
    Kind("snmp", tcp.detect_snmp, tcp.explain_snmp, tcp.compare_snmp),
    Kind("ss", tcp.detect_ss, tcp.explain_ss),
    Kind("net-dev", tcp.detect_net_dev, tcp.explain_net_dev, tcp.compare_net_dev),
    Kind("topo", topo.detect, topo.explain),
)

CHECKS: Final = (
    Check("C10", "GPU and network card", check_affinity),
    Check("C18", "RDMA ports", check_rdma),
    Check("C19", "TCP", check_tcp),
    Check("C19", "network card of a path", check_path, per_target=True),
)

SUBJECT: Final = Subject("network", ids=network_ids.IDS, kinds=tuple(KINDS), checks=CHECKS)
