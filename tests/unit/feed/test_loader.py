import gc
import hashlib
import linecache
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from stoker.dataset.write import DatasetWriter
from stoker.errors import ClosedError, ConfigError, DatasetError, LayoutError, UnsupportedError
from stoker.feed.options import FeedOptions
from stoker.ledger import Counter, Ledger
from stoker.store.local import LocalStore
from stoker.values import Layout


def digests(batch, field="bin"):
    return [hashlib.sha256(sample).hexdigest() for sample in batch[field]]


def test_batches_hold_the_samples_of_the_order_in_every_epoch(make_store, numbered, load):
    samples = dict(numbered(50))
    data = load(make_store(samples.items()), batch=8, epochs=2)
    assert (len(data), data.steps_per_epoch) == (12, 6)
    seen = []
    for batch in data:
        assert (batch.step, batch.epoch) == (len(seen), len(seen) // 6)
        assert [bytes(sample) for sample in batch["bin"]] == [samples[key]["bin"] for key in batch.sample_keys]
        assert batch.valid.all()
        expected = data.order.batch(batch.step).samples
        assert batch.sample_keys == [f"s{i:03d}" for i in expected]
        seen.append(batch.sample_keys)
    assert len(seen) == 12
    for epoch in (seen[:6], seen[6:]):
        assert len({key for keys in epoch for key in keys}) == 48
    assert seen[:6] != seen[6:]
    assert data.finished


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_the_shares_of_the_ranks_make_up_the_batch_on_any_number_of_them(make_store, numbered, load, size):
    store = make_store(numbered(50))
    ranks = [load(store, layout=Layout(rank, size)) for rank in range(size)]
    for step, shares in enumerate(zip(*ranks, strict=True)):
        keys = [key for share in shares for key in share.sample_keys]
        assert keys == [f"s{i:03d}" for i in ranks[0].order.batch(step).samples]
    assert step == 5


def test_a_loop_that_was_left_goes_on_in_the_next_and_a_finished_loader_yields_nothing(make_store, numbered, load):
    data = load(make_store(numbered(50)))
    for batch in data:
        if batch.step == 2:
            break
    assert not data.finished
    assert [batch.step for batch in data] == [3, 4, 5]
    assert list(data) == []
    assert data.finished


def test_a_new_loop_over_a_training_loader_takes_over(make_store, numbered, load):
    data = load(make_store(numbered(50)))
    old = iter(data)
    next(old)
    new = iter(data)
    assert next(new).step == 1
    with pytest.raises(ConfigError, match="another loop"):
        next(old)
    assert next(new).step == 2


def test_seek_goes_on_after_the_position_with_the_batches_of_an_uninterrupted_run(make_store, numbered, load):
    store = make_store(numbered(50))
    whole = [(batch.step, digests(batch)) for batch in load(store, epochs=2)]
    for after in (-1, 0, 4, 7, 11):
        data = load(store, epochs=2)
        next(iter(data))
        data.seek(data.position(after=after))
        assert [(batch.step, digests(batch)) for batch in data] == whole[after + 1 :]
        assert data.finished


def test_seek_takes_effect_in_the_loop_under_way(make_store, numbered, load):
    data = load(make_store(numbered(50)))
    loop = iter(data)
    next(loop)
    data.seek(data.position(after=3))
    assert next(loop).step == 4
    data.seek(data.position(after=0))
    assert next(loop).step == 1


def test_a_position_of_another_order_is_refused(make_store, numbered, load):
    store = make_store(numbered(50))
    with pytest.raises(ConfigError, match="global_batch_size"):
        load(store, batch=8).seek(load(store, batch=4).position(after=3))


def test_an_evaluation_sees_every_sample_once_and_begins_anew_with_each_loop(make_store, numbered, load):
    data = load(make_store(numbered(50)), shuffle=False)
    assert len(data) == 7
    for _ in range(2):
        batches = list(data)
        keys = [key for batch in batches for key, valid in zip(batch.sample_keys, batch.valid, strict=True) if valid]
        assert keys == [f"s{i:03d}" for i in range(50)]
        assert [len(batch.valid) for batch in batches] == [8] * 7
        assert batches[-1].valid.tolist() == [True] * 2 + [False] * 6
        assert digests(batches[-1])[2:] == [digests(batches[-1])[1]] * 6
    assert not data.finished


def test_loops_over_an_evaluation_do_not_disturb_each_other(make_store, numbered, load):
    data = load(make_store(numbered(50)), shuffle=False)
    assert [(a.step, b.step) for a, b in zip(data, data, strict=True)] == [(i, i) for i in range(7)]


def test_an_evaluation_is_never_part_of_a_checkpoint(make_store, numbered, load):
    store = make_store(numbered(50))
    data = load(store, shuffle=False)
    with pytest.raises(ConfigError, match="shuffle=False"):
        data.position(after=0)
    with pytest.raises(ConfigError, match="shuffle=False"):
        data.seek(load(store).position(after=0))


def test_batches_are_equal_with_and_without_reading_ahead(make_store, numbered, load):
    store = make_store(numbered(50))
    assert [digests(b) for b in load(store, prefetch_bytes=0)] == [digests(b) for b in load(store)]


def test_nothing_is_read_before_the_first_batch_is_asked_for(make_store, numbered, load, watched, threads):
    store = watched(make_store(numbered(50)))
    data = load(store)
    data.seek(data.position(after=3))
    assert (store.reads, threads()) == ([], [])
    assert next(iter(data)).step == 4


def test_without_prefetch_nothing_is_read_that_was_not_asked_for(make_store, numbered, load, watched):
    store = watched(make_store(numbered(50)))
    loop = iter(load(store, prefetch_bytes=0))
    for step in range(4):
        next(loop)
        time.sleep(0.01)
        assert len(store.reads) == 8 * (step + 1)


@pytest.mark.alone
def test_one_batch_is_read_in_parallel_without_prefetch(make_store, numbered, load, watched):
    store = watched(make_store(numbered(50)), read_s=0.1)
    next(iter(load(store, prefetch_bytes=0)))
    assert store.most_readers == 8


@pytest.mark.alone
def test_no_more_than_threads_reads_are_in_flight(make_store, numbered, load, watched, threads):
    store = watched(make_store(numbered(50)), read_s=0.005)
    data = load(store, threads=3)
    list(data)
    assert store.most_readers == 3
    assert sorted(threads()) == ["stoker-fetch-0", "stoker-fetch-1", "stoker-fetch-2", "stoker-plan"]


@pytest.mark.alone
def test_slow_reads_are_hidden_behind_the_steps_within_the_budget(make_store, numbered, load, watched, ledger):
    store = watched(make_store(numbered(400, size=1000)), read_s=0.05)
    data = load(store, prefetch_bytes=8 * 8192)
    loop, waits = iter(data), []
    for _ in range(20):
        begin = time.perf_counter()
        batch = next(loop)
        waits.append(time.perf_counter() - begin)
        stats = data.stats()
        assert stats.bytes_in_flight + stats.lent_bytes <= stats.budget_bytes == 8 * 8192
        time.sleep(0.1)
    assert sum(waits) < 0.2, waits
    assert sum(waits[1:]) < 0.02, waits
    assert 0.5 * 8 * 8192 < stats.peak_bytes_in_flight <= 8 * 8192
    assert batch.step == 19


@pytest.mark.alone
def test_a_hundred_held_batches_keep_their_bytes(make_store, numbered, load, caplog):
    samples = dict(numbered(200))
    data = load(make_store(samples.items()), batch=4, epochs=2, prefetch_bytes=10 * 448, patience_s=0.05)
    begin = time.monotonic()
    held = list(data)
    assert time.monotonic() - begin < 1
    assert len(held) == 100
    assert data.stats().copied_batches == 90
    for batch in held:
        assert [bytes(sample) for sample in batch["bin"]] == [samples[key]["bin"] for key in batch.sample_keys]
    (message,) = [record.message for record in caplog.records if "copied" in record.message]
    assert message.startswith("all 4.4 KiB of prefetch memory are lent: batch 10 and others are copied")


def test_no_batch_is_copied_before_all_slots_are_lent(make_store, numbered, load):
    data = load(make_store(numbered(50)), batch=2, prefetch_bytes=5 * 256, patience_s=0.05)
    loop = iter(data)
    held = []
    for lent in range(1, 6):
        held.append(next(loop))
        assert data.stats().copied_batches == 0
        assert data.stats().lent_bytes == lent * 256
    held.append(next(loop))
    assert data.stats().copied_batches == 1


def test_a_slot_that_comes_back_ends_the_copying(make_store, numbered, load, until):
    data = load(make_store(numbered(50)), batch=2, prefetch_bytes=2 * 256, patience_s=0.05)
    loop = iter(data)
    held = [next(loop) for _ in range(4)]
    assert data.stats().copied_batches == 2
    del held[0]
    until(lambda: data.stats().ready_batches)
    held.append(next(loop))
    assert data.stats().copied_batches == 2


@pytest.mark.alone
def test_a_loop_that_holds_its_batch_while_it_asks_for_the_next_goes_on_with_room_for_one(make_store, numbered, load):
    data = load(make_store(numbered(200)), batch=2, prefetch_bytes=256, patience_s=0.05)
    begin = time.monotonic()
    previous = None
    for batch in data:
        previous = batch
    assert previous.step == 99
    assert time.monotonic() - begin < 2  # not 50 ms for each second batch, which were 2.5 s
    assert 0 < data.stats().copied_batches <= 100


def test_views_keep_a_slot_when_their_batch_is_gone(make_store, load, npy):
    samples = [(f"s{i}", {"x.npy": npy(np.full(16, i, np.float32))}) for i in range(40)]
    data = load(
        make_store(samples),
        batch=2,
        prefetch_bytes=4 * 384,
        patience_s=0.05,
        describe=lambda d: d.decode({"x.npy": "npy"}),
    )
    rows = [(batch.sample_keys[1], batch["x.npy"][1]) for batch in data]
    assert data.stats().copied_batches == len(data) - 4
    for key, row in rows:
        assert row.tolist() == [int(key[1:])] * 16


def test_an_array_lies_in_the_arena_until_all_slots_are_lent(make_store, load, npy):
    samples = [(f"s{i}", {"x.npy": npy(np.full(16, i, np.float32))}) for i in range(40)]
    data = load(
        make_store(samples),
        batch=2,
        prefetch_bytes=4 * 384,
        patience_s=0.05,
        describe=lambda d: d.decode({"x.npy": "npy"}),
    )
    arena = data._feeder._arena
    held = list(data)
    addresses = [batch["x.npy"].__array_interface__["data"][0] for batch in held]
    inside = [arena.address <= address < arena.address + arena.size_bytes for address in addresses]
    assert inside == [True] * 4 + [False] * (len(held) - 4)
    assert all(batch["x.npy"].flags.writeable for batch in held)


def test_mapped_arrays_lie_in_the_arena_too(make_store, numbered, load):
    data = load(
        make_store(numbered(50)),
        describe=lambda d: d.map(lambda s: {"x": np.frombuffer(s["bin"], np.uint8).astype(np.float64), "n": 1}),
    )
    arena = data._feeder._arena
    for batch in data:
        for name, shape in (("x", (8, 100)), ("n", (8,))):
            address = batch[name].__array_interface__["data"][0]
            assert arena.address <= address < arena.address + arena.size_bytes
            assert (batch[name].shape, batch[name].flags.writeable) == (shape, True)
    assert data.stats().copied_batches == 0


def test_an_unknown_field_is_refused_with_the_nearest(make_store, load):
    store = make_store([(f"s{i}", {"jpg": b"1", "json": b"{}"}) for i in range(8)])
    with pytest.raises(ConfigError, match="no field 'jsn'") as caught:
        load(store, describe=lambda d: d.fields("jsn"))
    assert "did you mean 'json'" in caught.value.hint
    assert "'jpg', 'json'" in caught.value.hint
    with pytest.raises(ConfigError, match="no field 'txt'"):
        load(store, describe=lambda d: d.decode({"txt": "text"}))


def test_a_field_that_some_samples_lack_is_refused_with_the_counts(make_store, load):
    store = make_store([(f"s{i}", {"jpg": b"1"} | ({"json": b"{}"} if i % 4 else {})) for i in range(8)])
    with pytest.raises(DatasetError, match="only 6 of 8 samples have field 'json'") as caught:
        load(store)
    assert "every sample has 'jpg'" in caught.value.hint
    assert next(iter(load(store, describe=lambda d: d.fields("jpg"))))["jpg"] == [b"1"] * 8


def test_a_batch_that_cannot_fit_is_refused_with_both_numbers_and_the_least_that_works(make_store, load):
    sizes = [100] * 20 + [5000, 70, 70, 6000]
    store = make_store([(f"s{i}", {"a": bytes(size), "b": b"x"}) for i, size in enumerate(sizes)])
    with pytest.raises(ConfigError, match=r"prefetch_bytes is 8192.* 4 samples may need 11328") as caught:
        load(store, batch=4, prefetch_bytes=8192)
    assert "prefetch_bytes=11328" in caught.value.hint
    assert len(list(load(store, batch=4, prefetch_bytes=11328, patience_s=0))) == 6
    with pytest.raises(ConfigError):
        load(store, batch=4, prefetch_bytes=11327)


def test_batches_that_fill_the_budget_to_the_byte_are_served(make_store, numbered, load):
    data = load(make_store(numbered(16, size=1024)), prefetch_bytes=8192, patience_s=0)
    assert [len(batch["bin"]) for batch in data] == [8, 8]
    with pytest.raises(ConfigError) as caught:
        load(make_store(numbered(16, size=1024)), prefetch_bytes=8191)
    assert "the least that works is prefetch_bytes=8192" in caught.value.hint


def test_the_padded_tail_of_an_evaluation_is_counted_with_its_repeats(make_store, load):
    sizes = [100] * 8 + [1000]
    store = make_store([(f"s{i}", {"a": bytes(size)}) for i, size in enumerate(sizes)])
    with pytest.raises(ConfigError, match="may need 4032"):
        load(store, batch=4, shuffle=False, prefetch_bytes=2048)
    data = load(store, batch=4, shuffle=False, prefetch_bytes=4032, patience_s=0)
    assert [len(sample) for sample in list(data)[-1]["a"]] == [1000] * 4


def test_ranks_that_cannot_share_a_batch_are_refused_at_once(make_store, numbered, load):
    with pytest.raises(LayoutError, match="8 samples cannot be divided by 3 ranks"):
        load(make_store(numbered(50)), layout=Layout(0, 3))


@pytest.mark.parametrize(
    ("name", "value"), [("epochs", 0), ("prefetch_bytes", -1), ("threads", 0), ("deadline_s", -1), ("patience_s", -1)]
)
def test_options_that_make_no_sense_are_refused(make_store, numbered, load, name, value):
    with pytest.raises(ConfigError, match=f"{name} is {value}"):
        load(make_store(numbered(10)), **{name: value})


def test_a_closed_loader_says_so_and_its_batches_stay(make_store, numbered, load, threads):
    samples = dict(numbered(50))
    data = load(make_store(samples.items()))
    loop = iter(data)
    batch = next(loop)
    data.close()
    data.close()
    assert threads() == []
    with pytest.raises(ClosedError):
        next(loop)
    with pytest.raises(ClosedError):
        iter(data)
    assert [bytes(sample) for sample in batch["bin"]] == [samples[key]["bin"] for key in batch.sample_keys]
    assert data.stats().bytes_in_flight == 0


def test_a_loader_is_a_context_manager(make_store, numbered, load, threads):
    with load(make_store(numbered(50))) as data:
        next(iter(data))
        assert threads()
    assert threads() == []


@pytest.mark.alone
def test_closing_waits_for_reads_that_have_begun_and_begins_no_more(make_store, numbered, load, watched, threads):
    store = watched(make_store(numbered(50)), read_s=0.03)
    data = load(store, threads=2)
    next(iter(data))
    data.close()
    count = len(store.reads)
    assert threads() == []
    assert count <= 8 + 2 * 2
    time.sleep(0.05)
    assert len(store.reads) == count


def test_a_loader_that_nobody_holds_ends_its_threads(make_store, numbered, load, threads, until, ledger, make_order):
    from stoker.dataset.describe import Dataset
    from stoker.dataset.open import open_dataset
    from stoker.feed.loader import FeedOptions, Loader

    opened = open_dataset(make_store(numbered(50)))
    options = FeedOptions(prefetch_bytes=1 << 16)
    data = Loader(
        Dataset(opened.store), opened, order=make_order(opened, 8), layout=Layout(), options=options, ledger=ledger
    )
    batch = next(iter(data))
    assert threads()
    del data
    gc.collect()
    until(lambda: threads() == [])
    assert len(batch["bin"]) == 8


def test_in_a_forked_process_it_fails_at_once(make_store, numbered, load):
    data = load(make_store(numbered(50)))
    loop = iter(data)
    next(loop)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            next(loop)
        except UnsupportedError as error:
            data.close()
            status = 0 if "cannot be used in its fork" in str(error) else 2
        finally:
            os._exit(status)
    deadline = time.monotonic() + 10
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            pytest.fail("the forked process hangs")
        time.sleep(0.005)
    assert next(loop).step == 1


@pytest.mark.alone
def test_a_process_that_ends_without_close_does_not_hang(tmp_path):
    script = f"""
import time
from stoker.dataset.describe import Dataset
from stoker.dataset.open import open_dataset
from stoker.dataset.order import Order, plan_recipe
from stoker.dataset.write import DatasetWriter
from stoker.feed.loader import FeedOptions, Loader
from stoker.ledger import Ledger, LedgerIdentity
from stoker.store.local import LocalStore
from stoker.testing import SlowStore
from stoker.values import Layout
store = LocalStore({str(tmp_path)!r})
with DatasetWriter(store) as writer:
    for i in range(100):
        writer.write(f"s{{i}}", {{"bin": bytes(1000)}})
opened = open_dataset(SlowStore(store, read_s=0.01))
blocks, manifest = opened.blocks.sample_count, opened.manifest
recipe = plan_recipe(blocks, manifest.block_bytes, seed=1, global_batch_size=8, shuffle="window")
order = Order(blocks, recipe, block_bytes=manifest.block_bytes, manifest_digest=manifest.digest)
ledger = Ledger.create(None, LedgerIdentity(run="", rank=0, world=1, generation=0, host="h"))
data = Loader(Dataset(store), opened, order=order, layout=Layout(), options=FeedOptions(), ledger=ledger)
loop = iter(data)
batch = next(loop)
opened.store.read_s = 5.0
time.sleep(0.05)
print(batch.step, flush=True)
"""
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("0\n", "", 0)
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("feeder", ["child", "inline"])
def test_no_user_code_runs_any_more_when_the_interpreter_of_a_process_ends(tmp_path, monkeypatch, feeder):
    # A thread in the C++ of PyTorch would abort the process then: "terminate called without an active exception".
    monkeypatch.setenv("STOKER_FEED_FEEDER", feeder)
    script = f"""
import atexit, threading, time

def last():
    threads = [thread.name for thread in threading.enumerate()]
    print(threads, begun - ended, ended < 99 * 40, flush=True)

atexit.register(last)  # of the handlers the first registered is the last called
import stoker
begun = ended = 0

def slow(sample):
    global begun, ended
    begun += 1
    time.sleep(0.05)
    ended += 1
    return sample

with stoker.writer({str(tmp_path / "data")!r}) as w:
    for i in range(40):
        w.write(f"s{{i}}", {{"bin": bytes(10)}})
run = stoker.open(nvme={str(tmp_path / "nvme")!r})
loop = iter(run.loader(stoker.Dataset({str(tmp_path / "data")!r}).map(slow), global_batch_size=4, epochs=99))
next(loop)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("['MainThread'] 0 True\n", 0), done.stderr


def test_the_ledger_counts_steps_samples_bytes_and_reads(make_store, numbered, load, ledger):
    data = load(make_store(numbered(50)), epochs=2)
    list(data)
    data.close()
    totals = ledger.snapshot().totals
    assert (totals.steps, totals.samples, totals.batch_bytes) == (12, 96, 9600)
    counters = totals.counters
    assert (counters["reads"], counters["bytes_read"], counters["copied_batches"]) == (96, 9600, 0)
    assert counters["bytes_in_flight"] == 0


def test_a_batch_is_one_record_and_one_publication_of_the_ledger(make_store, numbered, load, monkeypatch):
    data = load(make_store(numbered(50)), batch=8, prefetch_bytes=0)  # so that each batch is read when it is asked for
    loop = iter(data)
    next(loop)
    written = []
    whole = Ledger._write
    monkeypatch.setattr(Ledger, "_write", lambda self, *args: written.append(args) or whole(self, *args))
    for count in range(1, 5):
        reads = data.stats().reads
        next(loop)
        assert data.stats().reads > reads
        assert len(written) == 2 * count


def test_an_evaluation_is_read_but_is_no_step_of_the_ledger(make_store, numbered, load, ledger):
    list(load(make_store(numbered(50)), shuffle=False))
    totals = ledger.snapshot().totals
    assert (totals.steps, totals.samples, totals.wait_ns) == (0, 0, 0)
    assert totals.counters[Counter.READS] >= 50


def test_local_files_are_read_as_well(tmp_path, numbered, load):
    samples = dict(numbered(300, size=3000))
    store = LocalStore(tmp_path / "data", create=True)
    with DatasetWriter(store, shard_bytes=100_000) as writer:
        for key, fields in samples.items():
            writer.write(key, fields)
    for batch in load(store, batch=16, epochs=2, prefetch_bytes=200_000):
        assert [bytes(sample) for sample in batch["bin"]] == [samples[key]["bin"] for key in batch.sample_keys]
    store.close()


@pytest.mark.parametrize("shuffle", ["window", False])
def test_threads_that_share_a_loop_take_turns_and_see_each_batch_once(make_store, numbered, load, shuffle):
    data = load(make_store(numbered(400)), batch=2, shuffle=shuffle)
    loop, seen = iter(data), []

    def take():
        seen.extend((batch.step, *batch.sample_keys) for batch in loop)

    takers = [threading.Thread(target=take) for _ in range(4)]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    assert sorted(step for step, *_ in seen) == list(range(200))
    assert len({key for _, *keys in seen for key in keys}) == 400


class Interrupt:
    """Raises KeyboardInterrupt before the `number`th line that this thread runs in stoker.feed and io.memory."""

    def __init__(self, number):
        self.left = number

    def __call__(self, frame, event, arg):
        path = frame.f_code.co_filename
        if "/stoker/feed/" not in path and not path.endswith("/stoker/io/memory.py"):
            return None
        # As for signals, which Python looks at after calls: never between a block's last line and the end of its with.
        if event == "line" and not linecache.getline(path, frame.f_lineno).lstrip().startswith("with "):
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
        return self

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self)
        return self

    def __exit__(self, *_):
        sys.settrace(self.before)


def test_an_interrupt_anywhere_in_next_loses_no_batch_and_no_slot(make_store, numbered, load, until):
    data = load(make_store(numbered(800)), batch=2, prefetch_bytes=4 * 256, patience_s=30)
    seen, interrupted = [], 0
    for number in range(1, 400):
        try:
            with Interrupt(number) as interrupt:
                batch = next(iter(data))
        except KeyboardInterrupt:
            interrupted += 1
            batch = next(iter(data))
        seen.append(batch.step)
        del batch
        if interrupt.left > 0:
            break
    assert interrupted > 40
    # Only a batch that was on its way out of next() already is gone with the interrupt.
    assert seen == sorted(set(seen))
    assert seen[-1] - len(seen) <= 3
    until(lambda: data.stats().lent_bytes == 0)
    assert data.stats().copied_batches == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [("epochs", 1.5), ("epochs", True), ("epochs", "2"), ("threads", None), ("prefetch_bytes", 1e6),
     ("prefetch_bytes", "much"), ("deadline_s", float("nan")), ("patience_s", True)],
)  # fmt: skip
def test_options_that_are_no_numbers_of_their_kind_are_refused(name, value):
    with pytest.raises(ConfigError, match=name if value != "much" else "not a size"):
        FeedOptions(**{name: value})


def test_options_take_any_whole_number_and_sizes_as_people_write_them():
    options = FeedOptions(epochs=np.int64(3), prefetch_bytes="64MiB")
    assert (options.epochs, type(options.epochs), options.prefetch_bytes) == (3, int, 64 << 20)


@pytest.mark.parametrize("prefetch_bytes", [0, 1 << 16])
def test_batches_of_empty_samples_neither_wait_nor_are_copied(make_store, load, prefetch_bytes):
    store = make_store([(f"s{i}", {"bin": b""}) for i in range(40)])
    data = load(store, batch=4, prefetch_bytes=prefetch_bytes, patience_s=30, deadline_s=5)
    assert [list(map(len, batch["bin"])) for batch in data] == [[0] * 4] * 10
    assert data.stats().copied_batches == 0


def test_a_position_of_other_data_is_refused_with_the_place_of_these(make_store, numbered, load):
    here = load(make_store(numbered(20)))
    there = load(make_store(numbered(24)))
    with pytest.raises(ConfigError, match="of another order: manifest was") as caught:
        here.seek(there.position(after=0))
    assert caught.value.where == "memory://data"


def test_a_loader_shows_where_it_stands_on_one_line(make_store, numbered, load):
    store = make_store(numbered(20))
    training, evaluation = load(store, batch=4, epochs=2), load(store, batch=8, shuffle=False)
    next(iter(training))
    assert repr(training) == "<Loader of memory://data: step 1 of 10, global batch 4, seed 3>"
    assert repr(evaluation) == "<Loader of memory://data: evaluation of 3, global batch 8>"
    training.close()
    assert repr(training).endswith(", closed>")
