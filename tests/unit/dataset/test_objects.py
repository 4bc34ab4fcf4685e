import numpy as np
import pytest

from stoker.dataset.layout import BlockTable
from stoker.dataset.manifest import BLOCKS_KEY, OBJECTS_KEY, FieldSchema, Manifest, TableDigests
from stoker.dataset.objects import (
    ObjectTable,
    Version,
    blocks_table,
    check_blocks,
    objects_table,
    read_blocks,
    read_objects,
)
from stoker.dataset.tables import Table, Text, encode_table
from stoker.errors import DigestMismatch, FormatError
from stoker.store.memory import MemoryStore

HUGE = 2**63 - 1


def numbers(*values):
    return np.array(values, dtype=np.int64)


def good_objects():
    return {
        "keys": ("shard-000000.tar", "shard-000001.tar"),
        "size_bytes": numbers(4096, 2048),
        "first_sample": numbers(0, 3),
        "sample_count": numbers(3, 1),
        "offsets_sha256": ("a" * 64, "b" * 64),
    }


def good_blocks():
    return {
        "object": numbers(0, 0, 1),
        "offset": numbers(0, 2048, 0),
        "length": numbers(2048, 1024, 1024),
        "first_sample": numbers(0, 2, 3),
        "sample_count": numbers(2, 1, 1),
    }


def manifest(objects, blocks):
    return Manifest(
        sample_count=4,
        object_count=2,
        block_count=3,
        total_bytes=4,
        block_bytes=65536,
        fields=(FieldSchema("x", 4, 4, 1),),
        tables=TableDigests(objects=objects.digest(), blocks=blocks.digest()),
    )


def open_tables(objects, blocks):
    """Store both tables as they are, and read them as `open_dataset` does."""
    store = MemoryStore()
    store.write(OBJECTS_KEY, encode_table(objects))
    store.write(BLOCKS_KEY, encode_table(blocks))
    found = manifest(objects, blocks)
    read = read_objects(store, OBJECTS_KEY, found)
    read_of_blocks = read_blocks(store, BLOCKS_KEY, found)
    check_blocks(read_of_blocks, read, found, "here")
    return read, read_of_blocks


def test_tables_come_back_as_they_were_written():
    objects, blocks = open_tables(
        objects_table(ObjectTable(**good_objects())), blocks_table(BlockTable(**good_blocks()))
    )
    assert objects.keys == good_objects()["keys"]
    assert objects.offsets_sha256 == good_objects()["offsets_sha256"]
    assert objects.first_sample.tolist() == [0, 3]
    assert blocks.offset.tolist() == [0, 2048, 0]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("keys", ("a", "a"), "two objects have one name"),
        ("keys", ("a", "../b"), "name of an object cannot be used"),
        ("keys", ("a", "/etc/passwd"), "name of an object cannot be used"),
        ("keys", ("a", "file:///etc/passwd"), "name of an object cannot be used"),
        ("keys", ("a", "http://169.254.169.254/x"), "name of an object cannot be used"),
        ("size_bytes", numbers(4096, 0), "has no size"),
        ("size_bytes", numbers(-1, 2048), "has no size"),
        ("first_sample", numbers(0, 2), "without a gap"),
        ("first_sample", numbers(1, 4), "without a gap"),
        ("first_sample", numbers(0, HUGE), "without a gap"),
        ("sample_count", numbers(3, 2), "without a gap"),
        ("sample_count", numbers(3, 0), "without a gap"),
        ("sample_count", numbers(HUGE, 1), "without a gap"),
        ("sample_count", numbers(3, -HUGE), "without a gap"),
        ("offsets_sha256", ("a" * 64, ""), "not a sha256"),
    ],
)
def test_objects_that_make_no_sense_are_refused(name, value, words):
    objects = objects_table(ObjectTable(**good_objects() | {name: value}))
    with pytest.raises(FormatError, match=words):
        open_tables(objects, blocks_table(BlockTable(**good_blocks())))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("object", numbers(0, 0, 2), "lies in no object"),
        ("object", numbers(0, 0, -1), "lies in no object"),
        ("offset", numbers(0, 1024, 0), "two blocks overlap"),
        ("offset", numbers(0, -512, 0), "beyond its object"),
        ("offset", numbers(0, 3073, 0), "beyond its object"),
        ("offset", numbers(0, HUGE, 0), "beyond its object"),
        ("length", numbers(2048, 2049, 1024), "beyond its object"),
        ("length", numbers(2048, HUGE, 1024), "beyond its object"),
        ("length", numbers(2048, 0, 1024), "beyond its object"),
        ("length", numbers(2048, -5, 1024), "beyond its object"),
        ("first_sample", numbers(0, 1, 3), "without a gap"),
        ("first_sample", numbers(1, 3, 4), "without a gap"),
        ("sample_count", numbers(2, 1, 2), "without a gap"),
        ("sample_count", numbers(2, HUGE, 1), "without a gap"),
    ],
)
def test_blocks_that_make_no_sense_are_refused(name, value, words):
    blocks = blocks_table(BlockTable(**good_blocks() | {name: value}))
    with pytest.raises(FormatError, match=words):
        open_tables(objects_table(ObjectTable(**good_objects())), blocks)


