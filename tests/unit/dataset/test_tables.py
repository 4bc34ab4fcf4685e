import contextlib
import errno
import gc
import hashlib
import os
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.dataset import tables
from stoker.dataset.tables import Table, Text, decode_table, encode_table, read_table
from stoker.errors import FormatError, NotFound, StoreError
from stoker.store.local import LocalStore
from stoker.values import Key

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)


def table_of(keys):
    count = len(keys)
    numbers = np.arange(count, dtype=np.int64) * 2**40
    return Table({"key": Text.of(keys), "n": numbers, "c": np.arange(count, dtype=np.uint32)})


def arrow_file(schema, *batches, compression=None):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for batch in batches:
            writer.write_batch(pa.RecordBatch.from_arrays(batch, schema=schema))
    return sink.getvalue()


def field(name, kind):
    return pa.field(name, kind, nullable=False)


def test_a_table_that_the_system_does_not_map_is_not_called_damaged(tmp_path, monkeypatch):
    store = LocalStore(tmp_path)
    (tmp_path / "t.arrow").write_bytes(encode_table(table_of(["a"])))

    def refuse(path):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    monkeypatch.setattr(tables, "map_file", refuse)
    with pytest.raises(StoreError, match=r"cannot map table 't\.arrow': too many open files") as caught:
        read_table(store, Key("t.arrow"), 1)
    assert "ulimit -n" in caught.value.hint


@given(st.lists(TEXTS, max_size=20))
def test_a_table_comes_back_as_it_was_written(keys):
    table = table_of(keys)
    again = decode_table(pa.py_buffer(encode_table(table)), len(keys), "here")
    assert list(again.text("key")) == keys
    assert again.schema == table.schema == (("key", "utf8"), ("n", "int64"), ("c", "uint32"))
    for name in table.columns:
        for found, expected in zip(again.arrays(name), table.arrays(name), strict=True):
            np.testing.assert_array_equal(found, expected)
            assert found.dtype == expected.dtype
    assert again.digest() == table.digest()


def test_the_digest_is_over_names_types_counts_and_little_endian_values():
    expected = hashlib.sha256()
    expected.update(b"key\0utf8\0" + struct.pack("<q", 2) + struct.pack("<qqq", 0, 1, 3) + "aä".encode())
    expected.update(b"n\0int64\0" + struct.pack("<q", 2) + struct.pack("<qq", -1, 2**62))
    expected.update(b"c\0uint32\0" + struct.pack("<q", 2) + struct.pack("<II", 0, 2**32 - 1))
    table = Table(
        {
            "key": Text.of(["a", "ä"]),
            "n": np.array([-1, 2**62], dtype=np.int64),
            "c": np.array([0, 2**32 - 1], dtype=np.uint32),
        }
    )
    assert table.digest() == expected.hexdigest()


def test_the_same_digest_needs_the_same_names_types_and_values():
    tables = [
        Table({"a": Text.of(["xy", "z"])}),
        Table({"a": Text.of(["x", "yz"])}),
        Table({"b": Text.of(["xy", "z"])}),
        Table({"a": np.array([1, 2], dtype=np.int64)}),
        Table({"a": np.array([1, 2], dtype=np.uint32)}),
        Table({"a": np.array([1], dtype=np.int64), "b": np.array([2], dtype=np.int64)}),
        Table({"a": np.array([], dtype=np.int64)}),
        Table({"a": Text.of([])}),
    ]
    assert len({table.digest() for table in tables}) == len(tables)


def test_any_arrow_reader_reads_the_file():
    with pa.ipc.open_file(pa.py_buffer(encode_table(table_of(["x", "yy"])))) as reader:
        assert reader.num_record_batches == 1
        found = reader.read_all()
    assert found.to_pydict() == {"key": ["x", "yy"], "n": [0, 2**40], "c": [0, 1]}
    assert found.schema.field("key").type == pa.large_utf8()
    assert not any(f.nullable for f in found.schema)


def test_a_file_is_mapped_and_stays_readable_after_it_is_replaced(tmp_path):
    store, key = LocalStore(tmp_path), Key("t.arrow")
    store.write(key, encode_table(table_of([f"key {i}" for i in range(5000)])))
    table = read_table(store, key, 5000)
    store.write(key, b"something else")
    gc.collect()
    assert list(table.text("key"))[4999] == "key 4999"
    assert table.int64("n").flags.owndata is False


def test_a_store_without_files_gives_the_same_table(store):
    store.write(Key("t.arrow"), encode_table(table_of(["a", "b"])))
    assert list(read_table(store, Key("t.arrow"), 2).text("key")) == ["a", "b"]
    with pytest.raises(NotFound):
        read_table(store, Key("other.arrow"), 2)


