"""The checks of stoker's own, over a real run and over nothing."""

from __future__ import annotations

import pytest

import stoker
from stoker.checkpoint.commit import note_undrained
from stoker.checkpoint.layout import StepId
from stoker.doctor.check import Target
from stoker.doctor.node import LiveNode
from stoker.doctor.own import CHECKS, check_runs, check_settings, check_shared_runs, check_tiers
from stoker.store.local import LocalStore

torch = pytest.importorskip("torch")


def every(node):
    return [found for check in CHECKS for found in check.run(node, Target())]


def test_a_node_without_stoker_is_not_spoken_of(make_node):
    assert every(make_node()) == []
    assert every(make_node(variables={"HOME": "/u"})) == []


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


def test_the_memory_limit_of_a_cgroup_of_version_1_counts_too(make_node):
    files = {"/proc/self/cgroup": "9:memory:/\n", "/sys/fs/cgroup/memory/memory.limit_in_bytes": "100000000\n"}
    assert [f.id for f in check_settings(make_node(files=files), Target())] == ["own-prefetch-memory"]


def test_the_memory_limit_is_that_of_the_cgroup(make_node):
    files = {"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "100000000\n"}
    assert [f.id for f in check_settings(make_node(files=files), Target())] == ["own-prefetch-memory"]


def test_steps_in_the_shared_tier_are_looked_at(make_node):
    run = "/s/a"
    files = {f"{run}/run.json": "", f"{run}/step-00000001.g0001.partial/x": ""}
    node = make_node(files=files, variables={"STOKER_SHARED": "/s"})
    assert [f.id for f in check_shared_runs(node, Target())] == ["own-save-unfinished"]


def test_a_run_that_saved_is_found_on_the_live_node_and_nothing_is_changed(tmp_path, monkeypatch):
    nvme = tmp_path / "nvme"
    with stoker.open(run="demo", nvme=nvme) as run:
        run.checkpoint(torch.nn.Linear(1, 1)).save(after=4)
    before = {path: path.stat().st_mtime_ns for path in nvme.rglob("*")}
    monkeypatch.setattr(LiveNode, "environment", lambda _: {"STOKER_NVME": str(nvme)})
    found = every(LiveNode())
    assert {path: path.stat().st_mtime_ns for path in nvme.rglob("*")} == before
    by_id = {f.id: f for f in found}
    assert by_id["own-checkpoints-on-this-node"].what == "its newest step, 5, lies on this node alone"
    assert {"own-tier-space", "own-engine"} <= by_id.keys()
    assert "own-ledger-unreadable" not in by_id


@pytest.fixture
def drained(tmp_path, monkeypatch):
    """A run whose step is in both tiers: (its home, the far tier's folder of it)."""
    nvme, far = tmp_path / "nvme", tmp_path / "far"
    far.mkdir()
    with stoker.open(run="demo", nvme=nvme, object=far.as_uri()) as run:
        run.checkpoint(torch.nn.Linear(1, 1)).save(after=4).wait(until="object")
    variables = {"STOKER_NVME": str(nvme), "STOKER_OBJECT": far.as_uri()}
    monkeypatch.setattr(LiveNode, "environment", lambda _: variables)
    return nvme / "checkpoint" / "demo", far / "demo"


def stranded():
    (found,) = [f for f in check_runs(LiveNode(), Target()) if f.id == "own-save-stranded"]
    return found


def test_a_step_in_both_tiers_is_in_order_and_one_that_is_here_alone_is_not(drained):
    assert str(stranded().severity) == "ok"
    (manifest,) = drained[1].glob("step-*/MANIFEST.json")
    manifest.unlink()
    assert str(stranded().severity) == "warn"
    assert "is not in the far tier" in stranded().what


def test_a_server_is_not_asked(drained, monkeypatch):
    variables = {"STOKER_NVME": str(drained[0].parent.parent), "STOKER_OBJECT": "s3://bucket/runs"}
    monkeypatch.setattr(LiveNode, "environment", lambda _: variables)
    assert (str(stranded().severity), stranded().what.endswith("s3://bucket/runs was not looked at")) == ("info", True)


def test_a_step_that_a_real_run_could_not_drain_is_stranded(drained):
    (folder,) = drained[0].glob("step-*.g0001")
    note_undrained(LocalStore(drained[0]), StepId.parse(folder.name), "the bucket is gone")
    assert (str(stranded().severity), stranded().evidence[0].line) == ("warn", "the bucket is gone")
