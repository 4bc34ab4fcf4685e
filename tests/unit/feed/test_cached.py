import numpy as np
import pytest

from stoker.dataset.open import open_dataset
from stoker.dataset.order import OrderedBatch
from stoker.dataset.write import DatasetWriter
from stoker.errors import DigestMismatch, NotFound, Truncated
from stoker.feed import cached
from stoker.feed.cached import order_runs, read_cached
from stoker.feed.plan import plan_batch
from stoker.store.memory import MemoryStore
from stoker.testing.stores import WrappedStore
from stoker.values import Key


class CachingMemory(WrappedStore):
    """Has in memory what does not lie in `cold`, (key, start); counts look-ups and reads."""

    def __init__(self, inner, *, can_tell=True):
        super().__init__(inner)
        self.can_tell = can_tell
        self.cold = set()
        self.looked_up = []
        self.taken = []
        self.alone = []

    def read_into(self, key, start, buffer):
        self.alone.append((key, start))
        super().read_into(key, start, buffer)

    def read_cached(self, key, starts, buffers, digest):
        self.looked_up.append(key)
        if not self.can_tell:
            return None
        found = []
        for start, buffer in zip(starts, buffers, strict=True):
            if (key, start) in self.cold:
                break
            self.inner.read_into(key, start, buffer)
            self.taken.append((key, start))
            found.append(digest(buffer))
        return found


@pytest.fixture
def store():
    """Twelve samples of two fields in several shards."""
    inner = MemoryStore("data")
    with DatasetWriter(inner, shard_bytes=4096) as writer:
        for i in range(12):
            writer.write(f"s{i:02d}", {"a": bytes([i]) * (i + 1), "b": bytes([100 + i]) * 70})
    return CachingMemory(inner)


def plan_of(store, samples):
    opened = open_dataset(store)
    return opened, plan_batch(
        opened, OrderedBatch(0, 0, np.array(samples), np.ones(len(samples), np.bool_)), ("b", "a")
    )


def read(store, samples, gives_up=lambda: False):
    opened, plan = plan_of(store, samples)
    memory = bytearray(plan.nbytes)
    store.alone.clear()
    return read_cached(store, opened.objects.keys, order_runs([plan])[0], memoryview(memory), gives_up), plan, memory


def test_what_is_cached_lands_in_its_place_and_each_object_is_looked_up_once(store):
    samples = [11, 0, 7, 1, 11, 6]
    found, plan, memory = read(store, samples)
    assert (found.done, found.nbytes, found.rest.tolist(), found.can_tell) == (12, int(plan.sizes.sum()), [], True)
    for row, sample in enumerate(samples):
        for column, value in enumerate((bytes([100 + sample]) * 70, bytes([sample]) * (sample + 1))):
            start = int(plan.targets[row, column])
            assert bytes(memory[start : start + len(value)]) == value
    assert len(store.looked_up) == len(set(plan.objects.tolist())) > 1
    assert store.alone == []


def test_several_batches_are_ordered_at_once_as_one_by_one(store, monkeypatch):
    monkeypatch.setattr(cached, "_RUN_MAX_BYTES", 150)
    plans = [plan_of(store, samples)[1] for samples in ([3, 0, 7, 7], [11, 1, 2, 3], [5, 4, 3, 2])]
    for plan, runs in zip(plans, order_runs(plans), strict=True):
        assert sorted(runs.order.tolist()) == list(range(8))
        objects = plan.objects.repeat(2)[runs.order].tolist()
        assert runs.cuts[0] == 0 and runs.cuts[-1] == 8  # noqa: PT018
        for number, first, stop in zip(runs.objects, runs.cuts, runs.cuts[1:], strict=False):
            assert objects[first:stop] == [number] * (stop - first)
            assert sum(runs.stops[first:stop]) - sum(runs.starts[first:stop]) < 150 + 70
        assert objects == sorted(objects)
        for told, column in zip(
            runs[3:], (plan.offsets, plan.targets, plan.targets + plan.sizes, plan.crc32cs), strict=True
        ):
            assert told == column.ravel()[runs.order].tolist()


