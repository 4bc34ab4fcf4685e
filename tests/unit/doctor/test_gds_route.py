"""What is to be expected of a path, by the rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stoker.doctor.cufile_json import effective
from stoker.doctor.gds_route import DriverFacts, expect
from stoker.doctor.identity import BlockDevice, PathIdentity, mount_of, parse_mountinfo

ALLOWED = effective('{"properties": {"allow_compat_mode": true}}', "x", {})
STRICT = effective('{"properties": {"allow_compat_mode": false}}', "x", {})
P2PDMA = effective(
    '{"properties": {"allow_compat_mode": true, "use_pci_p2pdma": true}, "block": {"nvme": {"use_pci_p2pdma": true}}}',
    "",
    {},
)
NVME = BlockDevice("nvme0n1", "nvme")
HOOKED = DriverFacts(
    hooks=frozenset(("nvme", "nvme_rdma", "rpcrdma", "lnet")),
    device_nodes=True,
    transports={"nvme0n1": "pcie", "nvme1n1": "tcp", "nvme2n1": "rdma", "nvme3n1": "pcie"},
)


def at(fs_type, options="rw", source="/dev/x", device=None):
    (mount,) = parse_mountinfo(f"1 0 259:0 / /m rw - {fs_type} {source} {options}")
    return PathIdentity("/m/x", mount, device)


def raid(level, *parts):
    return BlockDevice("md0", "md", parts, level)


CASES = [
    (at("ext4", "rw,data=ordered", device=NVME), "direct-expected(nvfs)"),
    (at("ext4", device=NVME), "compat-expected(the ext4 mount shows no data=ordered"),
    (at("ext4", "rw,data=journal", device=NVME), "compat-expected(the ext4 mount shows data=journal"),
    (at("xfs", device=NVME), "direct-expected(nvfs)"),
    (at("xfs"), "unknown(the block device"),
    (at("xfs", device=BlockDevice("dm-0", "dm-lvm", (NVME,))), "compat-expected(device mapper"),
    (at("xfs", device=BlockDevice("sda", "scsi")), "compat-expected(sda is no NVMe"),
    (at("xfs", device=raid("raid0", NVME, BlockDevice("nvme3n1", "nvme"))), "direct-expected(nvfs)"),
    (at("xfs", device=raid("raid5", NVME)), "compat-expected(md0 is raid5"),
    (at("xfs", device=raid("", NVME)), "unknown(level or members"),
    (at("xfs", device=raid("raid0", NVME, BlockDevice("nvme2n1", "nvme"))), "compat-expected(members"),
    (at("xfs", device=BlockDevice("nvme1n1", "nvme")), "compat-expected(NVMe over tcp"),
    (at("xfs", device=BlockDevice("nvme2n1", "nvme")), "direct-expected(nvfs)"),
    (at("xfs", device=BlockDevice("nvme9n1", "nvme")), "unknown(the transport"),
    (at("nfs4", "rw,vers=4.2,proto=tcp"), "compat-expected(NFS over tcp"),
    (at("nfs4", "rw,proto=tcp6"), "compat-expected(NFS over tcp6"),
    (at("nfs", "rw,vers=3,proto=rdma,nconnect=16"), "direct-expected(nvfs)"),
    (at("nfs", "rw"), "unknown(the mount does not show"),
    (at("lustre", source="192.0.2.1@o2ib:192.0.2.2@o2ib:/fs"), "direct-expected(nvfs)"),
    (at("lustre", source="192.0.2.1@tcp1:/fs"), "compat-expected(Lustre over tcp"),
    (at("beegfs", source="beegfs_nodev"), "compat-expected(beegfs (BeeGFS) is not registered"),
    (at("wekafs", source="backend/fs"), "unknown(wekafs needs userspace RDMA"),
    (at("overlay"), "compat-expected(overlay"),
    (at("fuse.juicefs"), "compat-expected(fuse.juicefs"),
    (at("ceph"), "compat-expected(ceph"),
    (at("virtiofs"), "compat-expected(virtiofs"),
    (at("newfs"), "unknown(nothing is known of newfs"),
]


@pytest.mark.parametrize(("identity", "expected"), CASES)
def test_a_path_is_judged_by_file_system_device_and_options(identity, expected):
    assert str(expect(identity, HOOKED, ALLOWED)).startswith(expected)


@pytest.mark.parametrize(("identity", "expected"), CASES)
def test_what_would_be_copied_is_refused_where_compat_is_not_allowed(identity, expected):
    strict = str(expect(identity, HOOKED, STRICT))
    assert strict.startswith("refused(" if expected.startswith("compat") else expected)


@pytest.mark.parametrize(("identity", "expected"), CASES)
def test_nothing_is_direct_where_compat_is_forced(identity, expected):
    forced = effective('{"properties": {}}', "x", {"CUFILE_FORCE_COMPAT_MODE": "true"})
    assert str(expect(identity, HOOKED, forced)).startswith("compat-expected(compatible mode is forced")


@pytest.mark.parametrize(("identity", "expected"), CASES)
def test_without_any_knowledge_of_the_drivers_nothing_is_called_direct(identity, expected):
    assert not str(expect(identity, DriverFacts(), ALLOWED)).startswith("direct")
    assert not str(expect(identity, DriverFacts(hooks=frozenset()), ALLOWED)).startswith("direct")


@pytest.mark.parametrize(
    ("p2pdma", "expected"), [(True, "direct-expected(p2pdma)"), (None, "unknown("), (False, "compat")]
)
def test_p2pdma_needs_configuration_and_hardware(p2pdma, expected):
    driver = DriverFacts(hooks=frozenset(), p2pdma=p2pdma, transports={"nvme0n1": "pcie"})
    assert str(expect(at("xfs", device=NVME), driver, P2PDMA)).startswith(expected)
    assert str(expect(at("xfs", device=NVME), driver, ALLOWED)).startswith("compat")


@pytest.mark.parametrize(
    ("denied", "reason"),
    [
        ('"mounts": ["/m"]', "mount /m"),
        ('"filesystems": ["xfs"]', "file system xfs"),
        ('"devices": ["/dev/nvme0n1"]', "device /dev/nvme0n1"),
        ('"drivers": ["nvme"]', "driver nvme"),
    ],
)
def test_what_is_on_the_denylist_is_refused(denied, reason):
    for word in ("denylist", "blacklist"):
        config = effective(f'{{"{word}": {{{denied}}}, "properties": {{"allow_compat_mode": true}}}}', "x", {})
        assert str(expect(at("xfs", device=NVME), HOOKED, config)) == f"refused({reason} is on the denylist)"


def test_protection_information_closes_p2pdma_and_not_the_route_of_nvidia_fs():
    bus = DriverFacts(hooks=frozenset(), p2pdma=True, transports={"nvme0n1": "pcie"}, protected=frozenset(["nvme0n1"]))
    assert str(expect(at("xfs", device=NVME), bus, P2PDMA)).startswith("compat")
    hooked = replace(HOOKED, protected=frozenset(["nvme0n1"]))
    assert str(expect(at("xfs", device=NVME), hooked, P2PDMA)) == "direct-expected(nvfs)"


def test_device_nodes_that_are_not_here_close_the_route():
    driver = DriverFacts(hooks=frozenset(("nvme",)), device_nodes=False, transports={"nvme0n1": "pcie"})
    assert "nvidia-fs0" in str(expect(at("xfs", device=NVME), driver, ALLOWED))


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/mnt/nvme0/x", "direct"), ("/x", "compat"), ("/mnt/nfsslow", "compat")],
)
def test_mounts_of_the_sample_node_are_judged(sample, path, expected):
    mount = mount_of(path, parse_mountinfo(sample("fs/mountinfo-gpu-node.txt")))
    identity = PathIdentity(path, mount, NVME if mount.device.startswith("259") else None)
    assert str(expect(identity, HOOKED, ALLOWED)).startswith(expected)
