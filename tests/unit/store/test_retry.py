"""Requests are repeated when that is safe and may help, never for ever, and ever less when everything fails."""

import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import AccessDenied, AlreadyExists, NotFound, Throttled, TimedOut, Unavailable
from stoker.store.memory import MemoryStore
from stoker.store.retry import RetryPolicy, RetryStore
from stoker.testing import Fault, FaultStore
from stoker.values import Key

KEY = Key("object")


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
def clock():
    return Clock()


@pytest.fixture
def make(clock):
    """Makes a RetryStore over memory that fails as told, and whose waits are as long as they can be."""

    def make(*faults, policy=None, settles=False):
        inner = FaultStore(MemoryStore(), faults)
        return RetryStore(inner, policy, settles=settles, clock=clock, sleep=clock.sleep, fraction=lambda: 1.0)

    return make


def test_what_fails_for_a_while_succeeds_and_is_counted(make, clock):
    store = make(Fault("read", Throttled("less"), count=2), Fault("read", TimedOut("slow")))
    store.write(KEY, b"bytes")
    assert store.read(KEY) == b"bytes"
    assert clock.sleeps == [0.1, 0.2, 0.4]
    stats = store.stats()
    assert (stats.operations, stats.attempts, stats.retries, stats.throttled, stats.given_up) == (2, 5, 3, 2, 0)


def test_the_last_error_says_which_attempt_it_was_and_where(make):
    store = make(Fault("stat", Unavailable("the server is away", "over there", "wait"), count=None))
    with pytest.raises(Unavailable) as caught:
        store.stat(KEY)
    assert caught.value.what == "the server is away (attempt 6 of 6)"
    assert (caught.value.where, caught.value.hint) == ("over there", "wait")
    assert pickle.loads(pickle.dumps(caught.value)).what == caught.value.what
    assert store.stats().given_up == 1


@pytest.mark.parametrize("error", [NotFound("no"), AccessDenied("no"), AlreadyExists("no")])
def test_what_cannot_help_is_not_repeated(make, clock, error):
    store = make(Fault("read", error, count=None))
    with pytest.raises(type(error)) as caught:
        store.read(KEY)
    assert caught.value.what == "no"
    assert clock.sleeps == []
    assert store.stats().attempts == 1


def test_an_answer_after_a_retry_says_which_attempt_it_was(make):
    store = make(Fault("read", Unavailable("away")))
    with pytest.raises(NotFound, match=r"\(attempt 2\)"):
        store.read(KEY)


def test_a_write_that_must_be_the_first_is_repeated_only_if_it_was_not_done(make):
    store = make(Fault("write", Throttled("less"), count=2))
    store.write(KEY, b"1", if_absent=True)
    assert store.stats().retries == 2
    store = make(Fault("write", Unavailable("cut"), count=2))
    with pytest.raises(Unavailable, match=r"attempt 1, not safe to repeat"):
        store.write(KEY, b"1", if_absent=True)
    store = make(Fault("write", Unavailable("cut"), count=2), settles=True)
    store.write(KEY, b"1", if_absent=True)
    assert store.read(KEY) == b"1"


def test_a_writer_is_not_repeated(make):
    store = make(Fault("commit", Unavailable("away")))
    with store.writer(KEY) as writer, pytest.raises(Unavailable):
        writer.commit()
    assert store.stats().attempts == 0


def test_a_listing_that_fails_begins_again_and_shows_each_object_once(clock):
    class Failing(MemoryStore):
        failures = 3

        def list(self, prefix=""):
            for number, info in enumerate(super().list(prefix)):
                if self.failures and number == 4:
                    self.failures -= 1
                    raise Unavailable("cut")
                yield info

    inner = Failing()
    for number in range(9):
        inner.write(Key(f"k{number}"), b"1")
    store = RetryStore(inner, RetryPolicy(attempts=4), clock=clock, sleep=clock.sleep)
    assert [str(info.key) for info in store.list("k")] == [f"k{number}" for number in range(9)]
    assert len(clock.sleeps) == 3
    inner.failures = 4
    with pytest.raises(Unavailable, match="attempt 4 of 4"):
        list(store.list("k"))


def test_no_attempt_begins_after_the_deadline(make, clock):
    store = make(Fault("read", Unavailable("away"), count=None), policy=RetryPolicy(attempts=100, deadline_s=30.0))
    with pytest.raises(Unavailable, match="no time for another"):
        store.read(KEY)
    assert clock.now <= 30.0
    assert store.stats().given_up == 1


def test_when_everything_fails_retries_stop_and_come_back_with_success(make):
    policy = RetryPolicy(attempts=4, budget=10.0, budget_ratio=0.5)
    store = make(Fault("read", Unavailable("away"), count=300), policy=policy)
    store.write(KEY, b"1")
    for _ in range(50):
        with pytest.raises(Unavailable):
            store.read(KEY)
    stats = store.stats()
    assert stats.retries == 10
    assert stats.out_of_budget == 47
    with pytest.raises(Unavailable, match="no retries left"):
        store.read(KEY)
    for _ in range(4):
        store.stat(KEY)
    assert store.budget.left == 2.0


@given(st.integers(0, 2**32), st.integers(1, 6), st.floats(0, 1))
def test_attempts_deadline_and_budget_hold_for_any_pattern_of_failures(seed, attempts, failing):
    rng, clock = random.Random(seed), Clock()

    class Flaky(MemoryStore):
        def stat(self, key):
            clock.now += rng.random()
            if rng.random() < failing:
                raise rng.choice([Unavailable, TimedOut, Throttled])("away")
            return super().stat(key)

    policy = RetryPolicy(attempts=attempts, deadline_s=5.0, budget=20.0, budget_ratio=0.1)
    store = RetryStore(Flaky(), policy, clock=clock, sleep=clock.sleep, fraction=rng.random)
    store.write(KEY, b"1")
    succeeded = 0
    for _ in range(30):
        began, before = clock.now, store.stats().attempts
        try:
            store.stat(KEY)
            succeeded += 1
        except (Unavailable, TimedOut, Throttled):
            pass
        assert store.stats().attempts - before <= attempts
        assert clock.now - began <= policy.deadline_s + 1
    assert store.stats().retries <= 20 + 0.1 * (succeeded + 1) + 1e-6


def test_it_never_promotes(tmp_path):
    from stoker.store.local import LocalStore

    assert not RetryStore(LocalStore(tmp_path)).limits.promotes
