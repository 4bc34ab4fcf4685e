"""Utilisation, repeated work and the like, against numbers worked out by hand and DLIO's own procedure."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.ledger import Cause, utilisation
from stoker.meter import attribute


def test_utilisation_is_compute_over_running_time_of_the_steps_after_the_first(script):
    timeline = script().at(1000).step(0, fetch=500).compute(100).step(1, decode=50).compute(200).step(2, map=10)
    snapshot = timeline.compute(90).end().read()
    # Step 0 (500 ms of wait, 100 ms of compute) is left out: (200 + 90) / (200 + 90 + 50 + 10).
    assert utilisation([snapshot]) == pytest.approx(290 / 350)


def test_a_save_is_part_of_neither_compute_nor_running_time(script):
    timeline = script().step(0, fetch=5).compute(100).save(1, 30).step(1, fetch=50).compute(200).save(2, 40)
    snapshot = timeline.step(2, fetch=10).compute(90).end().read()
    assert utilisation([snapshot]) == pytest.approx(290 / 350)


def test_each_generation_leaves_out_its_own_first_step(script):
    one = script(generation=1).step(0, fetch=500).compute(7).step(1, fetch=25).compute(75).end().read()
    two = script(generation=2).step(1, fetch=900).compute(7).step(2, fetch=75).compute(125).end().read()
    assert utilisation([one, two]) == pytest.approx((75 + 125) / (75 + 25 + 125 + 75))


def test_utilisation_of_a_run_is_the_mean_of_its_ranks(script):
    one = script(rank=0, world=2).step(0).compute(1).step(1).compute(100).end().read()
    two = script(rank=1, world=2).step(0).compute(1).step(1, fetch=300).compute(100).end().read()
    assert attribute.mean_utilisation([two, one]) == pytest.approx((1.0 + 0.25) / 2)


def test_utilisation_is_unknown_before_a_second_step(script):
    assert attribute.mean_utilisation([script().read()]) is None
    assert attribute.mean_utilisation([script().step(0, fetch=10).compute(10).end().read()]) is None
    late = script(rank=1).read()
    busy = script(rank=0).step(0).compute(5).step(1, fetch=5).compute(5).end().read()
    assert attribute.mean_utilisation([late, busy]) == pytest.approx(0.5)


def dlio(steps):
    """As dlio_benchmark's statscounter does it for one block, without one step at its start."""
    start, now, processed, computed = 0, 0, [], []
    for wait, compute in steps:
        before = now
        now += wait
        now += compute
        processed.append(now - before)
        computed.append(compute)
    running = now - start - sum(processed[:1])
    return sum(computed[1:]) / running


milliseconds = st.integers(min_value=0, max_value=500)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=50)
@given(steps=st.lists(st.tuples(milliseconds, st.integers(min_value=1, max_value=500)), min_size=2, max_size=12))
def test_utilisation_equals_what_dlio_computes_for_the_same_timeline(script, steps):
    timeline = script()
    for number, (wait, compute) in enumerate(steps):
        timeline.step(number, fetch=wait).compute(compute)
    assert utilisation([timeline.end().read()]) == pytest.approx(dlio(steps))


@pytest.mark.parametrize(
    ("ranges", "repeated"),
    [
        ([], 0),
        ([(0, 49)], 0),
        ([(0, 49), (50, 69)], 0),
        ([(0, 49), (40, 69)], 10),
        ([(0, 49), (40, 42), (40, 69)], 3 + 10),
        ([(0, 49), (40, 55), (50, 69)], 10 + 6),
        ([(0, 9), (0, 9)], 10),
    ],
)
def test_steps_trained_again_after_a_restart_are_counted(ranges, repeated):
    assert attribute.repeated_steps(ranges) == repeated


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted), min_size=1, max_size=5))
def test_steps_less_repeated_steps_are_the_different_steps(ranges):
    # A generation resumes where another has been, so the ranges leave no gap.
    joined, reached = [], -1
    for first, last in ranges:
        joined.append((min(first, reached + 1), max(last, min(first, reached + 1))))
        reached = max(reached, joined[-1][1])
    steps = [step for first, last in joined for step in range(first, last + 1)]
    assert len(steps) - attribute.repeated_steps(joined) == len(set(steps))


