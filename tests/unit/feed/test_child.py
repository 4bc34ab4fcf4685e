"""A feeder in a child process gives what one in threads gives, whatever becomes of it."""

import gc
import hashlib
import json
import linecache
import logging
import os
import pickle
import signal
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest

from stoker.dataset.describe import Dataset
from stoker.dataset.open import open_dataset
from stoker.dataset.write import DatasetWriter
from stoker.errors import (
    CapacityError,
    ChildDied,
    ClosedError,
    ConfigError,
    DigestMismatch,
    InternalError,
    NotFound,
    SampleError,
    SourceChanged,
    TimedOut,
    UnsupportedError,
)
from stoker.feed.decode import DECODERS
from stoker.feed.loader import Loader
from stoker.feed.open import OrderWish, open_loader
from stoker.feed.options import FeedOptions
from stoker.feed.start import Start, start_child, start_feeder
from stoker.feed.wire import Release, decode_from_trainer
from stoker.io import child as child_module
from stoker.io.channel import Channel
from stoker.store.local import LocalStore
from stoker.store.memory import MemoryStore
from stoker.values import Layout

COUNT = 50


@pytest.fixture
def place(tmp_path, npy):
    """A data set of 50 samples with a field for each decoder."""
    rng = np.random.default_rng(5)
    store = LocalStore(tmp_path / "data", create=True)
    with DatasetWriter(store, shard_bytes=16384) as writer:
        for i in range(COUNT):
            fields = {
                "bin": rng.bytes(int(rng.integers(0, 200))),
                "txt": f"text {i} äöü".encode(),
                "json": json.dumps({"i": i, "list": list(range(i % 4))}).encode(),
                "x.npy": npy(np.full((2, 3), i, np.float32)),
            }
            writer.write(f"s{i:03d}", fields)
    return store


DECODE = {"txt": "text", "json": "json", "x.npy": "npy"}


@pytest.fixture
def load(ledger, make_order):
    """A loader over a local store, with a feeder of a kind; closed at the end."""
    made = []

    def load(
        store, kind="child", *, batch=8, shuffle="window", describe=lambda d: d.decode(DECODE), layout=None, **opts
    ):
        opened = open_dataset(store)
        start = Start(start_child()) if kind == "child" else Start()
        opts.setdefault("prefetch_bytes", 1 << 20)
        order = make_order(opened, batch, shuffle=shuffle)
        with ExitStack() as on_error:
            on_error.callback(start.give_up)
            loader = Loader(
                describe(Dataset(str(store.root))),
                opened,
                order=order,
                layout=layout or Layout(),
                options=FeedOptions(**opts),
                ledger=ledger,
                start=start,
            )
            on_error.pop_all()
        made.append(loader)
        return loader

    yield load
    for loader in made:
        loader.close()


def plain(value):
    """A value of a batch, so that equal ones are equal, types included."""
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.str, value.shape, value.flags.writeable, value.tobytes())
    return [(type(one).__name__, bytes(one) if isinstance(one, bytearray | memoryview) else one) for one in value]


def content(batch):
    return (
        batch.step,
        batch.epoch,
        batch.sample_keys,
        batch.valid.tolist(),
        [(name, plain(batch[name])) for name in batch],
    )


def open_files():
    found = []
    for place in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that the listing itself has open
            found.append(str(place.readlink()))
    return sorted(found)


def pid_of(loader):
    return loader._feeder._child.pid


def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def as_array(sample):
    return {"x": sample["x.npy"] * 2, "n": len(sample["bin"]), "t": sample["txt"]}


def as_bytes(sample):
    raw = bytes(sample["bin"])
    return {"v": sample["bin"], "b": raw, "a": bytearray(raw), "s": sample["txt"] + "\ud800"}


DESCRIPTIONS = {
    "raw": lambda d: d,
    "decoded": lambda d: d.decode(DECODE),
    "some fields": lambda d: d.fields("json", "bin").decode({"json": "json"}),
    "mapped to arrays": lambda d: d.decode(DECODE).map(as_array),
    "mapped to bytes": lambda d: d.decode(DECODE).map(as_bytes),
    "mapped twice": lambda d: d.decode(DECODE).map(as_array).map(lambda s: {"y": s["x"] + s["n"]}),
}


