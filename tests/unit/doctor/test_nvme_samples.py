"""Each sample about NVMe says what its row in samples/INDEX.md demands."""

from __future__ import annotations

from .conftest import by_id


def one(findings, name):
    (found,) = by_id(findings)[name]
    return found


def test_the_flat_list_of_1_x_is_two_local_namespaces_whose_transport_is_not_told(explained, said):
    found = explained("nvme/list-1.16.json")
    assert said(found) == {("nvme-namespaces", "info"), ("nvme-transport-not-told", "info")}
    assert one(found, "nvme-namespaces").what.startswith("2 namespaces: nvme0n1 (")
    assert "3.84 TB" in one(found, "nvme-namespaces").what
    assert "nvme0n1, nvme1n1 are local" in one(found, "nvme-transport-not-told").what
    assert "/sys/class/nvme" in one(found, "nvme-transport-not-told").fix


def test_the_flat_list_of_2_x_does_not_tell_whether_namespaces_are_local(explained, said):
    found = explained("nvme/list-2.8.json")
    assert said(found) == {("nvme-namespaces", "info"), ("nvme-transport-not-told", "unknown")}
    assert "nvme2n1" in one(found, "nvme-namespaces").what
    assert "7.68 TB" in one(found, "nvme-namespaces").what
    assert "list-subsys" in one(found, "nvme-transport-not-told").fix


def test_the_nested_list_tells_the_local_drive_from_the_remote_one_with_two_optimized_paths(explained, said):
    found = explained("nvme/list-2.11-detailed.json")
    assert said(found) == {("nvme-fabric-paths", "ok"), ("nvme-local", "ok")}
    assert one(found, "nvme-local").what == "1 local on PCIe: nvme0n1 (0000:8c:00.0)"
    paths = one(found, "nvme-fabric-paths")
    assert paths.subject == "nvme1n1 (nvme-subsys1)"
    assert paths.what == "2 rdma paths; ANA optimized, optimized"


def test_an_object_with_one_path_over_tcp_is_a_warning_twice(explained, said):
    found = explained("nvme/list-subsys-1.16-tcp.json")
    assert said(found) == {("nvme-fabric-not-rdma", "warn"), ("nvme-one-path", "warn"), ("nvme-local", "ok")}
    assert one(found, "nvme-fabric-not-rdma").evidence[0].line == '"Address": "traddr=192.0.2.21 trsvcid=4420",'
    assert by_id(found).get("nvme-no-optimized-path") is None


def test_two_live_rdma_paths_under_the_numa_policy_are_advised_another(explained, said):
    found = explained("nvme/list-subsys-2.8-rdma-multipath.json")
    assert said(found) == {("nvme-fabric-paths", "ok"), ("nvme-iopolicy-numa", "warn")}
    assert one(found, "nvme-fabric-paths").what == "2 live rdma paths; the ANA state is not told here"
    policy = one(found, "nvme-iopolicy-numa")
    assert "queue-depth" in policy.fix
    assert "round-robin" in policy.fix
    assert policy.evidence[0].line == '"IOPolicy": "numa",'


def test_a_host_without_an_nvme_driver_has_none(explained, said):
    assert said(explained("nvme/list-subsys-2.3-none.stderr.txt")) == {("nvme-none", "info")}


def test_a_tree_of_sys_tells_local_from_tcp_with_numa_link_queues_scheduler_and_multipath(explained, said):
    found = explained("nvme/sysfs-local-and-tcp.tree")
    assert {(f.subject, f.id, str(f.severity)) for f in found} == {
        ("NVMe", "nvme-local", "ok"),
        ("nvme0", "nvme-pcie-link", "ok"),
        ("nvme0", "nvme-numa", "ok"),
        ("nvme1n1 (nvme-subsys1)", "nvme-fabric-not-rdma", "warn"),
        ("nvme1n1 (nvme-subsys1)", "nvme-one-path", "warn"),
        ("nvme1", "nvme-numa", "unknown"),
        ("nvme1", "nvme-few-queues", "info"),
        ("nvme1n1", "nvme-scheduler", "warn"),
        ("nvme0n1, nvme1n1", "nvme-read-ahead", "info"),
        ("NVMe", "nvme-multipath-blocks-p2pdma", "info"),
    }
    assert one(found, "nvme-pcie-link").what == "PCIe Gen5 x4"
    near = next(f for f in found if f.id == "nvme-numa" and f.subject == "nvme0")
    assert near.what.startswith("NUMA node 1, the same as")
    assert "0000:8b:00.0" in near.what
    assert one(found, "nvme-few-queues").what.startswith("8 I/O queues")
    assert "mq-deadline" in one(found, "nvme-scheduler").what
    assert "x86" in one(found, "nvme-multipath-blocks-p2pdma").what
