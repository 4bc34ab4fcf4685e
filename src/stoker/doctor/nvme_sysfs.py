"""NVMe as /sys has it, flattened to path -> value: from a `.tree` text or read from a node. Pure but for `read_tree`.

Sources: Documentation/ABI of the kernel (sysfs-class-nvme, sysfs-block), drivers/nvme/host/sysfs.c. `nvmeXcYnZ` below a
controller is the path of subsystem X through controller Y to namespace Z.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from stoker.doctor import nvme_ids as ids
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.kinds import LINE_UNKNOWN
from stoker.doctor.nvme_facts import DISCOVERY_NQN, FABRICS, Controller, Subsystem
from stoker.doctor.texts import whole

CONTROLLERS: Final = "/sys/class/nvme"
SUBSYSTEMS: Final = "/sys/class/nvme-subsystem"
PCI: Final = "/sys/bus/pci/devices"
MULTIPATH: Final = "/sys/module/nvme_core/parameters/multipath"
ATTRIBUTES: Final = ("transport", "address", "state", "numa_node", "queue_count", "model", "cntrltype", "subsysnqn")
LINK: Final = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
QUEUE: Final = ("scheduler", "read_ahead_kb", "nr_requests", "max_sectors_kb", "max_hw_sectors_kb")
_NAMESPACE: Final = re.compile(r"nvme(\d{1,6})(?:c\d{1,6})?n(\d{1,6})")
_SPEED: Final = re.compile(r"(\d{1,3}(?:\.\d)?) GT/s\b.*")
_GENERATION: Final = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_GPU_CLASS: Final = "0x03"
_READ_AHEAD_KB: Final = 1024
_QUEUES_ENOUGH: Final = 32

Tree = Mapping[str, str]


def names_under(tree: Tree, folder: str) -> list[str]:
    """The names directly under a folder, in their order."""
    start = folder.rstrip("/") + "/"
    return list(dict.fromkeys(path[len(start) :].split("/")[0] for path in tree if path.startswith(start)))


def evidence(tree: Tree, path: str, source: str) -> Evidence:
    """A value with where it stands; of a node's own file the path is the source."""
    return Evidence(f"{path}: {tree.get(path, '')}" if source else tree.get(path, ""), source or path)


def namespace_of(name: str) -> str:
    """`nvme1n1` for itself and for its path `nvme1c2n1`; "" for other names."""
    match = _NAMESPACE.fullmatch(name)
    return f"nvme{match[1]}n{match[2]}" if match else ""


def subsystems(tree: Tree, source: str) -> list[Subsystem]:
    """Controllers by the subsystem they lead to; one that leads to none that is known stands by itself."""
    groups: dict[str, list[str]] = {}
    for name in names_under(tree, CONTROLLERS):
        if re.fullmatch(r"nvme\d{1,6}", name):
            groups.setdefault(_group(tree, name), []).append(name)
    found = []
    for group, names in groups.items():
        policy = f"{SUBSYSTEMS}/{group}/iopolicy"
        spaces = [namespace_of(n) for c in names for n in names_under(tree, f"{CONTROLLERS}/{c}")]
        spaces += [namespace_of(n) for n in names_under(tree, f"{SUBSYSTEMS}/{group}") if "c" not in n]
        found.append(
            Subsystem(
                name=group,
                controllers=tuple(_controller(tree, name, source) for name in names),
                nqn=tree.get(f"{SUBSYSTEMS}/{group}/subsysnqn", ""),
                io_policy=tree.get(policy, "").strip(),
                policy_evidence=evidence(tree, policy, source),
                namespaces=tuple(dict.fromkeys(space for space in spaces if space)),
                discovery=all(_discovers(tree, name) for name in names),
            )
        )
    return found


def _group(tree: Tree, controller: str) -> str:
    for name in names_under(tree, f"{CONTROLLERS}/{controller}"):
        match = re.fullmatch(r"nvme(\d{1,6})c\d{1,6}n\d{1,6}", name)
        if match:
            return f"nvme-subsys{match[1]}"
    for subsystem in names_under(tree, SUBSYSTEMS):
        if controller in names_under(tree, f"{SUBSYSTEMS}/{subsystem}"):
            return subsystem
    return controller