def test_what_is_not_cached_is_left_and_nothing_else_of_the_batch_is_lost(store):
    _, plan = plan_of(store, [0, 11, 5])
    keys = open_dataset(store).objects.keys
    store.cold = {(keys[int(plan.objects[1])], int(plan.offsets[1, 0]))}
    found, plan, _ = read(store, [0, 11, 5])
    of_the_object = [number for number in range(6) if plan.objects[number // 2] == plan.objects[1]]
    assert set(found.rest.tolist()) <= set(of_the_object)
    assert 2 in found.rest.tolist()
    assert found.done == 6 - len(found.rest)
    assert found.can_tell


def test_a_cold_batch_is_not_asked_for_object_by_object(store, monkeypatch):
    monkeypatch.setattr(cached, "_MISSES_MAX", 2)
    _, plan = plan_of(store, list(range(12)))
    keys = open_dataset(store).objects.keys
    offsets = plan.offsets.tolist()
    store.cold = {
        (keys[number], start) for number, row in zip(plan.objects.tolist(), offsets, strict=True) for start in row
    }
    found, plan, _ = read(store, list(range(12)))
    assert (found.done, found.nbytes, found.rest.tolist()) == (0, 0, list(range(24)))
    assert len(store.looked_up) == 2 < len(set(plan.objects.tolist()))


def test_a_store_that_cannot_tell_is_asked_once(store):
    store.can_tell = False
    found, _, _ = read(store, list(range(12)))
    assert (found.done, found.rest.tolist(), found.can_tell) == (0, list(range(24)), False)
    assert len(store.looked_up) == 1


def test_a_wrong_byte_is_left_to_whoever_reads_it_alone(store):
    key = Key("shard-000000.tar")
    data = bytearray(store.inner.read(key))
    data[data.index(bytes([100]) * 70)] ^= 1
    store.inner.write(key, data)
    found, plan, _ = read(store, [3, 0])
    assert found.rest.tolist() == [2]
    assert (found.done, found.nbytes) == (3, int(plan.sizes.sum()) - 70)


def test_a_batch_that_is_not_wanted_any_more_is_read_no_further(store):
    found, _, _ = read(store, list(range(12)), gives_up=lambda: len(store.looked_up) > 0)
    assert len(store.looked_up) == 1
    assert found.done + len(found.rest) == 24
    assert found.done < 24


def test_no_thread_reads_samples_of_a_warm_data_set(store, load):
    loader = load(store, batch=4)
    for batch in [next(iter(loader)) for _ in range(3)]:
        assert [value[0] for value in batch["b"]] == [100 + value[0] for value in batch["a"]]
    assert not [key for key, _ in store.alone if key.startswith("shard-")]
    assert loader.stats().reads >= 3 * 8
    assert loader._feeder._stages.pool.least_s == 0  # which says nothing of how long the storage takes


def test_what_is_cold_in_a_batch_is_read_by_threads_and_comes_with_the_rest(store, load):
    _, plan = plan_of(store, list(range(12)))
    keys = open_dataset(store).objects.keys
    store.cold = {(keys[int(plan.objects[row])], int(plan.offsets[row, 0])) for row in (2, 5, 9)}
    loader = load(store, batch=12)
    batch = next(iter(loader))
    assert sorted(value[0] for value in batch["a"]) == list(range(12))
    assert [value[0] for value in batch["b"]] == [100 + value[0] for value in batch["a"]]
    assert {one for one in store.alone if one in store.cold}


def test_a_wrong_byte_of_a_cached_sample_stops_training_by_its_name(store, load):
    loader = load(store, batch=12)
    key = Key("shard-000000.tar")
    data = bytearray(store.inner.read(key))
    data[data.index(bytes([100]) * 70)] ^= 1
    store.inner.write(key, data)
    with pytest.raises(DigestMismatch, match="field 'b' of sample 's00' has crc32c"):
        next(iter(loader))


def test_an_object_that_ends_early_is_named_though_it_was_cached(store, load):
    loader = load(store, batch=12)
    key = Key("shard-000000.tar")
    whole = store.inner.read(key)
    store.inner.write(key, whole[: whole.index(bytes([100]) * 70) + 5])
    store.read_cached = lambda *_: []
    with pytest.raises(Truncated):
        next(iter(loader))


def test_what_the_store_raises_there_fails_the_batch_and_not_the_feeder(store, load):
    loader = load(store, batch=4, prefetch_bytes=0)
    loop = iter(loader)
    next(loop)
    read_cached, store.read_cached = store.read_cached, lambda *_: store.inner.stat(Key("nothing"))
    for _ in range(2):
        with pytest.raises(NotFound, match="nothing"):
            next(loop)
    store.read_cached = read_cached
    assert next(loop).step == 1
