"""Whether PCI P2PDMA can work on a node: its conditions one by one, as far as they are visible without rights.

Source: NVIDIA's GPUDirect Storage guide, PCI P2PDMA. That all conditions hold is never known from here: the symbol in
the kernel (p2pdma_pgmap_ops) and the generation of the GPU are not read, so it can be ruled out, not promised.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from stoker.doctor import gds_ids as ids
from stoker.doctor.cufile_json import CuFileConfig
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.node import Host, Missing, Node

NVIDIA_VERSION: Final = "/proc/driver/nvidia/version"
PARAMS: Final = "/proc/driver/nvidia/params"
MULTIPATH: Final = "/sys/module/nvme_core/parameters/multipath"
KERNEL_LEAST: Final = (6, 2)
DRIVER_LEAST: Final = 565
_X86: Final = "x86_64"
_KERNEL: Final = re.compile(r"(\d{1,4})\.(\d{1,4})")
_DRIVER: Final = re.compile(r"Kernel Module.*?\s(\d{3,4})\.\d")


@dataclass(frozen=True)
class Condition:
    """One condition, whether it holds (None: not known), and the line that shows it."""

    name: str
    holds: bool | None
    evidence: Evidence


def conditions(node: Node) -> list[Condition]:
    """The conditions in the order to repair them."""
    host = node.host()
    found = [_kernel(host), _driver(node), _parameters(node)]
    return found + ([_multipath(node)] if isinstance(host, Host) and host.machine == _X86 else [])


def possible(found: list[Condition]) -> bool | None:
    """False where one is known not to hold; else None, for it is never known that all do."""
    return False if any(one.holds is False for one in found) else None


def judge(found: list[Condition], config: CuFileConfig, machine: str) -> list[Finding]:
    """What stands against it; a warning where the configuration asks for it all the same."""
    name = "PCI P2PDMA" if machine == _X86 else "the route without nvidia-fs"
    against = [one for one in found if one.holds is False]
    if against:
        what = f"{name} is not possible: {'; '.join(one.name for one in against)}"
        lines = [one.evidence for one in against]
        if config.flag("properties.use_pci_p2pdma"):
            return [ids.P2PDMA.warn("GPUDirect", f"{what}; the configuration asks for it", *lines)]
        return [ids.P2PDMA.info("GPUDirect", what, *lines)]
    open_ones = [one for one in found if one.holds is None]
    rest = f" ({', '.join(one.evidence.source for one in open_ones)} not understood or hidden)" if open_ones else ""
    what = f"nothing that is seen stands against {name}{rest}; only a probe shows that it works"
    return [ids.P2PDMA.info("GPUDirect", what, *(one.evidence for one in found))]


def _kernel(host: Host | Missing) -> Condition:
    text = host.kernel if isinstance(host, Host) else ""
    match = _KERNEL.match(text)
    holds = (int(match[1]), int(match[2])) >= KERNEL_LEAST if match else None
    return Condition("the kernel is older than 6.2", holds, Evidence(text, "uname -r"))


def _driver(node: Node) -> Condition:
    """The open kernel modules, 565 or later. A version of another form is not known."""
    text = node.read(NVIDIA_VERSION)
    line = text.splitlines()[0] if isinstance(text, str) and text.strip() else ""
    match = _DRIVER.search(line)
    holds = ("Open Kernel Module" in line and int(match[1]) >= DRIVER_LEAST) if match else None
    name = f"the driver is not the open one of {DRIVER_LEAST} or later"
    return Condition(name, holds, Evidence(line, NVIDIA_VERSION))


def _parameters(node: Node) -> Condition:
    text = node.read(PARAMS)
    if isinstance(text, Missing):
        return Condition("", None, Evidence(text.reason, PARAMS))
    line = next((line for line in text.splitlines() if "RegistryDwords" in line), "no RegistryDwords")
    name = "the driver's option RMForceStaticBar1 is not set"
    return Condition(name, "RMForceStaticBar1" in text, Evidence(line, PARAMS))


def _multipath(node: Node) -> Condition:
    text = node.read(MULTIPATH, 16)
    known = isinstance(text, str) and text.strip() in ("Y", "N")
    holds = str(text).strip() == "N" if known else None
    shown = text.strip() if isinstance(text, str) else text.reason
    return Condition("the kernel's NVMe multipath is on", holds, Evidence(shown, MULTIPATH))
