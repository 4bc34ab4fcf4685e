"""The verdict on a path: as bad as the worst of what is known, and nothing that is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.doctor.check import Target
from stoker.doctor.finding import Evidence, Severity
from stoker.doctor.gds_p2pdma import NVIDIA_VERSION
from stoker.doctor.identity import identify
from stoker.doctor.node import LiveNode
from stoker.doctor.storage_kept import keep, kept_path
from stoker.doctor.verdict import Part, check_verdict, combine
from stoker.ledger import Cause, Ledger, LedgerIdentity

MOUNTS = """1 0 259:0 / / rw - xfs /dev/nvme0n1 rw
2 1 0:50 / /mnt/nfs rw - nfs4 192.0.2.1:/x rw,proto=tcp
"""
DIRECT = {"requested": "auto", "effective": "direct", "reason": ""}


def node_with(make_node, **files):
    links = {"/sys/dev/block/259:0": "/sys/devices/pci/nvme0n1"}
    node = make_node(files={"/proc/self/mountinfo": MOUNTS}, links=links, variables={"STOKER_NVME": "/n"})
    node.files |= files
    return node


def measured(**changed):
    values = {"version": 1, "mount": "/", "fs_type": "xfs", "clock_s": 1.8e9 - 7200, "link_bytes_per_s": 8e9}
    values |= {"sequential_read_bytes_per_s": 6e9, "read_engine": DIRECT}
    return {str(kept_path(Path("/n/doctor"), "/")): json.dumps(values | changed)}


def ledger(run, cause=Cause.FETCH, wait_ns=500, compute_ns=500):
    one = Ledger.create(None, LedgerIdentity(run, 0, 1, 1, "h"))
    for step in range(4):
        start = step * (wait_ns + compute_ns)
        one.record_step(step, 0, start, start + wait_ns, {cause: wait_ns}, 1, 1)
    one.record_end(4 * (wait_ns + compute_ns))
    return {f"/n/run/{run}/rank-00000.g0001.ledger": one.image()}


def verdict(node, path="/data"):
    (found,) = check_verdict(node, Target(path))
    assert found.id == "path-verdict"
    return found


def test_of_a_path_of_which_nothing_more_is_known_it_says_what_it_is(make_node):
    found = verdict(node_with(make_node))
    assert found.what.startswith("xfs on nvme0n1 (not known: GPUDirect: no GPU is seen; speed: ")
    assert (str(found.severity), len(found.evidence), found.fix) == ("info", 1, "")


def test_a_path_that_cannot_be_placed_is_unknown(make_node):
    assert str(verdict(make_node()).severity) == "unknown"
    assert check_verdict(make_node(), Target("s3://bucket/x")) == check_verdict(make_node(), Target()) == []


def test_a_measurement_counts_with_its_age_and_its_link(make_node):
    found = verdict(node_with(make_node, **measured()))
    assert "read 5.6 GiB/s in order 2 hours ago, 75% of its link" in found.what
    assert str(found.severity) == "ok"
    assert found.evidence[1].source == str(kept_path(Path("/n/doctor"), "/"))
    assert found.evidence[1].line.startswith("sequential_read_bytes_per_s 6000000000, read_engine direct")


def test_through_the_page_cache_it_is_an_upper_bound_and_no_praise(make_node):
    found = verdict(node_with(make_node, **measured(read_engine=DIRECT | {"effective": "buffered"})))
    assert "an upper bound" in found.what
    assert str(found.severity) == "info"


@pytest.mark.parametrize(
    "changed",
    [{"mount": "/other"}, {"fs_type": "ext4"}, {"version": 99}, {"sequential_read_bytes_per_s": None}, {"mount": 3}],
)
def test_a_measurement_of_something_else_is_none(make_node, changed):
    assert str(verdict(node_with(make_node, **measured(**changed))).severity) == "info"


def test_what_gpudirect_is_expected_to_do_is_the_worst_part_of_a_fast_path(make_node):
    gpu = {NVIDIA_VERSION: "NVRM version: 575", "/etc/cufile.json": '{"properties": {"allow_compat_mode": true}}'}
    found = verdict(node_with(make_node, **gpu, **measured(mount="/mnt/nfs", fs_type="nfs4")), "/mnt/nfs/x")
    assert str(found.severity) == "warn"
    assert "GPUDirect compat-expected(NFS over tcp" in found.what
    assert "predicted (P0)" in found.what
    assert "read 5.6 GiB/s" in found.what
    assert found.evidence[0].line.endswith("proto=tcp")
    assert found.fix


def test_the_run_that_moved_last_says_what_it_waited_for(make_node):
    found = verdict(node_with(make_node, **measured(), **ledger("demo")))
    assert "run 'demo', the last on this node, whatever it read: utilisation 50%" in found.what
    assert "it waited most for fetch" in found.what
    assert str(found.severity) == "warn"
    assert "bottleneck" not in found.what  # of waits for reads a ledger alone does not tell which


def test_a_run_that_does_not_wait_leaves_the_path_in_order(make_node):
    found = verdict(node_with(make_node, **measured(), **ledger("demo", wait_ns=10, compute_ns=990)))
    assert str(found.severity) == "ok"


def test_a_ledger_that_cannot_be_read_is_no_part(make_node):
    node = node_with(make_node, **{"/n/run/demo/rank-00000.g0001.ledger": b"no ledger"})
    assert "waits: no run has a ledger here" in verdict(node).what


@pytest.mark.parametrize("worst", list(Severity))
def test_the_verdict_is_as_bad_as_its_worst_part_and_carries_its_fix_and_all_lines(worst):
    parts = [Part(Severity.OK, "fine", (Evidence("a", "x"),)), Part(worst, "so", (Evidence("b", "y"),), "do")]
    found = combine("/p", "xfs", Evidence("m", "z"), parts, [])
    assert found.severity is worst
    assert [e.line for e in found.evidence] == ["m", "a", "b"]
    assert found.fix == ("" if worst is Severity.OK else "do")


def test_a_run_that_waits_for_decoding_names_its_bottleneck(make_node):
    found = verdict(node_with(make_node, **ledger("demo", Cause.DECODE)))
    assert "bottleneck cpu-staging" in found.what
    assert found.severity in (Severity.WARN, Severity.FAIL)
    assert found.fix


def test_what_was_kept_on_this_machine_is_found_again(tmp_path, monkeypatch):
    node = LiveNode()
    mount = identify(node, str(tmp_path)).mount
    (values,) = (json.loads(text) for text in measured(mount=mount.point, fs_type=mount.fs_type).values())
    kept = keep(tmp_path / "doctor", values)
    monkeypatch.setenv("STOKER_NVME", str(tmp_path))
    found = verdict(node, str(tmp_path))
    assert "read 5.6 GiB/s in order" in found.what
    assert str(kept) in [e.source for e in found.evidence]
