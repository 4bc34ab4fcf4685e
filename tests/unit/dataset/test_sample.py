import pytest

from stoker.dataset.index import index
from stoker.dataset.open import open_dataset
from stoker.dataset.sample import find_sample, read_sample
from stoker.errors import DatasetError, DigestMismatch
from stoker.store.memory import MemoryStore
from stoker.values import Key

SAMPLES = [(f"key-{i}", {"txt": b"t%d" % i} | ({"bin": b"b" * i} if i % 2 else {})) for i in range(30)]


@pytest.fixture
def opened(write_samples):
    return open_dataset(write_samples(MemoryStore("s"), SAMPLES, shard_bytes=8192))


def test_every_sample_is_found_by_its_key_and_read_with_the_fields_it_has(opened):
    assert len(opened.objects) > 2
    for number, (key, fields) in enumerate(SAMPLES):
        assert find_sample(opened, key) == number
        assert read_sample(opened, number) == fields


@pytest.mark.parametrize("key", ["", "key-", "ey-1", "key-1k", "key-30"])
def test_a_key_that_is_not_there_is_an_error_with_a_near_one(opened, key):
    with pytest.raises(DatasetError, match="no sample has the key") as caught:
        find_sample(opened, key)
    assert "key-" in caught.value.hint or "ls URL" in caught.value.hint


def test_a_key_in_two_archives_is_an_error_that_counts(opened):
    store = MemoryStore("twice")
    for name in ("a.tar", "b.tar"):
        store.write(Key(name), opened.store.read(Key("shard-000000.tar")))
    index(store, "")
    with pytest.raises(DatasetError, match="2 samples have the key 'key-0'"):
        find_sample(open_dataset(store), "key-0")


def test_a_wrong_byte_is_not_returned(opened):
    key = Key("shard-000000.tar")
    opened.store.write(key, opened.store.read(key).replace(b"t1", b"t2", 1))
    with pytest.raises(DigestMismatch, match="field 'txt' of sample 1 has crc32c"):
        read_sample(opened, 1)
