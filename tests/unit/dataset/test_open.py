import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from stoker.dataset.layout import choose_block_bytes, cut_shards, make_blocks
from stoker.dataset.manifest import (
    BLOCKS_KEY,
    MANIFEST_KEY,
    OBJECTS_KEY,
    FieldSchema,
    Manifest,
    TableDigests,
)
from stoker.dataset.objects import ObjectTable, blocks_table, objects_table
from stoker.dataset.open import open_dataset
from stoker.dataset.place import shard_key
from stoker.dataset.tables import encode_table
from stoker.errors import DatasetError, DigestMismatch, FormatError, NewerFormat, NotFound
from stoker.io.checksum import crc32c
from stoker.store.memory import MemoryStore
from stoker.testing import RecordingStore, SlowStore
from stoker.values import ByteRange, Key

COUNT = 40


def sample(i):
    fields = {"txt": f"text {i}".encode() * (i % 7)}
    if i % 3 == 0:
        fields["json"] = b"%d" % (i * i)
    return f"dir {i % 4}/sample-{i:03d}-ä", fields


@pytest.fixture
def opened(store, write_samples):
    write_samples(store, [sample(i) for i in range(COUNT)])
    return open_dataset(store)


def samples(*numbers):
    return np.array(numbers, dtype=np.int64)


def test_counts_and_fields_are_those_of_what_was_written(opened):
    manifest = opened.manifest
    sizes = [len(sample(i)[1]["txt"]) for i in range(COUNT)]
    numbers = [len(sample(i)[1].get("json", b"")) for i in range(COUNT)]
    assert (manifest.sample_count, manifest.object_count) == (COUNT, len(opened.objects))
    assert manifest.object_count > 3
    assert manifest.block_count == len(opened.blocks)
    assert manifest.total_bytes == sum(sizes) + sum(numbers)
    assert manifest.fields == (
        FieldSchema("json", 14, sum(numbers), max(numbers)),
        FieldSchema("txt", COUNT, sum(sizes), max(sizes)),
    )
    assert manifest.parent is None


def test_every_field_lies_where_its_extent_says_with_the_checksum_it_says(opened):
    fields = ("txt", "json")
    places = opened.extents(np.arange(COUNT), fields)
    assert places.offset.shape == places.size.shape == places.crc32c.shape == (COUNT, 2)
    for i in range(COUNT):
        for column, field in enumerate(fields):
            content = sample(i)[1].get(field)
            start, size = int(places.offset[i, column]), int(places.size[i, column])
            if content is None:
                assert (start, size, places.crc32c[i, column]) == (-1, 0, 0)
                continue
            key = opened.objects.keys[places.object[i]]
            assert opened.store.read(key, ByteRange(start, start + size)) == content
            assert places.crc32c[i, column] == crc32c(content)


def test_samples_come_in_the_order_asked_for_and_may_repeat(opened):
    wanted = samples(39, 0, 17, 17, 3, 39)
    every = opened.extents(np.arange(COUNT), ["txt"])
    found = opened.extents(wanted, ["txt"])
    np.testing.assert_array_equal(found.object, every.object[wanted])
    np.testing.assert_array_equal(found.offset, every.offset[wanted])
    np.testing.assert_array_equal(found.crc32c, every.crc32c[wanted])
    assert opened.keys(wanted) == [sample(int(i))[0] for i in wanted]


def test_no_samples_and_no_fields_are_fine(opened):
    assert opened.extents(samples(), ["txt"]).offset.shape == (0, 1)
    assert opened.extents(samples(1, 2), []).offset.shape == (2, 0)
    assert opened.keys(samples()) == []


def test_keys_lie_end_to_end_with_their_offsets(opened):
    data, offsets = opened.key_bytes(samples(5, 0))
    first, second = (sample(i)[0].encode() for i in (5, 0))
    assert data.tobytes() == first + second
    assert offsets.tolist() == [0, len(first), len(first) + len(second)]


def test_what_does_not_exist_is_named(opened):
    with pytest.raises(DatasetError, match="no field 'png'") as caught:
        opened.extents(samples(0), ["txt", "png"])
    assert "'json', 'txt'" in caught.value.hint
    for odd in (-1, COUNT, 2**62):
        with pytest.raises(DatasetError, match=f"no sample {odd}: the data set has {COUNT}"):
            opened.extents(samples(0, odd), ["txt"])


def test_the_largest_batch_is_bounded_by_the_manifest_and_exact_on_request(opened):
    sizes = sorted((len(sample(i)[1]["txt"]) for i in range(COUNT)), reverse=True)
    both = sorted((sum(map(len, sample(i)[1].values())) for i in range(COUNT)), reverse=True)
    assert opened.largest_batch_bytes(["txt"], 5) == 5 * sizes[0]
    assert opened.largest_batch_bytes(["txt"], 5, exact=True) == sum(sizes[:5])
    assert opened.largest_batch_bytes(["json", "txt"], 7, exact=True) == sum(both[:7])
    assert opened.largest_batch_bytes(["txt"], 1000, exact=True) == sum(sizes)
    assert opened.largest_batch_bytes(["txt"], 5) >= opened.largest_batch_bytes(["txt"], 5, exact=True)
    with pytest.raises(DatasetError, match="no field 'png'"):
        opened.largest_batch_bytes(["png"], 1)


