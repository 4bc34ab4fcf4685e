import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.dataset.describe import Dataset
from stoker.dataset.open import open_dataset
from stoker.dataset.order import Order, plan_recipe
from stoker.dataset.write import DatasetWriter
from stoker.errors import DigestMismatch, NotFound, Truncated, Unavailable
from stoker.feed import stages
from stoker.feed.frames import Frames
from stoker.feed.gather import Gathering, cut_units
from stoker.feed.gatherer import Gatherer
from stoker.feed.loader import FeedOptions, Loader
from stoker.ledger import Ledger, LedgerIdentity
from stoker.store.local import LocalStore
from stoker.store.memory import MemoryStore
from stoker.testing.stores import SlowStore, WrappedStore
from stoker.units import MIB
from stoker.values import Key, Layout

FAR_S = 0.002


def write(store, sizes, shard_bytes=1 << 20):
    rng = np.random.default_rng(len(sizes))
    with DatasetWriter(store, shard_bytes=shard_bytes) as writer:
        for number, row in enumerate(sizes):
            writer.write(f"s{number:05d}", {f"f{i}": rng.bytes(size) for i, size in enumerate(row)})
    return store


SETS = {
    "one size": [(1000,)] * 1500,
    "many sizes": [(int(a), int(b)) for a, b in np.random.default_rng(5).integers(0, 5000, (500, 2))],
    "few large": [(90_000 + i, 10) for i in range(40)],
    "a block": [(100,)] * 50,
}
STORES = {name: write(MemoryStore("data"), sizes) for name, sizes in SETS.items()}


def make_loader(store, *, batch=20, shuffle="window", layout=None, **options):
    opened = open_dataset(store)
    blocks, manifest = opened.blocks.sample_count, opened.manifest
    recipe = plan_recipe(blocks, manifest.block_bytes, seed=3, global_batch_size=batch, shuffle=shuffle)
    order = Order(blocks, recipe, block_bytes=manifest.block_bytes, manifest_digest=manifest.digest)
    ledger = Ledger.create(None, LedgerIdentity(run="", rank=0, world=1, generation=1, host="host"))
    options = FeedOptions(**{"prefetch_bytes": 4 * MIB, "epochs": 2} | options)
    return Loader(Dataset(store), opened, order=order, layout=layout or Layout(), options=options, ledger=ledger)


def contents(loader, steps=None):
    """Keys and bytes of each batch."""
    with loader:
        found = []
        for batch in loader:
            found.append((batch.step, batch.sample_keys, [[bytes(row) for row in batch[name]] for name in batch]))
            if steps is not None and len(found) == steps:
                break
        return found, loader.stats()


def force(monkeypatch, frame_count, span_bytes=0):
    """Gather in so many frames, whatever is chosen."""

    def choose(blocks, readable, pattern, facts):
        return Gathering(cut_units(blocks, readable, span_bytes), frame_count, 0)

    monkeypatch.setattr(stages, "choose_units", choose)


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(sorted(SETS)),
    far=st.booleans(),
    shuffle=st.sampled_from(["window", "exact", False]),
    ranks=st.sampled_from([1, 2, 5, 20]),
    prefetch_bytes=st.sampled_from([0, 4 * MIB]),
    gather_bytes=st.sampled_from([70_000, MIB, 256 * MIB]),
    start=st.integers(0, 30),
)
def test_batches_are_the_same_byte_for_byte_however_they_are_read(
    name, far, shuffle, ranks, prefetch_bytes, gather_bytes, start
):
    store = STORES[name]
    for rank in {0, ranks - 1}:
        layout = Layout(dp_rank=rank, dp_size=ranks)
        found = []
        for limit, one in ((0, store), (gather_bytes, SlowStore(store, read_s=FAR_S) if far else store)):
            loader = make_loader(one, shuffle=shuffle, layout=layout, prefetch_bytes=prefetch_bytes, gather_bytes=limit)
            if shuffle is not False:
                loader.seek(loader.position(after=start % len(loader) - 1))
            batches, stats = contents(loader, steps=12)
            assert stats.gather_bytes <= limit
            found.append(batches)
        assert found[0] == found[1]


@pytest.mark.parametrize("frame_count", [1, 2, 7, 40])
@pytest.mark.parametrize("span_bytes", [0, 1 << 18])
@pytest.mark.parametrize("name", ["one size", "many sizes"])
def test_with_too_few_frames_the_batches_are_the_same(monkeypatch, name, span_bytes, frame_count):
    expected, _ = contents(make_loader(STORES[name], gather_bytes=0), steps=40)
    force(monkeypatch, frame_count, span_bytes)
    for store in (STORES[name], SlowStore(STORES[name], read_s=FAR_S)):
        found, stats = contents(make_loader(store), steps=40)
        assert found == expected
        assert stats.gather_bytes > 0


