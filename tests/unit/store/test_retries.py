"""The policy, the budget, and operations that consist of others."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import ConfigError, NotFound, Throttled, Unavailable
from stoker.store.retries import Retries, RetryBudget, RetryPolicy


@given(st.integers(1, 10_000), st.floats(0, 0.999), st.floats(0.001, 10), st.floats(0.001, 100), st.integers(1, 200))
def test_a_wait_is_random_below_a_bound_that_doubles_to_a_cap(attempt, fraction, base_s, cap_s, other):
    policy = RetryPolicy(base_s=base_s, cap_s=cap_s)
    bound = policy.wait_s(attempt, 1.0)
    assert 0 <= policy.wait_s(attempt, fraction) <= bound <= cap_s
    assert bound == min(cap_s, base_s * 2.0 ** min(attempt - 1, 32))
    assert policy.wait_s(attempt + other, 1.0) >= bound


@given(st.lists(st.sampled_from(["take", "give"]), max_size=300), st.floats(0, 20), st.floats(0, 1))
def test_a_budget_is_never_negative_nor_more_than_full(steps, full, ratio):
    budget = RetryBudget(RetryPolicy(budget=full, budget_ratio=ratio))
    taken = given_back = 0
    for step in steps:
        if step == "take":
            taken += budget.take()
        else:
            budget.give()
            given_back += 1
        assert 0 <= budget.left <= full
    assert taken <= full + given_back * ratio + 1e-6


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"base_s": -1.0}, {"budget_ratio": -0.1}])
def test_a_policy_that_cannot_work_is_refused(wrong):
    with pytest.raises(ConfigError):
        RetryPolicy(**wrong)


@pytest.fixture
def sleeps():
    return []


@pytest.fixture
def retries(sleeps):
    return Retries(RetryPolicy(attempts=4), sleep=sleeps.append, fraction=lambda: 1.0)


def failing(times, error=Unavailable):
    """An operation that fails so often, then returns how often it was made."""
    made = []

    def operation():
        made.append(None)
        if len(made) <= times:
            raise error("away")
        return len(made)

    return operation


def test_what_an_operation_asked_again_by_itself_is_not_begun_anew(retries, sleeps):
    assert retries.run(lambda: retries.run(failing(3))) == 4
    inner, begun = failing(99), []

    def outer():
        begun.append(None)
        return retries.run(inner)

    with pytest.raises(Unavailable) as caught:
        retries.run(outer)
    assert len(begun) == 1
    assert caught.value.what == "away (attempt 4 of 4)"
    assert caught.value.is_given_up
    assert not pickle.loads(pickle.dumps(caught.value)).is_given_up  # whoever hears of it elsewhere is free to try
    assert sleeps == [0.1, 0.2, 0.4] * 2
    assert retries.stats().given_up == 1


def test_what_fails_outside_of_that_is_made_again_as_a_whole(retries):
    whole = failing(2, Throttled)
    assert retries.run(lambda: (retries.run(failing(1)), whole())) == (2, 3)
    assert retries.stats().throttled == 2


def test_an_attempt_that_got_further_begins_a_new_count(retries, sleeps):
    series = retries.begin()
    for _ in range(10):
        series.failed(Unavailable("away"))
        series.failed(Unavailable("away"))
        series.moved()
    assert sleeps == [0.1, 0.2] * 10
    for _ in range(3):
        series.failed(Unavailable("away"))
    with pytest.raises(Unavailable, match="attempt 4 of 4"):
        series.failed(Unavailable("away"))
    with pytest.raises(NotFound):
        retries.begin().failed(NotFound("no"))
