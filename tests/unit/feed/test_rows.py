"""Rows without checksums: how many are read at a time, and that each comes to its place."""

import numpy as np
import pytest

from stoker.dataset.order import OrderedBatch
from stoker.dataset.tokens import OpenTokens
from stoker.dataset.windows import TokenWindows
from stoker.errors import Truncated
from stoker.feed.fetch import SampleReader
from stoker.feed.plan import plan_batch
from stoker.feed.rows import RowPace, RowReader
from stoker.store.local import LocalStore
from stoker.store.memory import MemoryStore
from stoker.testing.stores import WrappedStore


class Scattering(WrappedStore):
    """Counts the reads that are done in one."""

    def __init__(self, inner):
        super().__init__(inner)
        self.parts = []

    def read_each(self, keys, starts, buffers):
        self.parts.append("".join(key[0] for key in keys))
        self.inner.read_each(keys, starts, buffers)


@pytest.fixture
def opened(tmp_path):
    for name in "ab":
        np.arange(400, dtype="<u4").tofile(tmp_path / f"{name}.bin")
    store = Scattering(LocalStore(tmp_path))
    return OpenTokens(store, TokenWindows(4, "uint32"), sorted(store.list(), key=lambda info: info.key))


def pace_of(opened, joined=lambda _: None):
    return RowPace(opened.store, opened.objects.keys, joined)


def plan_of(opened, samples):
    samples = np.array(samples)
    return plan_batch(opened, OrderedBatch(0, 0, samples, np.ones(len(samples), np.bool_)), ("tokens",))


def read(pace, opened, samples):
    plan = plan_of(opened, samples)
    memory = np.zeros(plan.nbytes, np.uint8)
    reader = pace.reader(plan, memoryview(memory))
    assert sum(reader(index) for index in range(len(reader))) == len(samples) * 16
    return memory[: len(samples) * 16].view("<u4").reshape(len(samples), 4)


def test_rows_are_joined_once_reads_were_quick(opened):
    joined = []
    pace = pace_of(opened, joined.append)
    samples = [150, 3, 199, 0, 3, 100]
    for quick in (False, True):
        if quick:
            pace.learn(1, 1e-6)
        rows = read(pace, opened, samples)
        assert rows[:, 0].tolist() == [s % 100 * 4 for s in samples]
        if not quick:
            assert opened.store.parts == list("babaab")
            assert joined == []
            pace = pace_of(opened, joined.append)
    assert opened.store.parts[6:] == ["babaab"]
    assert joined == [5]


def test_rows_of_a_slow_store_stay_reads_of_their_own(opened):
    pace = pace_of(opened)
    pace.learn(1, 0.001)
    read(pace, opened, list(range(20)))
    assert opened.store.parts == ["a"] * 20


def test_when_files_turn_cold_rows_are_reads_of_their_own_from_the_next_batch_on(opened):
    pace = pace_of(opened)
    pace.learn(64, 64e-6)
    pace.learn(64, 64 * 0.005)
    read(pace, opened, list(range(20)))
    assert opened.store.parts == ["a"] * 20


def test_one_row_in_a_hundred_that_waits_leaves_the_others_joined(opened):
    pace = pace_of(opened)
    for _ in range(50):
        pace.learn(100, 99 * 2e-6 + 0.001)
    read(pace, opened, list(range(20)))
    assert opened.store.parts == ["a" * 20]


def test_where_there_are_checksums_or_nothing_to_join_samples_are_read_one_by_one(opened, make_store, numbered):
    from stoker.dataset.open import open_dataset

    packed = open_dataset(make_store(numbered(4)))
    plan = plan_batch(packed, OrderedBatch(0, 0, np.arange(4), np.ones(4, np.bool_)), ("bin",))
    assert isinstance(pace_of(opened).reader(plan, memoryview(bytearray(plan.nbytes))), SampleReader)
    plan = plan_of(opened, [0, 1])
    memory = memoryview(bytearray(plan.nbytes))
    assert isinstance(pace_of(opened).reader(plan, memory), RowReader)
    assert isinstance(RowPace(MemoryStore("plain"), opened.objects.keys, print).reader(plan, memory), SampleReader)


def test_quick_rows_are_read_in_the_thread_that_planned_them_and_the_rest_when_they_are_not(opened, monkeypatch):
    def reader_of(row_s, count=100):
        pace = pace_of(opened)
        if row_s:
            pace.learn(1, row_s)
        plan = plan_of(opened, list(range(100)) * (count // 100))
        return pace.reader(plan, memoryview(bytearray(plan.nbytes)))

    for row_s, count in ((0, 100), (21e-6, 100), (15e-6, 200)):
        assert reader_of(row_s, count).read_here() == (0, 0)
    quick = reader_of(2e-6)
    assert (quick.read_here(), len(quick)) == ((2, 100 * 16), 0)
    clock = iter(range(100))
    turned_slow = reader_of(2e-6)
    with monkeypatch.context() as patched:
        patched.setattr("stoker.feed.rows.time.perf_counter", lambda: next(clock))
        assert turned_slow.read_here() == (1, 64 * 16)
    assert len(turned_slow) == 1
    assert turned_slow(0) == 36 * 16
    assert list(map(len, opened.store.parts)) == [64, 36, 64, 36]


def test_a_thread_that_is_preempted_once_is_not_taken_for_slow_storage(opened):
    pace = pace_of(opened)
    pace.learn(16, 16 * 5e-6)
    pace.learn(16, 0.004)
    assert pace.row_s == pytest.approx(5e-6)
    pace.learn(16, 16 * 5e-6)
    pace.learn(16, 0.004)
    pace.learn(16, 0.004)
    assert pace.row_s > 50e-6


def test_a_row_that_ends_early_is_named_among_those_it_is_read_with(opened, tmp_path):
    pace = pace_of(opened)
    pace.learn(1, 1e-6)
    plan = plan_of(opened, [3, 190, 120, 5])
    (tmp_path / "b.bin").write_bytes(bytes(400))
    reader = pace.reader(plan, memoryview(bytearray(plan.nbytes)))
    with pytest.raises(Truncated, match=r"'b.bin' ends at byte 400") as error:
        reader(0)
    assert (error.value.sample_row, error.value.is_bad_sample) == (1, True)
