"""Each fault shows on the wire as it says, and the record tells the same."""

from __future__ import annotations

import http.client
import time
from email.utils import parsedate_to_datetime

import pytest

from stoker.testing.fault_server import (
    Answer,
    Changed,
    Cut,
    ErrorBody,
    Every,
    First,
    Flip,
    IgnoreCondition,
    IgnoreRange,
    Nth,
    Reset,
    Rule,
    ShortRange,
    Stall,
    Trickle,
    WrongClock,
    WrongETag,
    WrongLength,
    WrongRange,
)

DATA = bytes(range(256)) * 1000
LONG_S = 0.15


@pytest.fixture(autouse=True)
def stored(server):
    server.put("key", DATA)


def outcomes(server):
    return [(r.fault, r.status, r.outcome, r.sent_bytes) for r in server.requests()]


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (Answer(), 503, b"<Code>SlowDown</Code>"),
        (Answer(500, "InternalError"), 500, b"<Code>InternalError</Code>"),
        (Answer(429, "TooManyRequests"), 429, b"<Code>TooManyRequests</Code>"),
        (Answer(403, "AccessDenied"), 403, b"<Code>AccessDenied</Code>"),
    ],
)
def test_an_answer_is_that_error_and_nothing_is_done(server, client, play, fault, status, code):
    play(Rule(fault, First(2)))
    for method in ("GET", "PUT"):
        got = client.request(method, "/bucket/key", b"new" if method == "PUT" else None)
        assert (got.status, code in got.body) == (status, True)
        assert got.headers["Retry-After"] is None
    assert server.get("key") == DATA
    assert client.get("key").status == 200


def test_a_head_gets_the_status_alone_and_the_wait_is_said(client, play):
    play(Answer(503, retry_after_s=2))
    got = client.request("HEAD", "/bucket/key")
    assert (got.status, got.body, got.headers["Retry-After"]) == (503, b"", "2")


def test_a_burst_leaves_the_connection_open(server, client, play):
    play(Rule(Answer(), First(3)))
    connection = client.connect()
    statuses = [client.request("GET", "/bucket/key", connection=connection).status for _ in range(5)]
    assert statuses == [503, 503, 503, 200, 200]
    assert server.connection_count == 1
    connection.close()


def test_an_ambiguous_write_is_stored_and_answered_with_an_error(server, client, play):
    play(Rule(Answer(500, "InternalError", done=True), method="PUT"))
    assert client.request("PUT", "/bucket/key", b"new").status == 500
    assert server.get("key") == b"new"


def test_a_write_whose_answer_is_lost_is_stored(server, client, play):
    play(Rule(Reset(done=True), method="PUT"))
    with pytest.raises(ConnectionResetError):
        client.request("PUT", "/bucket/key", b"new")
    assert server.get("key") == b"new"
    assert outcomes(server) == [("Reset", 0, "reset", 0)]


def test_a_reset_before_the_headers_sends_nothing_and_does_nothing(server, client, play):
    play(Reset())
    assert client.raw_get() == (b"", "reset")
    with pytest.raises(ConnectionResetError):
        client.request("PUT", "/bucket/key", b"new")
    with pytest.raises(ConnectionResetError):
        client.request("DELETE", "/bucket/key")
    assert server.get("key") == DATA
    assert outcomes(server) == [("Reset", 0, "reset", 0)] * 3


@pytest.mark.parametrize("after", [0, 1, 1000, 200_000, len(DATA)])
def test_a_reset_comes_after_exactly_so_many_bytes(server, client, play, after):
    play(Reset(after_bytes=after))
    got, end = client.raw_get()
    head, _, body = got.partition(b"\r\n\r\n")
    assert b"Content-Length: 256000" in head
    assert (body, end) == (DATA[:after], "reset")
    assert outcomes(server) == [("Reset", 200, "reset", after)]


def test_a_write_that_is_reset_is_never_answered(server, client, play):
    play(Reset(after_bytes=0))
    for method, body in (("PUT", b""), ("PUT", b"new"), ("DELETE", None)):
        with pytest.raises(ConnectionResetError):
            client.request(method, "/bucket/key", body)
    assert server.get("key") == DATA
    assert {record.status for record in server.requests()} == {0}


def test_an_upload_is_reset_after_exactly_so_many_bytes(server, client, play):
    play(Reset(after_bytes=70_000))
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        client.request("PUT", "/bucket/key", DATA * 40)
    (record,) = server.requests()
    assert (record.received_bytes, record.outcome, record.status) == (70_000, "reset", 0)
    assert server.get("key") == DATA


