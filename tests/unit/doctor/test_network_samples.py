"""Each sample about the network concludes what its row of INDEX.md says."""

from __future__ import annotations

TREES = ("net/infiniband-sysfs-t0.tree", "net/infiniband-sysfs-t1.tree")


def find(findings, name, subject=None):
    return [f for f in findings if f.id == name and subject in (None, f.subject)]


def one(findings, name, subject=None):
    (found,) = find(findings, name, subject)
    return found


def test_ibstat_has_a_port_that_is_up_at_200_and_one_whose_rate_means_nothing(explained):
    found = explained("net/ibstat-hdr.txt")
    up, down = one(found, "rdma-port-state", "mlx5_0/1"), one(found, "rdma-port-state", "mlx5_1/1")
    assert (str(up.severity), up.what) == ("ok", "is up at 200 Gb/s (InfiniBand)")
    assert str(down.severity) == "warn"
    assert "the rate of 40 Gb/s that it prints means nothing" in down.what
    assert find(found, "rdma-rate-low") == []


def test_rdma_link_says_which_network_device_an_rdma_device_is(explained, said):
    found = explained("net/rdma-link-roce.json")
    assert one(found, "rdma-netdev", "mlx5_0/1").what == "is network device ens1f0np0"
    assert ("rdma-port-state", "ok") in said(found)
    assert one(found, "rdma-port-state", "mlx5_1/1").what == "is down (DISABLED)"


def test_counters_are_words_of_four_octets_and_the_link_is_saturated_without_loss(explained):
    found = explained(*TREES, seconds=10.0)
    full = one(found, "link-saturated", "mlx5_0/1")
    assert str(full.severity) == "warn"
    assert full.what.startswith("received 24 GB/s, 96% of 200 Gb/s")
    assert "sent 0.0002 GB/s" in one(found, "link-rate").what
    losses = find(found, "rdma-loss")
    assert {str(f.severity) for f in losses} == {"ok"}
    assert find(found, "rdma-congestion") == []


def test_without_the_seconds_there_is_no_rate(explained):
    found = explained(*TREES)
    assert find(found, "link-saturated") == []
    assert "received 240 GB in an unknown time" in find(found, "network-counters-unusable")[0].what


def test_pauses_of_a_network_card_count_only_if_they_grow(explained, said):
    found = explained("net/ethtool-S-mlx5-congested.txt")
    assert said(found) == {("nic-pause", "unknown"), ("nic-drops", "unknown")}
    received, sent = find(found, "nic-pause")
    assert "the fabric told this host to stop (rx_prio3_pause: 15234)" in received.what
    assert "this host could not take in what came (tx_prio3_pause: 8921)" in sent.what
    assert all("only growth counts" in f.what for f in found)


def test_two_per_cent_of_segments_sent_again_fail(explained):
    found = explained("net/proc-net-snmp-t0.txt", "net/proc-net-snmp-t1.txt")
    worst = max(found, key=lambda f: str(f.severity) == "fail")
    assert worst.id == "tcp-retransmits"
    assert worst.what.startswith("42000 of 2000000 segments were sent again, 2.10%")
    assert [str(f.severity) for f in found] == ["fail"]


def test_one_connection_to_nfs_with_jumbo_frames_and_nothing_sent_again(explained, said):
    found = explained("net/ss-tin.txt")
    assert said(found) == {("tcp-one-connection", "warn"), ("tcp-connections", "info"), ("network-mtu", "ok")}
    assert "port 2049" in one(found, "tcp-one-connection").what
    assert one(found, "tcp-connections").what == "1 connection, nothing sent again"
    assert "9000: jumbo frames are on" in one(found, "network-mtu").what


def test_each_gpu_has_a_card_of_its_own_and_the_other_is_across_sockets(explained):
    found = explained("net/nvidia-smi-topo.txt")
    assert one(found, "gpu-nic-affinity", "GPU0").what == "nearest network card: mlx5_0 (PIX)"
    assert one(found, "gpu-nic-affinity", "GPU1").what == "nearest network card: mlx5_1 (PIX)"
    far = one(found, "gpu-nic-far", "GPU0")
    assert str(far.severity) == "warn"
    assert far.what == "storage over mlx5_1 crosses CPU sockets (SYS); mlx5_0 is PIX"


def test_drops_of_an_interface_that_grew_are_a_warning(explained):
    names = [f"scenario/network-nfs-tcp/net-dev-t{n}.txt" for n in (0, 1)]
    found = explained(*names, seconds=10.0)
    assert one(found, "nic-drops", "ens1f0np0").what == "51000 packets dropped, 0 errors, 0 overruns"
    assert any("received 2.98 GB/s" in f.what for f in find(found, "link-rate"))
