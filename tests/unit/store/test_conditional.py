"""One of several writers wins: by the server's condition where it keeps one, else by looking again."""

import logging
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from stoker.errors import AccessDenied, AlreadyExists, NotFound, Throttled, TimedOut, Unavailable, UnsupportedError
from stoker.io.host import process_id
from stoker.store.conditional import FOREIGN_PROBE_S, PROBE_DIR, SETTLE_S, ConditionalPut
from stoker.store.object_bucket import Stored
from stoker.store.retries import Retries, RetryPolicy

ATTEMPTS = 4


class FakeBucket:
    """A server in memory. `condition`: whether it keeps, ignores or does not know If-None-Match."""

    where = "s3://fake"

    def __init__(self, condition="keeps", *, keeps_tokens=True):
        self.condition = condition
        self.keeps_tokens = keeps_tokens
        self.objects = {}
        self.requests = []
        self.ages_s = {}
        self.fail_after = None  # an error that hides that a write was done
        self.fail_before = None
        self.fail_probes = []  # before and after the writes of a try: errors, or None
        self.lock = threading.Lock()
        self.waits = []
        self.retries = Retries(RetryPolicy(attempts=ATTEMPTS), sleep=self.waits.append)

    def look(self, name, key):
        return self.retries.run(lambda: self.head(name, key))

    def head(self, name, key):
        self.requests.append("head")
        with self.lock:
            if name not in self.objects:
                raise NotFound(f"no object {key!r}", self.where)
            data, token = self.objects[name]
        return Stored(len(data), "etag", token if self.keeps_tokens else None)

    def put(self, name, key, data, *, token=None):
        self.requests.append("put")
        with self.lock:
            self.objects[name] = (bytes(data), token)
        if self.fail_after:
            error, self.fail_after = self.fail_after, None
            raise error
        return "etag"

    def put_first(self, name, key, data, token):
        if self.condition == "unknown":
            raise UnsupportedError("501")
        self.requests.append("put_first")
        probing = key.startswith(PROBE_DIR)
        if not probing and self.fail_before:
            error, self.fail_before = self.fail_before, None
            raise error
        before, after = self.fail_probes.pop(0) if probing and self.fail_probes else (None, None)
        if before:
            raise before
        with self.lock:
            if self.condition == "keeps" and name in self.objects:
                raise AlreadyExists(f"cannot write {key!r}", self.where)
            self.objects[name] = (bytes(data), token)
        if after:
            raise after
        if not probing and self.fail_after:
            error, self.fail_after = self.fail_after, None
            raise error
        return "etag"

    def delete(self, name, key):
        with self.lock:
            self.objects.pop(name, None)

    def list(self, directory):
        self.requests.append("list")
        now = datetime.now(UTC)
        return [
            {"path": name, "last_modified": now - timedelta(seconds=self.ages_s.get(name, 0))}
            for name in list(self.objects)
            if name.startswith(f"{directory}/")
        ]

    def whole(self, name, key):
        yield self.objects[name][0]


@pytest.fixture
def dead_process():
    """The name of a process that was there and is gone."""
    script = "from stoker.io.host import process_id; print(process_id())"
    return subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.strip()


def make(bucket, sleep=lambda seconds: None):
    return ConditionalPut(bucket, "pre/", sleep=sleep)


def test_a_server_that_keeps_the_condition_is_tried_once_and_nothing_of_it_stays():
    bucket = FakeBucket()
    first = make(bucket)
    assert first.write("pre/a", "a", b"1") == "etag"
    assert first.write("pre/b", "b", b"1") == "etag"
    assert bucket.requests.count("put_first") == 3 + 2
    assert set(bucket.objects) == {"pre/a", "pre/b"}
    with pytest.raises(AlreadyExists):
        first.write("pre/a", "a", b"2")
    assert bucket.objects["pre/a"][0] == b"1"


@pytest.mark.parametrize("condition", ["ignores", "unknown"])
@pytest.mark.parametrize("keeps_tokens", [True, False])
def test_a_server_without_the_condition_is_said_once_and_one_writer_wins(condition, keeps_tokens, caplog):
    bucket = FakeBucket(condition, keeps_tokens=keeps_tokens)
    waits = []
    first = make(bucket, waits.append)
    with caplog.at_level(logging.WARNING, "stoker.store"):
        assert first.write("pre/a", "a", b"1") == "etag"
        with pytest.raises(AlreadyExists):
            first.write("pre/a", "a", b"2")
        first.write("pre/b", "b", b"1")
    assert len(caplog.records) == 1
    assert "s3://fake does not keep If-None-Match" in caplog.text
    assert waits == [0.5, 0.5]
    assert {name: data for name, (data, _) in bucket.objects.items()} == {"pre/a": b"1", "pre/b": b"1"}


