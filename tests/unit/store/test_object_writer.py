"""What a writer asks of a bucket is asked again as often as all else: with waits, a deadline and the store's budget."""

from contextlib import closing
from dataclasses import replace

import pytest

from stoker.errors import AccessDenied, StoreError, Throttled, Unavailable
from stoker.store import object as object_module
from stoker.store.object import ObjectStore
from stoker.store.object_options import ObjectOptions
from stoker.store.retries import RetryPolicy
from stoker.store.retry import RetryStore
from stoker.testing.fault_server import (
    Answer,
    Cut,
    ErrorBody,
    FaultServer,
    First,
    Nth,
    Reset,
    Rule,
    Script,
    WrongLength,
)
from stoker.units import MIB
from stoker.values import Key

KEY = Key("object")
NAME = "some/prefix/object"
ATTEMPTS = RetryPolicy().attempts
WAITS = [0.1, 0.2, 0.4, 0.8, 1.6]  # the longest that the default policy waits
SMALL = bytes(range(256)) * 5
LARGE = bytes(range(256)) * (9 * MIB // 256)


class Clock:
    """Time that passes only by sleeping; remembers each sleep."""

    def __init__(self):
        self.now = 0.0
        self.sleeps = []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.sleeps.append(seconds)
        self.now += seconds


@pytest.fixture
def server():
    with FaultServer() as server:
        yield server


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def make(server, clock):
    """Makes a store that retries by the default policy, or another, and whose waits are as long as they can be."""

    def make(*, part_bytes=8 * MIB, **policy):
        options = replace(ObjectOptions.from_environ(server.environ), part_bytes=part_bytes)
        inner = ObjectStore("s3://bucket/some/prefix", options, environ=server.environ)
        return RetryStore(
            inner, RetryPolicy(**policy), settles=True, clock=clock, sleep=clock.sleep, fraction=lambda: 1.0
        )

    return make


def write(store, data, piece_bytes=3 * MIB):
    with store.writer(KEY) as writer:
        for start in range(0, len(data), piece_bytes):
            writer.write(data[start : start + piece_bytes])
        return writer.commit()


def operations(server):
    return [record.operation for record in server.requests()]


@pytest.mark.parametrize("failing", range(ATTEMPTS))
@pytest.mark.parametrize("data", [b"", SMALL], ids=len)
@pytest.mark.parametrize("fault", [ErrorBody(), Answer(), Answer(500, "InternalError", done=True), Reset()], ids=str)
def test_a_small_object_is_one_request_made_again_until_the_attempts_end(server, make, clock, fault, data, failing):
    if failing:
        server.play(Script((Rule(fault, First(failing), operation="PutObject"),)))
    with closing(make()) as store:
        info = write(store, data)
        assert operations(server) == ["PutObject"] * (failing + 1)
        assert clock.sleeps == WAITS[:failing]
        assert (store.stats().retries, store.budget.left) == (failing, min(100.0, 100 - failing + 0.1))
        assert info == store.stat(KEY)
    assert server.keys("") == [NAME]
    assert server.get(NAME) == data


@pytest.mark.parametrize(("fault", "error"), [(ErrorBody(), Unavailable), (Answer(), Throttled)], ids=str)
def test_a_small_object_that_is_never_taken_is_an_error_after_the_attempts_and_says_so(
    server, make, clock, fault, error
):
    server.play(Script((Rule(fault, operation="PutObject"),)))
    with closing(make()) as store, pytest.raises(error, match=r"cannot write 'object'.*\(attempt 6 of 6\)"):
        write(store, SMALL)
    assert operations(server) == ["PutObject"] * ATTEMPTS + ["HeadObject"]  # which looks whether it was done after all
    assert clock.sleeps == WAITS
    assert server.keys("") == []


def test_a_small_object_that_was_taken_unheard_each_time_is_known_by_its_token(server, make):
    server.play(Script((Rule(Answer(500, "InternalError", done=True), operation="PutObject"),)))
    with closing(make()) as store:
        info = write(store, SMALL)
        assert info == store.stat(KEY)
    server.play(Script((Rule(Answer(500, "InternalError"), operation="PutObject"),)))
    with closing(make()) as store, pytest.raises(Unavailable, match="attempt 6 of 6"):
        write(store, SMALL)  # what is there is another writer's, of the same bytes
    assert server.get(NAME) == SMALL


def test_what_cannot_help_is_not_asked_again(server, make, clock):
    for data, operation in ((SMALL, "PutObject"), (LARGE, "CreateMultipartUpload")):
        server.play(Script((Rule(Answer(403, "AccessDenied"), operation=operation),)))
        server.forget_requests()
        with closing(make()) as store, pytest.raises(AccessDenied):
            write(store, data)
        assert operations(server) == [operation]
    assert clock.sleeps == []


@pytest.mark.parametrize("failing", range(ATTEMPTS))
def test_an_upload_whose_id_was_lost_is_begun_anew_after_a_wait(server, make, clock, failing):
    if failing:
        server.play(Script((Rule(Cut(), First(failing), operation="CreateMultipartUpload"),)))
    with closing(make()) as store:
        info = write(store, LARGE)
        assert info == store.stat(KEY)
    assert operations(server).count("CreateMultipartUpload") == failing + 1
    assert operations(server).count("UploadPart") == 2
    assert clock.sleeps == WAITS[:failing]
    assert server.keys("") == [NAME]
    assert server.get(NAME) == LARGE


@pytest.mark.parametrize("fault", [Cut(), ErrorBody()], ids=str)
def test_an_upload_that_never_gets_an_id_is_an_error_after_the_attempts_and_sends_no_part(server, make, clock, fault):
    server.play(Script((Rule(fault, operation="CreateMultipartUpload"),)))
    with closing(make()) as store, pytest.raises(Unavailable, match=r"\(attempt 6 of 6\)"):
        write(store, LARGE)
    assert operations(server) == ["CreateMultipartUpload"] * ATTEMPTS
    assert clock.sleeps == WAITS
    assert server.keys("") == []


@pytest.mark.parametrize("failing", range(ATTEMPTS))
@pytest.mark.parametrize("fault", [ErrorBody(), WrongLength(1), Answer(), Reset()], ids=str)
def test_what_was_written_in_parts_is_looked_at_again_after_a_wait(server, make, clock, fault, failing):
    if failing:
        server.play(Script((Rule(fault, First(failing), operation="HeadObject"),)))
    with closing(make()) as store:
        info = write(store, LARGE)
        assert operations(server).count("HeadObject") == failing + 1
        assert info == store.stat(KEY)
    assert clock.sleeps == WAITS[:failing]
    assert server.get(NAME) == LARGE


@pytest.mark.parametrize("fault", [ErrorBody(), WrongLength(1), Answer()], ids=str)
def test_what_can_never_be_seen_is_an_error_after_the_attempts_and_is_not_written_again(
    server, make, clock, fault, monkeypatch
):
    monkeypatch.setattr(object_module, "SINGLE_PUT_MAX_BYTES", MIB)
    server.play(Script((Rule(fault, operation="HeadObject"),)))
    for written in (write, lambda store, data: store.write(KEY, data)):  # what is written at once goes in parts too
        server.forget_requests()
        clock.sleeps.clear()
        with closing(make()) as store, pytest.raises(StoreError, match=r"\(attempt 6 of 6\)"):
            written(store, LARGE)
        assert operations(server).count("CompleteMultipartUpload") == 1
        assert operations(server).count("HeadObject") == ATTEMPTS
        assert clock.sleeps == WAITS


def test_an_object_of_another_writer_and_size_is_not_looked_at_again(server, make, clock):
    with closing(make()) as store, closing(make()) as other, store.writer(KEY) as writer:
        writer.write(LARGE)
        write(other, LARGE + b"more")
        server.play(Script((Rule(Answer(404, "NoSuchUpload"), operation="CompleteMultipartUpload"),)))
        server.forget_requests()
        with pytest.raises(Unavailable, match="NoSuchUpload"):
            writer.commit()
    assert operations(server).count("HeadObject") == 1
    assert clock.sleeps == []
    assert server.get(NAME) == LARGE + b"more"


def test_the_parts_that_the_client_sends_again_by_itself_are_said_with_their_attempts(server, make):
    server.play(Script((Rule(Answer(500, "InternalError"), operation="UploadPart"),)))
    options = replace(ObjectOptions.from_environ(server.environ), part_bytes=8 * MIB, attempts=2)
    store = ObjectStore("s3://bucket/x", options, environ=server.environ)
    with closing(store), pytest.raises(Unavailable, match=r"500 InternalError.*\(attempt 2 of 2\)"):
        write(store, LARGE)


def test_the_retries_of_writers_are_those_of_the_whole_store(server, make):
    server.play(Script((Rule(Answer(500, "InternalError")),)))
    with closing(make(budget=7.0)) as store:
        for _ in range(3):
            with pytest.raises(Unavailable):
                write(store, SMALL)
        with pytest.raises(Unavailable, match="the store has no retries left"):
            store.stat(KEY)
        assert (store.budget.left, store.stats().retries) == (0.0, 7)
    assert len(server.requests()) == 3 * 2 + 1 + 7  # each writer writes, and looks whether it was done after all


def test_no_request_of_a_writer_begins_after_the_deadline(server, make, clock):
    server.play(Script((Rule(ErrorBody(), operation="PutObject"),)))
    with closing(make(attempts=100, deadline_s=30.0)) as store, pytest.raises(Unavailable, match="no time for another"):
        write(store, SMALL)
    assert clock.now <= 30.0


def test_a_store_without_a_wrapper_asks_as_often_as_its_options_say(server):
    server.play(Script((Rule(ErrorBody(), operation="PutObject"),)))
    options = replace(ObjectOptions.from_environ(server.environ), attempts=2)
    store = ObjectStore("s3://bucket/x", options, environ=server.environ)
    with closing(store), pytest.raises(Unavailable, match="attempt 2 of 2"):
        write(store, SMALL)
    assert operations(server) == ["PutObject"] * 2 + ["HeadObject"]


def test_a_part_that_fails_while_others_are_on_their_way_is_sent_again_and_no_byte_is_lost(server, make):
    for number in (1, 2, 3):
        server.play(Script((Rule(Answer(500, "InternalError", done=True), Nth(number), operation="UploadPart"),)))
        data = LARGE * 2
        with closing(make()) as store:
            write(store, data)
        assert server.get(NAME) == data