def test_each_block_is_read_once_an_epoch_and_kept_for_the_next_if_all_fit():
    store = STORES["one size"]
    blocks = len(open_dataset(store).blocks)
    assert blocks > 16
    _, stats = contents(make_loader(store))
    assert stats.reads == blocks
    assert stats.read_again == 0
    _, stats = contents(make_loader(store, gather_bytes=0))
    assert stats.reads == 2 * 1500


def test_within_a_limit_smaller_than_the_data_set_blocks_are_read_about_once_an_epoch():
    store = write(MemoryStore("data"), [(1000,)] * 6000, shard_bytes=4 << 20)
    blocks = len(open_dataset(store).blocks)
    loader = make_loader(store, gather_bytes=80 * 65536, prefetch_bytes=1 << 18)
    _, stats = contents(loader)
    assert 0 < stats.gather_bytes <= 80 * 65536 < blocks * 65536
    assert stats.read_again == 0
    assert 2 * blocks - 80 <= stats.reads <= 2 * blocks


def test_a_local_file_is_gathered_too(tmp_path):
    store = write(LocalStore(tmp_path, create=True), SETS["one size"])
    expected, _ = contents(make_loader(store, gather_bytes=0))
    found, stats = contents(make_loader(store))
    assert found == expected
    assert stats.reads == len(open_dataset(store).blocks)


class Faulty(WrappedStore):
    """Reads of shards longer than `longer` bytes go wrong `times` times: `error` is raised, or a byte is flipped."""

    def __init__(self, inner, error=None, times=1 << 30, longer=5000):
        super().__init__(inner)
        self.error = error
        self.times = times
        self.longer = longer
        self.lock = threading.Lock()

    def read_into(self, key, start, buffer):
        super().read_into(key, start, buffer)
        if key.startswith("shard-") and len(buffer) > self.longer:
            with self.lock:
                self.times -= 1
                if self.times < 0:
                    return
            if self.error is not None:
                raise self.error
            view = memoryview(buffer)
            for at in range(0, len(view), 500):
                view[at] ^= 255


def test_what_arrived_wrong_in_a_block_is_read_again_by_itself_and_right():
    expected, _ = contents(make_loader(STORES["one size"], gather_bytes=0), steps=10)
    for times in (1, 5, 1 << 30):
        found, stats = contents(make_loader(Faulty(STORES["one size"], times=times)), steps=10)
        assert found == expected
        assert stats.gather_bytes > 0


def flip(store, number):
    """A data set like that in `store`, with one byte of the first field of a sample changed."""
    copy = MemoryStore("data")
    for info in store.list():
        copy.write(info.key, store.read(info.key))
    opened = open_dataset(copy)
    places = opened.extents(np.array([number]), opened.manifest.field_names)
    key = opened.objects.keys[int(places.object[0])]
    data = bytearray(copy.read(key))
    data[int(places.offset[0, 0])] ^= 1
    copy.write(key, bytes(data))
    return copy


@pytest.mark.parametrize("name", ["one size", "many sizes"])
def test_a_wrong_byte_is_never_delivered_and_is_named_as_without_gathering(name):
    store = flip(STORES[name], 77)
    errors = []
    for gather_bytes in (0, 256 * MIB):
        loader = make_loader(store, gather_bytes=gather_bytes, shuffle=False, epochs=1)
        with loader:
            batches = iter(loader)
            seen = [next(batches).step for _ in range(3)]
            with pytest.raises(DigestMismatch, match="field 'f0' of sample 's00077'") as caught:
                next(batches)
            errors.append(str(caught.value))
            with pytest.raises(DigestMismatch):
                next(batches)
        assert seen == [0, 1, 2]
    assert errors[0] == errors[1]


@pytest.mark.parametrize("error", [Truncated("ends"), NotFound("gone")])
def test_a_block_that_cannot_be_read_whole_may_still_hold_what_is_wanted(error):
    expected, _ = contents(make_loader(STORES["one size"], gather_bytes=0), steps=10)
    found, stats = contents(make_loader(Faulty(STORES["one size"], error)), steps=10)
    assert found == expected
    assert stats.reads >= 200


