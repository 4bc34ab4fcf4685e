"""Map functions in processes of the feeder: the same batches as without, whatever becomes of them."""

import gc
import os
import random
import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stoker
from stoker.dataset.describe import Dataset
from stoker.dataset.open import open_dataset
from stoker.dataset.write import DatasetWriter
from stoker.errors import ChildDied, ClosedError, ConfigError, SampleError, TimedOut
from stoker.feed.loader import Loader
from stoker.feed.options import FeedOptions
from stoker.feed.start import Start, start_child
from stoker.feed.workers import cut_batch
from stoker.store.local import LocalStore
from stoker.values import Layout

COUNT = 60


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A data set of 60 samples of different sizes, with a field for each decoder."""
    rng = np.random.default_rng(5)
    store = LocalStore(tmp_path_factory.mktemp("workers") / "data", create=True)
    with DatasetWriter(store, shard_bytes=1 << 20) as writer:
        for i in range(COUNT):
            writer.write(
                f"s{i:03d}", {"bin": rng.bytes(100 + i % 7), "json": b'{"i": %d}' % i, "txt": f"text {i} ä".encode()}
            )
    return store


@pytest.fixture
def load(ledger, make_order):
    made = []

    def load(store, kind, describe, *, batch=20, layout=None, **options):
        opened = open_dataset(store)
        options.setdefault("prefetch_bytes", 1 << 20)
        with ExitStack() as on_error:
            start = Start(start_child()) if kind == "child" else Start()
            on_error.callback(start.give_up)
            loader = Loader(
                describe(Dataset(str(store.root)).decode({"json": "json", "txt": "text"})),
                opened,
                order=make_order(opened, batch),
                layout=layout or Layout(),
                options=FeedOptions(**options),
                ledger=ledger,
                start=start,
            )
            on_error.pop_all()
        made.append(loader)
        return loader

    yield load
    for loader in made:
        loader.close()


def pids(loader):
    """The map workers of a loader whose feeder is inline."""
    return loader._feeder._stages.workers.pids()


def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def mixed(sample):
    """A number, an array, a string and bytes of each kind of field."""
    return {
        "i": sample["json"]["i"],
        "sum": np.frombuffer(sample["bin"], np.uint8)[:50].astype(np.float32) * 2,
        "txt": sample["txt"] + "!",
        "bin": sample["bin"],
        "b": bytes(sample["bin"][:3]),
    }


def content(batch):
    return batch.sample_keys, {
        name: value.tobytes()
        if isinstance(value, np.ndarray)
        else [(type(one).__name__, one if isinstance(one, str) else bytes(one)) for one in value]
        for name, value in batch.items()
    }


@pytest.mark.parametrize("prefetch_bytes", [0, 1 << 20])
@pytest.mark.parametrize(("kind", "workers"), [("inline", 1), ("inline", 3), ("child", 2)])
def test_any_number_of_workers_gives_what_one_thread_gives(place, load, kind, workers, prefetch_bytes):
    expected = [content(batch) for batch in load(place, "inline", lambda d: d.map(mixed))]
    data = load(place, kind, lambda d: d.map(mixed), map_workers=workers, prefetch_bytes=prefetch_bytes)
    assert [content(batch) for batch in data] == expected
    assert len(expected) == COUNT // 20


@given(st.integers(1, 5000), st.integers(1, 16))
def test_a_batch_is_cut_into_pieces_of_8_to_64_that_cover_it_once(count, workers):
    cuts = cut_batch(count, workers)
    assert [row for start, stop in cuts for row in range(start, stop)] == list(range(count))
    sizes = {stop - start for start, stop in cuts[:-1]}
    assert len(sizes) <= 1
    assert all(8 <= size <= 64 for size in sizes)


def test_two_functions_run_one_after_the_other_and_memory_that_is_lent_is_left_alone(place, load):
    data = load(
        place, "inline", lambda d: d.map(mixed).map(lambda s: {"y": s["sum"] + s["i"]}), map_workers=2, epochs=4
    )
    held = [(batch["y"], batch["y"].tobytes()) for batch in data]
    assert all(values.tobytes() == before for values, before in held)


def fails(sample):
    if sample["json"]["i"] in (7, 33, 51):
        raise ValueError("odd one")
    return {"i": sample["json"]["i"]}


def test_of_several_errors_that_of_the_first_sample_is_told_with_its_key_and_the_traceback(place, load):
    inline = load(place, "inline", lambda d: d.map(fails), batch=COUNT)
    with pytest.raises(SampleError) as expected:
        next(iter(inline))
    data = load(place, "inline", lambda d: d.map(fails), batch=COUNT, map_workers=3)
    for _ in range(3):  # asking again tries again
        with pytest.raises(SampleError, match=r"sample 's0\d\d': map\(\) failed: ValueError: odd one") as caught:
            next(iter(data))
        assert str(caught.value) == str(expected.value)
    assert "in fails" in str(caught.value.__cause__)


def odd_shape(sample):
    return {"x": np.zeros(2 if sample["json"]["i"] == 40 else 3)}


def test_a_sample_unlike_the_first_is_told_as_without_workers(place, load):
    texts = []
    for workers in (0, 2):
        data = load(place, "inline", lambda d: d.map(odd_shape), batch=COUNT, map_workers=workers)
        with pytest.raises(SampleError) as caught:
            next(iter(data))
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_results_that_never_fit_are_refused_with_both_numbers(place, load):
    data = load(
        place, "inline", lambda d: d.map(lambda _: {"x": np.zeros(10_000)}), map_workers=1, prefetch_bytes=100_000
    )
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"prefetch_bytes is 100000, .* that map\(\) makes of it needs \d+"):
            next(iter(data))


def test_a_worker_that_is_killed_is_replaced_and_nothing_changes(place, load, caplog):
    def slow(sample):
        time.sleep(0.002)
        return mixed(sample)

    expected = [content(batch) for batch in load(place, "inline", lambda d: d.map(mixed), epochs=4)]
    data = load(place, "inline", lambda d: d.map(slow), map_workers=2, epochs=4)
    seen, dead = [], set()
    for batch in data:
        seen.append(content(batch))
        victim = pids(data)[:1]
        if victim and len(dead) < 3:
            os.kill(victim[0], signal.SIGKILL)
            dead |= set(victim)
    assert seen == expected
    assert dead
    assert "ended: SIGKILL; another one does its samples again" in caplog.text


def test_what_a_function_wrote_into_its_samples_before_it_was_killed_is_not_mapped_twice(place, load, tmp_path):
    once = str(tmp_path / "killed")

    def invert(sample):
        sample["bin"][:] = bytes(255 - each for each in sample["bin"])
        if sample["json"]["i"] % 10 == 7 and not (mark := Path(f"{once}{sample['json']['i']}")).exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"bin": bytes(sample["bin"])}

    plain = {
        key: bytes(255 - each for each in data)
        for batch in load(place, "inline", lambda d: d)
        for key, data in zip(batch.sample_keys, batch["bin"], strict=True)
    }
    data = load(place, "inline", lambda d: d.map(invert), map_workers=2)
    seen = {key: bytes(value) for batch in data for key, value in zip(batch.sample_keys, batch["bin"], strict=True)}
    assert len(list(tmp_path.iterdir())) == 6
    assert seen == plain


def test_a_sample_that_kills_every_worker_is_named_with_the_signal(place, load):
    def crash(sample):
        if sample["json"]["i"] == 23:
            os.kill(os.getpid(), signal.SIGSEGV)
        return {"i": 1}

    data = load(place, "inline", lambda d: d.map(crash), batch=COUNT, map_workers=2)
    with pytest.raises(ChildDied, match=r"(?s)in 3 times, the last one at sample 's023' of 's.*: SIGSEGV") as caught:
        next(iter(data))
    assert caught.value.hint == "a library crashed in it"


@pytest.mark.parametrize(
    ("end", "hint"),
    [
        (lambda: os._exit(3), "the function, or what it calls, ends its process"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL is often the kernel short of memory: fewer feed.map"),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "another process sent it SIGTERM"),
    ],
)
def test_the_hint_fits_how_the_workers_ended(place, load, end, hint):
    data = load(place, "inline", lambda d: d.map(lambda _: end()), batch=COUNT, map_workers=1)
    with pytest.raises(ChildDied) as caught:
        next(iter(data))
    assert caught.value.hint.startswith(hint)


@pytest.mark.alone
def test_a_function_that_hangs_is_named_at_the_deadline_and_close_ends_it(place, load, until):
    def hangs(sample):
        if sample["json"]["i"] == 5:
            time.sleep(100)
        return {"i": 1}

    data = load(place, "inline", lambda d: d.map(hangs), batch=COUNT, map_workers=2, deadline_s=3)
    with pytest.raises(TimedOut, match=r"waits for the map function: [12] of 8 micro-batches are left"):
        next(iter(data))
    there = pids(data)
    begin = time.monotonic()
    data.close()
    assert time.monotonic() - begin < 5
    assert not any(map(is_there, there))
    with pytest.raises(ClosedError):
        next(iter(data))


def test_a_loader_that_nobody_holds_ends_its_workers(place, load, until, ledger, make_order):
    opened = open_dataset(place)
    options = FeedOptions(map_workers=2)
    data = Loader(
        Dataset(str(place.root)).decode({"json": "json"}).map(lambda s: {"i": s["json"]["i"]}),
        opened,
        order=make_order(opened, 20),
        layout=Layout(),
        options=options,
        ledger=ledger,
    )
    batch = next(iter(data))
    there = pids(data)
    assert len(there) == 2
    del data
    gc.collect()
    until(lambda: not any(map(is_there, there)))
    assert len(batch["i"]) == 20
    until(lambda: not [each for each in threading.enumerate() if each.name.startswith("stoker-")])


class Keeps:
    """Keeps what it was given in the first samples, and later tells what became of it."""

    kept = ()

    def __call__(self, sample):
        view = sample["bin"]
        if len(self.kept) < 3:
            self.kept = (*self.kept, (view, bytes(view)))
        return {"same": all(bytes(view) == before for view, before in self.kept)}


def test_what_a_function_keeps_of_its_samples_is_never_written_over(place, load):
    data = load(place, "inline", lambda d: d.map(Keeps()), map_workers=1, epochs=10, prefetch_bytes=20_000)
    assert all(batch["same"].all() for batch in data)


def draws(sample):
    first = stoker.sample_rng().random()
    return {"a": first, "b": stoker.sample_rng().integers(1 << 40), "r": random.random(), "n": np.random.random()}  # noqa: NPY002  on purpose


def numbers(loader):
    return {
        (batch.epoch, key): tuple(float(batch[name][row]) for name in batch)
        for batch in loader
        for row, key in enumerate(batch.sample_keys)
    }


def test_what_a_map_draws_depends_on_seed_epoch_and_sample_alone(place, load):
    found = [
        numbers(load(place, kind, lambda d: d.map(draws), map_workers=workers, batch=batch, epochs=2))
        for kind, workers, batch in (("inline", 1, 20), ("child", 3, 10), ("child", 0, 60))
    ]
    assert found[0] == found[1] == found[2]
    assert len(set(found[0].values())) == len(found[0]) == 2 * COUNT
    state = random.getstate()
    inline = numbers(load(place, "inline", lambda d: d.map(draws), batch=20, epochs=1))
    assert {key: value[:2] for key, value in inline.items()}.items() <= {k: v[:2] for k, v in found[0].items()}.items()
    assert state != random.getstate()  # in threads of the trainer its own generators are drawn from, never seeded


def test_functions_that_ask_for_it_are_not_seeded(place, load):
    data = load(place, "inline", lambda d: d.map(draws, seeded=False), map_workers=1, batch=COUNT)
    seeded = load(place, "inline", lambda d: d.map(draws), map_workers=1, batch=COUNT)
    one, other = next(iter(data)), next(iter(seeded))
    assert one["a"].tolist() == other["a"].tolist()
    assert one["r"].tolist() != other["r"].tolist()


def test_a_generator_is_for_map_functions_alone():
    with pytest.raises(ConfigError, match="where no sample is mapped"):
        stoker.sample_rng()


@pytest.mark.alone
def test_a_slow_map_in_workers_is_map(place, load, ledger):
    def slow(sample):
        time.sleep(0.01)
        return {"i": 1}

    data = load(place, "inline", lambda d: d.map(slow), map_workers=1, prefetch_bytes=0)
    loop = iter(data)
    next(loop)
    before = dict(ledger.snapshot().totals.waits_ns)
    list(loop)
    waits = {cause: after - before[cause] for cause, after in ledger.snapshot().totals.waits_ns.items()}
    assert waits["map"] > 2 * 20 * 10_000_000
    assert waits["map"] > 0.8 * sum(waits.values())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_goes_on_with_other_ranks_and_workers_and_draws_the_same(place, load, workers):
    whole = [batch["a"].tolist() for batch in load(place, "inline", lambda d: d.map(draws), epochs=2)]
    for size in (2, 4):
        parts = []
        for rank in range(size):
            data = load(
                place, "child", lambda d: d.map(draws), epochs=2, map_workers=workers, layout=Layout(rank, size)
            )
            data.seek(data.position(after=1))
            parts.append([batch["a"].tolist() for batch in data])
        joined = [[value for part in step for value in part] for step in zip(*parts, strict=True)]
        assert joined == whole[2:]
