import numpy as np
import pytest

from stoker.dataset.objects import ObjectTable
from stoker.dataset.offsets import offsets_key
from stoker.dataset.open import open_dataset
from stoker.dataset.place import shard_key
from stoker.dataset.shelf import OffsetsShelf, Stores
from stoker.dataset.tables import Table, encode_table, read_table
from stoker.errors import FormatError
from stoker.store.memory import MemoryStore
from stoker.testing import WrappedStore


@pytest.fixture
def opened(write_samples):
    samples = [(f"{i}", {"x": b"content"}) for i in range(30)]
    return open_dataset(write_samples(MemoryStore(), samples))


def shelf_of(opened, limit_bytes):
    return OffsetsShelf(
        Stores(opened.store, opened.store), opened.manifest.field_names, opened.objects, opened.blocks, limit_bytes
    )


def test_the_least_recently_used_table_goes_first(opened):
    assert opened.manifest.object_count >= 4
    one = shelf_of(opened, 0).get(0).table.nbytes
    shelf = shelf_of(opened, 2 * one)
    for index in (0, 1, 0, 2, 0, 2):
        shelf.get(index)
    assert shelf.loaded_count == 3
    shelf.get(1)
    assert shelf.loaded_count == 4
    shelf.get(2)
    assert shelf.loaded_count == 4
    shelf.get(0)
    assert shelf.loaded_count == 5


def test_one_table_is_kept_even_if_it_is_larger_than_the_limit(opened):
    shelf = shelf_of(opened, 1)
    first = shelf.get(0)
    assert shelf.get(0) is first
    assert shelf.loaded_count == 1


def test_a_table_that_two_threads_load_at_once_counts_once(opened):
    class Reentrant(WrappedStore):
        """While a table is read, another thread reads it, and is done first."""

        depth = 0

        def read_into(self, key, start, buffer):
            self.depth += 1
            if self.depth == 1:
                shelf.get(0)
            super().read_into(key, start, buffer)

    one = shelf_of(opened, 0).get(0).table.nbytes
    store = Reentrant(opened.store)
    shelf = OffsetsShelf(Stores(store, store), opened.manifest.field_names, opened.objects, opened.blocks, 2 * one)
    shelf.get(0)
    assert shelf.loaded_count == 2
    shelf.get(1)
    shelf.get(0)
    shelf.get(1)
    assert shelf.loaded_count == 3


def test_a_field_outside_the_block_of_its_sample_is_refused(opened):
    key = offsets_key(shard_key(0))
    table = read_table(opened.store, key, int(opened.objects.sample_count[0]))
    columns = dict(table.columns)
    columns["x/offset"] = np.full(len(table), opened.objects.size_bytes[0] - 7, dtype=np.int64)
    wrong = Table(columns)
    opened.store.write(key, encode_table(wrong))
    objects = ObjectTable(
        keys=opened.objects.keys,
        size_bytes=opened.objects.size_bytes,
        first_sample=opened.objects.first_sample,
        sample_count=opened.objects.sample_count,
        offsets_sha256=(wrong.digest(), *opened.objects.offsets_sha256[1:]),
    )
    with pytest.raises(FormatError, match="field 'x' of sample 0 lies outside its block"):
        OffsetsShelf(Stores(opened.store, opened.store), ["x"], objects, opened.blocks, 1 << 20).get(0)
