"""Counters from texts, line by line."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.doctor.signal_texts import Calls, read_counters
from stoker.doctor.signals import Facts, measure
from stoker.doctor.stall_signs import Signals

from .conftest import SAMPLES

FILES = sorted(str(p.relative_to(SAMPLES)) for p in SAMPLES.rglob("*") if p.is_file() and p.name != "INDEX.md")


def test_diskstats_of_any_age_are_read(sample):
    found = read_counters([sample("sys/diskstats-t0.txt")]).disks
    assert found["nvme0n1"].read_bytes == 819200000 * 512
    assert found["nvme0n1"].busy_ms == 400000
    short = " ".join(sample("sys/diskstats-t0.txt").splitlines()[0].split()[:14])  # before discards were counted
    assert read_counters([short]).disks["nvme0n1"] == found["nvme0n1"]


def test_pressure_is_known_by_the_name_of_its_section(sample):
    found = read_counters([sample("sys/pressure-io-stall.txt")]).pressure
    assert found["io full"] == (48.93, 707934550)
    assert found["cpu some"] == (3.13, 67490577)
    assert read_counters(["some avg10=1.0 avg60=1.0 avg300=1.0 total=1\n"]).pressure == {}


def test_a_mount_has_its_connections_and_its_reads(sample):
    (mount,) = read_counters([sample("fs/mountstats-nfs-rdma.txt")]).mounts.values()
    assert mount.connection_count == 2
    assert mount.age_s == 1270876
    assert mount.bytes_read == 2013700000000000
    assert mount.calls["LOOKUP"] == Calls(1498583, 551768 * 1000)


def test_tcp_counters_are_found_by_their_names(sample):
    assert read_counters([sample("net/proc-net-snmp-t1.txt")]).tcp["RetransSegs"] == 42752
    turned = "Tcp: RetransSegs OutSegs\nTcp: 5 100\n"
    assert read_counters([turned]).tcp == {"RetransSegs": 5, "OutSegs": 100}


def test_rdma_ports_count_in_words_of_four_bytes(sample):
    port = read_counters([sample("net/infiniband-sysfs-t1.tree")]).ports["mlx5_0/1"]
    assert port.received_bytes == 4 * 65_000_000_000
    assert port.rate_bytes_per_s == 25e9
    assert port.congestion_count == 10


def test_the_limit_of_a_cgroup_and_a_nics_pauses_are_read(sample):
    assert read_counters([sample("sys/cgroup-io-and-cpu.txt")]).cgroup == {"nr_periods": 6000, "nr_throttled": 4100}
    assert read_counters([sample("net/ethtool-S-mlx5-congested.txt")]).pause_us["rx_prio3_pause_duration"] == 2345670


def test_round_trips_are_compared_with_the_least(sample):
    assert read_counters([sample("net/ss-tin.txt")]).rtt_growth == pytest.approx(0.416 / 0.101)


def test_health_of_the_loopback_of_lnet_counts_for_nothing(sample):
    assert read_counters([sample("fs/lnetctl-net-show-healthy.yaml")]).path_health == 1000


def test_what_a_subject_understands_of_a_format_the_attribution_does_too():
    loose = "  ESTAB 0 0 192.0.2.1:1 192.0.2.2:2049\n\t cubic rtt:5.0/0.1 minrtt:1.0\n"  # indented: no connection
    assert read_counters([loose]).rtt_growth is None
    brackets = "ESTAB 0 0 [2001:db8::1]:1 [2001:db8::2]:2049 cubic rtt:5.0/0.1 rcv_space:1 minrtt:2.0\n"
    assert read_counters([brackets]).rtt_growth == 2.5  # details on the same line
    assert read_counters(
        ["NIC statistics:\n  rx_global_pause_duration: 7\n  tx_prio1_pause_duration: x\n"]
    ).pause_us == {"rx_global_pause_duration": 7}
    lnet = "net:\n - net type: tcp\n   local NI(s):\n    - nid: 192.0.2.1@tcp\n      health value: 300\n"
    assert read_counters([lnet]).path_health == 300
    assert read_counters([lnet.replace("300", "none")]).path_health is None
    assert read_counters(["nr_periods 5\nnr_throttled 2\nnr_bursts 1\n"]).cgroup == {"nr_periods": 5, "nr_throttled": 2}


def test_cufile_reads_by_the_cpu_are_told_from_direct_ones(sample):
    assert read_counters([sample("gds_stats/forced-compat.txt")]).cufile == (39714, 39714)
    assert read_counters([sample("gds_stats/v8-direct.txt")]).cufile == (107907, 0)


@pytest.mark.parametrize(
    "blank", ["9223372036854775794", "140737488355328.000000", "2147483632", "-1", "NaN", "inf", "N/A", ""]
)
def test_a_blank_of_dcgm_is_no_value(blank):
    line = f'DCGM_FI_PROF_SM_ACTIVE{{gpu="0"}} {blank}\n'
    assert read_counters([line]).gauges == {}


def test_an_old_llite_without_times_still_counts():
    text = "snapshot_time 1.5 secs.usecs\nread_bytes 10 samples [bytes] 1 2 30\nopen 7 samples [regs]\n"
    found = read_counters([text])
    assert found.llite["open"] == Calls(7, 0)
    assert found.llite_bytes_read == 30
    assert found.llite_clock_s == 1.5


@pytest.mark.parametrize("name", FILES)
def test_a_spoiled_sample_is_read_and_measured_without_a_failure(name):
    text = (SAMPLES / name).read_text()
    chance = random.Random(name)
    lines = text.splitlines(keepends=True)
    whole = read_counters([text])
    for spoiled in (
        text[: chance.randrange(len(text) + 1)],
        "".join(chance.sample(lines, len(lines))),
        text.replace(".", ","),
        text.upper(),
    ):
        other = read_counters([spoiled])
        for pair in ((whole, other), (other, whole)):
            assert isinstance(measure(*pair, Facts(window_s=10.0, link_rates={"": 1e9}, ceilings={"": 1e9})), Signals)


@given(st.text(max_size=200))
@settings(max_examples=50, deadline=None)
def test_any_text_is_read(text):
    read_counters([text])
