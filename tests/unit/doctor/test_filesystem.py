"""The checks of file systems on a node."""

from __future__ import annotations

import pytest

from stoker.doctor import filesystem
from stoker.doctor.check import Target
from stoker.doctor.gds import read_driver
from stoker.doctor.node import Missing, Output

INFO = "/proc/self/mountinfo"
MOUNTS = """1 0 0:30 / / rw - overlay overlay rw,lowerdir=/l,upperdir=/u
2 1 9:0 / /data rw - xfs /dev/md0 rw,sunit=8,swidth=16
3 1 9:0 /sub /etc/hosts rw - xfs /dev/md0 rw,sunit=8,swidth=16
4 1 0:40 / /lustre rw - lustre 192.0.2.1@o2ib:/fs rw
5 1 0:41 / /bee rw - beegfs beegfs_nodev rw
6 1 0:42 / /dev/shm rw - tmpfs shm rw,size=65536k
7 1 0:43 / /run rw - tmpfs tmpfs rw
8 1 0:44 / /b rw - btrfs /dev/nvme5n1 rw
9 1 0:45 / /nfs rw - nfs4 192.0.2.9:/x rw,vers=4.2,proto=tcp,rsize=1048576
"""


def node_of(make_node, **more):
    return make_node(
        files={
            INFO: MOUNTS,
            "/sys/devices/virtual/block/md0/md/level": "raid0\n",
            "/sys/devices/virtual/block/md0/slaves/nvme0n1/x": "",
            "/sys/devices/pci/nvme5n1/size": "1",
        }
        | more,
        links={
            "/sys/dev/block/9:0": "/sys/devices/virtual/block/md0",
            "/sys/class/block/nvme5n1": "/sys/devices/pci/nvme5n1",
            "/dev/nvme5n1": "/dev/nvme5n1",
        },
    )


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("/data/x", "xfs on md0 (raid0) of nvme0n1, mounted at /data"),
        ("/lustre/y", "lustre on 192.0.2.1@o2ib:/fs, mounted at /lustre"),
        ("/b", "btrfs on nvme5n1, mounted at /b"),
        ("/dev/shm/z", "tmpfs on shm, mounted at /dev/shm"),
    ],
)
def test_a_path_is_followed_to_what_it_lies_on(make_node, path, what):
    (found,) = filesystem.check_path(node_of(make_node), Target(path))
    assert (found.id, str(found.severity), found.what) == ("path-identity", "info", what)


def test_a_path_in_the_containers_layer_or_in_memory_is_told(make_node, said):
    node = node_of(make_node)
    assert said(filesystem.check_path(node, Target("/work"))) == {("path-identity", "info"), ("fs-overlay", "warn")}
    assert said(filesystem.check_path(node, Target("/run/x"))) == {("path-identity", "info"), ("fs-in-memory", "info")}
    assert filesystem.check_path(node, Target("s3://bucket/x")) == []


def test_hidden_sys_or_mounts_leave_it_unknown(make_node, said):
    node = node_of(make_node)
    node.links.clear()
    assert said(filesystem.check_path(node, Target("/data"))) == {
        ("path-identity", "info"),
        ("path-identity", "unknown"),
    }
    node.files[INFO] = Missing("permission denied")
    assert said(filesystem.check_path(node, Target("/data"))) == {("path-identity", "unknown")}
    assert said(filesystem.check_mounts(node, Target())) == {("path-identity", "unknown")}


def test_the_mounts_of_a_container_are_said_once_each_without_its_own_small_ones(make_node):
    found = filesystem.check_mounts(node_of(make_node), Target())
    assert {(f.subject, f.id, str(f.severity)) for f in found} == {
        ("/", "fs-overlay", "info"),
        ("/data", "fs-on-md", "info"),
        ("/lustre", "lustre-network", "ok"),
        ("/bee", "beegfs-mount", "info"),
        ("/dev/shm", "fs-shm", "warn"),
        ("/b", "fs-never-direct", "info"),
        ("/nfs", "nfs-not-rdma", "info"),
        ("/nfs", "nfs-one-tcp-connection", "warn"),
    }


