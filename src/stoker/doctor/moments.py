"""Two moments of a node: read live, from captures `t0/` and `t1/`, or from a folder of samples `NAME-t0`, `NAME-t1`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from stoker.doctor.capture import CapturedNode
from stoker.doctor.diagnose import looking_into, sample_series, sample_text
from stoker.doctor.identity import identify, is_local
from stoker.doctor.node import Host, LiveNode, Missing, Node, Output
from stoker.doctor.signal_texts import Counters, read_counters
from stoker.doctor.signals import Facts, facts_of_meta
from stoker.doctor.texts import real
from stoker.errors import NotFound

_FILES: Final = (
    *("/proc/diskstats", "/proc/stat", "/proc/pressure/io", "/proc/pressure/cpu"),
    *("/proc/net/snmp", "/proc/net/dev", "/proc/self/mountstats"),
    *("/sys/fs/cgroup/cpu.stat", "/sys/fs/cgroup/cpu/cpu.stat"),  # version 2 and 1
)
_LLITE: Final = ("/proc/fs/lustre/llite", "/sys/kernel/debug/lustre/llite")
_PORT_FILES: Final = ("rate", "counters/port_rcv_data", "hw_counters/rp_cnp_handled")
_NVIDIA_SMI: Final = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")
_DCGMI: Final = ("dcgmi", "dmon", "-e", "1001,1002", "-c", "1")
_STORAGE_PEERS: Final = ("ss", "-tin", "( dport = :2049 or dport = :988 )")
_LINKS_MAX: Final = 32
_READERS: Final = 8


@dataclass(frozen=True)
class Window:
    """Two moments and what is known besides."""

    before: Counters
    after: Counters
    facts: Facts


def read_moment(node: Node) -> Counters:
    """The counters of a node now. Takes as long as the slowest command may, about 2 s; usually some 10 ms."""
    with ThreadPoolExecutor(_READERS, thread_name_prefix="doctor-moment") as pool:
        commands = [pool.submit(node.run, argv) for argv in (_STORAGE_PEERS, *_pause_commands(node))]
        gpus = [pool.submit(node.run, _NVIDIA_SMI), pool.submit(node.run, _DCGMI)]
        texts = [f"==> {path} <==\n{text}" for path in _FILES if isinstance(text := node.read(path), str)]
        texts += [*_llite(node), _ports(node)]
        for found in (command.result() for command in commands):
            if isinstance(found, Output) and found.status == 0:
                texts.append(found.stdout)
        texts += [_as_gauges(*(gpu.result() for gpu in gpus))]
    return read_counters(texts)


def read_facts(node: Node, path: str, gpu_count: int, ceilings: Mapping[str, float]) -> Facts:
    """What is known of a node that does not move: rates of its links, what the path lies on, CPUs a GPU.

    `ceilings`: what was measured before, bytes/s, by mount point.
    """
    links = {}
    names = node.listing("/sys/class/net")
    for name in names[:_LINKS_MAX] if isinstance(names, tuple) else ():
        text = node.read(f"/sys/class/net/{name}/speed", 32)
        megabits = real(text) if isinstance(text, str) else None
        if megabits is not None and megabits > 0:
            links[name] = megabits * 1e6 / 8
    host = node.host()
    cpus = host.cpu_count / gpu_count if isinstance(host, Host) and gpu_count else None
    facts = Facts(link_rates=links, cpus_per_gpu=cpus)
    identity = identify(node, path) if path else Missing("no path is given")
    if isinstance(identity, Missing):
        return facts
    point = identity.mount.point
    known = {"": ceilings[point]} if point in ceilings else {}
    devices: frozenset[str] | None = None  # of a local file system whose devices are hidden, all may be it
    if identity.device:
        devices = frozenset(leaf.name for leaf in identity.device.leaves())
    elif not is_local(identity.mount.fs_type):
        devices = frozenset()
    return replace(facts, ceilings=known, mount=point, devices=devices)


def live_window(node: Callable[[], Node], path: str, wait: Callable[[], None], ceilings: Mapping[str, float]) -> Window:
    """The window on a node, `wait` between its moments. `node` is asked for anew at each, so that both can be kept."""
    first = node()
    begin_s, before = first.clock_s(), read_moment(first)
    wait()
    second = node()
    end_s, after = second.clock_s(), read_moment(second)
    return _window(second, path, (before, after), end_s - begin_s, ceilings)


def folder_window(directory: Path, path: str, seconds: float | None) -> Window:
    """The window of a folder: captures `t0/` and `t1/`, else samples. `seconds` between them, if it is known.

    Raises:
        NotFound: it holds neither.
        AccessDenied: it, or a file in it, is closed to this user.
    """
    folders = [directory / name for name in ("t0", "t1")]
    with looking_into(directory):
        are_captures, is_capture = all(folder.is_dir() for folder in folders), (directory / "root").is_dir()
    if are_captures:
        nodes = [CapturedNode(folder) for folder in folders]
        elapsed_s = seconds or nodes[1].clock_s() - nodes[0].clock_s()
        path = path or next(iter(nodes[1].targets), "")
        return _window(nodes[1], path, (read_moment(nodes[0]), read_moment(nodes[1])), elapsed_s, {})
    if is_capture:
        raise NotFound(
            "one moment only", str(directory), "two are needed: stoker doctor --why --capture DIR makes them"
        )
    before, after = [], []
    for series in sample_series(directory):
        texts = [sample_text(p) for p in series]
        if len(series) > 1:
            before.append(texts[0])
            after.append(texts[-1])
        else:
            (before if re.search(r"-t0(\.\w+)?$", series[0].name) else after).append(texts[0])
    counters = read_counters(before), read_counters(after)
    said = LiveNode().read(str((directory / "meta.json").absolute()))
    meta = facts_of_meta(said if isinstance(said, str) else "", list(counters[1].disks))
    facts = replace(meta, window_s=seconds or meta.window_s, mount=path or meta.mount)
    return Window(*counters, facts)


def _window(
    node: Node, path: str, moments: tuple[Counters, Counters], elapsed_s: float, ceilings: Mapping[str, float]
) -> Window:
    before, after = moments
    gpu_count = max((len(values) for values in after.gauges.values()), default=0)
    facts = read_facts(node, path, gpu_count, ceilings)
    for name, values in before.gauges.items():  # a GPU's counters are of an instant: both moments count
        if name in after.gauges:
            after.gauges[name] = after.gauges[name] + values
    return Window(before, after, replace(facts, window_s=elapsed_s if elapsed_s > 0 else None))


def _llite(node: Node) -> list[str]:
    found = []
    for folder in _LLITE:
        mounts = node.listing(folder)
        for mount in mounts if isinstance(mounts, tuple) else ():
            text = node.read(f"{folder}/{mount}/stats")
            found += [text] if isinstance(text, str) else []
    return found


def _ports(node: Node) -> str:
    """The RDMA ports as a flattened tree."""
    base, lines = "/sys/class/infiniband", []
    devices = node.listing(base)
    for device in devices[:_LINKS_MAX] if isinstance(devices, tuple) else ():
        ports = node.listing(f"{base}/{device}/ports")
        for port in ports if isinstance(ports, tuple) else ():
            for name in _PORT_FILES:
                text = node.read(f"{base}/{device}/ports/{port}/{name}", 256)
                if isinstance(text, str):
                    lines.append(f"{base}/{device}/ports/{port}/{name}\t{text.strip()}")
    return "\n".join(lines)


def _pause_commands(node: Node) -> list[tuple[str, ...]]:
    """`ethtool -S` of the first interfaces that lie on a device."""
    names = node.listing("/sys/class/net")
    real_ones = (
        [n for n in names if isinstance(node.listing(f"/sys/class/net/{n}/device"), tuple)]
        if isinstance(names, tuple)
        else []
    )
    return [("ethtool", "-S", name) for name in real_ones[:4]]


def _as_gauges(utilisation: Output | Missing, profile: Output | Missing) -> str:
    """What nvidia-smi and dcgmi print, under the names that DCGM's exporter gives the same fields."""
    lines = []
    if isinstance(utilisation, Output) and utilisation.status == 0:
        lines += [
            f'DCGM_FI_DEV_GPU_UTIL{{gpu="{i}"}} {v.strip()}' for i, v in enumerate(utilisation.stdout.splitlines())
        ]
    if isinstance(profile, Output) and profile.status == 0:
        for match in re.finditer(r"^GPU\s+(\d+)\s+(\S+)\s+(\S+)\s*$", profile.stdout, re.MULTILINE):
            lines.append(f'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{gpu="{match[1]}"}} {match[2]}')
            lines.append(f'DCGM_FI_PROF_SM_ACTIVE{{gpu="{match[1]}"}} {match[3]}')
    return "\n".join(lines)