@pytest.mark.parametrize("shuffle", ["window", False])
@pytest.mark.parametrize("describe", DESCRIPTIONS)
def test_its_batches_are_those_of_threads_to_the_byte_and_the_type(place, load, describe, shuffle):
    options = {"describe": DESCRIPTIONS[describe], "shuffle": shuffle, "epochs": 2}
    expected = [content(batch) for batch in load(place, "inline", **options)]
    data = load(place, **options)
    assert [content(batch) for batch in data] == expected
    assert len(expected) == (12 if shuffle else 14)
    assert data.stats().feeder == "child"
    if not shuffle:
        assert [content(batch) for batch in data] == expected


@pytest.mark.parametrize("prefetch_bytes", [0, 10_000])
def test_with_little_memory_they_are_the_same(place, load, prefetch_bytes):
    expected = [content(batch) for batch in load(place, "inline", epochs=3)]
    assert [content(batch) for batch in load(place, epochs=3, prefetch_bytes=prefetch_bytes)] == expected


def test_seek_and_loops_side_by_side_give_what_threads_give(place, load):
    expected = [content(batch) for batch in load(place, "inline", epochs=2)]
    data = load(place, epochs=2)
    for after in (-1, 7, 2, 10, 4):
        data.seek(data.position(after=after))
        assert content(next(iter(data))) == expected[after + 1]
    evaluation = load(place, shuffle=False)
    assert [(a.step, b.step) for a, b in zip(evaluation, evaluation, strict=True)] == [(i, i) for i in range(7)]
    assert evaluation.stats().reads <= 2 * 4 * 56  # what was pushed to the other loop is not read again


def test_the_shares_of_ranks_make_up_the_batch(place, load):
    ranks = [load(place, layout=Layout(rank, 2)) for rank in range(2)]
    for step, shares in enumerate(zip(*ranks, strict=True)):
        keys = [key for share in shares for key in share.sample_keys]
        assert keys == [f"s{i:03d}" for i in ranks[0].order.batch(step).samples]


def test_a_batch_pickles_with_a_copy_of_its_bytes(place, load):
    batch = next(iter(load(place)))
    assert content(pickle.loads(pickle.dumps(batch))) == content(batch)


def test_arrays_lie_in_the_memory_that_both_map_and_are_ours_to_write(place, load):
    data = load(place)
    arena = data._feeder._arena
    for batch in data:
        address = batch["x.npy"].__array_interface__["data"][0]
        assert arena.address <= address < arena.address + arena.size_bytes
        batch["x.npy"][:] = -1
    assert data.stats().copied_batches == 0


def test_what_is_lent_is_counted_and_comes_back(place, load, until):
    data = load(place, describe=lambda d: d.fields("x.npy"), batch=4, epochs=2, prefetch_bytes=6 * 640, patience_s=30)
    loop = iter(data)
    held = [next(loop), next(loop)]
    stats = data.stats()
    assert stats.lent_bytes == 2 * 640
    until(lambda: data.stats().ready_batches == 4)
    assert data.stats().bytes_in_flight == 4 * 640
    del held
    until(lambda: data.stats().ready_batches == 6)
    assert [batch.step for batch in loop] == list(range(2, 24))
    assert data.stats().copied_batches == 0


def test_a_batch_that_lies_ready_is_taken_without_a_word_and_several_are_let_go_by_one(place, load, until, monkeypatch):
    data = load(place, describe=lambda d: d.fields("x.npy"), batch=4, epochs=4, prefetch_bytes=16 * 640)
    loop = iter(data)
    next(loop)
    until(lambda: data.stats().ready_batches == 15)  # the first one is let go, and not told yet
    said = []
    for name in ("send", "post"):
        whole = getattr(Channel, name)
        monkeypatch.setattr(
            Channel,
            name,
            lambda self, message, *a, whole=whole, **k: said.append(message) or whole(self, message, *a, **k),
        )
    for step in range(1, 9):
        assert next(loop).step == step
    assert [type(decode_from_trainer(message)) for message in said] == [Release, Release]
    assert data.stats().bytes_in_flight <= 16 * 640


