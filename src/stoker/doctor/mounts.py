"""What the mounts of a node say about themselves. Pure.

Sources: proc(5), nfs(5), mount.lustre(8), the manuals of the file systems; NVIDIA's guide to GPUDirect
Storage for what has a direct route.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from stoker.doctor import filesystem_ids as ids
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.identity import BlockDevice, Mount, device_kind, parse_mountinfo
from stoker.doctor.kinds import LINE_UNKNOWN
from stoker.doctor.texts import whole

# What the kernel or the desktop mounts for itself: nothing that a job reads.
PSEUDO: Final = re.compile(
    r"proc|sysfs|cgroup2?|devpts|devtmpfs|mqueue|hugetlbfs|debugfs|tracefs|securityfs|pstore|bpf|configfs|efivarfs|fusectl|"
    r"binfmt_misc|autofs|rpc_pipefs|nsfs|selinuxfs|nfsd|none|fuse\.(?:lxcfs|portal|gvfsd-fuse|snapfuse)|iso9660|vfat"
)
MEMORY: Final = ("tmpfs", "ramfs")
SHM: Final = "/dev/shm"  # noqa: S108 - the name of a mount
_SYSTEM: Final = re.compile(r"/(?:run|dev|sys|proc|var/run|var/lib)(?:/|$)")
_SHM_LITTLE_BYTES: Final = 64 << 20
_RSIZE_BYTES: Final = 1 << 20
_MAX_READ_BYTES: Final = 1 << 20
_SUFFIX: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_NETWORK: Final = re.compile(r"@([a-z]+(?:2ib)?)\d*(?=[:,]|$)")

Judge = Callable[[Mount, Evidence], list[Finding]]


def detect(text: str) -> bool:
    """Whether it is /proc/self/mountinfo."""
    lines = [line for line in text.splitlines() if line.strip()]
    return len(parse_mountinfo(text)) * 2 > len(lines)


def explain(text: str, source: str) -> list[Finding]:
    """What all mounts say; those of the kernel and of system services are passed over."""
    mounts = parse_mountinfo(text)
    known = {mount.line for mount in mounts}
    strange = [line for line in text.splitlines() if line.strip() and line.strip() not in known]
    found = [LINE_UNKNOWN.unknown("mountinfo", "a line is not understood", Evidence(s, source)) for s in strange[:3]]
    for mount in mounts:
        if mount.fs_type not in MEMORY or mount.point == SHM or not _SYSTEM.match(mount.point):
            found += judge(mount, source, device_of(mount))
    if found or not mounts:
        return found or [LINE_UNKNOWN.unknown("mountinfo", "no mount is told", Evidence("", source))]
    line = Evidence(mounts[0].line, source)
    return [ids.LOCAL.info("mounts", "only those of the kernel and of system services", line, fix="")]


def device_of(mount: Mount) -> BlockDevice | None:
    """The device as far as its name in a mount tells; what lies under it is not known."""
    name = mount.source.removeprefix("/dev/")
    if not mount.source.startswith("/dev/") or mount.device.startswith("0:"):
        return None
    return BlockDevice(name, "dm") if name.startswith("mapper/") else BlockDevice(name, device_kind(name, ""))


def judge(mount: Mount, source: str, device: BlockDevice | None) -> list[Finding]:
    """Findings of one mount. `device` is what it lies on, if that is known."""
    line, kind = Evidence(mount.line, source), mount.fs_type
    if PSEUDO.fullmatch(kind):
        return []
    if kind in ("ext2", "ext3", "ext4", "xfs", "f2fs"):
        return _local(mount, line, device)
    if kind in _KINDS:
        return _KINDS[kind](mount, line)
    if kind == "fuse" or kind.startswith(("fuse.", "fuseblk")):
        return _fuse(mount, line)
    return [ids.NOT_KNOWN.unknown(mount.point, f"nothing is known of {kind}", line)]


def shown(device: BlockDevice) -> str:
    """`md0 (raid0) of nvme0n1, nvme1n1`."""
    detail = f" ({device.detail})" if device.kind == "md" and device.detail else ""
    kind = f" ({device.kind})" if device.kind.startswith("dm") else ""
    below = f" of {', '.join(shown(part) for part in device.parts)}" if device.parts else ""
    return f"{device.name}{detail}{kind}{below}"


def _local(mount: Mount, line: Evidence, device: BlockDevice | None) -> list[Finding]:
    name = shown(device) if device else mount.source
    what = f"{mount.fs_type} on {name}"
    kinds = {part.kind for part in device.walk()} if device else set()
    found: list[Finding] = []
    if any(kind.startswith("dm") for kind in kinds):
        found.append(ids.ON_DM.info(mount.point, f"{what}: device mapper, no GPUDirect", line))
    if "md" in kinds:
        found.append(ids.ON_MD.info(mount.point, f"{what}: see /proc/mdstat for its health", line, fix=""))
        if mount.fs_type == "xfs" and not whole(mount.option("swidth")):
            found.append(ids.XFS_STRIPE.warn(mount.point, f"{what} does not know the array's stripe", line))
    journal = mount.option("data")
    if mount.fs_type == "ext4" and journal != "ordered":
        told = f"data={journal}" if journal else "data= is not shown"
        found.append(ids.EXT4_JOURNAL.info(mount.point, f"{what}: {told}, so cuFile cannot verify ordered mode", line))
    return found or [ids.LOCAL.ok(mount.point, f"{what}{', data=ordered' if journal else ''}", line)]


def _nfs(mount: Mount, line: Evidence) -> list[Finding]:
    protocol, version = mount.option("proto"), mount.option("vers") or ""
    name = f"NFS {version}".strip()
    count = whole(mount.option("nconnect"))
    if protocol is None:
        return [LINE_UNKNOWN.unknown(mount.point, f"{name}: the protocol is not told", line)]
    if protocol.startswith("rdma"):
        many = f", nconnect={count}" if count else ""
        return [ids.NFS_RDMA.ok(mount.point, f"{name} over RDMA{many}", line)]
    found = [ids.NFS_NOT_RDMA.info(mount.point, f"{name} over {protocol}: GPUDirect is not engaged", line)]
    if (count or 1) < 2 and protocol.startswith("tcp"):  # noqa: PLR2004 - one is none to spread over
        found.append(one_tcp(mount.point, line))
    size = whole(mount.option("rsize"))
    if size is not None and size < _RSIZE_BYTES:
        found.append(ids.NFS_RSIZE.warn(mount.point, f"reads of at most {size >> 10} KiB", line))
    return found


def one_tcp(point: str, line: Evidence) -> Finding:
    """The finding of one TCP connection, in the same words from whichever source."""
    return ids.NFS_ONE_TCP.warn(point, "one TCP connection carries all I/O", line)


def _lustre(mount: Mount, line: Evidence) -> list[Finding]:
    networks = sorted(set(_NETWORK.findall(mount.source)))
    named = ", ".join(networks)
    if not networks:
        return [LINE_UNKNOWN.unknown(mount.point, "Lustre: the networks are not told", line)]
    if "o2ib" in networks:
        return [ids.LUSTRE_NETWORK.ok(mount.point, f"Lustre over {named} (RDMA)", line)]
    if networks == ["tcp"]:
        return [ids.LUSTRE_NETWORK.warn(mount.point, "Lustre over tcp: copied by the CPU, never GPUDirect", line)]
    return [ids.LUSTRE_NETWORK.unknown(mount.point, f"Lustre over {named}: no direct route is known", line)]


def _beegfs(mount: Mount, line: Evidence) -> list[Finding]:
    return [ids.BEEGFS.info(mount.point, "BeeGFS; whether over RDMA is told by its connections", line)]


def _weka(mount: Mount, line: Evidence) -> list[Finding]:
    return judge_weka(mount.point, [*mount.fs_options, *mount.options], line)


def judge_weka(subject: str, options: list[str], line: Evidence) -> list[Finding]:
    """Findings of a WekaFS mount by its options."""
    mode = next(
        (o for o in options if o in ("writecache", "readcache", "forcedirect", "coherent")), "cache mode not told"
    )
    client = next((o.partition("=")[2] for o in options if o.startswith("container_name=")), "")
    what = f"WekaFS, {mode}{', client ' + client if client else ''}; its reads never show in the counters of nvidia-fs"
    found = [ids.WEKA.info(subject, what, line, fix="")]
    if mode == "forcedirect":
        found.append(ids.WEKA_NO_CACHE.warn(subject, "no cache: each small read goes to the servers", line))
    return found


def _gpfs(mount: Mount, line: Evidence) -> list[Finding]:
    return [ids.GPFS.info(mount.point, "GPFS; whether by RDMA is not visible here", line)]


def _ceph(mount: Mount, line: Evidence) -> list[Finding]:
    ahead = whole(mount.option("rasize"))
    more = f", read-ahead {ahead >> 10} KiB" if ahead is not None else ""
    return [ids.CEPH.info(mount.point, f"CephFS by the kernel's client{more}; never GPUDirect", line, fix="")]


def _fuse(mount: Mount, line: Evidence) -> list[Finding]:
    name = mount.fs_type.partition(".")[2] or mount.source or "of an unknown client"
    if name in ("ceph", "ceph-fuse"):
        return [ids.CEPH.warn(mount.point, "CephFS by the client in user space; never GPUDirect", line)]
    found = [ids.FUSE.info(mount.point, f"FUSE: {name}; never GPUDirect", line)]
    most = whole(mount.option("max_read"))
    if most is not None and 0 < most < _MAX_READ_BYTES:
        found.append(ids.FUSE_REQUESTS.info(mount.point, f"requests of at most {most >> 10} KiB", line))
    return found


def _overlay(mount: Mount, line: Evidence) -> list[Finding]:
    upper = mount.option("upperdir")
    where = f"; what is written goes to {upper}" if upper else ""
    return [ids.OVERLAY.info(mount.point, f"overlay: never GPUDirect{where}", line)]


def _memory(mount: Mount, line: Evidence) -> list[Finding]:
    size = size_bytes(mount.option("size"))
    if mount.point != SHM:
        limit = f", at most {size >> 20} MiB" if size else ""
        return [ids.MEMORY.info(mount.point, f"{mount.fs_type}{limit}: in memory, never GPUDirect", line)]
    if size is None:
        return [ids.SHM.info(mount.point, "no size is shown: half of the memory", line, fix="")]
    if size <= _SHM_LITTLE_BYTES:
        return [ids.SHM.warn(mount.point, f"only {size >> 20} MiB", line)]
    return [ids.SHM.ok(mount.point, f"{size >> 20} MiB", line)]


def size_bytes(text: str | None) -> int | None:
    """`131072000k` in bytes, or None."""
    match = re.fullmatch(r"([0-9]{1,18})([kKmMgG]?)", text or "")
    return int(match[1]) * _SUFFIX[match[2].lower()] if match else None


def _never(mount: Mount, line: Evidence) -> list[Finding]:
    return [ids.NEVER_DIRECT.info(mount.point, f"{mount.fs_type}: never GPUDirect", line)]


def _virtiofs(mount: Mount, line: Evidence) -> list[Finding]:
    dax = mount.option("dax")
    return [ids.VIRTIOFS.info(mount.point, f"virtiofs{'' if dax is None else ', dax'}", line)]


_KINDS: Final[dict[str, Judge]] = {
    **dict.fromkeys(("nfs", "nfs4"), _nfs),
    **dict.fromkeys(("beegfs", "beegfs_nodev"), _beegfs),
    **dict.fromkeys(MEMORY, _memory),
    **dict.fromkeys(
        ("btrfs", "zfs", "cifs", "smb3", "9p", "squashfs", "erofs", "glusterfs", "bcachefs", "afs"), _never
    ),
    "lustre": _lustre,
    "wekafs": _weka,
    "gpfs": _gpfs,
    "ceph": _ceph,
    "overlay": _overlay,
    "virtiofs": _virtiofs,
}