def test_of_copies_of_a_ledger_the_one_that_knows_most_counts(script):
    timeline = script().step(0)
    early = timeline.read()
    late = timeline.step(1).read()
    closed = timeline.close().read()
    other = script(rank=1, world=2).read()
    assert attribute.distinct([late, early, other]) == [late, other]
    assert attribute.distinct([late, closed, early]) == [closed]
    assert attribute.distinct([closed, late]) == [closed]


def test_the_longest_waits_come_first_and_steps_that_did_not_wait_not_at_all(script):
    one = script(rank=0, world=2).step(0, fetch=5).step(1).step(2, fetch=50).read()
    two = script(rank=1, world=2).step(0, map=7).step(1).read()
    found = [(s.identity.rank, r.step) for s, r in attribute.longest_waits([one, two], 10)]
    assert found == [(0, 2), (1, 0), (0, 0)]
    assert len(attribute.longest_waits([one, two], 2)) == 2


def test_start_up_is_what_comes_before_the_first_batch_without_a_restore(script):
    ms = 1_000_000
    assert attribute.startup_ns(script().at(700).step(0, fetch=5).read()) == 700 * ms
    assert attribute.startup_ns(script().at(700).add(restore_ns=300 * ms).step(0).read()) == 400 * ms
    assert attribute.startup_ns(script().at(700).read()) == 0


def test_a_quantile_is_a_value_that_was_there():
    assert attribute.quantile([], 0.99) == 0
    assert attribute.quantile([5], 0.99) == 5
    assert attribute.quantile(list(range(1, 101)), 0.99) == 99
    assert attribute.quantile([3, 1, 2], 1.0) == 3
    assert attribute.quantile([3, 1, 2], 0.0) == 1


def test_the_main_cause_is_the_largest_and_none_of_nothing():
    assert attribute.main_cause({Cause.FETCH: 1, Cause.MAP: 2}) is Cause.MAP
    assert attribute.main_cause(dict.fromkeys(Cause, 0)) is None


def test_the_account_of_a_whole_ledger_leaves_out_first_steps_and_saves(script):
    timeline = script().step(0, fetch=500).compute(7).save(1, 30).step(1, decode=60).compute(200)
    snapshot = timeline.step(2, map=30, handoff=10).compute(100).end().read()
    found = attribute.account([], [snapshot])
    assert found.utilisation == pytest.approx(utilisation([snapshot]))
    assert found.utilisation == pytest.approx(300 / 400)
    assert Cause.CHECKPOINT not in found.waits_ns


def test_the_account_between_two_readings_is_what_came_meanwhile(script):
    timeline = script().step(0, fetch=500).compute(7).step(1, fetch=60).compute(200)
    before = timeline.read()
    timeline.step(2, decode=30, fetch=10).compute(60)
    after = timeline.step(3, decode=30).compute(100).end().read()
    found = attribute.account([before], [after])
    assert found.wait_ns == 70_000_000
    assert found.decode_ratio == pytest.approx(60 / 70)
    # The compute of a step is counted when the next begins, so that of step 1 falls into the window.
    assert found.compute_ns == 360_000_000


def test_a_ledger_that_stands_still_has_no_account(script):
    snapshot = script().step(0, fetch=5).compute(7).step(1).compute(5).end().read()
    assert attribute.account([snapshot], [snapshot]) is None
    assert attribute.account([], []) is None


def test_an_account_of_nothing_has_no_ratios():
    empty = attribute.Account(0, 0, dict.fromkeys(Cause, 0))
    assert empty.utilisation is None
    assert empty.decode_ratio is None
