import threading
import time

import numpy as np
import pytest

from stoker.dataset.describe import Dataset
from stoker.dataset.offsets import offsets_key
from stoker.dataset.open import open_dataset
from stoker.errors import (
    CapacityError,
    ClosedError,
    ConfigError,
    DigestMismatch,
    InternalError,
    NotFound,
    SampleError,
    TimedOut,
    Unavailable,
)
from stoker.feed.batch import Batch
from stoker.feed.decode import DECODERS
from stoker.feed.feeder import InlineFeeder
from stoker.feed.options import FeedOptions
from stoker.feed.plan import choose_fields
from stoker.testing.stores import SlowStore
from stoker.values import Key


@pytest.fixture
def feed(make_order):
    """A feeder over the data set in a store, all of it in manifest order, 2 epochs of `batch` samples a step."""
    made = []

    def feed(store, *, batch=4, describe=lambda d: d, prefetch_bytes=1 << 16, **options):
        opened = open_dataset(store)
        order = make_order(opened, batch, shuffle=False)
        spec = choose_fields(describe(Dataset(store)), opened.manifest, tuple(DECODERS))
        feeder = InlineFeeder(
            opened, order.batch, spec, FeedOptions(prefetch_bytes=prefetch_bytes, **options), 2 * order.steps_per_epoch
        )
        made.append(feeder)
        return feeder

    yield feed
    for feeder in made:
        feeder.close()


@pytest.fixture
def receive():
    """Ask for a step, and lend what comes."""

    def receive(feeder, step):
        return Batch(feeder.request(step))

    return receive


def numbers(batch, field="bin"):
    """The first number in each sample of `counted`."""
    return [int.from_bytes(bytes(sample[:4]), "little") for sample in batch[field]]


@pytest.fixture
def counted(make_store):
    """40 samples of 64 bytes that begin with their number: 20 batches of 256 bytes in two epochs."""

    def counted(count=40, size=64, **options):
        return make_store(
            [(f"s{i}", {"bin": i.to_bytes(4, "little") + bytes([i % 251]) * (size - 4)}) for i in range(count)],
            **options,
        )

    return counted


def expected(step):
    return [4 * (step % 10) + i for i in range(4)]


