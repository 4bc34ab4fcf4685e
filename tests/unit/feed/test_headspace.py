"""What a step costs without storage: kept batches, handed over in turn, clocked."""

import json
import re

import pytest

from stoker.errors import ClosedError, ConfigError
from stoker.feed.headspace import Headspace, kept_steps


@pytest.fixture
def clock():
    """A clock that stands still but for `advance`."""

    class Clock:
        now_ns = 1_000

        def __call__(self):
            return self.now_ns

        def advance(self, milliseconds):
            self.now_ns += milliseconds * 1_000_000

    return Clock()


def test_the_next_batches_of_training_are_repeated_and_nothing_is_read_for_it(make_store, numbered, load, watched):
    store = watched(make_store(numbered(80)))
    data = load(store, epochs=2, prefetch_bytes=0)
    loop = iter(data)
    expected = [[bytes(sample) for sample in next(loop)["bin"]] for _ in range(5)]
    data.seek(data.position(after=1))
    replay = data.headspace(count=3, steps=8)
    reads = len(store.reads)
    got = [(batch.step, [bytes(sample) for sample in batch["bin"]]) for batch in replay]
    assert len(store.reads) == reads
    assert got == [(2 + i % 3, expected[2 + i % 3]) for i in range(8)]
    assert replay.report().free.steps == 7


def test_training_stands_where_it_stood_and_its_account_is_not_touched(make_store, numbered, load, ledger):
    data = load(make_store(numbered(50)))
    loop = iter(data)
    next(loop)
    before = ledger.snapshot().totals
    for _ in data.headspace(count=2, steps=4):
        pass
    after = ledger.snapshot().totals
    assert (after.steps, after.wait_ns) == (before.steps, before.wait_ns)
    assert [batch.step for batch in loop] == [1, 2, 3, 4, 5]


def test_kept_batches_hold_no_slots(make_store, numbered, load, until):
    data = load(make_store(numbered(50)), prefetch_bytes=1 << 12)
    replay = data.headspace(count=6, steps=6)
    until(lambda: data.stats().lent_bytes == 0)
    assert data.stats().copied_batches == 0
    assert [batch.step for batch in replay] == list(range(6))


def test_the_report_says_what_a_step_costs(clock, make_store, numbered, load, ledger):
    data = load(make_store(numbered(80)), batch=8)
    kept = [data._handover.keep(step) for step in range(2)]
    waits = iter([1000, 40])
    replay = Headspace(kept, 5, trained=ledger.snapshot, wait=lambda: clock.advance(next(waits)), clock=clock)
    for _ in replay:
        clock.advance(100)
    report = replay.report()
    # Steps 1 to 4 of 100 ms, and 40 ms of the device at their end; step 0 is cold, and so is what it left the device.
    assert report.free.steps == 4
    assert report.free.step_s == pytest.approx(0.110)
    assert report.free.utilisation == pytest.approx(1.0)
    assert report.samples_per_s == pytest.approx(8 / 0.110)
    assert report.trained is None
    assert re.fullmatch(r"without storage: 110 ms a step, utilisation 1\.000 \(4 steps over 2 kept .*\)", str(report))


def test_the_steps_of_training_stand_beside_it(make_store, numbered, load, ledger):
    data = load(make_store(numbered(50)))
    for _ in data:
        pass
    for _ in (replay := data.headspace(count=2, steps=3)):
        pass
    report = replay.report()
    assert report.trained is not None
    assert report.trained.steps == 5
    assert 0 <= report.trained.utilisation <= 1
    assert "in training:" in str(report)
    assert json.loads(json.dumps(report.to_json()))["trained"]["steps"] == 5


def test_a_report_before_the_end_is_refused(make_store, numbered, load):
    replay = load(make_store(numbered(50))).headspace(count=2, steps=3)
    next(replay)
    with pytest.raises(ConfigError, match="has had 1 of 3 batches"):
        replay.report()
    assert [batch.step for batch in replay] == [1, 0]
    assert list(replay) == []
    assert replay.report().batches == 2


@pytest.mark.parametrize(
    ("first", "count", "total", "expected"),
    [(0, 3, 10, (0, 3)), (8, 3, 10, (7, 10)), (10, 4, 10, (6, 10)), (2, 9, 5, (0, 5))],
)
def test_the_last_batches_serve_where_there_are_no_more(first, count, total, expected):
    assert kept_steps(first, count, total) == range(*expected)


@pytest.mark.parametrize(("count", "steps"), [(0, 5), (1.5, 5), (2, 1), (2, "3")])
def test_numbers_that_make_no_sense_are_refused(make_store, numbered, load, count, steps):
    with pytest.raises(ConfigError, match="must be"):
        load(make_store(numbered(50))).headspace(count=count, steps=steps)


def test_a_closed_loader_has_none(make_store, numbered, load):
    data = load(make_store(numbered(50)))
    data.close()
    with pytest.raises(ClosedError):
        data.headspace()


def test_an_evaluation_has_one_too(make_store, numbered, load):
    replay = load(make_store(numbered(50)), shuffle=False).headspace(count=20, steps=10)
    assert [batch.step for batch in replay] == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2]
    assert replay.report().samples_per_s > 0
