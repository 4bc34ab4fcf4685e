"""The runner of checks."""

from __future__ import annotations

import threading
import time

from stoker.doctor.check import Check, Target, run_checks
from stoker.doctor.finding import FindingId

THING = FindingId("a-thing", "m", "w", "f")


def test_a_check_that_raises_is_a_finding_that_says_what(make_node, said):
    def broken(_node, _target):
        raise RuntimeError("no wings")

    fine = Check("C02", "y", lambda _node, target: [THING.ok("y", target.text)])
    found = run_checks([Check("C01", "x", broken), fine], make_node(), [])
    assert said(found) == {("check-broke", "unknown"), ("a-thing", "ok")}
    assert "no wings" in found[0].evidence[0].line


def test_a_check_that_hangs_is_a_finding_and_holds_no_other_up(make_node, said):
    stop = threading.Event()

    def hang(_node, _target):
        stop.wait(30)
        return []

    begin = time.monotonic()
    fine = Check("C02", "y", lambda _node, _target: [THING.ok("y", "")])
    found = run_checks([Check("C01", "x", hang), fine], make_node(), [], limit_s=0.05)
    stop.set()
    assert said(found) == {("check-timed-out", "unknown"), ("a-thing", "ok")}
    assert time.monotonic() - begin < 20


def test_a_check_of_targets_runs_for_each_and_one_of_the_node_once(make_node):
    each = Check("C02", "y", lambda _node, target: [THING.ok(target.text, "")], per_target=True)
    once = Check("C01", "y", lambda _node, target: [THING.ok("node", target.text)])
    found = run_checks([once, each], make_node(), [Target("/a"), Target("s3://b/c")])
    assert [f.subject for f in found] == ["node", "/a", "s3://b/c"]


def test_a_target_is_a_path_or_a_url():
    assert (Target("/a").path, Target("/a").url) == ("/a", "")
    assert (Target("s3://a/b").path, Target("s3://a/b").url) == ("", "s3://a/b")
    assert (Target("file:///a").path, Target("file:///a").url) == ("/a", "")


def test_all_checks_end_in_time_on_a_bare_folder_and_say_something(tmp_path):
    from stoker.doctor.diagnose import diagnose
    from stoker.doctor.node import LiveNode

    begin = time.monotonic()
    found = diagnose(LiveNode(tmp_path), [Target("/data")])
    assert time.monotonic() - begin < 30
    assert found
    assert [f for f in found if f.id == "check-broke"] == []
    assert [f for f in found if str(f.severity) == "fail"] == []
