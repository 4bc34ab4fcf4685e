"""What is to be expected of a path: direct by a route, copied by the CPU, refused, or unknown. Pure.

Rules: NVIDIA's GPUDirect Storage guide, chapters 3, 16 and 17. It is a prediction, proof rung P0: only counters of real
reads prove that a path is direct.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from stoker.doctor.cufile_json import CuFileConfig
from stoker.doctor.identity import BlockDevice, PathIdentity
from stoker.doctor.nvidia_fs import MODULES

_NEVER: Final = re.compile(
    r"overlay|tmpfs|ramfs|squashfs|erofs|zfs|btrfs|ceph|cifs|smb3?|9p|glusterfs|devtmpfs|fuse(?:\..*|blk|ctl)?"
)
_JOURNAL_OK: Final = "ordered"


class Expected(StrEnum):
    """What cuFile will do with a file."""

    DIRECT = "direct-expected"
    COMPAT = "compat-expected"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Expectation:
    """The expectation with its route (`nvfs`, `p2pdma`, `c2c`, `rdma`) or its reason."""

    expected: Expected
    route: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.expected}({self.route or self.reason})" if self.route or self.reason else str(self.expected)


@dataclass(frozen=True)
class DriverFacts:
    """What the node's drivers can do; None is not known.

    Attributes:
        hooks: Modules registered with nvidia-fs; empty where it is not loaded.
        device_nodes: Whether /dev/nvidia-fs0 is here.
        p2pdma: Whether kernel, driver and GPU can do PCI P2PDMA; on Grace the coherent route instead (`coherent`).
        userspace_rdma: Whether libcufile_rdma has devices that are up.
        transports: NVMe block device (`nvme0n1`) -> pcie, rdma, tcp, fc.
        protected: NVMe block devices with protection information, which PCI P2PDMA cannot take.
        beegfs_rdma: Whether BeeGFS has RDMA connections.
    """

    hooks: frozenset[str] | None = None
    device_nodes: bool | None = None
    p2pdma: bool | None = None
    coherent: bool = False
    userspace_rdma: bool | None = None
    transports: dict[str, str] = field(default_factory=dict)
    protected: frozenset[str] = frozenset()
    beegfs_rdma: bool | None = None


def expect(identity: PathIdentity, driver: DriverFacts, config: CuFileConfig) -> Expectation:
    """What cuFile will do with a file at the path."""
    if config.flag("properties.force_compat_mode"):
        return Expectation(Expected.COMPAT, reason="compatible mode is forced by the configuration")
    denied = _denied(identity, config)
    if denied:
        return Expectation(Expected.REFUSED, reason=denied)
    kind = identity.mount.fs_type
    rules = {
        "ext4": _block,
        "xfs": _block,
        "nfs": _nfs,
        "nfs4": _nfs,
        "lustre": _lustre,
        "beegfs": _beegfs,
        "beegfs_nodev": _beegfs,
        "wekafs": _userspace,
        "gpfs": _userspace,
        "virtiofs": _virtiofs,
    }
    if _NEVER.fullmatch(kind):
        found: Expectation = _not_direct(f"{kind} has no direct route")
    elif kind in rules:
        found = rules[kind](identity, driver, config)
    else:
        found = _unknown(f"nothing is known of {kind}")
    return _under(config, found)


def _under(config: CuFileConfig, found: Expectation) -> Expectation:
    """A path that is not direct is copied or refused: the configuration decides."""
    allowed = config.flag("properties.allow_compat_mode")
    if found.expected is not Expected.COMPAT or allowed is True:
        return found
    if allowed is False:
        return Expectation(Expected.REFUSED, reason=f"{found.reason}, and compatible mode is not allowed")
    return Expectation(Expected.COMPAT, reason=f"{found.reason}; refused instead where compatible mode is not allowed")


def _denied(identity: PathIdentity, config: CuFileConfig) -> str:
    mount, device = identity.mount, identity.device
    if mount.fs_type in config.words("denylist.filesystems"):
        return f"file system {mount.fs_type} is on the denylist"
    for point in config.words("denylist.mounts"):
        if (identity.path.rstrip("/") + "/").startswith(point.rstrip("/") + "/"):
            return f"mount {point} is on the denylist"
    names = {part.name for part in device.walk()} if device else set()
    denied = [name for name in config.words("denylist.devices") if name.removeprefix("/dev/") in names]
    return f"device {denied[0]} is on the denylist" if denied else ""


def _not_direct(reason: str) -> Expectation:
    return Expectation(Expected.COMPAT, reason=reason)


def _unknown(reason: str) -> Expectation:
    return Expectation(Expected.UNKNOWN, reason=reason)


def _hooked(driver: DriverFacts, config: CuFileConfig, module: str) -> Expectation:
    """Whether the nvidia-fs route is open through a module."""
    if driver.hooks is None:
        return _unknown("the modules of nvidia-fs are not visible")
    if module not in driver.hooks:
        return _not_direct(f"{module} ({MODULES.get(module, module)}) is not registered with nvidia-fs")
    if module in config.words("denylist.drivers"):
        return Expectation(Expected.REFUSED, reason=f"driver {module} is on the denylist")
    if driver.device_nodes is False:
        return _not_direct("/dev/nvidia-fs0 is not here")
    return Expectation(Expected.DIRECT, route="nvfs")


def _by_bus(driver: DriverFacts, config: CuFileConfig, key: str) -> Expectation | None:
    """The route without nvidia-fs, if it is open or may be; None if it is closed."""
    if not (config.flag("properties.use_pci_p2pdma") and config.flag(key) is not False):
        return None
    if key not in config.values and key != "block.nvme.use_pci_p2pdma":
        return None
    if driver.p2pdma is None:
        return _unknown("PCI P2PDMA is configured, but whether kernel, driver and GPU can do it is not known")
    return Expectation(Expected.DIRECT, route="c2c" if driver.coherent else "p2pdma") if driver.p2pdma else None


def _block(identity: PathIdentity, driver: DriverFacts, config: CuFileConfig) -> Expectation:
    device, mount = identity.device, identity.mount
    if device is None:
        return _unknown("the block device is not visible in /sys")
    chain = device.walk()
    if any(part.kind.startswith("dm") for part in chain):
        return _not_direct("device mapper lies under the file (LVM, dm-crypt or multipath)")
    strange = [part for part in chain if part.kind not in ("nvme", "md")]
    if strange:
        return _not_direct(f"{strange[0].name} is no NVMe device")
    raids = [part for part in chain if part.kind == "md"]
    for raid in raids:
        if not raid.detail or not raid.parts:
            return _unknown(f"level or members of {raid.name} are not visible")
        if raid.detail != "raid0":
            return _not_direct(f"{raid.name} is {raid.detail}: only RAID 0 can be direct")
    journal = mount.option("data")
    if mount.fs_type == "ext4" and journal != _JOURNAL_OK:
        shown = f"data={journal}" if journal else "no data=ordered"
        return _not_direct(f"the ext4 mount shows {shown}: cuFile cannot verify its journal")
    return _nvme(device.leaves(), driver, config, raid=bool(raids))


def _nvme(leaves: tuple[BlockDevice, ...], driver: DriverFacts, config: CuFileConfig, *, raid: bool) -> Expectation:
    transports = {driver.transports.get(leaf.name, "") for leaf in leaves}
    slow = sorted(transports & {"tcp", "fc", "loop"})
    if slow:
        return _not_direct(f"NVMe over {slow[0]}: only PCIe and RDMA can be direct")
    if transports - {"pcie", "rdma"}:
        return _unknown("the transport of the NVMe device is not visible")
    if len(transports) > 1:
        return _not_direct("members of the RAID differ in their transport")
    fabric = transports == {"rdma"}
    nvfs = _hooked(driver, config, "nvme_rdma" if fabric else "nvme")
    if nvfs.expected is Expected.DIRECT or nvfs.expected is Expected.REFUSED:
        return nvfs
    key = "block.raid" if raid else "block.nvmeof" if fabric else "block.nvme"
    bus = _by_bus(driver, config, f"{key}.use_pci_p2pdma")
    if bus is None or (raid and not driver.coherent) or any(leaf.name in driver.protected for leaf in leaves):
        return nvfs
    return bus


def _nfs(identity: PathIdentity, driver: DriverFacts, config: CuFileConfig) -> Expectation:
    protocol = identity.mount.option("proto")
    if protocol is None:
        return _unknown("the mount does not show its protocol")
    if not protocol.startswith("rdma"):
        return _not_direct(f"NFS over {protocol}: only proto=rdma can be direct")
    return _hooked(driver, config, "rpcrdma")


def _lustre(identity: PathIdentity, driver: DriverFacts, config: CuFileConfig) -> Expectation:
    networks = set(re.findall(r"@([a-z]+\d?[a-z]*)\d*", identity.mount.source))
    if not networks:
        return _unknown("the mount does not show its networks")
    if not any(network.startswith("o2ib") for network in networks):
        return _not_direct(f"Lustre over {', '.join(sorted(networks))}: only o2ib can be direct")
    return _hooked(driver, config, "lnet")


def _beegfs(_identity: PathIdentity, driver: DriverFacts, config: CuFileConfig) -> Expectation:
    if driver.beegfs_rdma is False:
        return _not_direct("BeeGFS is not connected by RDMA")
    found = _hooked(driver, config, "beegfs")
    if found.expected is Expected.DIRECT and driver.beegfs_rdma is None:
        return _unknown("whether BeeGFS is connected by RDMA is not visible")
    return found


def _userspace(identity: PathIdentity, driver: DriverFacts, _config: CuFileConfig) -> Expectation:
    if driver.userspace_rdma is None:
        return _unknown(f"{identity.mount.fs_type} needs userspace RDMA, of which nothing is visible")
    if not driver.userspace_rdma:
        return _not_direct(f"{identity.mount.fs_type} needs userspace RDMA, which is not up")
    return Expectation(Expected.DIRECT, route="rdma")


def _virtiofs(_identity: PathIdentity, driver: DriverFacts, config: CuFileConfig) -> Expectation:
    return _by_bus(driver, config, "fs.virtiofs.use_pci_p2pdma") or _not_direct(
        "virtiofs needs PCI P2PDMA, which is off"
    )