def test_a_hundred_held_batches_keep_their_bytes_also_when_the_feeder_dies(place, load, caplog):
    def describe(d):
        return d.fields("x.npy", "txt")

    expected = [content(batch) for batch in load(place, "inline", batch=4, epochs=9, describe=describe)]
    data = load(place, batch=4, epochs=9, describe=describe, prefetch_bytes=10 * 704, patience_s=0.05)
    held = []
    for batch in data:
        held.append(batch)
        if batch.step in (5, 60):
            os.kill(pid_of(data), signal.SIGKILL)
    assert len(held) == 108
    assert data.stats().copied_batches > 80
    assert [content(batch) for batch in held] == expected
    assert sum("copied into ordinary memory" in record.message for record in caplog.records) <= 3


def test_all_slots_lent_ends_in_copies_and_a_slot_that_returns_ends_the_copying(place, load):
    data = load(place, describe=lambda d: d.fields("x.npy"), batch=4, epochs=4, prefetch_bytes=640, patience_s=5)
    loop = iter(data)
    held = [next(loop)]
    timer = threading.Timer(0.05, held.clear)
    timer.start()
    begin = time.monotonic()
    next(loop)
    assert time.monotonic() - begin < 4
    timer.join()
    assert data.stats().copied_batches == 0


@pytest.mark.parametrize("kind", ["child", "inline"])
@pytest.mark.parametrize("shuffle", ["window", False])
def test_what_training_writes_into_a_batch_is_not_in_it_when_it_is_read_again(place, load, kind, shuffle):
    expected = [content(batch) for batch in load(place, "inline", shuffle=shuffle)]
    data = load(place, kind, shuffle=shuffle)
    for _ in range(2):
        for batch in data:
            assert content(batch) == expected[batch.step]
            batch["x.npy"][:] = -1
            batch.jagged("bin").values[:] = 255
            del batch
        if shuffle:
            data.seek(data.position(after=-1))


def test_a_single_slot_that_returns_while_training_waits_is_used_for_what_it_waits_for(place, load, until):
    slots = 12
    data = load(
        place,
        describe=lambda d: d.fields("x.npy"),
        batch=4,
        epochs=4,
        prefetch_bytes=slots * 640,
        patience_s=30,
        deadline_s=5,
    )
    loop = iter(data)
    held = [next(loop)]
    until(lambda: data.stats().ready_batches == slots - 1)
    held += [next(loop) for _ in range(slots - 1)]
    steps = []
    waiting = threading.Thread(target=lambda: steps.append(next(loop).step))
    waiting.start()
    until(lambda: data._feeder._loans.is_waiting)
    time.sleep(0.02)  # it has said so
    del held[3]
    waiting.join()
    assert steps == [slots]
    assert data.stats().copied_batches == 0


def test_a_closed_loader_holds_no_file_and_no_memory_and_still_says_what_it_did(place, load):
    gc.collect()  # what errors of other tests hold
    before = open_files()
    data = load(place, describe=lambda d: d.fields("x.npy"), batch=4, epochs=1)
    assert len(list(data)) == 12
    assert sum("stoker-" in name for name in open_files()) > sum("stoker-" in name for name in before)
    stats = data.stats()
    data.close()
    assert [name for name in open_files() if "stoker-" in name] == [name for name in before if "stoker-" in name]
    assert "stoker-" not in Path("/proc/self/maps").read_text()
    assert (data.stats().reads, data.stats().bytes_read) == (stats.reads, stats.bytes_read)
    with pytest.raises(ClosedError):
        next(iter(data))


def test_memory_of_its_own_holds_no_file_and_outlives_the_loader(place, load):
    data = load(place, describe=lambda d: d.fields("x.npy"), batch=4, epochs=4, prefetch_bytes=640, patience_s=0)
    held = list(data)
    assert data.stats().copied_batches == len(held) - 1
    assert "stoker-batch" not in "".join(open_files()) + Path("/proc/self/maps").read_text()
    row = held[-1]["x.npy"][1]
    expected = bytes(row)
    del held
    data.close()
    assert bytes(row) == expected