@pytest.mark.parametrize("after", [0, 1, 100_000, len(DATA) - 1, len(DATA), 10 * len(DATA)])
def test_a_cut_ends_the_body_early_with_the_right_length_announced(server, client, play, after):
    play(Cut(after))
    got, end = client.raw_get()
    head, _, body = got.partition(b"\r\n\r\n")
    expected = min(after, len(DATA) - 1)
    assert b"Content-Length: 256000" in head
    assert (body, end) == (DATA[:expected], "closed")
    assert outcomes(server) == [("Cut", 200, "cut", expected)]
    with pytest.raises(http.client.IncompleteRead):
        client.get("key")


def test_a_cut_answer_without_a_body_ends_in_its_head(client, play):
    play(Cut())
    got, end = client.raw(b"HEAD /bucket/key HTTP/1.1\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 200 OK\r\n")
    assert (b"\r\n\r\n" in got, end) == (False, "closed")


@pytest.mark.parametrize("by", [-100_000, -1, 1, 100_000])
def test_a_wrong_length_is_announced_for_the_whole_body(server, client, play, by):
    play(WrongLength(by))
    got, end = client.raw_get()
    head, _, body = got.partition(b"\r\n\r\n")
    assert b"Content-Length: %d" % (len(DATA) + by) in head
    assert (body, end) == (DATA, "closed")
    assert outcomes(server) == [("WrongLength", 200, "answered", len(DATA))]


def test_a_head_tells_a_wrong_length_and_the_connection_stays(server, client, play):
    play(Rule(WrongLength(-1), First(1)))
    connection = client.connect()
    lengths = [client.request("HEAD", "/bucket/key", connection=connection).headers["Content-Length"] for _ in "12"]
    assert lengths == ["255999", "256000"]
    assert server.connection_count == 1
    connection.close()


@pytest.mark.alone
def test_a_stall_before_the_headers_takes_so_long(client, play):
    play(Stall(LONG_S))
    began = time.monotonic()
    assert client.get("key").body == DATA
    assert LONG_S <= time.monotonic() - began < LONG_S + 1


@pytest.mark.alone
@pytest.mark.parametrize("after", [0, 100_000, len(DATA) - 1])
def test_a_stall_in_the_body_takes_so_long_there(client, play, after):
    play(Stall(LONG_S, after))
    connection = client.connect()
    connection.request("GET", "/bucket/key")
    began = time.monotonic()
    answer = connection.getresponse()
    assert answer.read(after) == DATA[:after]
    early = time.monotonic() - began
    assert answer.read() == DATA[after:]
    assert early < LONG_S <= time.monotonic() - began
    connection.close()


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_stall_behind_the_end_is_before_it(client, play, method):
    play(Stall(LONG_S, 10 * len(DATA)))
    began = time.monotonic()
    assert client.request(method, "/bucket/key").status == 200
    assert time.monotonic() - began >= LONG_S


def test_an_upload_stalls_in_its_body(server, client, play):
    play(Stall(LONG_S, 1000))
    began = time.monotonic()
    assert client.request("PUT", "/bucket/new", DATA).status == 200
    assert time.monotonic() - began >= LONG_S
    assert server.get("new") == DATA


@pytest.mark.alone
def test_the_first_byte_of_every_answer_is_late(client, play):
    play(latency_s=LONG_S)
    connection = client.connect()
    for method in ("GET", "HEAD", "PUT", "DELETE"):
        began = time.monotonic()
        client.request(method, "/bucket/key", connection=connection)
        assert LONG_S <= time.monotonic() - began < LONG_S + 1, method
    connection.close()


@pytest.mark.alone
@pytest.mark.parametrize("how", ["fault", "each", "total"])
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_body_is_as_fast_as_allowed(client, play, how, method):
    rate = len(DATA) / LONG_S
    if how == "fault":
        play(Trickle(rate))
    else:
        play(**{"bytes_per_s" if how == "each" else "total_bytes_per_s": rate})
    began = time.monotonic()
    got = client.request(method, "/bucket/key", DATA if method == "PUT" else None)
    assert got.status == 200
    assert LONG_S <= time.monotonic() - began < LONG_S + 1


def test_a_wrong_etag_is_of_the_header_alone(client, play):
    play(WrongETag('"wrong"'))
    got = client.get("key")
    assert (got.headers["ETag"], got.body) == ('"wrong"', DATA)
    assert client.request("HEAD", "/bucket/key").headers["ETag"] == '"wrong"'


def test_a_wrong_clock_shows_in_the_date_of_every_answer_and_else_it_is_right(client, play):
    def ahead_s(answer):
        return parsedate_to_datetime(answer.headers["Date"]).timestamp() - time.time()

    assert abs(ahead_s(client.get("key"))) < 5
    play(WrongClock(-3600))
    assert abs(ahead_s(client.get("key")) + 3600) < 5
    assert abs(ahead_s(client.request("HEAD", "/bucket/none")) + 3600) < 5


