"""Signals from the counters of two moments."""

from __future__ import annotations

import json

import pytest

from stoker.doctor.signal_texts import Counters, Disk, Link, Port, read_counters
from stoker.doctor.signals import Facts, facts_of_meta, measure
from stoker.doctor.stall_signs import Signals

TEN = Facts(window_s=10.0)


def counters(**parts):
    return Counters(**parts)


def test_the_same_moment_twice_shows_nothing_that_moved(sample):
    one = read_counters([sample("sys/diskstats-t1.txt"), sample("net/proc-net-snmp-t1.txt")])
    found = measure(one, one, TEN)
    assert found.device_util_ratio == 0
    assert found.retransmit_ratio is None
    assert found.request_bytes is None


def test_disks_are_summed_without_what_is_made_of_them(sample):
    pair = [read_counters([sample(f"sys/diskstats-{t}.txt")]) for t in ("t0", "t1")]
    found = measure(*pair, TEN)
    leaves = (1069200000 - 819200000 + 827392000 - 819200000) * 512
    assert found.storage_bytes_per_s == pytest.approx(leaves / 10)
    assert found.device_util_ratio == pytest.approx(0.995)
    assert measure(*pair, Facts(10.0, devices=frozenset({"nvme1n1"}))).device_util_ratio == pytest.approx(0.09)


def test_partitions_count_with_their_disk():
    disk = {"sda": Disk(0, 0, 0, 0, 0), "sda1": Disk(0, 0, 0, 0, 0), "nvme0n1": Disk(0, 0, 0, 0, 0)}
    later = {"sda": Disk(5, 50, 1, 10, 1), "sda1": Disk(5, 50, 1, 10, 1), "nvme0n1": Disk(5, 50, 1, 1, 1)}
    assert measure(counters(disks=disk), counters(disks=later), TEN).storage_bytes_per_s == 10


def test_without_the_time_between_there_are_no_rates_but_ratios(sample):
    pair = [
        read_counters([sample(f"net/proc-net-snmp-{t}.txt"), sample(f"sys/diskstats-{t}.txt")]) for t in ("t0", "t1")
    ]
    found = measure(*pair, Facts())
    assert found.retransmit_ratio == pytest.approx(42000 / 2_000_000)
    assert found.device_util_ratio is None
    assert found.storage_bytes_per_s is None


def test_counters_that_went_back_are_missing():
    before, after = counters(cpu=(9, 9, 9, 9, 9)), counters(cpu=(1, 1, 1, 50, 1))
    assert measure(before, after, TEN).cpu_busy_ratio is None
    before, after = counters(tcp={"OutSegs": 9, "RetransSegs": 9}), counters(tcp={"OutSegs": 99, "RetransSegs": 0})
    assert measure(before, after, TEN).retransmit_ratio is None
    before, after = counters(disks={"sda": Disk(9, 9, 9, 9, 9)}), counters(disks={"sda": Disk(0, 0, 0, 0, 0)})
    assert measure(before, after, TEN).device_util_ratio is None


def test_pressure_of_the_window_is_better_than_the_kernels_average():
    one, two = counters(pressure={"io full": (90.0, 1_000_000)}), counters(pressure={"io full": (90.0, 2_000_000)})
    assert measure(one, two, TEN).io_full_ratio == pytest.approx(0.1)
    assert measure(counters(), two, TEN).io_full_ratio == pytest.approx(0.9)


def gauges(**values):
    return measure(counters(), counters(gauges=values), TEN)


def test_profiling_that_is_stuck_at_nought_while_kernels_run_is_not_believed():
    found = gauges(sm=[0.0, 0.0], gr=[0.0, 0.0], util=[99.0, 98.0])
    assert found.sm_active_ratio is None
    assert found.gpu_busy_ratio == pytest.approx(0.985)


def test_a_gpu_that_is_idle_by_all_counters_is_believed():
    found = gauges(sm=[0.0], gr=[0.0], util=[0.0])
    assert (found.sm_active_ratio, found.gpu_busy_ratio) == (0.0, 0.0)


