"""NVMe and NVMe over fabrics on a node, from /sys: transport, paths, links, queues. No root is needed for any of it."""

from __future__ import annotations

from typing import Final

from stoker.doctor import nvme_cli, nvme_facts, nvme_ids, nvme_sysfs
from stoker.doctor import nvme_ids as ids
from stoker.doctor.check import Check, Target
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.fold import fold
from stoker.doctor.kinds import LINE_UNKNOWN, Kind
from stoker.doctor.node import Host, Missing, Node
from stoker.doctor.subject import Subject
from stoker.doctor.texts import tree

_VALUE_BYTES: Final = 4096
_SLOW_FIRST: Final = ("tcp", "fc", "loop", "rdma", "pcie")
_ROOTS: Final = (nvme_sysfs.CONTROLLERS + "/", nvme_sysfs.SUBSYSTEMS + "/", "/sys/block/nvme")


def detect_tree(text: str) -> bool:
    """Whether a flattened /sys has NVMe in it."""
    return any(path.startswith(_ROOTS) for path in tree(text))


def explain_tree(text: str, source: str) -> list[Finding]:
    """What a flattened /sys says of NVMe."""
    values = tree(text)
    found = _judge(values, source, None)
    if not found:
        line = next((line for line in text.splitlines() if line.strip()), "")
        return [LINE_UNKNOWN.unknown("NVMe", "nothing that is known is in the tree", Evidence(line, source))]
    return found


def _judge(values: nvme_sysfs.Tree, source: str, host: Host | None) -> list[Finding]:
    """All of it; of a node two checks share it, and what one of them says the other does not."""
    subsystems = nvme_sysfs.subsystems(values, source)
    return fold([*nvme_facts.judge(subsystems), *_judge_drives(values, source, host)])


def _judge_drives(values: nvme_sysfs.Tree, source: str, host: Host | None) -> list[Finding]:
    """What each controller and each block device is like, wherever it is."""
    return [
        *nvme_sysfs.judge_controllers(values, source, host.cpu_count if host else None),
        *nvme_sysfs.judge_queues(values, source),
        *nvme_sysfs.judge_multipath(values, source, host.machine if host else None),
    ]


def transports(node: Node) -> dict[str, str]:
    """NVMe namespaces by their block device, each with its transport; where live paths differ, the slowest."""
    found: dict[str, str] = {}
    for subsystem in nvme_sysfs.subsystems(_controllers(node), ""):
        doors = [c for c in subsystem.controllers if c.live] or list(subsystem.controllers)
        names = {c.transport for c in doors}
        slowest = next((name for name in _SLOW_FIRST if name in names), "")
        if names <= set(_SLOW_FIRST) and slowest:
            found |= dict.fromkeys(subsystem.namespaces, slowest)
    return found


def with_protection_information(node: Node) -> frozenset[str]:
    """NVMe block devices that are formatted with protection information."""
    names = node.listing("/sys/block")
    paths = {n: f"/sys/block/{n}/integrity/device_is_integrity_capable" for n in _tuple(names) if n.startswith("nvme")}
    return frozenset(n for n, path in paths.items() if _value(node, path) == "1")


def check_drives(node: Node, _target: Target) -> list[Finding]:
    """C12, and of NVMe C10 and C11: drives with their state, temperature, scheduler, queues, link and NUMA node."""
    listed = node.listing(nvme_sysfs.CONTROLLERS)
    if isinstance(listed, Missing) or not listed:
        above = node.listing("/sys/class")
        reason = listed.reason if isinstance(listed, Missing) else "empty"
        line = Evidence(reason, nvme_sysfs.CONTROLLERS)
        if isinstance(above, Missing) or (isinstance(listed, Missing) and listed.denied):
            return [ids.HIDDEN.unknown("NVMe", "/sys is not visible here", line)]
        return [ids.NONE.info("NVMe", "no NVMe device is seen", line)]
    host, values = node.host(), _read_tree(node)
    local = [subsystem for subsystem in nvme_sysfs.subsystems(values, "") if not subsystem.fabric]
    drives = _judge_drives(values, "", host if isinstance(host, Host) else None)
    return fold([*nvme_facts.judge(local), *drives])