def test_any_step_can_be_asked_for_at_any_time(counted, feed, receive):
    rng = np.random.default_rng(1)
    for prefetch_bytes in (0, 256, 1024, 1 << 16):
        feeder = feed(counted(), prefetch_bytes=prefetch_bytes, patience_s=0.01)
        for step in [0, 1, 2, 19, 18, 5, 5, 6, 7, 0, *rng.integers(20, size=40).tolist()]:
            batch = receive(feeder, step)
            assert (batch.step, batch.epoch, numbers(batch)) == (step, step // 10, expected(step))


def test_a_step_that_does_not_exist_is_refused(counted, feed):
    feeder = feed(counted())
    for step in (-1, 20):
        with pytest.raises(ConfigError, match=f"no step {step}"):
            feeder.request(step)


def test_it_reads_ahead_of_the_last_step_asked_for_until_the_arena_is_full(counted, feed, receive, until):
    feeder = feed(counted(), prefetch_bytes=5 * 256)
    batch = receive(feeder, 3)
    until(lambda: feeder.stats().ready_batches == 4)
    assert sorted(feeder._works) == [4, 5, 6, 7]
    assert feeder.stats().bytes_in_flight == 4 * 256
    assert feeder.stats().lent_bytes == 256
    del batch
    until(lambda: feeder.stats().ready_batches == 5)
    receive(feeder, 12)
    until(lambda: sorted(feeder._works) == [13, 14, 15, 16, 17])
    assert feeder.stats().copied_batches == 0


def test_it_reads_ahead_no_further_than_the_last_step(counted, feed, receive, until):
    feeder = feed(counted())
    receive(feeder, 17)
    until(lambda: feeder.stats().ready_batches == 2)
    receive(feeder, 18)
    receive(feeder, 19)
    time.sleep(0.01)
    assert feeder.stats().ready_batches == 0


def test_what_lies_far_ahead_makes_room_for_what_is_asked_for(counted, feed, receive, until):
    feeder = feed(counted(), prefetch_bytes=5 * 256, patience_s=10)
    receive(feeder, 10)
    until(lambda: feeder.stats().ready_batches == 5)
    begin = time.monotonic()
    assert numbers(receive(feeder, 0)) == expected(0)
    assert time.monotonic() - begin < 5
    until(lambda: sorted(feeder._works) == [1, 2, 3, 4, 5])
    assert feeder.stats().copied_batches == 0


def test_reads_that_are_not_wanted_any_more_are_not_begun(counted, feed, receive, watched, until):
    store = watched(counted())
    feeder = feed(store, prefetch_bytes=8 * 256, threads=2)
    store.gate.clear()
    asking = threading.Thread(target=lambda: receive(feeder, 0))
    asking.start()
    until(lambda: len(feeder._works) == 8 and store.readers == 2)
    with pytest.raises(TimedOut):
        feed(store, threads=1, deadline_s=0).request(0)
    store.gate.set()
    asking.join()
    receive(feeder, 15)
    until(lambda: sorted(feeder._works) == [16, 17, 18, 19])
    until(lambda: feeder.stats().ready_batches == 4)
    assert feeder.stats().reads < 4 * 20


def test_a_reply_that_nobody_keeps_gives_its_slot_back(counted, feed, until):
    feeder = feed(counted(), prefetch_bytes=2 * 256, patience_s=10)
    replies = [feeder.request(step) for step in (0, 1)]
    assert feeder.stats().lent_bytes == 2 * 256
    replies.clear()
    until(lambda: feeder.stats().ready_batches == 2)
    assert feeder.stats().copied_batches == 0


def test_all_slots_come_back_in_the_end(counted, feed, receive, until):
    rng = np.random.default_rng(2)
    feeder = feed(counted(), prefetch_bytes=6 * 256, patience_s=0.001)
    held = []
    for _ in range(300):
        step = int(rng.integers(20))
        held.append((step, receive(feeder, step)))
        while len(held) > rng.integers(9):
            step, batch = held.pop(int(rng.integers(len(held))))
            assert numbers(batch) == expected(step)
            del batch
    assert feeder.stats().copied_batches > 0
    feeder.close()
    for step, batch in held:
        assert numbers(batch) == expected(step)
    del held, batch
    arena = feeder._arena
    arena.reclaim()
    assert arena.taken_bytes == 0


@pytest.mark.parametrize("prefetch_bytes", [0, 1 << 16])
def test_what_the_store_raises_is_raised_as_itself_when_its_batch_is_asked_for(
    counted, feed, receive, watched, prefetch_bytes, threads
):
    store = watched(counted())
    error = NotFound("no object 'shard-000000.tar'", "here", "there")
    offset = int(open_dataset(store).extents(np.array([9]), ("bin",)).offset[0, 0])
    store.errors[offset] = error
    feeder = feed(store, prefetch_bytes=prefetch_bytes)
    assert [numbers(receive(feeder, step)) for step in (0, 1)] == [expected(0), expected(1)]
    with pytest.raises(NotFound) as caught:
        feeder.request(2)
    assert caught.value is error
    assert numbers(receive(feeder, 3)) == expected(3)
    store.errors.clear()
    assert numbers(receive(feeder, 2)) == expected(2)  # asking again tries again
    feeder.close()
    assert threads() == []


def test_a_store_that_fails_is_asked_once_a_request_and_not_in_a_row(counted, feed, watched):
    store = watched(counted())
    offset = int(open_dataset(store).extents(np.array([0]), ("bin",)).offset[0, 0])
    store.errors[offset] = Unavailable("gone")
    feeder = feed(store, threads=1, prefetch_bytes=256)
    for count in (1, 2, 3):
        with pytest.raises(Unavailable):
            feeder.request(0)
        time.sleep(0.01)
        assert [start for start, _ in store.reads].count(offset) == count


def test_offsets_that_cannot_be_read_are_an_error_of_their_batch(counted, feed, receive):
    store = counted(size=1000, shard_bytes=8192)
    opened = open_dataset(store)
    feeder = feed(store)
    lost = offsets_key(Key("shard-000002.tar"))
    table = store.read(lost)
    store.delete(lost)
    first_lost = int(opened.objects.first_sample[2]) // 4
    for step in range(first_lost):
        receive(feeder, step)
    with pytest.raises(NotFound, match="offsets/shard-000002"):
        feeder.request(first_lost)
    with pytest.raises(NotFound):
        feeder.request(first_lost)
    store.write(lost, table)
    assert numbers(receive(feeder, first_lost)) == expected(first_lost)


def test_wrong_bytes_are_never_delivered(counted, feed, receive):
    store = counted()
    key = Key("shard-000000.tar")
    data = bytearray(store.read(key))
    data[data.index(bytes([6]) * 60)] ^= 1
    store.write(key, data)
    feeder = feed(store)
    assert numbers(receive(feeder, 0)) == expected(0)
    with pytest.raises(DigestMismatch, match="field 'bin' of sample 's6'"):
        feeder.request(1)
    assert numbers(receive(feeder, 2)) == expected(2)


@pytest.mark.alone
def test_a_wait_for_reads_has_a_deadline_and_says_what_it_waited_for(counted, feed, receive, watched):
    store = watched(counted())
    store.gate.clear()
    feeder = feed(store, deadline_s=0.1)
    with pytest.raises(TimedOut, match=r"the batch of step 0 .* after 100 ms: it waits for 4 of its 4 reads") as caught:
        feeder.request(0)
    assert caught.value.where == "memory://data"
    store.gate.set()
    assert numbers(receive(feeder, 0)) == expected(0)


@pytest.mark.alone
@pytest.mark.parametrize(("stage", "what"), [("decode", "the decoder"), ("map", "the map function")])
def test_a_wait_for_user_code_says_so(counted, feed, receive, stage, what):
    gate = threading.Event()

    def wait(value):
        gate.wait(10)
        return value

    def decoded(rows):
        return wait([bytes(row) for row in rows.views()])

    options = {"describe": lambda d: d.map(wait)}
    if stage == "decode":
        options = {"describe": lambda d: d.decode({"bin": "text"}), "decoders": {**DECODERS, "text": decoded}}
    feeder = feed(counted(), deadline_s=0.1, **options)
    with pytest.raises(TimedOut, match=f"it waits for {what}"):
        feeder.request(0)
    gate.set()
    assert numbers(receive(feeder, 0)) == expected(0)


@pytest.mark.alone
def test_a_wait_for_a_slot_says_so(counted, feed, receive):
    feeder = feed(counted(), prefetch_bytes=256, deadline_s=0.05)
    held = receive(feeder, 0)
    with pytest.raises(TimedOut, match="it waits for a free slot"):
        feeder.request(1)
    assert numbers(held) == expected(0)


def test_requests_of_several_threads_take_turns(counted, feed, receive, watched):
    feeder = feed(counted(), patience_s=0.01)
    failed = []

    def ask(number):
        for step in range(number, 20, 4):
            batch = receive(feeder, step)
            if numbers(batch) != expected(step):
                failed.append(step)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


@pytest.mark.alone
def test_a_request_behind_one_that_hangs_has_a_deadline_too(counted, feed, watched, until):
    store = watched(counted())
    store.gate.clear()
    feeder = feed(store, deadline_s=0.2)

    def hang():
        with pytest.raises(TimedOut):
            feeder.request(0)

    other = threading.Thread(target=hang)
    other.start()
    until(lambda: store.readers)
    feeder._options = FeedOptions(deadline_s=0.01)
    with pytest.raises(TimedOut, match="the batch of step 5 was not there after 10 ms"):
        feeder.request(5)
    other.join()
    store.gate.set()


def test_closing_ends_a_request_that_waits(counted, feed, watched, until):
    store = watched(counted())
    store.gate.clear()
    feeder = feed(store)
    errors = []

    def ask():
        try:
            feeder.request(0)
        except ClosedError as error:
            errors.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: store.readers)
    closing = threading.Thread(target=feeder.close)
    closing.start()
    asking.join(10)
    assert len(errors) == 1
    store.gate.set()
    closing.join(10)
    with pytest.raises(ClosedError):
        feeder.request(0)


