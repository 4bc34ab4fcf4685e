"""What a path lies on."""

from __future__ import annotations

import pytest

from stoker.doctor.identity import device_kind, identify, mount_of, parse_mountinfo
from stoker.doctor.node import Missing

MOUNTS = r"""
22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme9n1p2 rw,errors=remount-ro
60 22 9:0 / /mnt/ra\040id rw,noatime shared:31 - xfs /dev/md0 rw,sunit=1024
61 22 0:50 / /mnt/nfs rw - nfs4 192.0.2.1:/x rw,proto=tcp
62 61 253:3 / /mnt/nfs rw - xfs /dev/mapper/vg-lv rw
junk
63 61 x:y / /mnt/bad rw - xfs /dev/x rw
"""


def test_the_longest_mount_point_wins_and_of_two_the_last():
    mounts = parse_mountinfo(MOUNTS)
    assert mount_of("/mnt/ra id/x", mounts).source == "/dev/md0"
    assert mount_of("/mnt/nfs/y", mounts).fs_type == "xfs"
    assert mount_of("/mnt/nfsother", mounts).point == "/"
    assert mount_of("/mnt/bad", mounts).point == "/"
    assert mounts[1].option("sunit") == "1024"
    assert mounts[1].option("noatime") == ""
    assert mounts[1].option("data") is None


def test_a_device_is_followed_to_what_it_is_made_of(make_node):
    node = make_node(
        files={
            "/proc/self/mountinfo": MOUNTS,
            "/sys/devices/virtual/block/md0/md/level": "raid0\n",
            "/sys/devices/pci/nvme0n1/nvme0n1p1/partition": "1\n",
        },
        links={
            "/sys/dev/block/9:0": "/sys/devices/virtual/block/md0",
            "/sys/devices/virtual/block/md0/slaves/nvme0n1p1": "/sys/devices/pci/nvme0n1/nvme0n1p1",
            "/mnt/link": "/mnt/ra id/deep",
        },
    )
    found = identify(node, "/mnt/link")
    assert (found.path, found.mount.fs_type, found.device.name, found.device.detail) == (
        "/mnt/ra id/deep",
        "xfs",
        "md0",
        "raid0",
    )
    assert [d.name for d in found.device.leaves()] == ["nvme0n1"]


def test_without_mountinfo_or_sys_it_says_so_or_knows_no_device(make_node):
    assert isinstance(identify(make_node(), "/x"), Missing)
    assert identify(make_node(files={"/proc/self/mountinfo": MOUNTS}), "/x").device is None


@pytest.mark.parametrize(
    ("name", "uuid", "kind"),
    [
        ("dm-0", "LVM-abc", "dm-lvm"),
        ("dm-0", "CRYPT-LUKS2-x", "dm-crypt"),
        ("dm-0", "", "dm"),
        ("nvme1n1", "", "nvme"),
        ("md127", "", "md"),
        ("sda", "", "scsi"),
        ("vda", "", "virtual"),
        ("bcache0", "", "other"),
    ],
)
def test_a_device_is_known_by_its_name(name, uuid, kind):
    assert device_kind(name, uuid) == kind