def test_what_the_store_raises_is_raised_as_itself_and_asking_again_tries_again(place, load):
    shard = next(path for path in sorted(place.root.glob("shard-*.tar")) if b"text 3 " in path.read_bytes())
    whole = shard.read_bytes()
    broken = bytearray(whole)
    broken[broken.index(b"text 3 ")] ^= 1
    shard.write_bytes(broken)
    loop = iter(load(place, shuffle=False, prefetch_bytes=0))
    for _ in range(2):
        with pytest.raises(DigestMismatch, match="field 'txt' of sample 's003'") as caught:
            next(loop)
        assert str(place.root) in caught.value.where
    shard.write_bytes(whole)
    assert next(loop).step == 0
    for table in place.root.glob("offsets/*"):
        table.unlink()
    with pytest.raises(NotFound, match="offsets/"):
        list(loop)


def odd(sample):
    if sample["json"]["i"] == 9:
        raise ValueError("odd")
    return {"i": sample["json"]["i"]}


def test_an_error_of_a_map_names_the_sample_and_shows_where_it_was(place, load):
    loop = iter(load(place, shuffle=False, describe=lambda d: d.decode(DECODE).map(odd)))
    assert next(loop)["i"].tolist() == list(range(8))
    with pytest.raises(SampleError, match=r"sample 's009': map\(\) failed: ValueError: odd") as caught:
        next(loop)
    trace = str(caught.value.__cause__)
    assert ", in odd\n" in trace, trace
    assert "ValueError: odd" in trace


def test_what_fails_to_decode_is_told_once_by_the_feeder(tmp_path, load):
    store = LocalStore(tmp_path / "bad", create=True)
    with DatasetWriter(store) as writer:
        for i in range(16):
            writer.write(f"s{i}", {"json": b"{}" if i != 9 else b"{"})
    loop = iter(load(store, shuffle=False, describe=lambda d: d.decode({"json": "json"})))
    assert next(loop)["json"] == [{}] * 8
    with pytest.raises(SampleError, match="field 'json' of sample 's9' is not JSON"):
        next(loop)


def test_a_feeder_that_dies_is_replaced_and_the_run_goes_on_the_same(place, load, caplog, until):
    expected = [content(batch) for batch in load(place, "inline", epochs=4)]
    data = load(place, epochs=4, prefetch_bytes=8192)
    seen, pids = [], set()
    for batch in data:
        seen.append(content(batch))
        pids.add(pid_of(data))
        if batch.step in (3, 11, 18):
            os.kill(pid_of(data), signal.SIGKILL)
    assert seen == expected
    assert len(pids) == 4
    messages = [record.message for record in caplog.records if "ended: SIGKILL" in record.message]
    assert [f"({i} of 3)" in message for i, message in enumerate(messages, 1)] == [True] * 3
    until(lambda: not any(map(is_there, pids - {pid_of(data)})))


def exit_hard(sample):
    print("these are its last words", file=sys.stderr)
    os._exit(7)


def kill_hard(sample):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_feeder_that_dies_again_and_again_is_an_error_with_its_last_words(place, load):
    data = load(place, describe=lambda d: d.map(exit_hard), map_workers=0)
    with pytest.raises(ChildDied, match=r"ended: exit code 7, as 3 before it.*these are its last words") as caught:
        next(iter(data))
    assert caught.value.where == str(place.root)
    assert (
        caught.value.hint
        == "the last words of a process say why it ended; feeder='inline' makes batches in this process"
    )
    with pytest.raises(ChildDied):
        next(iter(data))


@pytest.mark.parametrize(
    ("program", "ended"),
    [
        ("#!/bin/sh\n", "exit code 0, as 3 before it"),
        ("#!/bin/sh\necho what is this >&2; exit 3\n", "exit code 3, as 3 before it; its last words: what is this"),
        ("#!/bin/sh\nkill -SEGV $$\n", "SIGSEGV, as 3 before it"),
    ],
)
def test_an_interpreter_that_is_none_is_told_by_how_it_ended(place, load, monkeypatch, tmp_path, program, ended):
    (tmp_path / "python").write_text(program)
    (tmp_path / "python").chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ChildDied) as caught:
        next(iter(load(place)))
    assert caught.value.what.endswith(f"ended: {ended}")
    if "SIGSEGV" in ended:
        assert caught.value.hint.startswith("a library crashed in it; feeder='inline'")
    else:
        assert f"it never began: its last words may say why; is '{tmp_path}/python' the Python" in caught.value.hint
    assert "SIGKILL" not in str(caught.value)