def _discovers(tree: Tree, controller: str) -> bool:
    """Whether a controller only tells which targets there are."""
    base = f"{CONTROLLERS}/{controller}"
    return tree.get(f"{base}/cntrltype") == "discovery" or tree.get(f"{base}/subsysnqn") == DISCOVERY_NQN


def _controller(tree: Tree, name: str, source: str) -> Controller:
    base = f"{CONTROLLERS}/{name}"
    ana = [tree.get(f"{base}/{child}/ana_state", "") for child in names_under(tree, base) if namespace_of(child)]
    return Controller(
        name=name,
        transport=tree.get(f"{base}/transport", ""),
        evidence=evidence(tree, f"{base}/transport", source),
        address=tree.get(f"{base}/address", ""),
        state=tree.get(f"{base}/state", ""),
        ana=tuple(state for state in ana if state),
    )


def judge_controllers(tree: Tree, source: str, cpu_count: int | None) -> list[Finding]:
    """Findings about links, NUMA nodes and queues. `cpu_count` None is not known."""
    found: list[Finding] = []
    for name in names_under(tree, CONTROLLERS):
        if _discovers(tree, name):
            continue
        transport, address = (tree.get(f"{CONTROLLERS}/{name}/{key}", "") for key in ("transport", "address"))
        if transport == "pcie":
            found += _link(tree, name, f"{PCI}/{address}", source)
        if transport in FABRICS:
            found += _queues(tree, name, source, cpu_count)
        found += _numa(tree, name, address, source)
        found += _temperature(tree, name, source)
    return found


def _link(tree: Tree, name: str, device: str, source: str) -> list[Finding]:
    paths = [f"{device}/{key}" for key in LINK]
    lines = [evidence(tree, path, source) for path in paths if path in tree]
    if not lines:
        return []
    speeds = [_SPEED.fullmatch(tree.get(path, "").strip()) for path in paths[::2]]
    widths = [whole(tree.get(path)) for path in paths[1::2]]
    if speeds[0] is None or widths[0] is None:
        return [LINE_UNKNOWN.unknown(name, "its PCIe link is not understood", *lines)]
    speed = float(speeds[0][1])
    generation = f"Gen{_GENERATION[speed]}" if speed in _GENERATION else f"{speed:g} GT/s"
    shown = f"PCIe {generation} x{widths[0]}"
    best_speed = float(speeds[1][1]) if speeds[1] else speed
    if speed < best_speed or widths[0] < (widths[1] or widths[0]):
        what = f"{shown}, though the drive can {best_speed:g} GT/s x{widths[1] or widths[0]}"
        return [ids.LINK.warn(name, what, *lines)]
    return [ids.LINK.ok(name, shown, *lines)]


def _queues(tree: Tree, name: str, source: str, cpu_count: int | None) -> list[Finding]:
    path = f"{CONTROLLERS}/{name}/queue_count"
    if path not in tree:
        return []
    count, line = whole(tree[path]), evidence(tree, path, source)
    if count is None:
        return [LINE_UNKNOWN.unknown(name, "its number of queues is not understood", line)]
    what = f"{count - 1} I/O queues (queue_count counts the admin queue too)"
    if cpu_count is not None and count - 1 < min(cpu_count, _QUEUES_ENOUGH):
        return [ids.QUEUES.warn(name, f"{what} for {cpu_count} CPUs", line)]
    return [ids.QUEUES.info(name, what, line, fix="")]


