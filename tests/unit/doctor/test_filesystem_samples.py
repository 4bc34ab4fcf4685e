"""Each sample about file systems says what its row in samples/INDEX.md demands."""

from __future__ import annotations

import pytest

from .conftest import by_id


def one(findings, name):
    (found,) = by_id(findings)[name]
    return found


MOUNTS = {
    "/": ("fs-ext4-journal-not-shown", "info", "cannot verify ordered mode"),
    "/mnt/nvme0": ("fs-local", "ok", "ext4 on nvme0n1, data=ordered"),
    "/mnt/raid": ("fs-on-md", "info", "/proc/mdstat"),
    "/mnt/lv": ("fs-on-device-mapper", "info", "no GPUDirect"),
    "/mnt/nfsfast": ("nfs-rdma", "ok", "NFS 4.1 over RDMA"),
    "/mnt/nfsslow": ("nfs-one-tcp-connection", "warn", "one TCP connection"),
    "/mnt/vast": ("nfs-rdma", "ok", "NFS 3 over RDMA, nconnect=16"),
    "/lustre": ("lustre-network", "ok", "o2ib"),
    "/mnt/beegfs": ("beegfs-mount", "info", "BeeGFS"),
    "/mnt/weka": ("wekafs-mount", "info", "writecache"),
    "/gpfs/fs1": ("gpfs-mount", "info", "GPFS"),
    "/mnt/ceph": ("cephfs-mount", "info", "kernel's client"),
    "/mnt/gluster": ("fs-fuse", "info", "glusterfs; never GPUDirect"),
    "/mnt/jfs": ("fs-fuse", "info", "juicefs; never GPUDirect"),
    "/mnt/s3": ("fs-fuse", "info", "mountpoint-s3; never GPUDirect"),
    "/mnt/gcs": ("fs-fuse", "info", "gcsfuse; never GPUDirect"),
    "/var/lib/containers/storage/overlay/aa/merged": ("fs-overlay", "info", "never GPUDirect"),
    "/dev/shm": ("fs-shm", "ok", "128000 MiB"),
}


@pytest.mark.parametrize("point", MOUNTS)
def test_each_mount_of_a_node_is_what_it_is(explained, point):
    name, severity, words = MOUNTS[point]
    (found,) = [f for f in explained("fs/mountinfo-gpu-node.txt") if f.subject == point and f.id == name]
    assert str(found.severity) == severity
    assert words in found.what
    assert found.evidence[0].line.split()[4] == point


def test_of_the_mounts_of_a_node_only_nfs_over_one_tcp_connection_is_a_warning(explained):
    found = explained("fs/mountinfo-gpu-node.txt")
    assert {f.subject for f in found} == set(MOUNTS)
    assert [(f.subject, f.id) for f in found if str(f.severity) in ("warn", "fail", "unknown")] == [
        ("/mnt/nfsslow", "nfs-one-tcp-connection")
    ]
    slow = [f for f in found if f.id == "nfs-not-rdma"]
    assert [(f.subject, "GPUDirect is not engaged" in f.what) for f in slow] == [("/mnt/nfsslow", True)]
    assert one(found, "fs-fuse-small-requests").what == "requests of at most 128 KiB"


def test_magic_numbers_are_named_and_that_of_fuse_names_none(explained, sample):
    found = explained("fs/statfs-magic.txt")
    assert len(found) == len(sample("fs/statfs-magic.txt").splitlines())
    named = {f.subject: f.what.rpartition(" is ")[2] for f in found if str(f.severity) == "info"}
    assert {k: named[k] for k in ("xfs", "nfs", "lustre", "gpfs", "ceph", "beegfs", "overlayfs")} == {
        "xfs": "xfs",
        "nfs": "nfs",
        "lustre": "lustre",
        "gpfs": "gpfs",
        "ceph": "ceph",
        "beegfs": "beegfs",
        "overlayfs": "overlay",
    }
    (fuse,) = [f for f in found if str(f.severity) == "unknown"]
    assert fuse.subject == "fuse"
    assert "virtiofs" in fuse.what
    assert "mountinfo" in fuse.what


def test_rdma_is_confirmed_by_the_connections_and_reads_take_three_milliseconds(explained, said):
    found = explained("fs/mountstats-nfs-rdma.txt")
    assert said(found) == {("nfs-rdma", "ok"), ("nfs-io", "info"), ("fs-metadata-share", "ok")}
    assert one(found, "nfs-rdma").evidence[0].line.startswith("xprt: rdma")
    assert "round trip 3.00 ms, 0.19 ms in the client's queue" in one(found, "nfs-io").what
    assert one(found, "fs-metadata-share").what.startswith("data dominates")


