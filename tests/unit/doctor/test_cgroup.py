"""Files of a cgroup in forms that no sample has."""

from __future__ import annotations

import pytest

from stoker.doctor import cgroup


def test_a_file_without_its_name_is_known_by_its_keys(said):
    text = "usage_usec 5\nnr_periods 100\nnr_throttled 9\nthrottled_usec 4\n"
    assert cgroup.detect(text)
    assert said(cgroup.explain(text, "given")) == {("cgroup-limits", "ok")}
    assert said(cgroup.explain(text.replace(" 9", " 10"), "given")) == {("cgroup-cpu-throttled", "warn")}


def test_keys_of_newer_kernels_are_no_strange_lines(said):
    text = "==> cpu.stat <==\nnr_periods 9\nnr_throttled 0\ncore_sched.force_idle_usec 0\nnr_bursts 0\n"
    assert said(cgroup.explain(text, "given")) == {("cgroup-limits", "ok")}


def test_processes_that_were_killed_for_memory_fail():
    found = cgroup.explain("==> memory.events <==\nmax 0\noom 2\noom_kill 2\n", "given")
    assert [(f.id, str(f.severity)) for f in found] == [("cgroup-oom-kill", "fail")]


@pytest.mark.parametrize(("shmem", "count"), [(49, 0), (50, 1)])
def test_shared_memory_counts_in_the_limit(shmem, count):
    found = cgroup.explain(f"==> memory.stat <==\nshmem {shmem}\n==> memory.max <==\n100\n", "given")
    assert [f.id for f in found] == ["cgroup-shmem-share"] * count


def test_no_limit_is_no_share():
    assert cgroup.explain("==> memory.stat <==\nshmem 50\n==> memory.max <==\nmax\n", "given") == []


def test_a_line_that_is_not_understood_is_quoted():
    found = cgroup.explain("==> cpu.stat <==\nnr_periods lots\n", "given")
    assert (found[0].id, found[0].evidence[0].line) == ("line-not-understood", "nr_periods lots")


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("max 100000\n", None), ("250000 100000\n", 2.5), ("1 0", None), ("-1 100000", None), ("x", None)],
)
def test_a_quota_is_cpus(text, cpus):
    assert cgroup.cpu_quota(text) == cpus


def test_files_of_version_1_are_known_by_their_names():
    text = "==> /c/memory.failcnt <==\n12\n==> /c/memory.oom_control <==\noom_kill_disable 0\nunder_oom 0\noom_kill 0\n"
    assert cgroup.detect(text)
    found = cgroup.explain(text, "given")
    assert [(f.id, f.evidence[0].line) for f in found] == [("cgroup-memory-limit", "failcnt 12")]


@pytest.mark.parametrize(("limit", "bytes_"), [("100", 100), ("9223372036854771712", None), ("", None), ("max", None)])
def test_the_memory_limit_of_version_1_may_be_none(limit, bytes_):
    parts = {"/c/memory.limit_in_bytes": f"{limit}\n", "/c/memory.stat": "shmem 60\n"}
    assert cgroup.memory_limit(parts) == bytes_
    assert [f.id for f in cgroup.judge(parts, "/c")] == ["cgroup-shmem-share"] * (bytes_ is not None)