def test_the_last_of_two_that_wrote_without_a_condition_wins_and_the_other_knows():
    bucket = FakeBucket("ignores")
    barrier = threading.Barrier(6, timeout=20)

    def race(number):
        first = make(bucket, lambda seconds: barrier.wait())  # all have written before any looks
        first._proven = False
        try:
            first.write("pre/a", "a", str(number).encode())
        except AlreadyExists:
            return None
        return number

    real_head, looked = bucket.head, threading.Barrier(6, timeout=20)

    def head(name, key):
        try:
            return real_head(name, key)
        except NotFound:
            looked.wait()  # all have looked before any writes
            raise

    bucket.head = head
    with ThreadPoolExecutor(6) as pool:
        won = [number for number in pool.map(race, range(6)) if number is not None]
    assert len(won) == 1
    assert bucket.objects["pre/a"][0] == str(won[0]).encode()


@pytest.mark.parametrize("keeps_tokens", [True, False])
@pytest.mark.parametrize("error", [TimedOut("slow"), Unavailable("cut"), Throttled("503, and yet it was done")])
def test_a_writer_whose_answer_was_lost_learns_that_it_was_the_first(error, keeps_tokens):
    bucket = FakeBucket(keeps_tokens=keeps_tokens)
    first = make(bucket)
    bucket.fail_after = error
    with pytest.raises(type(error)):
        first.write("pre/a", "a", b"1")
    assert first.write("pre/a", "a", b"1") is None
    with pytest.raises(AlreadyExists):
        first.write("pre/a", "a", b"1")  # a new call, and not the first any more


def test_a_writer_whose_request_was_lost_and_came_second_is_told_so():
    bucket = FakeBucket()
    first, second = make(bucket), make(bucket)
    bucket.fail_before = Unavailable("cut")
    with pytest.raises(Unavailable):
        first.write("pre/a", "a", b"same bytes")
    second.write("pre/a", "a", b"same bytes")
    with pytest.raises(AlreadyExists):
        first.write("pre/a", "a", b"same bytes")


@pytest.mark.parametrize("data", [b"other", b"different bytes"])
def test_without_tokens_other_bytes_are_those_of_another_writer(data):
    bucket = FakeBucket(keeps_tokens=False)
    first = make(bucket)
    bucket.fail_before = Unavailable("cut")
    with pytest.raises(Unavailable):
        first.write("pre/a", "a", b"bytes")
    make(bucket).write("pre/a", "a", data)
    with pytest.raises(AlreadyExists):
        first.write("pre/a", "a", b"bytes")


def test_an_object_that_is_deleted_before_its_writer_looks_is_written_again_by_the_next_try():
    bucket = FakeBucket()
    first = make(bucket)
    bucket.fail_after = Unavailable("cut")
    with pytest.raises(Unavailable):
        first.write("pre/a", "a", b"1")
    real, bucket.head = bucket.head, lambda name, key: bucket.delete(name, key) or real(name, key)
    with pytest.raises(Unavailable, match="gone again"):
        first.write("pre/a", "a", b"1")
    assert first.write("pre/a", "a", b"1") == "etag"


def test_another_thread_with_the_same_bytes_is_another_writer():
    bucket = FakeBucket()
    first = make(bucket)
    bucket.fail_after = Unavailable("cut")
    with pytest.raises(Unavailable):
        first.write("pre/a", "a", b"1")
    with ThreadPoolExecutor(1) as pool, pytest.raises(AlreadyExists):
        pool.submit(first.write, "pre/a", "a", b"1").result()
    assert first.write("pre/a", "a", b"1") is None


def test_a_probe_that_is_denied_is_an_error_and_tried_again():
    bucket = FakeBucket()
    real = bucket.put_first

    def denied(name, key, data, token):
        raise AccessDenied("no")

    bucket.put_first = denied
    first = make(bucket)
    with pytest.raises(AccessDenied):
        first.write("pre/a", "a", b"1")
    bucket.put_first = real
    assert first.write("pre/a", "a", b"1") == "etag"
    assert set(bucket.objects) == {"pre/a"}


