"""What a path lies on: mount, file system, and the block devices under it.

Sources: proc(5) for mountinfo; /sys/dev/block/M:N/slaves for what a device is made of.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Final

from stoker.doctor.node import Missing, Node

MOUNTINFO: Final = "/proc/self/mountinfo"
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_MAX_DEPTH: Final = 8
_LOCAL: Final = frozenset(
    ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay", "squashfs", "erofs", "vfat")
)


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo. `device` is `major:minor`; major 0 has no block device.

    `options` are those of the mount, `fs_options` those of the file system.
    """

    device: str
    root: str
    point: str
    options: tuple[str, ...]
    fs_type: str
    source: str
    fs_options: tuple[str, ...]
    line: str

    def option(self, name: str) -> str | None:
        """The value of an option, "" if it has none, None if it is not there; the file system's options go first."""
        for option in (*self.fs_options, *self.options):
            key, _, value = option.partition("=")
            if key == name:
                return value
        return None


@dataclass(frozen=True)
class BlockDevice:
    """A block device and what it is made of. `kind`: nvme, scsi, dm-lvm, dm-crypt, dm-mpath, dm, md, loop, other."""

    name: str
    kind: str
    parts: tuple[BlockDevice, ...] = ()
    detail: str = ""

    def leaves(self) -> tuple[BlockDevice, ...]:
        """The devices at the bottom."""
        return tuple(leaf for part in self.parts for leaf in part.leaves()) if self.parts else (self,)

    def walk(self) -> tuple[BlockDevice, ...]:
        """This device and all below."""
        return (self, *(below for part in self.parts for below in part.walk()))


@dataclass(frozen=True)
class PathIdentity:
    """What a path lies on. `device` is None for network and memory file systems, and where /sys cannot be seen."""

    path: str
    mount: Mount
    device: BlockDevice | None


def parse_mountinfo(text: str) -> list[Mount]:
    """The mounts of /proc/self/mountinfo in their order; lines of another form are passed over."""
    found = []
    for line in text.splitlines():
        head, mark, tail = line.partition(" - ")
        left, right = head.split(), tail.split()
        if not mark or len(left) < 6 or len(right) < 2 or not re.fullmatch(r"\d+:\d+", left[2]):  # noqa: PLR2004 - proc(5)
            continue
        found.append(
            Mount(
                device=left[2],
                root=_unescape(left[3]),
                point=_unescape(left[4]),
                options=tuple(left[5].split(",")),
                fs_type=right[0],
                source=_unescape(right[1]),
                fs_options=tuple(right[2].split(",")) if len(right) > 2 else (),  # noqa: PLR2004 - proc(5)
                line=line.strip(),
            )
        )
    return found


def mount_of(path: str, mounts: list[Mount]) -> Mount | None:
    """The mount a path lies on: the longest mount point that holds it, the last one where several do."""
    best: Mount | None = None
    for mount in mounts:
        point = mount.point.rstrip("/") + "/"
        if (path.rstrip("/") + "/").startswith(point) and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def identify(node: Node, path: str) -> PathIdentity | Missing:
    """What `path` lies on, from mountinfo and /sys, so a dead network mount cannot hold it up.

    Links in the path are followed unless the path as given lies on a network mount.
    """
    text = node.read(MOUNTINFO)
    if isinstance(text, Missing):
        return Missing(f"{MOUNTINFO}: {text.reason}")
    mounts = parse_mountinfo(text)
    mount = mount_of(posixpath.normpath(path), mounts)
    if mount is not None and is_local(mount.fs_type):
        real = node.link(path)
        if isinstance(real, str):
            path, mount = real, mount_of(real, mounts)
    if mount is None:
        return Missing("no mount in /proc/self/mountinfo holds the path")
    return PathIdentity(path, mount, device_under(node, mount))


def is_local(fs_type: str) -> bool:
    """Whether a file system answers from this machine alone, so that looking at it cannot wait for another."""
    return fs_type in _LOCAL


def device_under(node: Node, mount: Mount) -> BlockDevice | None:
    """The block device under a mount. btrfs has a number of its own, so that its source must name the device."""
    if mount.fs_type == "btrfs" and mount.source.startswith("/dev/"):
        real = node.link(mount.source)
        name = posixpath.basename(real if isinstance(real, str) else mount.source)
        found = node.link(f"/sys/class/block/{name}")
        return None if isinstance(found, Missing) else _device(node, found, 0)
    return block_device(node, mount.device)


def block_device(node: Node, number: str) -> BlockDevice | None:
    """The device `major:minor` with what it is made of, or None: no block device, or /sys cannot be seen."""
    if number.startswith("0:"):
        return None
    real = node.link(f"/sys/dev/block/{number}")
    return None if isinstance(real, Missing) else _device(node, real, 0)


def _device(node: Node, real: str, depth: int) -> BlockDevice:
    name = posixpath.basename(real)
    if isinstance(node.read(f"{real}/partition", 64), str):  # a partition is its disk, for what matters here
        real = posixpath.dirname(real)
        name = posixpath.basename(real)
    slaves = node.listing(f"{real}/slaves")
    parts: list[BlockDevice] = []
    if not isinstance(slaves, Missing) and depth < _MAX_DEPTH:
        for slave in slaves:
            below = node.link(f"{real}/slaves/{slave}")
            if isinstance(below, Missing):
                parts.append(BlockDevice(slave, device_kind(slave, "")))
            else:
                parts.append(_device(node, below, depth + 1))
    detail = node.read(f"{real}/md/level" if name.startswith("md") else f"{real}/dm/uuid", 256)
    text = "" if isinstance(detail, Missing) else detail.strip()
    return BlockDevice(name, device_kind(name, text), tuple(parts), text)


def device_kind(name: str, dm_uuid: str) -> str:
    """What a device is by its kernel name, and for device mapper by its uuid, which begins with its maker."""
    if name.startswith("dm-"):
        maker = dm_uuid.partition("-")[0].lower()
        return f"dm-{maker}" if maker in ("lvm", "crypt", "mpath") else "dm"
    kinds = {
        r"nvme\d": "nvme",
        r"md\d": "md",
        r"md_": "md",
        r"sd[a-z]": "scsi",
        r"loop\d": "loop",
        r"[vx]v?d[a-z]": "virtual",
    }
    return next((kind for pattern, kind in kinds.items() if re.match(pattern, name)), "other")


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
