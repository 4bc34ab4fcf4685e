"""Magic numbers of file systems, and what WekaFS says of its mounts. Pure.

Sources: include/uapi/linux/magic.h of the kernel, coreutils' table of stat(1). Weka documents no number.
"""

from __future__ import annotations

import re
from typing import Final

from stoker.doctor import filesystem_ids as ids
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.kinds import LINE_UNKNOWN
from stoker.doctor.mounts import judge_weka

FUSE: Final = 0x65735546
NAMES: Final = {
    0xEF53: "ext2, ext3 or ext4",
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0x2FC12FC1: "zfs",
    0xCA451A4E: "bcachefs",
    0xF2F52010: "f2fs",
    0x01021994: "tmpfs",
    0x858458F6: "ramfs",
    0x794C7630: "overlay",
    0x73717368: "squashfs",
    0xE0F5E1E2: "erofs",
    0x6969: "nfs",
    0x0BD00BD0: "lustre",
    0x47504653: "gpfs",
    0x00C36400: "ceph",
    0x19830326: "beegfs",
    FUSE: "FUSE",
    0xFE534D42: "smb2",
    0xFF534D42: "cifs",
    0x517B: "smb",
    0x01021997: "9p",
    0x5346414F: "afs",
    0x9FA0: "proc",
    0x62656572: "sysfs",
    0x27E0EB: "cgroup",
    0x63677270: "cgroup2",
    0x64626720: "debugfs",
    0x74726163: "tracefs",
    0x958458F6: "hugetlbfs",
    0x1CD1: "devpts",
    0x6E736673: "nsfs",
    0xCAFE4A11: "bpf",
    0x4D44: "vfat",
    0x9660: "iso9660",
}
_MAGIC: Final = re.compile(r"^\s*(\S+)\s+(?:0x)?([0-9A-Fa-f]{1,8})\s*$")
_WEKA_MOUNT: Final = re.compile(r"^mount:\[([^\]]*)\]\s+(\S+)\s+-o,?(\S*)\s*$")


def name_of(magic: int) -> str:
    """What a magic number names, or ""."""
    return NAMES.get(magic, "")


def detect_magic(text: str) -> bool:
    """Whether it is names with magic numbers, as `stat -f -c '%T %t'` prints them."""
    rows = [_MAGIC.match(line) for line in text.splitlines() if line.strip()]
    return bool(rows) and all(rows) and any(int(row[2], 16) in NAMES for row in rows if row)


def explain_magic(text: str, source: str) -> list[Finding]:
    """What each number names; that of FUSE names no file system."""
    found: list[Finding] = []
    for line in text.splitlines():
        row, evidence = _MAGIC.match(line), Evidence(line, source)
        if row and (name := name_of(int(row[2], 16))):
            if name == NAMES[FUSE]:
                what = "a file system in user space, or virtiofs: only mountinfo says which"
                found.append(ids.MAGIC.unknown(row[1], what, evidence))
            else:
                found.append(ids.MAGIC.info(row[1], f"0x{int(row[2], 16):X} is {name}", evidence, fix=""))
        elif line.strip():
            found.append(LINE_UNKNOWN.unknown(row[1] if row else "statfs", "no magic number that is known", evidence))
    return found or [LINE_UNKNOWN.unknown("statfs", "is empty", Evidence("", source))]


def detect_weka(text: str) -> bool:
    """Whether it is /proc/wekafs/interface."""
    return any(_WEKA_MOUNT.match(line) for line in text.splitlines())


def explain_weka(text: str, source: str) -> list[Finding]:
    """The WekaFS mounts of a node."""
    found: list[Finding] = []
    for line in text.splitlines():
        mount = _WEKA_MOUNT.match(line)
        if mount:
            found += judge_weka(f"WekaFS {mount[2]}", mount[3].split(","), Evidence(line, source))
        elif line.startswith("mount:"):
            found.append(LINE_UNKNOWN.unknown("WekaFS", "a mount is not understood", Evidence(line, source)))
    line = next((line for line in text.splitlines() if line.strip()), "")
    return found or [LINE_UNKNOWN.unknown("WekaFS", "no mount is told", Evidence(line, source))]
