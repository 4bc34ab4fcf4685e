"""Mounts in forms that no sample has."""

from __future__ import annotations

import pytest

from stoker.doctor import mounts
from stoker.doctor.identity import BlockDevice, parse_mountinfo


def judged(fs_type, source="x", options="rw", device="0:9", block=None):
    (mount,) = parse_mountinfo(f"1 0 {device} / /m rw - {fs_type} {source} {options}")
    return mounts.judge(mount, "given", block or mounts.device_of(mount))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("nfs4", "s:/x", "rw,vers=4.2,proto=tcp,rsize=1048576,nconnect=8"), {("nfs-not-rdma", "info")}),
        (
            ("nfs", "s:/x", "rw,proto=tcp6,rsize=65536,nconnect=8"),
            {("nfs-not-rdma", "info"), ("nfs-read-size-small", "warn")},
        ),
        (("nfs", "s:/x", "rw,proto=udp,rsize=1048576"), {("nfs-not-rdma", "info")}),
        (("nfs", "s:/x", "rw,proto=rdma6"), {("nfs-rdma", "ok")}),
        (("nfs", "s:/x", "rw"), {("line-not-understood", "unknown")}),
        (("lustre", "10.0.0.1@tcp1:/fs"), {("lustre-network", "warn")}),
        (("lustre", "10.0.0.1@o2ib12,10.0.0.2@tcp:/fs"), {("lustre-network", "ok")}),
        (("lustre", "10.0.0.1@kfi:/fs"), {("lustre-network", "unknown")}),
        (("lustre", "/fs"), {("line-not-understood", "unknown")}),
        (
            ("wekafs", "b/f", "rw,forcedirect,container_name=c"),
            {("wekafs-mount", "info"), ("wekafs-forcedirect", "warn")},
        ),
        (("fuse.ceph-fuse", "ceph-fuse"), {("cephfs-mount", "warn")}),
        (("fuse.sshfs", "h:/", "rw,max_read=0"), {("fs-fuse", "info")}),
        (("btrfs", "/dev/nvme0n1"), {("fs-never-direct", "info")}),
        (("zfs", "tank/x"), {("fs-never-direct", "info")}),
        (("virtiofs", "tag", "rw,dax"), {("fs-virtiofs", "info")}),
        (("tmpfs", "tmpfs", "rw,size=65536k"), {("fs-in-memory", "info")}),
        (("panfs", "x"), {("fs-not-known", "unknown")}),
        (("proc", "proc"), set()),
    ],
)
def test_a_mount_is_judged_by_its_kind_and_options(said, arguments, expected):
    assert said(judged(*arguments)) == expected


def test_what_lies_under_a_local_file_system_is_told_to_the_bottom(said):
    nvme = BlockDevice("nvme0n1", "nvme")
    raid = BlockDevice("md0", "md", (nvme, BlockDevice("nvme1n1", "nvme")), "raid0")
    found = judged("xfs", "/dev/md0", "rw,noquota", "9:0", raid)
    assert said(found) == {("fs-on-md", "info"), ("fs-xfs-stripe-not-set", "warn")}
    assert found[0].what.startswith("xfs on md0 (raid0) of nvme0n1, nvme1n1:")
    assert said(judged("xfs", "/dev/md0", "rw,sunit=8,swidth=16", "9:0", raid)) == {("fs-on-md", "info")}
    crypt = BlockDevice("dm-1", "dm-crypt", (raid,), "CRYPT-x")
    found = judged("ext4", "/dev/mapper/c", "rw,data=ordered", "253:1", crypt)
    assert said(found) == {("fs-on-device-mapper", "info"), ("fs-on-md", "info")}
    assert "dm-1 (dm-crypt) of md0 (raid0) of nvme0n1" in found[0].what
    assert said(judged("ext4", "/dev/nvme0n1", "rw,data=writeback", "259:0")) == {("fs-ext4-journal-not-shown", "info")}


@pytest.mark.parametrize(
    ("options", "severity"),
    [("rw,size=65536k", "warn"), ("rw,size=64m", "warn"), ("rw,size=64g", "ok"), ("rw", "info")],
)
def test_shared_memory_of_64_mib_is_too_little(options, severity):
    (found,) = mounts.explain(f"1 0 0:9 / /dev/shm rw - tmpfs shm {options}\n", "given")
    assert (found.id, str(found.severity)) == ("fs-shm", severity)


def test_memory_is_told_where_a_job_may_use_it():
    points = ("/run/lock", "/sys/fs/cgroup", "/var/lib/x", "/mnt/ram")
    found = mounts.explain("".join(f"1 0 0:9 / {p} rw - tmpfs tmpfs rw\n" for p in points), "given")
    assert [(f.subject, f.id) for f in found] == [("/mnt/ram", "fs-in-memory")]


def test_a_line_of_another_form_is_unknown_and_quoted():
    found = mounts.explain("1 0 0:9 / /m rw - xfs /dev/x rw\n2 0 what\n3 0 0:9 / /n rw - proc p rw\n", "given")
    assert [(f.id, f.evidence[0].line) for f in found if str(f.severity) == "unknown"] == [
        ("line-not-understood", "2 0 what")
    ]


@pytest.mark.parametrize(
    ("text", "size"), [("1k", 1024), ("2G", 2 << 30), ("5", 5), ("", None), (None, None), ("1x", None)]
)
def test_sizes_of_mount_options_are_in_bytes(text, size):
    assert mounts.size_bytes(text) == size