def test_user_code_never_sees_what_was_not_read(counted, feed, receive, watched, until):
    seen = []
    store = watched(counted(), read_s=0.005)
    feeder = feed(store, threads=2, describe=lambda d: d.map(lambda s: seen.append(bytes(s["bin"])) or {"n": 1}))
    receive(feeder, 0)
    until(lambda: len(feeder._works) == 19)
    feeder.close()
    assert seen.count(bytes(64)) <= 2  # sample 0 is in two batches; memory that nothing was read into looks like it


def test_a_step_under_way_is_not_given_up_for_one_before_it_once_it_is_asked_for(
    counted, feed, receive, watched, until
):
    store = watched(counted())
    slow = int(open_dataset(store).extents(np.array([20]), ("bin",)).offset[0, 0])
    store.gates[slow] = threading.Event()
    feeder = feed(store, prefetch_bytes=5 * 256, patience_s=10)
    receive(feeder, 4)
    until(lambda: feeder.stats().ready_batches == 4)  # 6 to 9, and 5 is under way
    planning, plan, batches = threading.Event(), threading.Event(), feeder._outlook._batches

    def plan_slowly(step):
        if step == 2:
            planning.set()
            assert plan.wait(10)
        return batches(step)

    feeder._outlook._batches = plan_slowly
    receive(feeder, 0)
    assert planning.wait(10)
    assert 5 in feeder._works
    received = []
    asking = threading.Thread(target=lambda: received.append(receive(feeder, 5)))
    asking.start()
    until(lambda: feeder._asked == 5)
    plan.set()
    time.sleep(0.05)  # time enough to make room for 2 and 3 at the cost of 5
    store.gates[slow].set()
    asking.join(5)
    assert [numbers(batch) for batch in received] == [expected(5)]
    assert len([start for start, _ in store.reads if start == slow]) == 1