def test_one_stripe_binds_a_file_to_one_target(explained, said):
    found = explained("fs/lfs-getstripe-plain.txt")
    assert said(found) == {("lustre-one-stripe", "warn")}
    assert found[0].subject == "/lustre/ds/train-00000.tar"


def test_of_a_progressive_layout_only_components_in_use_count(explained, said):
    found = explained("fs/lfs-getstripe-pfl.txt")
    assert said(found) == {("lustre-stripes", "ok")}
    assert found[0].what == "data over 4 targets; component from 64 MiB on is not in use yet"


def test_data_on_the_metadata_target_is_no_error_and_not_direct(explained, said):
    found = explained("fs/lfs-getstripe-dom.txt")
    assert said(found) == {("lustre-data-on-mdt", "info")}
    assert found[0].what.startswith("the first 1 MiB")
    assert "not direct" in found[0].what


def test_a_full_and_an_inactive_target_are_warnings(explained):
    found = explained("fs/lfs-df.txt")
    assert {(f.id, f.subject, str(f.severity)) for f in found} == {
        ("lustre-target-full", "fs1-OST0001", "warn"),
        ("lustre-target-inactive", "OST0002", "warn"),
    }


def test_two_healthy_interfaces_are_healthy_whatever_lo_shows(explained, said):
    found = explained("fs/lnetctl-net-show-healthy.yaml")
    assert said(found) == {("lnet-interfaces", "ok")}
    assert found[0].what == "o2ib: 2 up and healthy"


def test_a_client_that_reads_much_is_told_by_means_and_shares(explained, said):
    found = explained("fs/llite-stats-data-heavy.txt")
    assert said(found) == {("lustre-io", "info"), ("fs-metadata-share", "ok")}
    assert one(found, "lustre-io").what.startswith("read: 2.0 ms mean, 4.12 MB a read")
    assert one(found, "fs-metadata-share").what.startswith("data dominates: metadata is 4% of the operations")


def test_a_file_of_beegfs_7_is_striped_over_four_targets_on_two_servers(explained, said):
    found = explained("fs/beegfs-entryinfo-v7.txt")
    assert said(found) == {("beegfs-stripes", "ok")}
    assert found[0].what == "4 targets on 2 servers, pattern RAID0, chunk 512 KiB"


def test_a_file_of_beegfs_8_on_fewer_targets_than_wanted_is_a_warning(explained, said):
    found = explained("fs/beegfs-entryinfo-v8-retro.txt")
    assert said(found) == {("beegfs-stripes", "warn")}
    assert found[0].what == "1 target of 4 that are wanted, pattern Buddy Mirror, chunk 1 MiB"


def test_connections_of_beegfs_are_rdma_and_none_is_idle(explained, said):
    found = explained("fs/beegfs-storage_nodes-rdma.txt")
    assert said(found) == {("beegfs-connections", "ok")}
    assert found[0].what == "all connections to 1 node are RDMA; 1 idle, which is no fault"


def test_a_weka_mount_shows_its_cache_its_client_and_that_nvidia_fs_never_counts_it(explained, said):
    found = explained("fs/wekafs-interface.txt")
    assert said(found) == {("wekafs-mount", "info")}
    assert "writecache, client client" in found[0].what
    assert "never show in the counters of nvidia-fs" in found[0].what


def test_the_nfs_of_the_network_scenario_waits_for_one_congested_connection(explained, said):
    found = explained("scenario/network-nfs-tcp/mountstats-t1.txt")
    assert {("nfs-one-tcp-connection", "warn"), ("nfs-retransmits", "warn"), ("fs-metadata-share", "ok")} <= said(found)
    assert "round trip 60.00 ms, 20.00 ms in the client's queue" in one(found, "nfs-io").what
    assert "metadata is 5% of the operations" in one(found, "fs-metadata-share").what


def test_the_lustre_of_the_metadata_scenario_spends_its_time_opening(explained):
    names = [f"scenario/metadata-lustre-small-files/llite-t{n}.txt" for n in (0, 1)]
    found = [f for f in explained(*names) if "between" in f.subject]
    assert one(found, "lustre-io").what == "read: 0.7 ms mean, 0.11 MB a read, 0.26 GB/s; open: 9.0 ms mean"
    mix = one(found, "fs-metadata-share")
    assert str(mix.severity) == "warn"
    assert mix.what == "4.0 for each read or write; metadata is 80% of the operations and 96% of the time"
