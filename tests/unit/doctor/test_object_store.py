"""An object store, against one on loopback that does wrong what a script says."""

from __future__ import annotations

import threading
import time

import pytest

from stoker.doctor.check import Target
from stoker.doctor.object_store import Tally, diagnose_stores, failure, skew
from stoker.errors import NotFound, Throttled
from stoker.testing.fault_server import (
    Answer,
    FaultServer,
    First,
    IgnoreCondition,
    IgnoreRange,
    Rule,
    Script,
    Stall,
    WrongClock,
)
from stoker.units import MIB

from .conftest import by_id

URL = "s3://bucket/pre"


@pytest.fixture
def server():
    with FaultServer() as server:
        server.put("pre/small", b"0123456789")
        server.put("pre/large", bytes(9 * MIB))
        yield server


@pytest.fixture
def look(server, make_node, monkeypatch):
    """Findings of the URL by id, with faults played."""
    import stoker.doctor.object_store as module

    monkeypatch.setattr(module, "Tally", lambda: Tally(pause_s=0.001))

    def looked(*rules, url=URL, probe=False, environ=None):
        server.play(Script(tuple(r if isinstance(r, Rule) else Rule(r) for r in rules)))
        node = make_node(variables={**server.environ, **(environ or {})})
        node.clock_s = time.time
        return by_id(diagnose_stores(node, [Target(url)], probe=probe))

    return looked


def one(found, name):
    (finding,) = found[f"object-store-{name}"]
    return str(finding.severity), finding


def test_a_sound_store_answers_keeps_time_and_reads_parts(look, server):
    found = look()
    assert one(found, "answers")[0] == "ok"
    assert one(found, "clock-skew")[0] == "ok"
    assert one(found, "range")[0] == "ok"
    assert "8.0 MiB in one request" in one(found, "speed")[1].what
    assert "object-store-throttled" not in found
    assert {r.method for r in server.requests()} <= {"GET", "HEAD"}
    assert max(r.sent_bytes for r in server.requests("GetObject")) <= 8 * MIB + 1024


def test_what_is_not_known_is_said_and_how_to_find_out(look):
    severity, finding = one(look(), "unfinished-uploads")
    assert severity == "unknown"
    assert finding.fix == "aws s3api list-multipart-uploads --bucket bucket --prefix pre/"


@pytest.mark.parametrize(("ahead_s", "severity"), [(20, "ok"), (-300, "warn"), (3600, "fail"), (-3600, "fail")])
def test_a_clock_that_is_off_is_found_by_any_answer(look, ahead_s, severity):
    told, finding = one(look(WrongClock(ahead_s)), "clock-skew")
    assert told == severity
    assert ("behind" if ahead_s > 0 else "ahead of") in finding.what
    assert finding.evidence[0].line.startswith("Date: ")


def test_a_refusal_has_a_clock_too(look):
    found = look(Answer(403, "AccessDenied"))
    assert one(found, "clock-skew")[0] == "ok"
    assert one(found, "access-denied")[0] == "fail"


def test_a_request_refused_for_its_time_is_the_clock(look):
    severities = {str(f.severity) for f in look(Answer(403, "RequestTimeTooSkewed"))["object-store-clock-skew"]}
    assert "fail" in severities


def test_a_few_refusals_as_too_many_are_counted_and_the_rest_is_still_found_out(look):
    found = look(Rule(Answer(503, "SlowDown"), First(2), operation="ListObjectsV2"))
    severity, finding = one(found, "throttled")
    assert severity == "warn"
    assert finding.what.startswith("2 of ")
    assert one(found, "range")[0] == "ok"


def test_a_store_that_refuses_all_as_too_many_fails(look):
    severities = [str(f.severity) for f in look(Answer(503, "SlowDown"))["object-store-throttled"]]
    assert severities == ["fail", "warn"]


def test_a_server_that_sends_the_whole_object_for_a_part_fails(look):
    found = look(IgnoreRange())
    assert one(found, "range")[0] == "fail"
    assert "object-store-speed" not in found


def test_an_empty_prefix_leaves_parts_unknown(look):
    found = look(url="s3://bucket/none")
    assert one(found, "answers")[0] == "ok"
    assert one(found, "range")[0] == "unknown"


def test_a_bucket_that_is_not_there_fails(look):
    assert one(look(url="s3://other/pre"), "answers")[0] == "fail"


def test_a_server_that_is_not_there_fails_and_its_clock_is_unknown(look):
    found = look(environ={"AWS_ENDPOINT_URL": "http://127.0.0.1:1"})
    assert one(found, "answers")[0] == "fail"
    assert one(found, "clock-skew")[0] == "unknown"


def test_credentials_over_plain_http_are_not_sent(look, server):
    found = look(environ={"AWS_ALLOW_HTTP": "false"})
    assert one(found, "answers")[0] == "fail"
    assert [r.operation for r in server.requests() if r.operation != "HeadBucket"] == []


def test_the_conditional_write_is_tried_only_when_asked_for(look, server):
    assert one(look(), "conditional-write")[0] == "info"
    assert server.requests("PutObject") == []
    assert one(look(probe=True), "conditional-write")[0] == "ok"
    assert server.requests("PutObject")
    assert server.keys() == ["pre/large", "pre/small"]


def test_a_server_that_does_not_keep_the_condition_is_warned_of(look, server):
    assert one(look(IgnoreCondition(), probe=True), "conditional-write")[0] == "warn"
    assert server.keys() == ["pre/large", "pre/small"]


def test_a_probe_that_may_not_write_is_unknown(look):
    found = look(Rule(Answer(403, "AccessDenied"), operation="PutObject"), probe=True)
    assert one(found, "conditional-write")[0] == "unknown"


def test_a_store_that_hangs_is_a_finding_in_time(server, make_node):
    server.play(Script((Rule(Stall(30)),)))
    node = make_node(variables=server.environ)
    found = diagnose_stores(node, [Target(URL)], probe=False, limit_s=0.05)
    assert [f.id for f in found].count("check-timed-out") == 2
    server.close()
    for thread in threading.enumerate():
        if thread.name.startswith("doctor-"):
            thread.join(20)


def test_other_urls_and_paths_are_not_asked(make_node):
    found = diagnose_stores(make_node(), [Target("/data"), Target("gs://a/b")], probe=False)
    assert [(f.id, f.subject, str(f.severity)) for f in found] == [("object-store-answers", "gs://a/b", "unknown")]


def test_errors_have_their_findings():
    assert failure(NotFound("gone"), Target(URL)).id == "object-store-answers"
    assert failure(Throttled("slow"), Target(URL)).id == "object-store-throttled"


def test_a_small_difference_is_agreement():
    from stoker.doctor.finding import Evidence

    assert skew(Target(URL), 0.4, Evidence("Date", "x")).what.endswith("agrees with the server's")


def test_a_tally_gives_up_after_its_attempts():
    tally = Tally(pause_s=0.0)

    def slow():
        raise Throttled("503 slowdown")

    with pytest.raises(Throttled):
        tally.of(slow)
    assert (tally.requests, len(tally.throttled)) == (3, 3)