def _numa(tree: Tree, name: str, address: str, source: str) -> list[Finding]:
    path = f"{CONTROLLERS}/{name}/numa_node"
    if path not in tree:
        return []
    node, line = whole(tree[path]), evidence(tree, path, source)
    if node is None:
        return [LINE_UNKNOWN.unknown(name, "its NUMA node is not understood", line)]
    if node < 0:
        return [ids.NUMA.unknown(name, "its NUMA node is not told (-1 is no node)", line, fix="")]
    peers = {p: whole(tree.get(f"{PCI}/{p}/numa_node")) for p in names_under(tree, PCI) if p != address}
    gpus = {p: n for p, n in peers.items() if tree.get(f"{PCI}/{p}/class", "").startswith(_GPU_CLASS)}
    drives = {tree.get(f"{CONTROLLERS}/{c}/address", "") for c in names_under(tree, CONTROLLERS)}
    # Without classes, as in a tree that was made by hand, what is no drive is what the drive was to be compared with.
    others = gpus or {p: n for p, n in peers.items() if p not in drives and f"{PCI}/{p}/class" not in tree}
    word = "GPU" if gpus else "device"
    same = [p for p, n in others.items() if n == node]
    far = [p for p, n in others.items() if n is not None and n >= 0 and n != node]
    lines = [line, *(evidence(tree, f"{PCI}/{p}/numa_node", source) for p in (same or far)[:2])]
    if same:
        return [ids.NUMA.ok(name, f"NUMA node {node}, the same as {word} {', '.join(same)}", *lines)]
    if far:
        what = f"NUMA node {node}; {word} {', '.join(far)} on another"
        return [ids.NUMA.warn(name, what, *lines) if gpus else ids.NUMA.info(name, what, *lines)]
    return []


def _temperature(tree: Tree, name: str, source: str) -> list[Finding]:
    for path in tree:
        if path.startswith(f"{CONTROLLERS}/{name}/") and path.endswith("/temp1_input"):
            now, most = whole(tree[path]), whole(tree.get(path.replace("_input", "_max")))
            if now is not None and most is not None and now >= most > 0:
                what = f"{now / 1000:.0f} degrees, its limit is {most / 1000:.0f}"
                return [ids.HOT.warn(name, what, evidence(tree, path, source))]
    return []


def judge_queues(tree: Tree, source: str) -> list[Finding]:
    """Findings about the block devices; what is the same on several is said once."""
    found: list[Finding] = []
    small: dict[str, list[str]] = {}
    for device in names_under(tree, "/sys/block"):
        if not namespace_of(device):
            continue
        queue = f"/sys/block/{device}/queue"
        found += _scheduler(tree, device, f"{queue}/scheduler", source)
        ahead = whole(tree.get(f"{queue}/read_ahead_kb"))
        if ahead is not None and ahead < _READ_AHEAD_KB:
            small.setdefault(str(ahead), []).append(device)
        now, most = (whole(tree.get(f"{queue}/{key}")) for key in ("max_sectors_kb", "max_hw_sectors_kb"))
        if now is not None and most is not None and now < most:
            line = evidence(tree, f"{queue}/max_sectors_kb", source)
            found.append(ids.REQUEST_CAP.info(device, f"requests of at most {now} KiB; the device takes {most}", line))
        capable = f"/sys/block/{device}/integrity/device_is_integrity_capable"
        if tree.get(capable) == "1":
            line = evidence(tree, capable, source)
            found.append(ids.INTEGRITY.info(device, "has protection information: no PCI P2PDMA", line))
    for ahead_kb, devices in small.items():
        lines = [evidence(tree, f"/sys/block/{d}/queue/read_ahead_kb", source) for d in devices]
        what = f"read-ahead of {ahead_kb} KiB: little for buffered reads of big files, of no matter for direct I/O"
        found.append(ids.READ_AHEAD.info(", ".join(devices), what, *lines))
    return found


def _scheduler(tree: Tree, device: str, path: str, source: str) -> list[Finding]:
    if path not in tree:
        return []
    words, line = tree[path].split(), evidence(tree, path, source)
    chosen = [word.strip("[]") for word in words if word.startswith("[")] or (words if len(words) == 1 else [])
    if len(chosen) != 1:
        return [LINE_UNKNOWN.unknown(device, "its scheduler is not understood", line)]
    if chosen[0] == "none":
        return []
    return [ids.SCHEDULER.warn(device, f"scheduler {chosen[0]}, where none is best", line)]


def judge_multipath(tree: Tree, source: str, machine: str | None) -> list[Finding]:
    """Whether the kernel's multipath stands in the way of PCI P2PDMA; on other machines than x86 it does not."""
    if tree.get(MULTIPATH, "").strip() != "Y" or machine not in (None, "x86_64"):
        return []
    where = "" if machine else " on x86"
    return [ids.MULTIPATH.info("NVMe", f"multipath is on: no PCI P2PDMA{where}", evidence(tree, MULTIPATH, source))]