def test_a_ratio_of_a_gpu_above_one_is_none():
    assert gauges(sm=[24.0]).sm_active_ratio is None
    assert gauges(util=[240.0]).gpu_busy_ratio is None
    assert gauges(sm=[0.2, 0.4]).sm_active_ratio == pytest.approx(0.3)


def test_the_fullest_link_is_that_nearest_to_its_own_rate(sample):
    ports = [read_counters([sample(f"net/infiniband-sysfs-{t}.tree")]) for t in ("t0", "t1")]
    found = measure(*ports, TEN)
    words = ports[1].ports["mlx5_0/1"].received_bytes - ports[0].ports["mlx5_0/1"].received_bytes
    assert found.link_ratio == pytest.approx(words / 10 / 25e9)
    assert found.congestion_count is not None
    links = (
        counters(links={n: Link(0, 0, 0, 0) for n in "ab"}),
        counters(links={"a": Link(100, 1, 0, 0), "b": Link(90, 1, 0, 0)}),
    )
    assert measure(*links, Facts(10.0, link_rates={"a": 100.0, "b": 10.0})).link_ratio == pytest.approx(0.9)
    assert measure(*links, TEN).link_ratio is None


def test_a_port_without_a_rate_or_counter_shows_nothing():
    one, two = counters(ports={"p/1": Port(None, None, 0)}), counters(ports={"p/1": Port(None, None, 3)})
    found = measure(one, two, TEN)
    assert found.link_ratio is None
    assert found.congestion_count == 3


def test_too_few_periods_of_a_cgroup_say_nothing():
    one, two = (
        counters(cgroup={"nr_periods": 0, "nr_throttled": 0}),
        counters(cgroup={"nr_periods": 5, "nr_throttled": 5}),
    )
    assert measure(one, two, TEN).throttled_ratio is None
    two = counters(cgroup={"nr_periods": 100, "nr_throttled": 30})
    assert measure(one, two, TEN).throttled_ratio == pytest.approx(0.3)


def test_a_mount_asked_about_counts_before_one_that_reads_more(sample):
    text = sample("scenario/network-nfs-tcp/mountstats-t1.txt")
    other = text.replace("/mnt/nfsslow", "/mnt/other").replace("29400000000", "99400000000")
    after = read_counters([text, other])
    assert measure(counters(), after, TEN).storage_bytes_per_s == pytest.approx(9.94e9)
    assert measure(counters(), after, Facts(10.0, mount="/mnt/nfsslow")).storage_bytes_per_s == pytest.approx(2.94e9)


def test_what_llite_prints_of_its_clock_is_the_window(sample):
    pair = [read_counters([sample(f"scenario/metadata-lustre-small-files/llite-{t}.txt")]) for t in ("t0", "t1")]
    assert measure(*pair, Facts()).storage_bytes_per_s == pytest.approx(264e6)


def test_nothing_gives_no_signal():
    assert measure(counters(), counters(), Facts()) == Signals()


def test_facts_of_a_meta_file_are_its_window_and_its_rates_by_unit():
    meta = {"window_s": 5, "path": "/d", "hw": {"sda_max_MBps": 500, "demand_GBps": 9, "port_Gbps": "100", "nic": "e0"}}
    found = facts_of_meta(json.dumps(meta), ["sda"])
    assert found == Facts(5.0, {"sda": 500e6}, {"e0": 12.5e9}, "/d")
    assert facts_of_meta(json.dumps({"hw": {"pool_GBps": 2}})).ceilings == {"": 2e9}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"hw": 3}', '{"hw": {"x_GBps": true}}', '{"window_s": "soon"}'])
def test_a_meta_file_that_says_nothing_gives_no_facts(text):
    assert facts_of_meta(text).ceilings == {}
    assert facts_of_meta(text).window_s is None


def test_a_ceiling_of_a_device_counts_for_that_device():
    disks = {n: Disk(0, 0, 0, 0, 0) for n in ("sda", "sdb")}
    later = {"sda": Disk(9, 1000, 0, 0, 0), "sdb": Disk(9, 9000, 0, 0, 0)}
    facts = Facts(10.0, ceilings={"sda": 100.0})
    assert measure(counters(disks=disks), counters(disks=later), facts).ceiling_ratio == pytest.approx(1.0)
