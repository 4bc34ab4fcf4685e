"""Each sample about the host concludes what its row of INDEX.md says."""

from __future__ import annotations


def find(findings, name, subject=None):
    return [f for f in findings if f.id == name and subject in (None, f.subject)]


def one(findings, name, subject=None):
    (found,) = find(findings, name, subject)
    return found


def test_full_io_pressure_with_a_quiet_cpu_is_storage_and_not_staging(explained, said):
    found = explained("sys/pressure-io-stall.txt")
    assert said(found) == {("pressure-io", "warn")}
    assert "io full 48.93%" in found[0].what
    assert "throughput or metadata, not copying by the CPU" in found[0].what


def test_cpu_pressure_with_quiet_io_is_a_candidate_for_staging_though_full_is_zero(explained, said):
    found = explained("sys/pressure-cpu-stall.txt")
    assert said(found) == {("pressure-cpu", "warn")}
    assert "cpu some 71.13%" in found[0].what
    assert "copying or decoding by the CPU may starve the GPUs" in found[0].what


def test_a_throttled_cgroup_at_its_memory_limit_is_both(explained, said):
    found = explained("sys/cgroup-io-and-cpu.txt")
    assert said(found) == {("cgroup-cpu-throttled", "warn"), ("cgroup-memory-limit", "warn"), ("pressure-io", "warn")}
    assert "in 68% of periods" in one(found, "cgroup-cpu-throttled").what
    assert "reached 3120 times: the page cache of the job is squeezed" in one(found, "cgroup-memory-limit").what


def test_busy_cpus_in_the_kernel_are_copying_and_idle_ones_are_not(explained):
    copying = explained(*(f"scenario/cpu-staging-compat-gds/proc-stat-t{n}.txt" for n in (0, 1)))
    (found,) = [f for f in copying if str(f.severity) == "warn"]
    assert found.what.startswith("busy 95%: 14% user, 81% system")
    assert "copying by the CPU" in found.what
    idle = explained(*(f"scenario/throughput-local-nvme/proc-stat-t{n}.txt" for n in (0, 1)))
    assert [str(f.severity) for f in idle if "since the boot" not in f.what and "take two" not in f.what] == ["ok"]