def test_a_table_cut_anywhere_is_refused():
    whole = bytes(encode_table(table_of(["a", "b", "c"])))
    footer = int.from_bytes(whole[-10:-6], "little") + 10
    for size in range(len(whole) - footer - 8):  # 8: the end of the stream; all of the table stands before it
        with pytest.raises(FormatError, match="here"):
            decode_table(pa.py_buffer(whole[:size]), 3, "here")


def test_a_flipped_byte_gives_an_error_or_another_digest():
    table = table_of(["a", "bb", "ccc"])
    whole = bytearray(encode_table(table))
    harmless = 0
    for at in range(len(whole)):
        whole[at] ^= 0xFF
        with contextlib.suppress(FormatError):
            harmless += decode_table(pa.py_buffer(bytes(whole)), 3, "here").digest() == table.digest()
        whole[at] ^= 0xFF
    assert 0 < harmless < len(whole) * 3 // 4  # padding and the footer say nothing of the columns


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "does not begin as an Arrow file"),
        (b"ARROW1\0\0", "not a table"),
        (b"ARROW1\0\0" + b"\xff" * 64, "not a table"),
        (b"not an arrow file at all", "does not begin as an Arrow file"),
        (arrow_file(pa.schema([field("n", pa.int64())])), "not a table"),
        (arrow_file(pa.schema([field("n", pa.int32())]), [pa.array([1, 2], pa.int32())]), "type int32"),
        (arrow_file(pa.schema([field("n", pa.utf8())]), [pa.array(["1", "2"])]), "type string"),
        (arrow_file(pa.schema([pa.field("n", pa.int64())]), [pa.array([1, None])]), "with nulls"),
        (arrow_file(pa.schema([field("n", pa.int64())]), [pa.array([1, 2, 3])]), "3 rows, 2 are expected"),
        (
            arrow_file(pa.schema([field("n", pa.int64())] * 2), [pa.array([1, 2]), pa.array([3, 4])]),
            "two columns have one name",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_table_of_ours_is_refused(data, words):
    with pytest.raises(FormatError, match=words):
        decode_table(pa.py_buffer(data), 2, "here")


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_columns_are_refused_before_memory_is_taken_for_them(compression):
    zeros = pa.array(np.zeros(1 << 22, dtype=np.int64))
    data = arrow_file(pa.schema([field("n", pa.int64())]), [zeros], compression=compression)
    assert data.size < 1 << 20
    before = pa.total_allocated_bytes()
    with pytest.raises(FormatError, match="not one uncompressed record batch"):
        decode_table(data, 1 << 22, "here")
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_strings_that_are_not_utf8_are_refused():
    bad = pa.LargeStringArray.from_buffers(1, pa.py_buffer(np.array([0, 2], dtype=np.int64)), pa.py_buffer(b"\xff\xfe"))
    with pytest.raises(FormatError, match="UTF8"):
        decode_table(arrow_file(pa.schema([field("s", pa.large_utf8())]), [bad]), 1, "here")


@pytest.mark.parametrize("offsets", [(0, 5, 2), (0, 2, 1 << 40), (0, -1, 4), (1, 2, 4)])
def test_offsets_of_strings_that_run_backwards_or_out_of_the_buffer_are_refused(offsets):
    whole = bytes(encode_table(Table({"s": Text.of(["ab", "cd"])})))
    right = struct.pack("<qqq", 0, 2, 4)
    assert whole.count(right) == 1
    with pytest.raises(FormatError):
        decode_table(pa.py_buffer(whole.replace(right, struct.pack("<qqq", *offsets))), 2, "here")


def test_a_string_that_begins_within_a_character_is_refused():
    whole = bytes(encode_table(Table({"s": Text.of(["aä", "b"])})))
    right = struct.pack("<qqq", 0, 3, 4)
    assert whole.count(right) == 1
    with pytest.raises(FormatError, match="UTF8"):
        decode_table(whole.replace(right, struct.pack("<qqq", 0, 2, 4)), 2, "here")


@given(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=4))
def test_whatever_is_damaged_is_refused_by_an_error_of_stokers(damages):
    whole = bytearray(encode_table(table_of(["a", "bb", "cää"])))
    for at, value in damages:
        whole[at % len(whole)] = value
    with contextlib.suppress(FormatError):
        list(decode_table(whole, 3, "here").text("key"))


def test_an_object_far_too_large_for_its_rows_is_not_read(store):
    store.write(Key("t.arrow"), bytes(3 << 20))
    if store.path(Key("t.arrow")) is None:
        with pytest.raises(FormatError, match="3145728 bytes long, 2 rows cannot be"):
            read_table(store, Key("t.arrow"), 2)
    else:
        with pytest.raises(FormatError, match="does not begin as an Arrow file"):
            read_table(store, Key("t.arrow"), 2)