def test_of_nfs_the_connections_count_not_the_options(make_node):
    stats = "device 192.0.2.9:/x mounted on /nfs with fstype nfs4\n\topts:\trw,proto=tcp\n" + "\txprt:\ttcp 1 2 3\n" * 4
    node = node_of(make_node, **{"/proc/self/mountstats": stats})
    found = [(f.id, str(f.severity), f.what) for f in filesystem.check_mounts(node, Target()) if f.subject == "/nfs"]
    assert found == [("nfs-not-rdma", "info", "4 connections over tcp: GPUDirect is not engaged")]


def test_a_lustre_client_is_asked_for_what_it_may_tell(make_node, sample, said):
    node = node_of(make_node)
    node.commands = {
        "lnetctl net show -v 3": Output(sample("fs/lnetctl-net-show-healthy.yaml")),
        "lctl get_param osc.*.max_rpcs_in_flight llite.*.statahead_max llite.*.max_read_ahead_mb": Output(
            "llite.fs-ffff.statahead_max=0\n"
        ),
        "lctl get_param llite.*.stats": Output("", "error: permission denied", 1),
        "lfs df": Output(sample("fs/lfs-df.txt")),
        "lfs getstripe -d /lustre/f": Output(sample("fs/lfs-getstripe-plain.txt")),
    }
    assert said(filesystem.check_lnet(node, Target())) == {("lnet-interfaces", "ok")}
    assert said(filesystem.check_lustre_client(node, Target())) == set()
    assert said(filesystem.check_lustre_settings(node, Target())) == {("lustre-settings", "warn")}
    assert said(filesystem.check_lustre_targets(node, Target())) == {
        ("lustre-target-full", "warn"),
        ("lustre-target-inactive", "warn"),
    }
    (layout,) = filesystem.check_layout(node, Target("/lustre/f"))
    assert (layout.id, layout.evidence[0].source) == ("lustre-one-stripe", "lfs getstripe -d /lustre/f")
    node.files[INFO] = "1 0 259:0 / / rw - xfs /dev/nvme0n1 rw\n"
    assert filesystem.check_lnet(node, Target()) == filesystem.check_lustre_targets(node, Target()) == []
    assert filesystem.check_layout(node, Target("/lustre/f")) == []


@pytest.mark.parametrize("command", ["beegfs entry info --retro /bee/f", "beegfs-ctl --getentryinfo /bee/f"])
def test_beegfs_is_asked_by_the_tool_of_either_version(make_node, sample, said, command):
    node = node_of(make_node)
    node.commands = {command: Output(sample("fs/beegfs-entryinfo-v7.txt"))}
    assert said(filesystem.check_layout(node, Target("/bee/f"))) == {("beegfs-stripes", "ok")}


def test_the_clients_of_beegfs_and_weka_are_read_and_reach_the_rules_of_gpudirect(make_node, sample, said):
    node = node_of(make_node)
    assert filesystem.check_clients(node, Target()) == []
    assert read_driver(node).beegfs_rdma is None
    node.files["/proc/fs/beegfs/1-2-c/storage_nodes"] = sample("fs/beegfs-storage_nodes-rdma.txt")
    node.files["/proc/wekafs/interface"] = sample("fs/wekafs-interface.txt")
    assert said(filesystem.check_clients(node, Target())) == {("beegfs-connections", "ok"), ("wekafs-mount", "info")}
    assert read_driver(node).beegfs_rdma is True
    node.files["/proc/fs/beegfs/9-9-c/storage_nodes"] = "s [ID: 1]\n   Connections: TCP: 1 (192.0.2.1:8003);\n"
    assert read_driver(node).beegfs_rdma is False


def test_without_any_rdma_device_there_is_no_userspace_rdma(make_node):
    node = make_node()
    assert read_driver(node).userspace_rdma is None
    node.files["/sys/class/net/lo/mtu"] = "65536"
    assert read_driver(node).userspace_rdma is False
    node.files["/sys/class/infiniband/mlx5_0/node_type"] = "1: CA"
    assert read_driver(node).userspace_rdma is None
