"""What a drain chooses: files, order and speed."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.checkpoint.drain_plan import Held, PaceLimits, RankPart, choose_next, pace, pause_s, plan_drain
from stoker.checkpoint.layout import StepId, receipt_name
from stoker.checkpoint.manifest import FileRecord, WrittenFile
from stoker.errors import ConfigError

RATES = st.floats(1.0, 1e12)


def part(rank, sizes):
    files = tuple(WrittenFile(f"rank-{rank:05d}.{i}", size, "r", ()) for i, size in enumerate(sizes))
    return RankPart(FileRecord(receipt_name(rank), 7, "r"), files)


@st.composite
def steps(draw):
    sizes = st.lists(st.integers(0, 50), max_size=3)
    step = [part(rank, draw(sizes)) for rank in range(draw(st.integers(1, 4)))]
    names = [file.name for p in step for file in p.files]
    there = draw(st.dictionaries(st.sampled_from(names), st.integers(0, 50))) if names else {}
    receipts = draw(st.sets(st.sampled_from([p.receipt.name for p in step])))
    return step, Held(there, frozenset(receipts))


@given(steps())
def test_every_file_is_copied_unless_a_receipt_of_its_rank_and_its_size_prove_it(drawn):
    step, held = drawn
    plan = plan_drain(step, held)
    copied = {file.name for p in plan.parts for file in p.files}
    for p in step:
        for file in p.files:
            proven = p.receipt.name in held.receipts and held.sizes.get(file.name) == file.bytes
            assert (file.name in copied) == (not proven)


@given(steps())
def test_a_receipt_is_copied_if_any_file_of_its_rank_is_or_if_it_is_not_there(drawn):
    step, held = drawn
    plan = plan_drain(step, held)
    again = {p.receipt.name: p.files for p in plan.parts}
    for p in step:
        assert (p.receipt.name in again) == (p.receipt.name not in held.receipts or bool(again.get(p.receipt.name)))


@given(steps())
def test_what_is_copied_and_what_is_kept_are_all_the_bytes_of_the_step(drawn):
    step, held = drawn
    plan = plan_drain(step, held)
    again = {p.receipt.name for p in plan.parts}
    rewritten = sum(p.receipt.bytes for p in step if p.receipt.name in again and p.receipt.name in held.receipts)
    assert plan.copied_bytes + plan.kept_bytes == sum(p.total_bytes for p in step)
    assert plan.copied_bytes == sum(p.total_bytes for p in plan.parts)
    assert rewritten <= plan.copied_bytes


@given(steps())
def test_nothing_is_copied_when_all_is_there_and_everything_when_nothing_is(drawn):
    step, _ = drawn
    sizes = {file.name: file.bytes for p in step for file in p.files}
    assert plan_drain(step, Held(sizes, frozenset(p.receipt.name for p in step))).parts == ()
    assert plan_drain(step, Held(sizes, frozenset())).kept_bytes == 0


@given(st.integers(0, 10**15), st.floats(0, 1e6), RATES, RATES)
def test_the_pace_is_half_the_interval_within_floor_and_ceiling(step_bytes, interval_s, a, b):
    limits = PaceLimits(min(a, b), max(a, b))
    rate = pace(step_bytes, interval_s, limits)
    assert limits.floor_bytes_per_s <= rate <= limits.ceiling_bytes_per_s
    if limits.floor_bytes_per_s < rate < limits.ceiling_bytes_per_s:
        assert math.isclose(step_bytes / rate, interval_s / 2, rel_tol=1e-9)


def test_100_gib_an_hour_are_drained_within_the_floor_and_in_half_of_ten_minutes_above_it():
    gib = 2**30
    assert pace(100 * gib, 3600, PaceLimits()) == 64 * 2**20
    assert pace(100 * gib, 600, PaceLimits()) == 100 * gib / 300
    assert pace(100 * gib, None, PaceLimits()) == 64 * 2**20
    assert pace(5, 0, PaceLimits()) == math.inf
    assert pace(5, 0, PaceLimits(1, 10)) == 10


@given(st.integers(0, 10**12), st.floats(0, 1e5), RATES)
def test_after_its_pause_a_drain_is_never_ahead_of_its_pace(moved_bytes, elapsed_s, rate):
    wait_s = pause_s(moved_bytes, elapsed_s, rate)
    assert wait_s >= 0
    assert moved_bytes <= (elapsed_s + wait_s) * rate * (1 + 1e-9) + 1e-6
    if wait_s > 0:
        assert math.isclose(elapsed_s + wait_s, moved_bytes / rate, rel_tol=1e-9)


@given(st.lists(st.builds(StepId, generation=st.integers(1, 3), step=st.integers(0, 9))))
def test_the_newest_step_is_next_and_all_others_are_overtaken(waiting):
    chosen = choose_next(waiting)
    if not waiting:
        assert chosen is None
        return
    newest, overtaken = chosen
    assert newest == max(waiting)
    assert {newest, *overtaken} == set(waiting)
    assert newest not in overtaken


@pytest.mark.parametrize(("floor", "ceiling"), [(0, 1), (2, 1), (-1, 5)])
def test_limits_that_no_drain_can_keep_are_refused(floor, ceiling):
    with pytest.raises(ConfigError, match="floor"):
        PaceLimits(floor, ceiling)