def check_fabrics(node: Node, _target: Target) -> list[Finding]:
    """C13: remote subsystems with their transport, live paths, ANA states and I/O policy."""
    remote = [subsystem for subsystem in nvme_sysfs.subsystems(_controllers(node), "") if subsystem.fabric]
    return fold(nvme_facts.judge(remote))


def _controllers(node: Node) -> dict[str, str]:
    """The attributes of controllers and of their paths, by their paths in /sys."""
    found: dict[str, str] = {}
    for controller in _tuple(node.listing(nvme_sysfs.CONTROLLERS)):
        base = f"{nvme_sysfs.CONTROLLERS}/{controller}"
        _add(found, node, base, nvme_sysfs.ATTRIBUTES)
        for child in _tuple(node.listing(base)):
            if nvme_sysfs.namespace_of(child):
                found[f"{base}/{child}/ana_state"] = _value(node, f"{base}/{child}/ana_state")
            elif child.startswith("hwmon") and child != "hwmon":
                _add(found, node, f"{base}/{child}", ("temp1_input", "temp1_max"))
    for subsystem in _tuple(node.listing(nvme_sysfs.SUBSYSTEMS)):
        base = f"{nvme_sysfs.SUBSYSTEMS}/{subsystem}"
        _add(found, node, base, ("iopolicy", "subsysnqn"))
        for child in _tuple(node.listing(base)):
            if child.startswith("nvme"):
                found[f"{base}/{child}/listed"] = ""
    return found


def _read_tree(node: Node) -> dict[str, str]:
    found = _controllers(node)
    for name in _tuple(node.listing("/sys/block")):
        if nvme_sysfs.namespace_of(name) == name:
            _add(found, node, f"/sys/block/{name}/queue", nvme_sysfs.QUEUE)
            _add(found, node, f"/sys/block/{name}/integrity", ("device_is_integrity_capable",))
    drives = {value for path, value in found.items() if path.endswith("/address")}
    for device in _tuple(node.listing(nvme_sysfs.PCI)):
        base = f"{nvme_sysfs.PCI}/{device}"
        _add(found, node, base, ("class",))
        if found.get(f"{base}/class", "").startswith("0x03") and _value(node, f"{base}/vendor") in ("0x10de", "0x1002"):
            _add(found, node, base, ("numa_node",))
        elif device in drives:
            _add(found, node, base, ("numa_node", *nvme_sysfs.LINK))
    _add(found, node, nvme_sysfs.MULTIPATH.rpartition("/")[0], ("multipath",))
    if _value(node, "/sys/devices/system/node/online") == "0":  # one NUMA node: it does not matter which
        found = {path: value for path, value in found.items() if not path.endswith("/numa_node")}
    return found


def _add(found: dict[str, str], node: Node, folder: str, names: tuple[str, ...]) -> None:
    for name in names:
        text = node.read(f"{folder}/{name}", _VALUE_BYTES)
        if isinstance(text, str):
            found[f"{folder}/{name}"] = text.strip()


def _value(node: Node, path: str) -> str:
    text = node.read(path, _VALUE_BYTES)
    return text.strip() if isinstance(text, str) else ""


def _tuple(names: tuple[str, ...] | Missing) -> tuple[str, ...]:
    return () if isinstance(names, Missing) else names


KINDS: Final = (
    Kind("nvme-list", nvme_cli.detect_list, nvme_cli.explain_list),
    Kind("nvme-subsys", nvme_cli.detect_subsystems, nvme_cli.explain_subsystems),
    Kind("sysfs-tree", detect_tree, explain_tree),
)

CHECKS: Final = (
    Check("C12", "NVMe drives", check_drives),
    Check("C13", "NVMe over fabrics", check_fabrics),
)

SUBJECT: Final = Subject("nvme", ids=nvme_ids.IDS, kinds=KINDS, checks=CHECKS)