def test_what_a_killed_process_left_of_its_try_goes_and_what_others_are_at_stays(dead_process):
    bucket = FakeBucket()
    _, _, rest = process_id().partition("-")
    left = {
        "dead": f"pre/{PROBE_DIR}/{dead_process}-0123",
        "alive": f"pre/{PROBE_DIR}/{process_id()}-0123",
        "of another host": f"pre/{PROBE_DIR}/00000000-{rest}-0123",
        "of another host, old": f"pre/{PROBE_DIR}/00000001-{rest}-0123",
        "of another place": f"{PROBE_DIR}/{dead_process}-0123",
    }
    bucket.objects = dict.fromkeys(left.values(), (b"", None))
    bucket.ages_s = {left["of another host, old"]: FOREIGN_PROBE_S + 60}
    assert make(bucket).write("pre/a", "a", b"1") == "etag"
    stays = {left[name] for name in ("alive", "of another host", "of another place")}
    assert set(bucket.objects) == stays | {"pre/a"}


def test_where_nothing_may_be_listed_the_condition_is_tried_nevertheless():
    bucket = FakeBucket()

    def denied(directory):
        raise AccessDenied("no")

    bucket.list = denied
    assert make(bucket).write("pre/a", "a", b"1") == "etag"


def test_a_try_whose_object_somebody_removed_is_made_again_and_never_taken_for_a_server_without_the_condition():
    bucket = FakeBucket()
    real, counted = bucket.put_first, []

    def put_first(name, key, data, token):
        counted.append(key)
        if len(counted) == 3:
            bucket.delete(name, key)
        return real(name, key, data, token)

    bucket.put_first = put_first
    assert make(bucket).is_kept()
    assert len(counted) == 6
    assert len(set(counted)) == 2


@pytest.mark.parametrize("keeps_tokens", [True, False])
@pytest.mark.parametrize("failing", range(1, ATTEMPTS))
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_try_whose_requests_fail_asks_each_again_by_itself(failing, when, keeps_tokens):
    error = Unavailable("cut")
    bucket = FakeBucket(keeps_tokens=keeps_tokens)
    bucket.fail_probes = [(error, None) if when == "before" else (None, error)] * failing
    first = make(bucket)
    assert first.write("pre/a", "a", b"1") == "etag"
    probes = bucket.requests.count("put_first") - 1
    assert probes == 3 + len(bucket.waits)
    assert 1 <= len(bucket.waits) <= failing
    assert set(bucket.objects) == {"pre/a"}


@pytest.mark.parametrize("condition", ["keeps", "ignores"])
def test_answers_that_are_lost_do_not_change_what_a_try_finds(condition):
    for lost in range(1, 8):  # which of the first three requests, in binary
        bucket = FakeBucket(condition)
        bucket.fail_probes = [(None, Unavailable("cut") if lost >> number & 1 else None) for number in range(3)]
        assert make(bucket).is_kept() is (condition == "keeps")


def test_a_try_that_never_succeeds_is_an_error_after_the_attempts_and_is_made_again_by_the_next_write():
    bucket = FakeBucket()
    bucket.fail_probes = [(Unavailable("cut"), None)] * 2 * ATTEMPTS
    first = make(bucket)
    with pytest.raises(Unavailable, match="attempt 4 of 4"):
        first.write("pre/a", "a", b"1")
    assert bucket.requests.count("put_first") <= 2 * ATTEMPTS
    bucket.fail_probes = []
    assert first.write("pre/a", "a", b"1") == "etag"


def test_without_a_condition_a_writer_whose_answer_was_lost_waits_before_it_says_that_it_was_the_first():
    bucket = FakeBucket("ignores")
    waits = []

    def overtake(seconds):  # another writer has looked before our bytes were there, and writes now
        waits.append(seconds)
        bucket.objects["pre/a"] = (b"theirs", "token of theirs")

    first = make(bucket, overtake)
    assert not first.is_kept()
    bucket.fail_after = Unavailable("cut")
    with pytest.raises(Unavailable):
        first.write("pre/a", "a", b"ours")
    with pytest.raises(AlreadyExists):
        first.write("pre/a", "a", b"ours")
    assert waits == [SETTLE_S]
    assert bucket.objects["pre/a"][0] == b"theirs"