def test_a_feeder_that_is_killed_again_and_again_may_be_short_of_memory(place, load):
    data = load(place, describe=lambda d: d.map(kill_hard), map_workers=0)
    with pytest.raises(ChildDied, match="ended: SIGKILL, as 3 before it") as caught:
        next(iter(data))
    assert caught.value.hint.startswith("SIGKILL is often the kernel short of memory; feeder='inline'")


def test_an_interpreter_that_is_gone_when_the_feeder_must_be_replaced_is_said(place, load, monkeypatch, until):
    data = load(place, epochs=100)
    next(iter(data))
    monkeypatch.setattr(sys, "executable", "/none/python")
    pid = pid_of(data)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(UnsupportedError, match="cannot start a child process: no such file") as caught:
        list(data)
    assert caught.value.where == "/none/python"
    assert "was the environment moved" in caught.value.hint


# What the child's Python imports before all else: the thread of this name cannot be started.
WITHOUT = """
import threading

start = threading.Thread.start

def refuse(thread):
    if thread.name.startswith({name!r}):
        raise RuntimeError("can't start new thread")
    start(thread)

threading.Thread.start = refuse
"""


@pytest.mark.parametrize("name", ["stoker-open", "stoker-push", "stoker-plan", "stoker-decode", "stoker-fetch-0"])
def test_a_feeder_that_gets_no_thread_says_so_whichever_it_is(place, load, monkeypatch, tmp_path, name):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT.format(name=name))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    data = load(place)
    for _ in range(2):
        with pytest.raises(CapacityError, match=r"no thread to .*: can't start new thread") as caught:
            next(iter(data))
        assert "ulimit -u" in caught.value.hint
    assert data.stats().feeder == "child"


UNMAPPED = """
import mmap

class Refused(mmap.mmap):
    def __new__(cls, fd, size):
        raise OSError(12, "Cannot allocate memory")

mmap.mmap = Refused
"""


def test_a_feeder_that_cannot_map_its_memory_says_so(place, load, monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(UNMAPPED)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    with pytest.raises(CapacityError, match=r"no address space for 1\.0 MiB of shared memory") as caught:
        next(iter(load(place)))
    assert "ulimit -v" in caught.value.hint


def test_a_feeder_that_is_stopped_is_named_at_the_deadline(place, load, monkeypatch):
    monkeypatch.setattr("stoker.feed.child._GRACE_S", 0.05)
    data = load(place, epochs=100, deadline_s=30)
    loop = iter(data)
    next(loop)
    os.kill(pid_of(data), signal.SIGSTOP)
    data._feeder._hello.deadline_s = 0.1
    with pytest.raises(TimedOut, match=rf"after 100 ms: the process that makes batches \({pid_of(data)}\) was stopped"):
        list(loop)
    data._feeder._hello.deadline_s = 30
    os.kill(pid_of(data), signal.SIGCONT)
    at = data.progress.next_step
    assert next(loop).step == at


def test_a_feeder_that_is_still_starting_is_named_as_such(place, load, monkeypatch):
    monkeypatch.setattr("stoker.feed.child._GRACE_S", 0.01)
    data = load(place)
    data._feeder._hello.deadline_s = 0.01
    with pytest.raises(TimedOut, match="is still starting, or opening the data set"):
        next(iter(data))
    data._feeder._hello.deadline_s = 60
    assert next(iter(data)).step == 0


def slow(sample):
    time.sleep(60)
    return {}


@pytest.mark.alone
def test_a_wait_has_a_deadline_and_the_feeder_says_what_it_waits_for(place, load):
    data = load(place, deadline_s=3, describe=lambda d: d.map(slow))
    with pytest.raises(
        TimedOut, match=r"the batch of step 0 was not there after 3\.0 s: it waits for the map function"
    ):
        next(iter(data))


def test_an_interrupt_anywhere_in_next_loses_no_batch_and_no_slot(place, load, until):
    data = load(place, batch=2, epochs=40, prefetch_bytes=4 * 1600, patience_s=30)
    next(iter(data))
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
    assert seen == sorted(set(seen))
    assert seen[-1] - len(seen) <= 3
    next(iter(data))
    until(lambda: data.stats().lent_bytes == 0)
    assert data.stats().copied_batches == 0


class Interrupt:
    """Raises KeyboardInterrupt before the `number`th line that this thread runs in the trainer's side of the feeder."""

    PLACES = ("/stoker/feed/", "/stoker/io/memory.py", "/stoker/io/channel.py")

    def __init__(self, number):
        self.left = number

    def __call__(self, frame, event, arg):
        path = frame.f_code.co_filename
        if not any(place in path for place in self.PLACES):
            return None
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


def test_in_a_forked_process_it_fails_at_once_and_the_loader_goes_on(place, load):
    data = load(place)
    loop = iter(data)
    batch = next(loop)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            del batch  # its slot is the parent's
            gc.collect()
            next(loop)
        except UnsupportedError as error:
            data.close()
            status = 0 if "cannot be used in its fork" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert [each.step for each in loop] == list(range(1, 6))
    assert batch.step == 0


def test_a_fork_that_lives_on_does_not_keep_the_feeder_alive(place, load, until):
    data = load(place)
    next(iter(data))
    feeder = pid_of(data)
    pid = os.fork()
    if pid == 0:
        time.sleep(30)
        os._exit(0)
    try:
        data._feeder._child.channel.close()  # as the kernel does when the trainer dies
        until(lambda: not Path(f"/proc/{feeder}").exists() or "Z" in Path(f"/proc/{feeder}/stat").read_text())
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.alone
def test_closing_leaves_no_process_no_file_and_no_name(place, load):
    gc.collect()
    files = open_files()
    data = load(place, epochs=100)
    loop = iter(data)
    batch = next(loop)
    expected = content(batch)
    pid = pid_of(data)
    data.close()
    data.close()
    assert not is_there(pid)
    with pytest.raises(ClosedError):
        next(loop)
    assert content(batch) == expected
    assert data.stats().bytes_in_flight == data.stats().ready_batches == 0
    maps = [each for each in open_files() if each not in files and str(place.root) not in each]
    assert maps == ["/memfd:stoker-arena (deleted)"]  # of the batch
    assert [
        path
        for path in Path("/dev/shm").glob("*stoker*")
        if not path.name.startswith(("stoker-crash-", "stoker-test-"))
    ] == []


def test_closing_ends_a_request_that_waits(place, load, until):
    data = load(place, describe=lambda d: d.map(slow))
    errors = []

    def ask():
        try:
            next(iter(data))
        except ClosedError as error:
            errors.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: data._feeder._number)
    begin = time.monotonic()
    data.close()
    asking.join(10)
    assert len(errors) == 1
    assert time.monotonic() - begin < 5