def test_an_object_changes_between_two_ranges(server, client, play):
    play(Rule(Changed(), Nth(2)))
    first = client.get("key", "0-9")
    second = client.get("key", "10-19")
    assert first.body == DATA[:10]
    assert second.body == bytes(255 - byte for byte in DATA[10:20])
    assert first.headers["ETag"] != second.headers["ETag"]
    third = client.get("key", "20-29", If_Match=first.headers["ETag"])
    assert third.status == 412
    assert client.get("key").headers["ETag"] == second.headers["ETag"]
    assert len(server.get("key")) == len(DATA)


def test_a_change_of_what_is_not_there_changes_nothing(client, play):
    play(Changed())
    assert client.get("missing").status == 404
    assert client.request("GET", "/bucket?list-type=2").status == 200


@pytest.mark.parametrize("at", [None, 0, 1000, len(DATA) + 5])
def test_one_bit_of_the_body_is_flipped(client, play, at):
    play(Flip(at), seed=3)
    got = client.get("key").body
    wrong = [n for n in range(len(DATA)) if got[n] != DATA[n]]
    assert len(wrong) == 1
    assert at is None or wrong == [at % len(DATA)]
    assert (got[wrong[0]] ^ DATA[wrong[0]]).bit_count() == 1


def test_one_bit_of_an_upload_is_flipped_on_its_way_in(server, client, play):
    play(Flip(1))
    assert client.request("PUT", "/bucket/new", b"abc").status == 200
    stored = server.get("new")
    assert (stored[0:1], stored[2:]) == (b"a", b"c")
    assert (stored[1] ^ b"b"[0]).bit_count() == 1
    refused = client.request("PUT", "/bucket/checked", b"abc", {"Content-MD5": "kAFQmDzST7DWlj99KOF/cg=="})
    assert (refused.status, b"<Code>BadDigest</Code>" in refused.body) == (400, True)


def test_flipping_nothing_is_nothing(server, client, play):
    server.put("empty", b"")
    play(Flip())
    assert client.get("empty").body == b""


def test_an_error_may_come_with_status_200(server, client, play):
    play(ErrorBody("SlowDown"))
    got = client.get("key")
    assert (got.status, b"<Code>SlowDown</Code>" in got.body) == (200, True)
    assert client.request("PUT", "/bucket/key", b"new").status == 200
    assert server.get("key") == DATA
    assert client.request("HEAD", "/bucket/key").body == b""


def test_the_wrong_range_is_told_of_the_right_bytes(client, play):
    play(WrongRange(shift=5))
    got = client.get("key", "10-19")
    assert (got.status, got.body) == (206, DATA[10:20])
    assert got.headers["Content-Range"] == "bytes 15-24/256000"
    assert client.get("key").headers["Content-Range"] is None


def test_a_range_may_be_answered_with_less_of_it(client, play):
    play(ShortRange())
    got = client.get("key", "10-19")
    assert (got.status, got.body, got.headers["Content-Range"]) == (206, DATA[10:15], "bytes 10-14/256000")
    assert client.get("key", "10-10").body == DATA[10:11]
    assert client.get("key").body == DATA


def test_a_range_may_be_ignored(client, play):
    play(IgnoreRange())
    got = client.get("key", "10-19")
    assert (got.status, got.body, got.headers["Content-Range"]) == (200, DATA, None)


def test_a_weak_server_ignores_conditions(server, client, play):
    play(IgnoreCondition())
    assert client.request("PUT", "/bucket/key", b"new", {"If-None-Match": "*"}).status == 200
    assert client.request("PUT", "/bucket/none", b"new", {"If-Match": '"x"'}).status == 200
    assert client.get("key", If_Match='"x"').body == b"new"
    assert server.keys() == ["key", "none"]


def test_faults_strike_where_they_are_aimed_and_the_record_counts_exactly(server, client, play):
    server.put("other", b"12345")
    play(Rule(Answer(), Every(2), operation="GetObject", key="k*"), Rule(Cut(2), First(1), key="other"))
    assert [client.get("key").status for _ in range(4)] == [200, 503, 200, 503]
    with pytest.raises(http.client.IncompleteRead):
        client.get("other", "0-3")
    assert client.get("other", "0-3").body == b"1234"
    client.request("GET", "/bucket?list-type=2&prefix=o")
    records = server.requests()
    assert [record.number for record in records] == list(range(1, 8))
    assert [record.fault for record in records] == ["", "Answer", "", "Answer", "Cut", "", ""]
    assert [record.sent_bytes for record in server.requests(key="other")] == [2, 4]
    assert {record.range for record in server.requests(key="other")} == {"bytes=0-3"}
    assert [(r.operation, r.key) for r in server.requests("List*")] == [("ListObjectsV2", "o")]
    server.forget_requests()
    assert server.requests() == []
    client.get("key")
    assert server.requests()[0].number == 8