@pytest.mark.parametrize("owner", [(0, 1, 1), (1, 0, 1), (0, 0, 0), (1, 1, 1)])
def test_a_block_that_holds_samples_of_another_object_is_refused(owner):
    objects = objects_table(ObjectTable(**good_objects() | {"size_bytes": numbers(9000, 9000)}))
    blocks = blocks_table(BlockTable(**good_blocks() | {"object": numbers(*owner)}))
    with pytest.raises(FormatError, match="samples of another object"):
        open_tables(objects, blocks)


def test_a_block_of_several_samples_longer_than_block_bytes_is_refused():
    objects = objects_table(ObjectTable(**good_objects() | {"size_bytes": numbers(1 << 20, 2048)}))
    long = {"length": numbers(65537, 1024, 1024), "offset": numbers(0, 65537, 0)}
    with pytest.raises(FormatError, match="longer than block_bytes"):
        open_tables(objects, blocks_table(BlockTable(**good_blocks() | long)))
    alone = {"length": numbers(2048, 65537, 1024)}
    open_tables(objects, blocks_table(BlockTable(**good_blocks() | alone)))


@pytest.mark.parametrize("key", [OBJECTS_KEY, BLOCKS_KEY])
def test_a_table_that_was_altered_is_named(key):
    objects, blocks = objects_table(ObjectTable(**good_objects())), blocks_table(BlockTable(**good_blocks()))
    right = manifest(objects, blocks)
    store = MemoryStore()
    store.write(OBJECTS_KEY, encode_table(objects_table(ObjectTable(**good_objects() | {"size_bytes": numbers(9, 9)}))))
    store.write(BLOCKS_KEY, encode_table(blocks_table(BlockTable(**good_blocks() | {"length": numbers(1, 1, 1)}))))
    read = read_objects if key == OBJECTS_KEY else read_blocks
    with pytest.raises(DigestMismatch, match=f"table '{key}' was altered"):
        read(store, key, right)


@pytest.mark.parametrize("version", ["files:abc", "files+crc32c:" + "0" * 63, "e" * 1025])
def test_a_version_that_makes_no_sense_is_refused(version):
    columns = dict(objects_table(ObjectTable(**good_objects())).columns) | {"version": Text.of(["", version])}
    with pytest.raises(FormatError, match="a version makes no sense"):
        open_tables(Table(columns), blocks_table(BlockTable(**good_blocks())))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("", Version(checksums=True)),
        ("12-34", Version(checksums=False, store="12-34")),
        ("files:" + "a" * 64, Version(checksums=False, files="a" * 64)),
        ("files+crc32c:" + "b" * 64, Version(checksums=True, files="b" * 64)),
    ],
)
def test_a_version_says_what_an_object_is_held_to(text, version):
    assert Version.parse(text) == version
    assert str(version) == text
    objects = ObjectTable(**good_objects(), versions=("", text))
    assert objects.version(0) == Version(checksums=True)
    assert objects.version(1) == version


def test_other_columns_than_these_are_refused():
    objects, blocks = objects_table(ObjectTable(**good_objects())), blocks_table(BlockTable(**good_blocks()))
    with pytest.raises(FormatError, match="the columns are"):
        open_tables(objects, Table(dict(blocks.columns) | {"more": numbers(1, 2, 3)}))
    with pytest.raises(FormatError, match="the columns are"):
        open_tables(Table({name: objects.columns[name] for name in list(objects.columns)[:-1]}), blocks)