def test_a_loader_that_nobody_holds_ends_its_feeder(place, load, until, ledger, make_order):
    opened = open_dataset(place)
    data = Loader(
        Dataset(str(place.root)),
        opened,
        order=make_order(opened, 8),
        layout=Layout(),
        options=FeedOptions(),
        ledger=ledger,
        start=Start(start_child()),
    )
    batch = next(iter(data))
    pid = pid_of(data)
    del data
    gc.collect()
    until(lambda: not is_there(pid))
    assert len(batch["bin"]) == 8


def test_threads_that_share_a_loop_take_turns(place, load):
    loop, seen = iter(load(place, batch=2, epochs=4)), []

    def take():
        seen.extend((batch.step, *batch.sample_keys) for batch in loop)

    takers = [threading.Thread(target=take) for _ in range(4)]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    assert sorted(step for step, *_ in seen) == list(range(100))


def test_the_ledger_counts_what_the_feeder_read_also_over_its_death(place, load, ledger):
    data = load(place, epochs=2, prefetch_bytes=0, gather_bytes=0)
    for batch in data:
        if batch.step == 5:
            os.kill(pid_of(data), signal.SIGKILL)
    data.close()
    totals = ledger.snapshot().totals
    assert (totals.steps, totals.samples) == (12, 96)
    assert totals.counters["reads"] >= 4 * 96 - 10  # a few fields are empty
    assert totals.counters["bytes_in_flight"] == 0


def dawdle(sample):
    time.sleep(0.02)
    return {"i": 1}


@pytest.mark.alone
def test_what_a_wait_was_for_is_told_apart_also_across_processes(place, load, ledger):
    data = load(place, describe=lambda d: d.map(dawdle), prefetch_bytes=0)
    loop = iter(data)
    next(loop)
    before = dict(ledger.snapshot().totals.waits_ns)
    list(loop)
    waits = {cause: after - before[cause] for cause, after in ledger.snapshot().totals.waits_ns.items()}
    assert waits["map"] > 5 * 8 * 20_000_000
    assert waits["map"] > 0.8 * sum(waits.values())