def test_an_object_that_was_cut_off_is_named_when_what_it_lacks_is_asked_for():
    store = MemoryStore("data")
    for info in STORES["one size"].list():
        store.write(info.key, STORES["one size"].read(info.key))
    key = Key("shard-000000.tar")
    store.write(key, store.read(key)[:100_000])
    with make_loader(store, shuffle=False) as loader:
        batches = iter(loader)
        assert [next(batches).step for _ in range(3)] == [0, 1, 2]
        with pytest.raises(Truncated, match=r"shard-000000\.tar"):
            next(batches)


@pytest.mark.parametrize("far", [False, True])
def test_a_store_that_does_not_answer_is_an_error_and_the_next_request_tries_anew(far):
    faulty = Faulty(SlowStore(STORES["one size"], read_s=FAR_S) if far else STORES["one size"], Unavailable("away"))
    expected, _ = contents(make_loader(STORES["one size"], gather_bytes=0), steps=10)
    with make_loader(faulty) as loader:
        batches = iter(loader)
        with pytest.raises(Unavailable, match="away"):
            next(batches)
        # The next request may come out well: what a batch ahead was reading for it has failed, so it reads by itself.
        faulty.times = 0
        found = []
        while len(found) < 10:
            try:
                found.append(next(batches).sample_keys)
            except Unavailable:  # of a batch that was read ahead: kept until it was raised
                continue
        assert found == [keys for _, keys, _ in expected]


def test_batches_that_wait_for_the_same_block_go_on_when_it_comes_or_fails(until):
    inner = STORES["a block"]  # one block: every batch needs it
    for error in (None, Unavailable("away"), Truncated("ends")):
        gate = threading.Event()

        class Gated(SlowStore):
            def read_into(self, key, start, buffer, gate=gate, error=error):
                if key.startswith("shard-") and len(buffer) > 5000:
                    assert gate.wait(10)
                    if error is not None:
                        raise error
                super().read_into(key, start, buffer)

        loader = make_loader(Gated(inner, read_s=FAR_S), batch=5)
        with loader:
            taken = []

            def take(loader=loader, taken=taken):
                try:
                    taken.extend(batch.step for _, batch in zip(range(20), loader, strict=False))
                except Unavailable as raised:
                    taken.append(raised)

            asking = threading.Thread(target=take)
            asking.start()
            until(lambda loader=loader: len(loader._feeder._works) == 20)
            gate.set()
            asking.join(10)
            assert not asking.is_alive()
        if isinstance(error, Unavailable):
            assert taken == [error]
        else:
            assert taken == list(range(20))


def test_a_jump_while_blocks_are_read_is_served():
    store = SlowStore(STORES["one size"], read_s=0.01)
    expected, _ = contents(make_loader(STORES["one size"], gather_bytes=0))
    with make_loader(store) as loader:
        for step in (0, 60, 3, 61, 4, 100, 59):
            loader.seek(loader.position(after=step - 1))
            batch = next(iter(loader))
            assert (batch.step, batch.sample_keys) == expected[step][:2]


def test_closing_while_blocks_are_read_ends_everything():
    store = SlowStore(STORES["many sizes"], read_s=0.02)
    before = set(threading.enumerate())
    loader = make_loader(store)
    next(iter(loader))
    assert {thread.name.rpartition("-")[0] for thread in set(threading.enumerate()) - before} >= {"stoker-fetch"}
    loader.close()
    assert set(threading.enumerate()) <= before
    assert not loader._feeder._works


def test_no_frame_stays_held_when_no_batch_is_under_way(until):
    with make_loader(STORES["one size"]) as loader:
        for step in (0, 50, 20):
            loader.seek(loader.position(after=step - 1))
            next(iter(loader))
        loader.seek(loader.position(after=len(loader) - 2))
        next(iter(loader))
        frames = loader._feeder._stages._gatherer.frames
        until(lambda: not frames._holders.any())
        assert not frames._waiting


class Watched(SlowStore):
    """Slow, and counts how many of its reads of shards are under way."""

    def __init__(self, inner, read_s):
        super().__init__(inner, read_s)
        self.lock = threading.Lock()
        self.keys = []
        self.count = self.most = 0

    def read_into(self, key, start, buffer):
        with self.lock:
            self.keys.append((key, start))
            self.count += key.startswith("shard-")
            self.most = max(self.most, self.count)
        try:
            super().read_into(key, start, buffer)
        finally:
            with self.lock:
                self.count -= key.startswith("shard-")


