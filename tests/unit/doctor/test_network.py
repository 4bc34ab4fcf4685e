"""The checks of the network on a node."""

from __future__ import annotations

import pytest

from stoker.doctor.check import Target
from stoker.doctor.network import check_affinity, check_path, check_rdma, check_tcp, nccl_takes
from stoker.doctor.node import Missing, Output

IB = "/sys/class/infiniband"
MOUNTS = """1 0 259:0 / / rw - xfs /dev/nvme0n1 rw
2 1 0:50 / /mnt/nfs rw - nfs4 192.0.2.1:/x rw,proto=tcp,addr=192.0.2.1
3 1 0:51 / /mnt/named rw - nfs4 filer:/x rw
4 1 0:52 / /mnt/lustre rw - lustre 192.0.2.8@o2ib:/scratch rw
"""


def node_with_cards(make_node, **more):
    files = {
        "/proc/self/mountinfo": MOUNTS,
        f"{IB}/mlx5_0/ports/1/state": "4: ACTIVE\n",
        f"{IB}/mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)\n",
        f"{IB}/mlx5_0/ports/1/hw_counters/out_of_sequence": "3\n",
        f"{IB}/mlx5_0/device/net/ens1": "",
        "/sys/class/net/ens1/mtu": "1500\n",
        "/sys/class/net/ens1/speed": "200000\n",
    }
    commands = {
        f"ip route get {server}": Output(f"{server} dev ens1 src 192.0.2.99 uid 0\n    cache\n")
        for server in ("192.0.2.1", "192.0.2.8")
    }
    return make_node(files=files, commands=commands | more.pop("commands", {}), **more)


def test_a_node_without_anything_is_not_spoken_of(make_node):
    node = make_node()
    for check in (check_rdma, check_tcp, check_path, check_affinity):
        assert check(node, Target("/mnt/nfs/x")) == []


def test_ports_and_their_devices_are_found(make_node, said):
    found = check_rdma(node_with_cards(make_node), Target())
    assert said(found) == {("rdma-port-state", "ok"), ("rdma-loss", "info"), ("rdma-netdev", "info")}


def test_the_card_of_a_path_is_named_and_its_mtu_judged(make_node, said):
    node = node_with_cards(make_node)
    found = check_path(node, Target("/mnt/nfs/x"))
    assert {("nic-of-storage", "info"), ("network-mtu", "warn")} <= said(found)
    assert found[0].what == "server 192.0.2.1 is reached over ens1 (mlx5_0)"
    assert check_path(node, Target("/data")) == []
    assert "192.0.2.8" in check_path(node, Target("/mnt/lustre"))[0].what


def test_a_path_mtu_below_that_of_the_card_is_a_mismatch(make_node):
    sockets = "Recv-Q Send-Q Local Peer\n0 0 192.0.2.9:700 192.0.2.1:2049\n\t rto:204 pmtu:1500 cwnd:10\n"
    node = node_with_cards(make_node, commands={"ss -tin state established": Output(sockets)})
    node.files["/sys/class/net/ens1/mtu"] = "9000\n"
    (found,) = [f for f in check_path(node, Target("/mnt/nfs")) if f.id == "network-mtu"]
    assert (str(found.severity), found.subject) == ("warn", "ens1")
    assert "only 1500 on the way to 192.0.2.1" in found.what


def test_what_cannot_be_told_is_unknown_with_its_reason(make_node):
    node = node_with_cards(make_node)
    (found,) = check_path(node, Target("/mnt/named"))
    assert str(found.severity) == "unknown"
    node.commands = {"ip route get 192.0.2.1": Missing("no such command")}
    (found,) = check_path(node, Target("/mnt/nfs"))
    assert "no such command" in found.what


@pytest.mark.parametrize(
    ("variables", "severity"),
    [({"NCCL_IB_HCA": "mlx5_0:1"}, "warn"), ({"NCCL_IB_HCA": "mlx5_7"}, None), ({}, "info")],
)
def test_a_card_shared_with_the_compute_plane_is_found(make_node, variables, severity):
    node = node_with_cards(make_node, variables=variables)
    shared = [f for f in check_path(node, Target("/mnt/nfs")) if f.id == "nic-shared-with-compute"]
    assert [str(f.severity) for f in shared] == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("value", "takes"),
    [("mlx5_1", True), ("mlx5", True), ("=mlx5_1:1,x", True), ("=mlx5", False), ("^mlx5_1", False), ("^=mlx5", True)],
)
def test_lists_of_nccl_hold_prefixes_names_and_exclusions(value, takes):
    assert nccl_takes(value, "mlx5_1") is takes


def test_retransmissions_and_connections_are_looked_at(make_node, said):
    sockets = (
        "Recv-Q Send-Q Local Address:Port Peer Address:Port\n0 0 192.0.2.9:700 192.0.2.1:2049\n\t rto:204 cwnd:10\n"
    )
    node = make_node(
        files={"/proc/net/snmp": "Tcp: OutSegs RetransSegs\nTcp: 1000 1\n"},
        commands={"ss -tin state established": Output(sockets)},
    )
    expected = {("tcp-retransmits", "info"), ("tcp-one-connection", "warn"), ("tcp-connections", "info")}
    assert said(check_tcp(node, Target())) == expected


def gpu_files(gpu_at, card_at):
    return {
        "/proc/driver/nvidia/gpus/0000:1B:00.0/information": "",
        "/sys/bus/pci/devices/0000:1b:00.0/numa_node": f"{gpu_at}\n",
        f"{IB}/mlx5_0/device/numa_node": f"{card_at}\n",
    }


@pytest.mark.parametrize(
    ("gpu_at", "card_at", "expected"),
    [(1, 1, {("gpu-nic-affinity", "info")}), (0, 1, {("gpu-nic-far", "warn")}), (-1, 1, set()), (0, -1, set())],
)
def test_without_nvidia_smi_the_numa_nodes_decide_and_minus_one_is_unknown(make_node, said, gpu_at, card_at, expected):
    assert said(check_affinity(make_node(files=gpu_files(gpu_at, card_at)), Target())) == expected


def test_the_matrix_is_asked_first_and_a_path_over_a_far_card_is_told(make_node, sample, said):
    matrix = Output(sample("net/nvidia-smi-topo.txt"))
    node = node_with_cards(make_node, commands={"nvidia-smi topo -m": matrix})
    node.files |= gpu_files(0, 0)
    assert said(check_affinity(node, Target())) == {("gpu-nic-affinity", "info")}
    far = [f.subject for f in check_path(node, Target("/mnt/nfs")) if f.id == "gpu-nic-far"]
    assert far == ["GPU1"]