def test_a_function_that_cannot_travel_is_refused_when_the_loader_is_made(place, load):
    lock = threading.Lock()

    def locked(sample):
        with lock:
            return sample

    with pytest.raises(ConfigError, match=r"(?s)map function .*locked.* cannot travel .*lock") as caught:
        load(place, describe=lambda d: d.map(locked))
    assert "inline" in caught.value.hint


class Elsewhere:
    """A function that cannot be made anew in another process."""

    def __call__(self, sample):
        return sample

    def __reduce__(self):
        return os.stat, ("/no/such/place",)


def test_a_function_that_does_not_arrive_is_told(place, load):
    data = load(place, describe=lambda d: d.map(Elsewhere()))
    with pytest.raises(ConfigError, match=r"a map function cannot be loaded .* FileNotFoundError: .*/no/such/place"):
        next(iter(data))


def test_a_function_of_a_module_that_only_this_process_finds_travels_by_value(place, load, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "only_here.py").write_text("NUMBER = 3\ndef f(sample):\n    return {'n': NUMBER}\n")
    monkeypatch.syspath_prepend(tmp_path / "gone")
    import only_here

    monkeypatch.undo()
    assert next(iter(load(place, describe=lambda d: d.map(only_here.f))))["n"].tolist() == [3] * 8


def test_a_data_set_that_was_written_anew_meanwhile_is_refused(place, load, tmp_path):
    data = load(place)
    data._feeder._hello.digest = "0" * 64
    data._feeder._bury(data._feeder._child)  # the next one is told so
    with pytest.raises(SourceChanged, match="written anew"):
        next(iter(data))


def loaded(sample):
    return {"modules": " ".join(sys.modules), "main": sys.modules["__main__"].__spec__.name}


@pytest.mark.parametrize(("workers", "main"), [(0, "stoker.feed.__main__"), (1, "stoker.feed.map_worker")])
def test_no_torch_and_nothing_of_the_users_main_module_is_loaded(place, load, workers, main):
    batch = next(iter(load(place, describe=lambda d: d.map(loaded), map_workers=workers)))
    modules = set(batch["modules"][0].split())
    # Not pytest: where this module can be found by its name, `loaded` travels by that, and is imported there.
    heavy = {"torch", "typer", "rich", "obstore", "asyncio", "multiprocessing", "ctypes.util"}
    assert modules & heavy == set()
    assert batch["main"][0] == main
    assert workers == 0 or "pyarrow" not in modules  # what only maps reads no tables


def chatty(sample):
    logging.getLogger("my.module").warning("sample %d", sample["json"]["i"])
    logging.getLogger("my.module").debug("never seen")
    return {"i": 1}


def test_what_the_feeder_logs_is_logged_by_the_trainer(place, load, caplog):
    next(iter(load(place, shuffle=False, describe=lambda d: d.decode(DECODE).map(chatty), prefetch_bytes=0)))
    messages = [(record.name, record.levelname, record.message) for record in caplog.records]
    assert [m for m in messages if m[0] == "my.module"] == [("my.module", "WARNING", f"sample {i}") for i in range(8)]


def ill_spelled(sample):
    logging.getLogger("my.module").warning("sample \udcff %s", sample["json"]["i"])
    logging.getLogger("my.module").warning("%d", "no number")
    return {"\udcff": "\udcff"}


def test_text_that_is_no_utf_8_in_logs_names_and_values_of_a_map_arrives(place, load, caplog):
    batch = next(iter(load(place, shuffle=False, describe=lambda d: d.decode(DECODE).map(ill_spelled))))
    assert dict(batch) == {"\udcff": ["\udcff"] * 8}
    assert r"sample \udcff 7" in [record.message for record in caplog.records]


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("nothing to say")


def fail_ill_spelled(sample):
    raise ValueError("bad \udcff")


