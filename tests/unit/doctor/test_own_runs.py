"""What runs left: steps that did not get on, and their own accounts."""

from __future__ import annotations

import pytest

from stoker.doctor.node import Missing, PathStat
from stoker.doctor.own_runs import judge_ledgers, judge_run, newest_step_bytes, read_ledgers, runs_in
from stoker.ledger import Cause, Counter, Ledger, LedgerIdentity

RUN = "/n/checkpoint/a"
NOTE = '{"format": 1, "rank": 0, "reason": "the bucket is gone"}'


def left(make_node, *names, notes=()):
    files = {f"{RUN}/{name}/MANIFEST.json": "x" for name in names} | {f"{RUN}/run.json": "{}"}
    return make_node(files=files | {f"{RUN}/{name}/rank-00000.json": NOTE for name in notes})


def ledger(rank=0, generation=1, wait_ns=100, compute_ns=900, **counted):
    one = Ledger.create(None, LedgerIdentity("a", rank, 1, generation, "h"))
    for step in range(4):
        start = step * (wait_ns + compute_ns)
        one.record_step(step, 0, start, start + wait_ns, {Cause.FETCH: wait_ns}, 1, 1)
    one.record_end(4 * (wait_ns + compute_ns))
    for name, count in counted.items():
        one.add(Counter(name), count)
    return one.image()


def test_a_newest_step_that_did_not_reach_the_far_tier_is_stranded(make_node):
    node = left(make_node, "step-00000010.g0001", notes=["step-00000010.g0001.undrained"])
    (found,) = judge_run(node, RUN, alone=False)
    assert (found.id, str(found.severity)) == ("own-save-stranded", "warn")
    assert found.evidence[0].line == "the bucket is gone"


def test_an_older_one_is_a_fact(make_node):
    names = ("step-00000010.g0001", "step-00000020.g0001")
    (found,) = judge_run(left(make_node, *names, notes=["step-00000010.g0001.undrained"]), RUN, alone=False)
    assert str(found.severity) == "info"


def test_saves_that_were_given_up_or_are_not_finished_are_told(make_node, said):
    node = left(make_node, "step-00000030.g0002.partial", "step-00000020.g0002.partial")
    node.files[f"{RUN}/step-00000020.g0002.aborted/rank-00003.json"] = NOTE
    found = judge_run(node, RUN, alone=False)
    assert said(found) == {("own-save-unfinished", "warn"), ("own-save-unfinished", "info")}
    assert found[0].evidence[0].line == "the bucket is gone"
    assert "step 30 is not finished" in found[1].what


def test_a_note_that_cannot_be_read_is_no_reason(make_node):
    node = left(make_node, "step-00000010.g0001", "step-00000010.g0001.undrained")
    (found,) = judge_run(node, RUN, alone=False)
    assert found.evidence[0].line == "no reason is noted"


def test_checkpoints_on_this_node_alone_are_a_fact(make_node):
    node = left(make_node, "step-00000010.g0001", "step-00000005.g0002")
    (found,) = judge_run(node, RUN, alone=True)
    assert (found.id, found.what) == ("own-checkpoints-on-this-node", "its newest step, 5, lies on this node alone")
    assert judge_run(node, RUN, alone=False) == []


def test_runs_are_told_by_their_record_and_measured_by_their_newest_step(make_node):
    node = left(make_node, "step-00000010.g0001")
    node.files["/n/checkpoint/other/x"] = ""
    node.stats[f"{RUN}/step-00000010.g0001/rank-00000-of-00001.safetensors"] = PathStat("file", size_bytes=70)
    node.stats[f"{RUN}/step-00000010.g0001/MANIFEST.json"] = PathStat("file", size_bytes=7)
    assert runs_in(node, "/n/checkpoint") == [RUN]
    assert newest_step_bytes(node, RUN) == 77
    assert newest_step_bytes(node, "/nowhere") == 0


@pytest.mark.parametrize(("wait_ns", "severity"), [(90, "ok"), (900, "warn")])
def test_the_newest_generation_says_how_much_it_waited(make_node, wait_ns, severity):
    files = {"/r/rank-00000.g0002.ledger": ledger(generation=2, wait_ns=wait_ns), "/r/rank-00000.g0001.ledger": b"old"}
    snapshots, unread = read_ledgers(make_node(files=files), "/r")
    (found,) = judge_ledgers("run a", snapshots)
    assert unread == []
    assert (found.id, str(found.severity)) == ("own-waits", severity)
    if severity == "warn":
        assert found.what == "utilisation 50%; it waited most for fetch"


def test_failed_saves_and_copied_batches_are_told(make_node, said):
    files = {"/r/rank-00000.g0001.ledger": ledger(checkpoints_failed=2, copied_batches=5)}
    found = judge_ledgers("run a", read_ledgers(make_node(files=files), "/r")[0])
    assert {("own-saves-failed", "warn"), ("own-fallback-taken", "warn")} <= said(found)


def test_a_ledger_that_is_none_is_unknown_and_one_that_a_capture_lacks_is_passed_over(make_node, said):
    node = make_node(files={"/r/rank-00000.g0001.ledger": b"nothing", "/r/x.ledger": b""})
    snapshots, unread = read_ledgers(node, "/r")
    assert (snapshots, said(unread)) == ([], {("own-ledger-unreadable", "unknown")})
    node.files["/r/rank-00000.g0001.ledger"] = Missing("not in the capture")
    assert read_ledgers(node, "/r") == ([], [])
    assert judge_ledgers("run a", []) == []
