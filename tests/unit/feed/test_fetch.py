import sys
import threading
import time

import numpy as np
import pytest

from stoker.dataset.open import open_dataset
from stoker.dataset.order import OrderedBatch
from stoker.errors import CapacityError, DigestMismatch, Truncated
from stoker.feed.fetch import FetchPool, Job, SampleReader
from stoker.feed.plan import plan_batch
from stoker.values import Key


@pytest.fixture
def pool():
    pool = FetchPool(4)
    yield pool
    assert pool.close(10) == 0


class Finished:
    """Collects jobs that are done."""

    def __init__(self):
        self.jobs = []
        self.event = threading.Event()

    def __call__(self, job):
        self.jobs.append(job)
        self.event.set()

    def wait(self):
        assert self.event.wait(10)
        self.event.clear()
        return self.jobs[-1]


def test_every_part_is_done_once_and_then_the_job(pool):
    seen, finished = [], Finished()
    job = Job(0, 1000, lambda i: seen.append(i) or 3, finished)
    pool.submit(job)
    assert finished.wait() is job
    assert sorted(seen) == list(range(1000))
    assert (job.left, job.error, pool.read_count, pool.read_bytes) == (0, None, 1000, 3000)


def test_a_job_of_nothing_is_done_at_once(pool):
    finished = Finished()
    pool.submit(Job(0, 0, lambda i: 1, finished))
    assert len(finished.jobs) == 1
    assert pool._threads == []


def test_parts_that_read_nothing_are_no_reads(pool):
    finished = Finished()
    pool.submit(Job(0, 10, lambda i: i % 2, finished))
    finished.wait()
    assert (pool.read_count, pool.read_bytes) == (5, 5)


def test_threads_are_started_and_woken_for_reads_that_wait_for_one_and_no_others():
    pool, finished = FetchPool(64), Finished()
    woken = []
    plain = pool._take

    def take(**flags):
        turn = plain(**flags)
        woken.append(turn is not None)
        return turn

    pool._take = take
    for step in range(30):
        pool.submit(Job(step, 1, lambda _: time.sleep(0.003) or 1, finished))
        finished.wait()
    assert len(pool._threads) <= 4
    assert pool._waiting_count == 0
    assert pool.close(10) == 0
    assert woken.count(True) == 30


def test_what_nobody_has_taken_is_counted_also_when_a_job_fails_or_is_abandoned(pool):
    gate, finished = threading.Event(), Finished()

    def do(index):
        assert gate.wait(10)
        if index % 2:
            raise Truncated("ends")
        return 1

    jobs = [Job(step, 50, do, finished) for step in range(4)]
    for job in jobs:
        pool.submit(job)
    pool.abandon(jobs[3])
    assert pool._waiting_count == sum(stop - start for job in jobs for start, stop in job.parts) > 0
    gate.set()
    while len(finished.jobs) < 4:
        finished.wait()
    assert pool._waiting_count == 0


@pytest.mark.alone
def test_slow_parts_are_done_side_by_side_by_as_many_threads_as_there_are(pool):
    running, most, finished, lock = set(), [], Finished(), threading.Lock()

    def do(index):
        with lock:
            running.add(index)
            most.append(len(running))
        time.sleep(0.02)
        with lock:
            running.discard(index)
        return 1

    begin = time.perf_counter()
    pool.submit(Job(0, 8, do, finished))
    finished.wait()
    assert max(most) == 4
    assert time.perf_counter() - begin < 8 * 0.02


@pytest.mark.alone
def test_fast_parts_need_few_threads_and_slow_ones_bring_all_of_them_back(pool, until):
    finished = Finished()
    for step in range(20):
        pool.submit(Job(step, 200, lambda i: 1, finished))
    until(lambda: len(finished.jobs) == 20)
    assert pool._width() == 1
    running, most, lock = set(), [], threading.Lock()

    def slow(index):
        with lock:
            running.add(index)
            most.append(len(running))
        time.sleep(0.01)
        with lock:
            running.discard(index)
        return 1

    pool.submit(Job(21, 30, slow, finished))
    until(lambda: len(finished.jobs) == 21)
    assert max(most) == 4


def test_a_part_that_hangs_does_not_hold_up_the_others_though_few_threads_were_enough_before(pool, until):
    finished, gate = Finished(), threading.Event()
    for step in range(20):
        pool.submit(Job(step, 200, lambda i: 1, finished))
    until(lambda: len(finished.jobs) == 20)
    assert pool._width() == 1
    for step in (20, 21):
        pool.submit(Job(step, 1, lambda i: gate.wait(10) and 1, finished))
    pool.submit(Job(22, 500, lambda i: 1, finished))
    until(lambda: [job.step for job in finished.jobs[20:]] == [22])
    gate.set()
    until(lambda: len(finished.jobs) == 23)


def test_the_earliest_step_goes_first():
    pool, order, finished, gate = FetchPool(1), [], Finished(), threading.Event()
    pool.submit(Job(9, 1, lambda i: gate.wait(10) and 1, finished))
    for step in (5, 3, 4):
        pool.submit(Job(step, 2, lambda i, step=step: order.append(step) or 1, finished))
    gate.set()
    while len(finished.jobs) < 4:
        finished.wait()
    assert order == [3, 3, 4, 4, 5, 5]
    pool.close(10)