def test_opening_reads_no_offsets_and_each_table_is_read_once(write_samples):
    store = SlowStore(write_samples(MemoryStore(), [sample(i) for i in range(COUNT)]), read_s=0.0)
    opened = open_dataset(store)
    assert store.read_count == 3  # manifest, objects, blocks
    opened.extents(samples(0), ["txt"])
    assert store.read_count == 4
    opened.extents(samples(0, 0), ["txt", "json"])
    opened.keys(samples(0))
    assert store.read_count == 4
    opened.extents(np.arange(COUNT), ["txt", "json"])
    assert store.read_count == 3 + opened.manifest.object_count


def test_many_threads_see_the_same(opened):
    expected = opened.extents(np.arange(COUNT), ["txt", "json"])
    fresh = open_dataset(opened.store)

    def look(seed):
        wanted = np.random.default_rng(seed).permutation(COUNT).astype(np.int64)
        found = fresh.extents(wanted, ["txt", "json"])
        return (found.offset == expected.offset[wanted]).all() and (found.crc32c == expected.crc32c[wanted]).all()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(look, range(64)))


def test_a_copied_data_set_is_the_same_data_set(opened, contents):
    copy = MemoryStore("copy")
    for key, data in contents(opened.store).items():
        copy.write(Key(key), data)
    assert open_dataset(copy).manifest == opened.manifest
    assert open_dataset(copy).keys(np.arange(COUNT)) == opened.keys(np.arange(COUNT))


def test_a_place_without_a_manifest_is_no_data_set(opened):
    opened.store.delete(MANIFEST_KEY)
    with pytest.raises(DatasetError, match="not a data set"):
        open_dataset(opened.store)


def test_a_newer_format_is_refused_by_name(opened):
    text = opened.store.read(MANIFEST_KEY).replace(b'"version": 1', b'"version": 2')
    opened.store.write(MANIFEST_KEY, text)
    with pytest.raises(NewerFormat, match="version 2"):
        open_dataset(opened.store)


def test_each_table_that_is_gone_altered_or_no_table_is_an_error_that_names_it(write_samples, contents):
    store = write_samples(MemoryStore(), [sample(i) for i in range(COUNT)])
    tables = [key for key in contents(store) if key.endswith(".arrow")]
    assert len(tables) > 4
    for key in tables:
        whole = store.read(Key(key))
        for damage, error in (
            (None, NotFound),
            (whole[: len(whole) // 2], FormatError),
            (b"something else", FormatError),
            (contents(store)["offsets/shard-000000.tar.arrow"] if "0000.tar" not in key else b"", FormatError),
        ):
            if damage is None:
                store.delete(Key(key))
            else:
                store.write(Key(key), damage)
            with pytest.raises((error, DigestMismatch), match=key.replace(".", r"\.")):
                open_dataset(store).extents(np.arange(COUNT), ["txt"])
        store.write(Key(key), whole)
    open_dataset(store).extents(np.arange(COUNT), ["txt"])


def test_offsets_of_another_shard_are_a_digest_mismatch(write_samples):
    store = write_samples(MemoryStore(), [(f"{i}", {"x": b"same"}) for i in range(6)], shard_bytes=4096)
    first, second = (store.read(Key(f"offsets/{shard_key(i)}.arrow")) for i in (0, 1))
    assert first != second
    store.write(Key(f"offsets/{shard_key(1)}.arrow"), first)
    with pytest.raises(DigestMismatch, match=r"shard-000001\.tar\.arrow"):
        open_dataset(store).keys(samples(5))


@pytest.mark.alone
def test_a_data_set_of_ten_million_samples_opens_at_once(tmp_path):
    count = 10_000_000
    extents = np.full(count, 2048, dtype=np.int64)
    shards = cut_shards(extents, 4 << 20)
    block_bytes = choose_block_bytes(int(extents.sum()) // 64)  # more and smaller blocks than it would have
    assert block_bytes < 1 << 20
    objects = objects_table(
        ObjectTable(
            keys=tuple(shard_key(i) for i in range(len(shards) - 1)),
            size_bytes=np.add.reduceat(extents, shards[:-1]) + 1024,
            first_sample=shards[:-1],
            sample_count=np.diff(shards),
            offsets_sha256=("0" * 64,) * (len(shards) - 1),
        )
    )
    table = make_blocks(extents, shards, block_bytes)
    blocks = blocks_table(table)
    manifest = Manifest(
        sample_count=count,
        object_count=len(objects),
        block_count=len(table),
        total_bytes=count * 1000,
        block_bytes=block_bytes,
        fields=(FieldSchema("txt", count, count * 1000, 1000),),
        tables=TableDigests(objects=objects.digest(), blocks=blocks.digest()),
    )
    store = RecordingStore(MemoryStore())
    for key, data in ((OBJECTS_KEY, encode_table(objects)), (BLOCKS_KEY, encode_table(blocks))):
        store.write(key, data)
    store.write(MANIFEST_KEY, manifest.encode())
    assert len(table) > 100_000
    started_s = time.perf_counter()
    opened = open_dataset(store)
    assert time.perf_counter() - started_s < 1.0
    assert opened.manifest.sample_count == count
