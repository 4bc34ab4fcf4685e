"""The checks of the host on a node."""

from __future__ import annotations

import pytest

from stoker.doctor.check import Target
from stoker.doctor.host import (
    check_cgroup,
    check_cpus,
    check_environment,
    check_limits,
    check_pressure,
    container_of,
    explain_limits,
)
from stoker.doctor.node import Host, Missing, PathStat

LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max locked memory         {locked}             65536                bytes
Max open files            {files}              1048576              files
"""


def gpus(count):
    return {f"/proc/driver/nvidia/gpus/0000:{n:02x}:00.0/information": "" for n in range(count)}


def test_an_empty_node_is_told_what_cannot_be_seen(make_node, said):
    node = make_node(host_facts=Missing("not in the capture"))
    (where,) = check_environment(node, Target())
    assert "/sys/class, /sys/block cannot be seen" in where.what
    assert said(check_pressure(node, Target())) == {("pressure-low", "unknown")}
    assert said(check_cgroup(node, Target())) == {("cgroup-limits", "unknown")}
    assert check_cpus(node, Target()) == check_limits(node, Target()) == []


@pytest.mark.parametrize(
    ("files", "stats", "variables", "name"),
    [
        ({}, {}, {"KUBERNETES_SERVICE_HOST": "192.0.2.1"}, "a Kubernetes pod"),
        ({"/proc/1/cgroup": "0::/kubepods.slice/x"}, {}, {}, "a Kubernetes pod"),
        ({}, {"/.dockerenv": PathStat("file")}, {}, "docker"),
        ({}, {}, {}, ""),
    ],
)
def test_a_container_is_known_by_its_traces(make_node, files, stats, variables, name):
    assert container_of(make_node(files=files, stats=stats, variables=variables)) == name


def test_pressure_is_read_per_resource(make_node, said):
    line = "some avg10=80.00 avg60=0.00 avg300=0.00 total=5\nfull avg10=70.00 avg60=0.00 avg300=0.00 total=5\n"
    node = make_node(files={"/proc/pressure/io": line})
    (found,) = check_pressure(node, Target())
    assert (found.id, found.evidence[0].source) == ("pressure-io", "/proc/pressure io")


@pytest.mark.parametrize("folder", ["/sys/fs/cgroup/job.slice", "/sys/fs/cgroup"])
def test_the_cgroup_is_found_also_in_a_namespace_of_its_own(make_node, said, folder):
    files = {"/proc/self/cgroup": "0::/job.slice\n", f"{folder}/cpu.stat": "nr_periods 10\nnr_throttled 5\n"}
    assert said(check_cgroup(make_node(files=files), Target())) == {("cgroup-cpu-throttled", "warn")}


V1 = {"/proc/self/cgroup": "9:memory:/j\n5:cpuset:/j\n4:cpu,cpuacct:/j\n1:name=systemd:/j\n0::/j\n"}


@pytest.mark.parametrize("cpu", ["cpu,cpuacct/j", "cpu/j", "cpu,cpuacct", "cpu"])
@pytest.mark.parametrize("memory", ["memory/j", "memory"])
def test_cgroups_of_version_1_are_read_by_their_controllers(make_node, said, cpu, memory):
    cpu, memory = f"/sys/fs/cgroup/{cpu}", f"/sys/fs/cgroup/{memory}"
    files = {f"{cpu}/cpu.stat": "nr_periods 10\nnr_throttled 5\nthrottled_time 9\n", f"{memory}/memory.failcnt": "7\n"}
    found = check_cgroup(make_node(files=V1 | files), Target())
    assert said(found) == {("cgroup-cpu-throttled", "warn"), ("cgroup-memory-limit", "warn")}
    assert found[0].evidence[0].line == "nr_periods 10, nr_throttled 5, throttled_time 9"
    assert (found[1].evidence[0].line, memory in found[1].evidence[0].source) == ("failcnt 7", True)


def test_a_cgroup_of_version_1_that_was_not_in_the_way_is_fine_and_without_files_it_is_unknown(make_node, said):
    files = {"/sys/fs/cgroup/memory/memory.failcnt": "0\n"}
    assert said(check_cgroup(make_node(files=V1 | files), Target())) == {("cgroup-limits", "ok")}
    assert said(check_cgroup(make_node(files=V1), Target())) == {("cgroup-limits", "unknown")}


def test_the_quota_of_version_1_counts_for_the_cpus_a_gpu(make_node):
    folder = "/sys/fs/cgroup/cpu,cpuacct/j"
    files = gpus(8) | V1 | {f"{folder}/cpu.cfs_quota_us": "800000\n", f"{folder}/cpu.cfs_period_us": "100000\n"}
    (found,) = check_cpus(make_node(files=files), Target())
    assert (str(found.severity), found.evidence[0].line) == ("warn", "64 CPUs, cpu.cfs_quota_us 8, 8 GPUs")
    files[f"{folder}/cpu.cfs_quota_us"] = "-1\n"
    assert str(check_cpus(make_node(files=files), Target())[0].severity) == "ok"


@pytest.mark.parametrize(
    ("cpu_count", "quota", "severity"), [(64, "max 100000", "ok"), (64, "800000 100000", "warn"), (24, "", "warn")]
)
def test_cpus_a_gpu_count_the_quota_too(make_node, cpu_count, quota, severity):
    files = gpus(8) | {"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": quota}
    (found,) = check_cpus(make_node(files=files, host_facts=Host(1, "x86_64", "6.8", cpu_count)), Target())
    assert (found.id, str(found.severity)) == ("cpus-per-gpu-few", severity)


def test_locked_memory_matters_where_buffers_are_registered(make_node, said):
    files = {"/proc/self/limits": LIMITS.format(locked=65536, files=65536)}
    assert said(check_limits(make_node(files=files), Target())) == {("host-limit-low", "ok")}
    assert said(check_limits(make_node(files=files | gpus(1)), Target())) == {("host-limit-low", "warn")}


@pytest.mark.parametrize(
    ("locked", "files", "expected"),
    [
        ("unlimited", 65536, {("host-limit-low", "ok")}),
        ("unlimited", 1024, {("host-limit-low", "warn")}),
        ("endless", 65536, {("line-not-understood", "unknown")}),
    ],
)
def test_limits_that_are_given_are_judged(locked, files, expected, said):
    assert said(explain_limits(LIMITS.format(locked=locked, files=files), "given")) == expected