LONG = write(MemoryStore("data"), [(1000,)] * 6000, shard_bytes=1 << 18)


def far_loader(store, **options):
    """A loader that has memory for little more than one batch, and for two thirds of the blocks."""
    return make_loader(store, prefetch_bytes=1 << 15, gather_bytes=80 * 65536, epochs=1, **options)


def test_how_much_is_read_at_a_time_does_not_depend_on_the_memory_for_batches(until):
    watched = Watched(LONG, read_s=0.01)
    expected, _ = contents(make_loader(LONG, gather_bytes=0, epochs=1))
    found, stats = contents(far_loader(watched))
    assert found == expected
    assert stats.read_again == 0
    assert stats.reads == len(open_dataset(LONG).blocks)
    assert 0 < stats.gather_bytes <= 80 * 65536
    with far_loader(watched) as loader:
        loader.seek(loader.position(after=99))
        batches = iter(loader)
        next(batches)
        frames = loader._feeder._stages._gatherer.frames
        for _ in range(20):
            next(batches)
        until(lambda: frames._is_ahead.sum() > 5)


def test_what_cannot_be_read_ahead_is_read_by_its_batch(monkeypatch):
    ahead, failed, plain = threading.local(), [], Gatherer._try

    def attempt(gatherer, claim, index):
        ahead.reads = True
        try:
            return plain(gatherer, claim, index)
        finally:
            ahead.reads = False

    class Failing(SlowStore):
        def read_into(self, key, start, buffer):
            if getattr(ahead, "reads", False) and start % 3 == 0:
                failed.append(start)
                raise Unavailable("away")
            super().read_into(key, start, buffer)

    monkeypatch.setattr(Gatherer, "_try", attempt)
    expected, _ = contents(make_loader(LONG, gather_bytes=0, epochs=1))
    found, stats = contents(far_loader(Failing(LONG, read_s=FAR_S)))
    assert found == expected
    assert len(failed) > 10
    assert stats.reads >= len(open_dataset(LONG).blocks)  # those that came to nothing are not counted


def test_offsets_are_read_before_the_batch_that_needs_them_is_planned(until):
    watched = Watched(LONG, read_s=FAR_S)
    tables = {info.key for info in LONG.list() if info.key.startswith("offsets")}
    assert len(tables) > 20
    with far_loader(watched, shuffle=False, batch=10) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        known = loader._feeder._stages._known_objects
        until(lambda: loader._feeder._stages._coming)
        assert int(known.sum()) <= 2


class Mounted(SlowStore):
    """Slow, and does not say so: a file system that is mounted from elsewhere."""

    @property
    def limits(self):
        return self.inner.limits


def test_a_store_whose_reads_turn_out_to_be_slow_is_read_in_large_pieces():
    expected, near = contents(make_loader(STORES["few large"], batch=4))
    assert near.gather_bytes == 0
    found, stats = contents(make_loader(Mounted(STORES["few large"], read_s=0.02), batch=4))
    assert found == expected
    assert stats.gather_bytes > 0
    assert stats.reads < near.reads


def test_the_memory_goes_back_when_the_loader_is_closed():
    loader = make_loader(STORES["one size"])
    next(iter(loader))
    loader.close()
    assert loader.stats().gather_bytes > 0
    assert len(loader._feeder._stages._gatherer.frames.memory) == 0


def test_when_all_blocks_are_there_batches_neither_claim_nor_read(monkeypatch):
    claims, claim = [], Frames.claim
    monkeypatch.setattr(Frames, "claim", lambda self, *rest: claims.append(1) or claim(self, *rest))
    store = STORES["one size"]
    found, stats = contents(make_loader(store, epochs=4))
    assert stats.reads == len(open_dataset(store).blocks)
    assert 0 < len(claims) <= len(found) // 4
    alone, _ = contents(make_loader(store, epochs=4, gather_bytes=0))
    assert found == alone


def test_an_error_where_blocks_are_at_hand_is_that_of_the_batch_and_the_next_request_tries_anew(monkeypatch):
    with make_loader(STORES["a block"], batch=5, prefetch_bytes=0) as loader:
        batches = iter(loader)
        seen = [next(batches).step for _ in range(3)]

        def fail(*_):
            raise ArithmeticError("odd")

        with monkeypatch.context() as patch:
            patch.setattr("stoker.feed.gatherer.copy_rows", fail)
            for _ in range(2):
                with pytest.raises(ArithmeticError, match="odd"):
                    next(batches)
        assert seen + [batch.step for batch in batches] == list(range(20))