def fail_unspeakably(sample):
    raise Unspeakable


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("function", "said"),
    [
        (fail_ill_spelled, r"ValueError: bad \\udcff"),
        (fail_unspeakably, "Unspeakable: <its message cannot be had: RuntimeError>"),
    ],
)
def test_an_error_that_cannot_be_said_as_it_is_names_the_sample_and_what_it_was(place, load, function, said, workers):
    with pytest.raises(SampleError, match=rf"^sample 's000': map\(\) failed: {said}") as caught:
        next(iter(load(place, shuffle=False, describe=lambda d: d.map(function), map_workers=workers)))
    assert f", in {function.__name__}\n" in str(caught.value.__cause__)


def test_a_bug_in_the_planner_of_the_child_is_told_and_not_waited_for(place, load, monkeypatch):
    def breaks(sample):
        from stoker.feed.stages import Stages

        def fail(self, work):
            raise RuntimeError("bug")

        Stages.fetch = fail
        return sample

    data = load(place, batch=4, prefetch_bytes=0, describe=lambda d: d.fields("bin").map(breaks), map_workers=0)
    loop = iter(data)
    next(loop)
    begin = time.monotonic()
    with pytest.raises(InternalError, match=r"the feeder failed: RuntimeError\('bug'\)"):
        next(loop)
    assert time.monotonic() - begin < 30


def test_auto_takes_a_child_where_one_can_serve_and_threads_elsewhere(place, caplog):
    caplog.set_level(logging.INFO)
    start = start_feeder(Dataset(place.root), "auto")
    assert start.child is not None
    start.give_up()
    for source, reason in (("memory://x", "memory of this process"), (MemoryStore("x"), "a MemoryStore")):
        caplog.clear()
        assert start_feeder(Dataset(source), "auto").child is None
        assert reason in caplog.text
        with pytest.raises(UnsupportedError, match=reason):
            start_feeder(Dataset(source), "child")
    assert start_feeder(str(place.root), "inline").child is None


@pytest.mark.parametrize("executable", ["", None])
def test_without_an_interpreter_auto_uses_threads_and_child_says_why(place, monkeypatch, executable):
    monkeypatch.setattr(sys, "executable", executable)
    assert start_feeder(str(place.root), "auto").child is None
    with pytest.raises(UnsupportedError, match="no Python interpreter") as caught:
        start_feeder(str(place.root), "child")
    assert "sys.executable" in caught.value.where


def test_decoders_of_the_user_are_used_in_threads(place, ledger):
    options = FeedOptions(decoders={**DECODERS, "text": lambda rows: ["mine"] * len(rows)})
    wish = OrderWish(8, 5, "window")
    description = Dataset(place.root).fields("txt").decode({"txt": "text"})
    with open_loader(description, wish, layout=Layout(), options=options, ledger=ledger) as data:
        assert next(iter(data))["txt"] == ["mine"] * 8
        assert data.stats().feeder == "inline"


def test_the_same_stoker_is_found_wherever_this_process_found_it(monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr("site.getsitepackages", lambda: ["/nowhere"])
    root = str(Path(child_module.__file__).parents[2])
    needed = str(Path(np.__file__).parents[1])
    assert child_module._environment()["PYTHONPATH"].split(os.pathsep) == [root, needed]
    monkeypatch.setattr("site.getsitepackages", lambda: [root, needed])
    assert "PYTHONPATH" not in child_module._environment()


def test_large_values_of_a_map_travel_too(place, load):
    data = load(place, shuffle=False, describe=lambda d: d.map(lambda s: {"b": b"x" * 100_000}))
    for batch in data:
        assert [hashlib.sha256(value).hexdigest() for value in batch["b"]] == [
            hashlib.sha256(b"x" * 100_000).hexdigest()
        ] * 8


def test_a_slot_that_comes_back_while_training_waits_is_told_at_once(place, load, until):
    # Of eight one is a small part: but training, which waits in another thread, will not say so later.
    size = 640
    data = load(place, describe=lambda d: d.fields("x.npy"), batch=4, epochs=4, prefetch_bytes=8 * size, patience_s=30)
    loop = iter(data)
    held = [next(loop)]
    until(lambda: data.stats().ready_batches == 7)
    held += [next(loop) for _ in range(7)]
    timer = threading.Timer(0.05, held.pop)
    timer.start()
    begin = time.monotonic()
    next(loop)
    assert time.monotonic() - begin < 20
    timer.join()
    assert data.stats().copied_batches == 0
