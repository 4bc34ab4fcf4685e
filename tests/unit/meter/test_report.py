"""The report of scripted runs equals what is worked out by hand."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from stoker.errors import ConfigError, NotFound
from stoker.meter import report as room
from stoker.meter.report import DrainPart, Report, build_report

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "report.md"
S = 1_000_000_000


@pytest.fixture
def run(script):
    """Two ranks, two starts: killed after step 4, resumed at step 3."""
    ledgers = []
    for rank in (0, 1):
        slow = 100 * rank
        one = script(rank=rank, world=2, generation=1, host=f"node-{rank}").at(2000).step(0, fetch=400)
        one.compute(100).step(1, fetch=100 + slow).compute(100).save(2, 20 + slow, staged_bytes=5000)
        one.step(2, decode=40).compute(100).step(3, map=30).compute(100).step(4, handoff=10)
        one.add(bytes_read=1_000_000, reads=10, checkpoint_bytes=5000, checkpoints_committed=1)
        two = script(rank=rank, world=2, generation=2, host=f"node-{rank}").at(1000)
        two.add(restores=1, restore_ns=S // 4, restored_bytes=4000, verified_bytes=5000)
        two.step(3, fetch=200).compute(100).step(4, fetch=50 + slow).compute(100).save(5, 40, staged_bytes=5000)
        two.end().add(bytes_read=500_000, reads=5, copied_batches=1, checkpoint_bytes=5000, checkpoints_committed=1)
        ledgers += [one.read(), two.close().read()]
    return ledgers


def test_waits_by_cause_compute_and_their_ratio_are_sums_over_ranks_and_generations(run):
    report = build_report(run)
    assert report.wait_s_by_cause == {
        "fetch": pytest.approx(2 * (0.4 + 0.1 + 0.2 + 0.05) + 0.2),
        "decode": pytest.approx(0.08),
        "map": pytest.approx(0.06),
        "handoff": pytest.approx(0.02),
        "checkpoint": pytest.approx(0.02 + 0.12 + 0.04 + 0.04),
    }
    assert report.wait_s == pytest.approx(1.7 + 0.16 + 0.22)
    # Generation 1 was killed in the compute of step 4, which nothing closed.
    assert report.compute_s == pytest.approx(2 * (0.4 + 0.2))
    assert report.wait_ratio == pytest.approx(2.08 / (2.08 + 1.2))


def test_utilisation_is_that_of_dlio(run):
    # Without first steps: compute 0.3 + 0.1; waits 0.18 + 0.05, on rank 1 0.1 more in each generation.
    assert build_report(run).accelerator_utilisation == pytest.approx((0.4 / 0.63 + 0.4 / 0.83) / 2)


def test_gpu_hours_are_rank_hours_and_money_is_hours_by_price(run):
    report = build_report(run, gpu_hour_price=3600.0)
    # Generation 1: 2.0 of start-up and 1.0 (rank 1: 1.2) of steps; generation 2: 1.0 + 0.49 (0.59).
    assert report.gpu_hours * 3600 == pytest.approx(3.0 + 3.2 + 1.49 + 1.59)
    assert report.gpu_hours_waited * 3600 == pytest.approx(2.08)
    assert report.money_waited == pytest.approx(2.08)
    assert build_report(run).money_waited is None
    assert build_report(run, gpu_hour_price=0).money_waited == 0


def test_steps_trained_again_are_counted_and_told(run):
    report = build_report(run)
    assert (report.steps, report.steps_repeated, report.samples) == (5 + 2, 2, 2 * 7 * 16)
    assert "2 steps trained again" in str(report)
    one, two = report.generations
    assert (one.first_step, one.last_step, one.steps, one.closed) == (0, 4, 5, False)
    assert (two.first_step, two.last_step, two.steps, two.closed) == (3, 4, 2, True)


def test_start_up_restore_and_first_batch_stand_apart(run):
    report = build_report(run)
    one, two = report.generations
    assert (one.startup_s, one.first_batch_s) == (pytest.approx(2.0), pytest.approx(0.4))
    assert (two.startup_s, two.first_batch_s) == (pytest.approx(0.75), pytest.approx(0.2))
    assert (one.wall_s, two.wall_s) == (pytest.approx(3.2), pytest.approx(1.59))
    assert report.wall_s == pytest.approx(3.2 + 1.59)
    assert report.restore.count == 1
    assert report.restore.seconds == pytest.approx(0.25)
    assert (report.restore.bytes, report.restore.verified_bytes) == (8000, 10_000)


def test_checkpoints_are_counted_once_a_step_and_their_bytes_over_ranks(run):
    saves = build_report(run).checkpoint
    assert (saves.count, saves.committed, saves.failed, saves.bytes, saves.staged_bytes) == (2, 2, 0, 20_000, 20_000)
    assert saves.blocked_s_median == pytest.approx(0.04)
    assert saves.blocked_s_max == pytest.approx(0.12)
    assert saves.verified is True


def test_drains_are_summed_over_starts_and_what_is_on_the_way_is_that_of_the_last(script):
    first = script(generation=1).step(0).add(drained_steps=2, drained_bytes=2000, drain_ns=3 * 10**9, drain_backlog=1)
    second = (
        script(generation=2)
        .step(1)
        .add(drained_steps=1, drained_bytes=500, drain_ns=10**9, drain_backlog=2, drains_failed=1, drains_overtaken=3)
    )
    report = build_report([first.read(), second.read()])
    assert report.drain == DrainPart(steps=3, failed=1, overtaken=3, backlog=2, bytes=2500, seconds=4.0)
    assert "3 steps reached the far tier, 2.4 KiB in 4.0 s, 2 on the way, 3 overtaken, 1 failed" in str(report)
    assert "drains" not in str(build_report([script().step(0).read()]))
    assert report.metrics["stoker_drain_backlog_steps"] == 2


def test_restored_bytes_that_nobody_checked_are_told(script):
    assert (
        build_report([script().add(restores=1, restored_bytes=10, verified_bytes=9).read()]).checkpoint.verified
        is False
    )
    assert build_report([script().add(restores=1).read()]).checkpoint.verified is False
    assert build_report([script().read()]).checkpoint.verified is None


def test_the_slowest_rank_and_the_longest_waits_are_named(run):
    report = build_report(run)
    assert (report.slowest_rank.rank, report.slowest_rank.generation) == (1, 2)
    assert report.slowest_rank.wait_s == pytest.approx(0.2 + 0.05 + 0.1 + 0.04)
    assert report.slowest_rank.cause == "fetch"
    longest = report.longest_waits
    assert [(p.rank, p.generation, p.step) for p in longest] == [(0, 1, 0), (1, 1, 0), (1, 1, 1), (0, 2, 3), (1, 2, 3)]
    assert longest[0].wait_s == pytest.approx(0.4)
    assert {p.cause for p in longest} == {"fetch"}


def test_ranks_are_compared_within_the_newest_start_alone(script):
    long_ago = script(rank=0, world=1, generation=1).step(0, fetch=9000).compute(1)
    now = [script(rank=r, world=2, generation=2).step(0, fetch=10 + r).compute(1) for r in (0, 1)]
    slowest = build_report([s.read() for s in (long_ago, *now)]).slowest_rank
    assert (slowest.rank, slowest.generation, slowest.wait_s) == (1, 2, pytest.approx(0.011))
    assert build_report([long_ago.read(), now[1].read()]).slowest_rank is None  # of one rank there is no slowest


def test_a_report_shows_itself_on_one_line(run, script):
    shown = repr(build_report(run))
    assert shown == "<Report of run 'run-42': 7 steps, 2.1 s waited, 63.4% of wait and compute; print() shows it>"
    assert repr(build_report([script(run="").read()])).startswith("<Report of a run without a name: 0 steps")


def test_the_wait_a_step_is_told_by_median_tail_and_maximum(script):
    timeline = script()
    for number in range(200):
        timeline.step(number, fetch=100 if number in (50, 100, 150) else 2).compute(1)
    waits = build_report([timeline.read()]).step_wait_s
    assert (waits.median, waits.p99, waits.max) == (pytest.approx(0.002), pytest.approx(0.1), pytest.approx(0.1))


def test_copies_of_a_ledger_count_once(run):
    assert build_report([*run, *run]) == build_report(run)


def test_a_run_that_recorded_nothing_yet_has_a_report(script):
    report = build_report([script().at(10).read()])
    assert (report.steps, report.wait_ratio, report.accelerator_utilisation) == (0, 0.0, None)
    assert report.generations[0].first_step == -1
    assert report.slowest_rank is None
    assert "not known" in str(report)
    assert "none yet" in str(report)


def test_no_ledger_several_runs_and_impossible_prices_are_errors(script):
    with pytest.raises(NotFound):
        build_report([])
    with pytest.raises(ConfigError, match="'a', 'b'"):
        build_report([script(run="b").read(), script(run="a", rank=1).read()])
    for price in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="price"):
            build_report([script().read()], gpu_hour_price=price)


def test_injected_time_shows_under_its_cause_and_in_the_proportion_it_was_injected(script):
    timeline = script().step(0)
    for number in range(1, 20):
        timeline.compute(10).step(number, fetch=60, decode=40)
    by_cause = build_report([timeline.read()]).wait_s_by_cause
    assert by_cause["fetch"] == pytest.approx(19 * 0.06)
    assert by_cause["decode"] / by_cause["fetch"] == pytest.approx(40 / 60)
    assert by_cause["map"] + by_cause["handoff"] + by_cause["checkpoint"] == 0


TEXT = """\
run run-42: 2 ranks on 2 hosts, 2 starts, 4.8 s by the clock
  trained        7 steps, 224 samples; 2 steps trained again after a restart
  read           2.9 MiB in 30 reads; 2 batches copied, as no slot was free
  compute        1.2 s over all ranks
  host wait      2.1 s over all ranks, 63.4% of wait and compute; a step 75 ms (median), 400 ms (p99)
    fetch           1.7 s   81.7%
    decode          80 ms    3.8%
    map             60 ms    2.9%
    handoff         20 ms    1.0%
    checkpoint     220 ms   10.6%
  utilisation    55.8% (DLIO: without each start's first step and saves, mean of 2 ranks)
  GPU-hours      0.00058 waited of 0.0026, cost 0.0014 at 2.5 a GPU-hour
  first batch    waited 400 ms, 2.0 s of start-up before it was asked for (start 1, the slowest)
  checkpoints    2 saves, 2 committed, 19.5 KiB; blocked 40 ms (median), 120 ms (longest)
  restores       1 in 250 ms, 7.8 KiB read, 9.8 KiB checked against digests
  slowest rank   1 of 2 in start 2: 390 ms, most for fetch
  longest waits  step 0 rank 0: 400 ms (fetch), step 0 rank 1: 400 ms (fetch), step 1 rank 1: 200 ms (fetch)
Waits are host time: the training loop stood still in next() or save(). What the device idled is not in it."""


def test_the_text_fits_a_screen_and_says_what_is_counted(run):
    assert str(build_report(run, gpu_hour_price=2.5)) == TEXT


def test_the_text_of_one_rank_does_not_speak_of_ranks(script):
    text = str(build_report([script(run="").step(0, fetch=5).compute(5).step(1).read()]))
    assert text.startswith("a run without a name: 1 rank on 1 host, 1 start")
    assert "slowest rank" not in text
    assert "over all ranks" not in text
    assert "longest waits  step 0: 5.0 ms (fetch)\n" in text
    assert "checkpoints" not in text


def test_ranks_whose_ledgers_are_elsewhere_are_told(script):
    assert "1 of 8 ranks at hand" in str(build_report([script(rank=3, world=8).read()]))


def test_the_json_is_plain_and_complete(run):
    report = build_report(run, gpu_hour_price=2.5)
    text = json.dumps(report.to_json(), allow_nan=False)
    back = json.loads(text)
    assert back["format"] == 1
    assert "not device idle" in back["counted"]
    assert back["generations"][0]["first_step"] == 0
    assert back["wait_s_by_cause"]["fetch"] == pytest.approx(1.7)
    assert back["metrics"]["stoker_steps_total"] == 14
    assert set(back) == {"format", "counted", *(f.name for f in fields(Report))}
    assert pickle.loads(pickle.dumps(report)) == report


def test_the_reference_page_names_every_field_of_the_json():
    parts = [c for c in vars(room).values() if is_dataclass(c) and c.__module__ == room.__name__]
    told = set(re.findall(r"`([a-z0-9_]+)`", PAGE.read_text()))
    missing = {f.name for part in parts for f in fields(part)} - told
    assert not missing