def test_a_store_that_never_answers_does_not_keep_close_for_ever(counted, feed, watched, until, monkeypatch, caplog):
    monkeypatch.setattr("stoker.feed.produce.CLOSE_S", 0.05)
    store = watched(counted())
    store.gate.clear()
    feeder = feed(store, deadline_s=0.01, threads=16)
    with pytest.raises(TimedOut):
        feeder.request(0)
    until(lambda: store.readers == 16)
    begin = time.monotonic()
    feeder.close()
    assert time.monotonic() - begin < 5
    assert "16 threads still wait for memory://data" in caplog.text
    store.gate.set()
    until(lambda: store.readers == 0)
    assert feeder._stages.join(10) == 0


def test_a_bug_in_the_planner_is_told_and_not_waited_for(counted, feed, monkeypatch):
    feeder = feed(counted())

    def fail(timeout_s):
        raise RuntimeError("bug")

    monkeypatch.setattr(feeder._arena, "reclaim", fail)

    def request_all():
        for step in range(20):
            feeder.request(step)

    with pytest.raises(InternalError, match=r"the feeder failed: RuntimeError\('bug'\)"):
        request_all()


def test_without_a_thread_to_read_with_the_limit_is_named(counted, feed, monkeypatch):
    start = threading.Thread.start

    def refuse(thread):
        if thread.name.startswith("stoker-fetch-"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    feeder = feed(counted(), gather_bytes=0)
    for _ in range(2):
        with pytest.raises(CapacityError, match="no thread to read with"):
            feeder.request(0)


@pytest.mark.alone
def test_offset_tables_of_a_batch_are_read_side_by_side(counted, feed, receive):
    store = SlowStore(counted(size=2000, shard_bytes=8192), read_s=0.05)
    feeder = feed(store, batch=40, prefetch_bytes=1 << 17)
    assert len(feeder._opened.objects) >= 8
    begin = time.monotonic()
    assert numbers(receive(feeder, 0)) == list(range(40))
    assert time.monotonic() - begin < 0.4  # one after the other they alone took that long


def doubled(sample):
    return {"x": np.frombuffer(sample["bin"], np.uint8).astype(np.uint16) * 2}


def mapped(description):
    return description.map(doubled)


def test_one_batch_shows_how_much_room_a_map_takes_and_then_the_others_are_begun(
    counted, feed, receive, watched, until
):
    gate = threading.Event()

    def f(sample):
        assert gate.wait(10)
        return doubled(sample)

    store = watched(counted())
    feeder = feed(store, describe=lambda d: d.map(f), prefetch_bytes=10 * (256 + 512))
    asking = threading.Thread(target=lambda: receive(feeder, 0))
    asking.start()
    until(lambda: len(store.reads) == 4)
    time.sleep(0.01)
    assert len(store.reads) == 4
    gate.set()
    asking.join()
    until(lambda: feeder.stats().ready_batches >= 9)
    assert feeder.stats().copied_batches == 0


@pytest.mark.parametrize("prefetch_bytes", [0, 256 + 512, 3 * (256 + 512), 1 << 16])
def test_mapped_batches_are_served_in_any_order_and_size_of_arena(counted, feed, receive, prefetch_bytes):
    feeder = feed(counted(), describe=mapped, prefetch_bytes=prefetch_bytes, patience_s=0.01)
    for step in [*range(20), 7, 3, 4, 19, 0]:
        batch = receive(feeder, step)
        assert batch["x"].shape == (4, 64)
        assert batch["x"][:, 0].tolist() == [2 * i for i in expected(step)]
        del batch
    feeder.close()
    feeder._arena.reclaim()
    assert feeder._arena.taken_bytes == 0


def test_a_map_whose_result_never_fits_is_refused_with_both_numbers(counted, feed):
    feeder = feed(counted(), describe=mapped, prefetch_bytes=256 + 511)
    with pytest.raises(ConfigError, match=r"prefetch_bytes is 767.* 256 bytes with the 512 .* needs 768") as caught:
        feeder.request(0)
    assert "prefetch_bytes=768" in caught.value.hint


def test_a_map_whose_results_grow_is_served(counted, feed, receive):
    def f(sample):
        number = int.from_bytes(bytes(sample["bin"][:4]), "little")
        return {"x": np.full(100 * (number // 4 + 1), number)}

    feeder = feed(counted(), describe=lambda d: d.map(f))
    for step in range(20):
        assert receive(feeder, step)["x"][:, 0].tolist() == expected(step)


def test_a_map_that_keeps_its_input_keeps_its_slot(counted, feed, receive):
    kept = []

    def f(sample):
        kept.append(sample["bin"])
        return {"n": 1}

    feeder = feed(counted(), describe=lambda d: d.map(f), prefetch_bytes=4 * 320, patience_s=0.01)
    for step in range(20):
        receive(feeder, step)
    assert feeder.stats().copied_batches > 0
    seen = [int.from_bytes(bytes(view[:4]), "little") for view in kept]
    assert seen == [number for step in range(20) for number in expected(step)]


def test_bytes_that_a_map_passes_on_stay_as_they_are(counted, feed, receive):
    feeder = feed(counted(), describe=lambda d: d.map(lambda s: {"v": s["bin"]}), prefetch_bytes=4 * 320, patience_s=0)
    held = [receive(feeder, step) for step in range(20)]
    for step, batch in enumerate(held):
        assert numbers(batch, "v") == expected(step)


def test_an_error_of_a_map_names_the_sample_and_others_go_on(counted, feed, receive, until):
    def f(sample):
        if sample["bin"][0] == 6:
            raise ValueError("odd")
        return doubled(sample)

    feeder = feed(counted(), describe=lambda d: d.map(f))
    receive(feeder, 0)
    with pytest.raises(SampleError, match="sample 's6': map\\(\\) failed: ValueError: odd"):
        feeder.request(1)
    assert receive(feeder, 2)["x"][:, 0].tolist() == [2 * i for i in expected(2)]


def test_a_map_is_called_by_one_thread_in_the_order_of_the_steps(counted, feed, receive):
    calls = []

    def f(sample):
        calls.append((threading.current_thread().name, sample["bin"][0]))
        return {"n": 1}

    feeder = feed(SlowStore(counted(), read_s=0.001), describe=lambda d: d.map(f), prefetch_bytes=1 << 16, threads=1)
    for step in range(10):
        receive(feeder, step)
    assert {name for name, _ in calls} == {"stoker-map"}
    assert [number for _, number in calls][:40] == list(range(40))


def test_decoders_run_in_a_thread_of_their_own(counted, feed, receive):
    names = []

    def decode(rows):
        names.append(threading.current_thread().name)
        return [bytes(view) for view in rows.views()]

    feeder = feed(
        counted(), describe=lambda d: d.decode({"bin": "text"}), decoders={**DECODERS, "text": decode}, prefetch_bytes=0
    )
    assert numbers(receive(feeder, 0)) == expected(0)
    assert names == ["stoker-decode"]


def test_what_fails_to_decode_is_raised_where_it_is_asked_for(make_store, feed, receive):
    store = make_store([(f"s{i}", {"json": b"{}" if i != 6 else b"{"}) for i in range(12)])
    feeder = feed(store, describe=lambda d: d.decode({"json": "json"}))
    assert receive(feeder, 0)["json"] == [{}] * 4
    with pytest.raises(SampleError, match="field 'json' of sample 's6' is not JSON"):
        feeder.request(1)
    assert receive(feeder, 2)["json"] == [{}] * 4


@pytest.mark.alone
def test_the_wait_for_a_slot_is_as_long_as_the_patience_and_happens_once(counted, feed, receive):
    feeder = feed(counted(), prefetch_bytes=2 * 256, patience_s=0.2)
    held, waits = [], []
    for step in range(8):
        begin = time.monotonic()
        held.append(receive(feeder, step))
        waits.append(time.monotonic() - begin)
    assert 0.2 <= waits[2] < 1
    assert max(waits[3:]) < 0.15
    assert feeder.stats().copied_batches == 6


@pytest.mark.alone
def test_a_slot_that_comes_back_while_it_is_waited_for_is_used(counted, feed, receive):
    feeder = feed(counted(), prefetch_bytes=256, patience_s=5)
    held = [receive(feeder, 0)]
    timer = threading.Timer(0.05, held.clear)
    timer.start()
    begin = time.monotonic()
    batch = receive(feeder, 1)
    assert 0.03 < time.monotonic() - begin < 2
    timer.join()
    assert (numbers(batch), feeder.stats().copied_batches) == (expected(1), 0)


@pytest.fixture
def without_thread(monkeypatch):
    """From now on threads of these names cannot be started."""

    def without_thread(*names):
        start = threading.Thread.start

        def refuse(thread):
            if thread.name in names:
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse)

    return without_thread


@pytest.mark.parametrize("name", ["stoker-plan", "stoker-decode", "stoker-map", "stoker-fetch-0"])
def test_without_a_thread_it_is_an_error_that_names_the_limit_and_closing_ends_the_others(
    make_store, numbered, load, without_thread, name
):
    without_thread(name)
    data = load(make_store(numbered(16)), describe=lambda d: d.decode({"bin": "text"}).map(dict))
    for _ in range(2):
        with pytest.raises(CapacityError, match=r"no thread to .*: can't start new thread") as caught:
            next(iter(data))
        assert "ulimit -u" in caught.value.hint
    data.close()
