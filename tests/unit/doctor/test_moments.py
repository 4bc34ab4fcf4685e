"""Two moments: of a node, of captures, of samples."""

from __future__ import annotations

import pytest

from stoker.doctor.capture import RecordingNode
from stoker.doctor.moments import folder_window, live_window, read_facts, read_moment
from stoker.doctor.node import Host, Missing, Output
from stoker.doctor.signal_texts import read_counters
from stoker.doctor.signals import Facts, measure
from stoker.errors import NotFound

SMI = "nvidia-smi --query-gpu=utilization.gpu --format=csv,noheader,nounits"
DCGMI = "dcgmi dmon -e 1001,1002 -c 1"
MOUNTS = "36 1 259:0 / /data rw - xfs /dev/nvme0n1 rw\n"


def files_at(moment, sample):
    return {
        "/proc/diskstats": sample(f"sys/diskstats-{moment}.txt"),
        "/proc/net/snmp": sample(f"net/proc-net-snmp-{moment}.txt"),
        "/sys/class/infiniband/mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)\n",
        "/sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data": "1000\n",
        "/proc/fs/lustre/llite/fs1-ff/stats": sample(f"scenario/metadata-lustre-small-files/llite-{moment}.txt"),
        "/sys/class/net/e0/speed": "25000\n",
        "/sys/class/net/lo/speed": "-1\n",
        "/sys/class/net/e0/device/vendor": "0x15b3\n",
        "/proc/self/mountinfo": MOUNTS,
    }


@pytest.fixture
def node_at(make_node, sample):
    def made(moment):
        commands = {
            SMI: Output("33\n35\n"),
            DCGMI: Output("#Entity   GRACT  SMACT\nID\nGPU 0     0.300  0.240\nGPU 1     0.300  N/A\n"),
            "ethtool -S e0": Output(sample("net/ethtool-S-mlx5-congested.txt")),
            "ss -tin ( dport = :2049 or dport = :988 )": Output("", "no", 1),
        }
        node = make_node(files=files_at(moment, sample), commands=commands)
        node.clock_s = lambda: 100.0 if moment == "t0" else 110.0
        return node

    return made


def test_a_moment_of_a_node_holds_what_its_files_and_tools_say(node_at):
    found = read_moment(node_at("t1"))
    assert found.disks["nvme0n1"].reads == 1244140
    assert found.ports["mlx5_0/1"].received_bytes == 4000
    assert found.llite["open"].count == 24000
    assert found.gauges["util"] == [33.0, 35.0]
    assert found.gauges["sm"] == [0.24]
    assert "rx_prio3_pause_duration" in found.pause_us


def test_a_bare_node_has_an_empty_moment(make_node):
    bare = make_node(host_facts=Missing("no"))
    window = live_window(lambda: bare, "/data", lambda: None, {})
    assert measure(window.before, window.after, window.facts).sm_active_ratio is None
    assert window.facts.window_s is None


def test_a_live_window_waits_between_its_moments_and_knows_its_length(node_at):
    said = []
    moments = iter(("t0", "t1"))
    window = live_window(lambda: node_at(next(moments)), "/data", lambda: said.append("waited"), {"/data": 7e9})
    assert said == ["waited"]
    assert window.facts.window_s == 10.0
    assert window.facts.ceilings == {"": 7e9}
    assert window.after.gauges["util"] == [33.0, 35.0, 33.0, 35.0]


def test_facts_of_a_node_are_links_with_a_rate_and_cpus_a_gpu(make_node, node_at):
    node = node_at("t0")
    node.host_facts = Host(0, "x86_64", "6.8", 16)
    facts = read_facts(node, "/data/x", 8, {})
    assert facts.link_rates == {"e0": 25e9 / 8}
    assert facts.cpus_per_gpu == 2
    assert facts.mount == "/data"
    assert read_facts(make_node(), "", 0, {}).cpus_per_gpu is None


def test_of_a_network_mount_no_local_device_counts_and_of_a_hidden_one_all_do(make_node, sample):
    def devices(line):
        return read_facts(make_node(files={"/proc/self/mountinfo": line}), "/data", 0, {}).devices

    assert devices("36 1 0:50 / /data rw - nfs4 host:/x rw\n") == frozenset()
    assert devices(MOUNTS) is None
    pair = [read_counters([sample(f"sys/diskstats-{t}.txt")]) for t in ("t0", "t1")]
    assert measure(*pair, Facts(10.0, devices=frozenset())).device_util_ratio is None


def test_two_captures_are_two_moments_at_their_own_times(node_at, tmp_path):
    kept = []
    moments = iter(("t0", "t1"))

    def node():
        kept.append(RecordingNode(node_at(next(moments))))
        return kept[-1]

    live = live_window(node, "/data", lambda: None, {})
    for name, one in zip(("t0", "t1"), kept, strict=True):
        one.write(tmp_path / name, str, ["/data"])
    again = folder_window(tmp_path, "", None)
    assert again.facts.window_s == 10.0
    assert measure(again.before, again.after, again.facts) == measure(live.before, live.after, live.facts)


def test_one_capture_is_not_enough(node_at, tmp_path):
    one = RecordingNode(node_at("t0"))
    read_moment(one)
    one.write(tmp_path, str, [])
    with pytest.raises(NotFound, match="one moment only"):
        folder_window(tmp_path, "", None)


def test_samples_are_earlier_or_later_by_their_names_and_alone_they_are_later(tmp_path, sample):
    for moment in ("t0", "t1"):
        (tmp_path / f"d-{moment}.txt").write_text(sample(f"sys/diskstats-{moment}.txt"))
    (tmp_path / "only-t0.txt").write_text(sample("net/proc-net-snmp-t0.txt"))
    (tmp_path / "gpu.prom").write_text(sample("gpu/dcgm-busy.prom"))
    (tmp_path / "meta.json").write_text("no JSON")
    found = folder_window(tmp_path, "", 4.0)
    assert found.before.disks["nvme0n1"].reads == 1000000
    assert found.after.disks["nvme0n1"].reads == 1244140
    assert found.before.tcp
    assert not found.after.tcp
    assert found.after.gauges
    assert not found.before.gauges
    assert found.facts.window_s == 4.0
