"""The checks of stoker's own, over a real run and over nothing."""

from __future__ import annotations

import stoker
from stoker.doctor.check import Target
from stoker.doctor.node import LiveNode
from stoker.doctor.own import CHECKS, check_ledgers, check_runs, check_settings, check_shared_runs, check_tiers


def every(node):
    return [found for check in CHECKS for found in check.run(node, Target())]


def test_a_node_without_stoker_is_not_spoken_of(make_node):
    assert every(make_node()) == []
    assert every(make_node(variables={"HOME": "/home/u"})) == []


def test_a_wrong_setting_is_said_once(make_node, said):
    node = make_node(variables={"STOKER_CHECKPOINT_ENGINE": "magic"})
    assert said(every(node)) == {("own-settings", "fail")}


def test_tiers_that_are_named_are_looked_at_before_they_are_there(make_node, said):
    mounts = "1 0 0:9 / / rw - tmpfs tmpfs rw\n2 1 0:50 / /shared rw - nfs4 192.0.2.1:/x rw\n"
    node = make_node(
        files={"/proc/self/mountinfo": mounts}, variables={"STOKER_NVME": "/fast", "STOKER_SHARED": "/shared/ckpt"}
    )
    assert said(check_tiers(node, Target())) == {
        ("own-tier-in-memory", "warn"),
        ("own-engine", "info"),
        ("own-shared-tier-local", "ok"),
    }


def test_the_memory_limit_is_that_of_the_cgroup(make_node):
    files = {"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "100000000\n"}
    assert [f.id for f in check_settings(make_node(files=files), Target())] == ["own-prefetch-memory"]


def test_steps_in_the_shared_tier_are_looked_at(make_node):
    run = "/s/a"
    files = {f"{run}/run.json": "", f"{run}/step-00000001.g0001.partial/x": ""}
    node = make_node(files=files, variables={"STOKER_SHARED": "/s"})
    assert [f.id for f in check_shared_runs(node, Target())] == ["own-save-unfinished"]


def test_a_run_that_was_is_found_on_the_live_node_and_nothing_is_changed(tmp_path, monkeypatch):
    nvme = tmp_path / "nvme"
    with stoker.open(run="demo", nvme=nvme):
        pass
    before = {path: path.stat().st_mtime_ns for path in nvme.rglob("*")}
    monkeypatch.setattr(LiveNode, "environment", lambda _: {"STOKER_NVME": str(nvme)})
    node = LiveNode()
    found = check_runs(node, Target()) + check_ledgers(node, Target())
    assert {path: path.stat().st_mtime_ns for path in nvme.rglob("*")} == before
    assert [str(f.severity) for f in found if f.id == "own-ledger-unreadable"] == []
    assert {f.id for f in found} >= {"own-tier-space"}
