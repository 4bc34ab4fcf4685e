import threading

import numpy as np
import pytest

from stoker.dataset import open as opening
from stoker.dataset.open import open_dataset
from stoker.errors import NotFound
from stoker.store.memory import MemoryStore
from stoker.values import Key

COUNT = 60
FIELDS = ("b", "a")


@pytest.fixture
def store(write_samples):
    samples = [
        (f"key{i * i}", {"a": b"x" * i} | ({"b": b"y" * (i % 7)} if i % 3 else {"c": b"z"})) for i in range(COUNT)
    ]
    return write_samples(MemoryStore(), samples)


def assert_same(opened, wanted):
    extents, keys, key_offsets = opened.find(wanted, FIELDS)
    expected = opened.extents(wanted, FIELDS)
    for name in ("object", "offset", "size", "crc32c"):
        np.testing.assert_array_equal(getattr(extents, name), getattr(expected, name))
    blob, offsets = opened.key_bytes(wanted)
    assert (keys.tobytes(), key_offsets.tolist()) == (blob.tobytes(), offsets.tolist())


def test_it_says_what_the_tables_say(store):
    opened = open_dataset(store)
    assert len(opened.objects) > 3
    rng = np.random.default_rng(1)
    for size in (0, 1, 5, 64, 200):
        assert_same(opened, rng.integers(0, COUNT, size))


def test_a_data_set_that_is_too_large_for_it_is_asked_object_by_object(store, monkeypatch):
    monkeypatch.setattr(opening, "ROWS_MAX_BYTES", 100)
    opened = open_dataset(store)
    opened.load(0, FIELDS)
    assert opened._shelf.loaded_count == 1
    assert_same(opened, np.arange(COUNT)[::-1])
    assert opened._places == {}


def test_each_table_is_read_once_and_only_when_it_is_needed(store):
    opened = open_dataset(store)
    opened.load(1, FIELDS)
    opened.find(np.array([0, 1]), FIELDS)
    for _ in range(3):
        opened.load(1, FIELDS)
    assert opened._shelf.loaded_count == 2


def test_a_table_that_is_gone_is_an_error_each_time_and_the_others_are_read(store):
    opened = open_dataset(store)
    gone = f"offsets/{opened.objects.keys[1]}.arrow"
    store.delete(Key(gone))
    first = int(opened.objects.first_sample[1])
    for _ in range(2):
        with pytest.raises(NotFound, match=gone):
            opened.find(np.array([first]), FIELDS)
    assert_same(opened, np.arange(first))


def test_threads_that_come_at_once_see_whole_rows(store):
    expected = open_dataset(store).extents(np.arange(COUNT), FIELDS)
    for _ in range(20):
        opened, wrong, start = open_dataset(store), [], threading.Barrier(4)

        def look(opened=opened, wrong=wrong, start=start):
            start.wait(10)
            found, keys, _ = opened.find(np.arange(COUNT), FIELDS)
            if not (found.offset == expected.offset).all() or not keys.tobytes().startswith(b"key0key1key4"):
                wrong.append(found)

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