def test_after_an_error_no_more_is_begun_and_the_first_error_is_kept(pool):
    finished, seen = Finished(), []

    def do(index):
        seen.append(index)
        if index == 3:
            raise KeyError(index)
        return 1

    pool.submit(Job(0, 1000, do, finished))
    job = finished.wait()
    assert isinstance(job.error, KeyError)
    assert len(seen) < 1000
    pool.submit(Job(1, 10, lambda i: 1, finished))
    assert finished.wait().error is None  # the threads live on


def test_an_abandoned_job_is_done_when_what_runs_has_ended(pool):
    finished, gate, seen = Finished(), threading.Event(), []

    def do(index):
        seen.append(index)
        gate.wait(10)
        return 1

    job = Job(0, 100, do, finished)
    pool.submit(job)
    pool.abandon(job)
    assert finished.jobs == []
    gate.set()
    assert finished.wait() is job
    assert len(seen) <= 4
    pool.abandon(job)
    assert len(finished.jobs) == 1


def test_a_job_abandoned_before_it_is_submitted_is_done_once(pool):
    finished = Finished()
    job = Job(0, 10, lambda i: 1, finished)
    pool.abandon(job)
    pool.submit(job)
    assert finished.jobs == [job]


def test_closing_ends_jobs_that_wait_and_those_that_run(until):
    pool, finished, gate = FetchPool(2), Finished(), threading.Event()
    for step in range(5):
        pool.submit(Job(step, 50, lambda i: gate.wait(10) and 1, finished))
    until(lambda: len(pool._reading) == 2 and len(pool._threads) == 2)
    assert pool.close(0.01) == 2
    gate.set()
    assert pool.close(10) == 0
    assert len(finished.jobs) == 5
    late = Job(9, 5, lambda i: 1, finished)
    pool.submit(late)
    assert finished.jobs[-1] is late
    assert late.left == 5


@pytest.fixture
def read_batch(make_store, watched):
    """Read samples of a data set with fields a and b in this thread; returns their memory and the plan."""

    def read_batch(samples, change=lambda store: None):
        store = make_store([(f"s{i}", {"a": bytes([i]) * i, "b": bytes([i + 100]) * 70}) for i in range(10)])
        opened = open_dataset(store)
        ordered = OrderedBatch(0, 0, np.array(samples), np.ones(len(samples), np.bool_))
        plan = plan_batch(opened, ordered, ("b", "a"))
        change(store)
        memory = bytearray(plan.nbytes)
        reader = SampleReader(store, opened.objects.keys, plan, memoryview(memory))
        for index in range(plan.sizes.size):
            assert reader(index) == plan.sizes.ravel()[index]
        return bytes(memory), plan

    return read_batch


def test_each_read_lands_in_its_place(read_batch):
    memory, plan = read_batch([7, 2, 2, 0])
    assert memory[:280] == bytes([107]) * 70 + bytes([102]) * 140 + bytes([100]) * 70
    assert plan.field_starts == (0, 320)
    assert memory[320:331] == bytes([7]) * 7 + bytes([2]) * 4
    assert memory[331:] == bytes(len(memory) - 331)


def alter(store, byte):
    key = Key("shard-000000.tar")
    data = bytearray(store.read(key))
    data[data.index(byte * 7)] ^= 1
    store.write(key, data)


def test_a_wrong_byte_is_an_error_that_names_sample_field_and_object(read_batch):
    with pytest.raises(DigestMismatch, match="field 'a' of sample 's7' has crc32c") as caught:
        read_batch([1, 7], change=lambda store: alter(store, bytes([7])))
    assert "shard-000000.tar in memory://data" in caught.value.where


def test_what_the_store_raises_is_raised_as_it_is(read_batch):
    def cut(store):
        store.write(Key("shard-000000.tar"), store.read(Key("shard-000000.tar"))[:3000])

    with pytest.raises(Truncated):
        read_batch([1, 9], change=cut)


@pytest.fixture
def threads_to_be_had(monkeypatch):
    """Lets the system give so many threads of the pool, and no more."""

    def limit(count):
        start, given = threading.Thread.start, []

        def refuse(thread):
            if thread.name.startswith("stoker-fetch-"):
                if len(given) == count:
                    raise RuntimeError("can't start new thread")
                given.append(thread)
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse)

    return limit


@pytest.mark.parametrize("count", [1, 2, 3])
def test_where_the_system_gives_few_threads_they_do_all_the_work(pool, threads_to_be_had, caplog, count):
    threads_to_be_had(count)
    seen = []
    for step in range(3):
        finished = Finished()
        pool.submit(Job(step, 40, lambda i: time.sleep(0.001) or seen.append(i) or 3, finished))
        assert finished.wait().error is None
    assert sorted(seen) == sorted([*range(40)] * 3)
    assert len(pool._threads) == count
    assert f"{count} threads read, since the system gives no more: can't start new thread" in caplog.text


def test_without_any_thread_the_limit_is_named(pool, threads_to_be_had):
    threads_to_be_had(0)
    with pytest.raises(CapacityError, match="no thread to read with: can't start new thread") as caught:
        pool.submit(Job(0, 10, lambda i: 1, Finished()))
    assert "ulimit -u" in caught.value.hint


def test_done_comes_once_however_the_threads_take_turns(pool, until):
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        finished = Finished()
        for step in range(2000):
            pool.submit(Job(step, step % 3, lambda i: 1, finished))
        until(lambda: len(finished.jobs) >= 2000)
        time.sleep(0.01)
    finally:
        sys.setswitchinterval(switch)
    assert sorted(job.step for job in finished.jobs) == list(range(2000))
