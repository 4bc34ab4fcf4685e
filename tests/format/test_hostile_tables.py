"""Data sets made to do harm, with right digests: an attacker can compute those. All is refused before it is used."""

import io
import json

import numpy as np
import pyarrow as pa
import pytest

from stoker.dataset.index import index
from stoker.dataset.manifest import BLOCKS_KEY, MANIFEST_KEY, OBJECTS_KEY
from stoker.dataset.open import open_dataset
from stoker.dataset.sample import read_sample
from stoker.dataset.tables import Table, Text, decode_table, encode_table, read_table
from stoker.dataset.tree import files_key
from stoker.dataset.write import DatasetWriter
from stoker.errors import DatasetError, DigestMismatch, FormatError, IntegrityError, StokerError
from stoker.store.local import LocalStore
from stoker.store.memory import MemoryStore
from stoker.values import Key, json_digest

HUGE = 2**63 - 1
COUNT = 12
SIZE = 30_000


@pytest.fixture
def store():
    store = MemoryStore("forged")
    with DatasetWriter(store, shard_bytes=200_000) as writer:  # two objects of three blocks of two samples
        for i in range(COUNT):
            writer.write(f"k{i:02d}", {"txt": bytes([i]) * SIZE})
    opened = open_dataset(store)
    assert (len(opened.objects), len(opened.blocks)) == (2, 6)
    return store


def table_of(store, key, rows=None):
    return dict(read_table(store, Key(key), rows).columns)


def forge_manifest(store, **changes):
    body = json.loads(store.read(MANIFEST_KEY))
    del body["digest"]
    for name, value in changes.items():
        body[name] = value
    store.write(MANIFEST_KEY, json.dumps(body | {"digest": json_digest(body)}).encode())


def forge(store, key, change):
    """Change the columns of a table and make all digests right again."""
    name = {OBJECTS_KEY: "objects", BLOCKS_KEY: "blocks"}[key]
    columns = table_of(store, key)
    change(columns)
    table = Table(columns)
    store.write(key, encode_table(table))
    tables = json.loads(store.read(MANIFEST_KEY))["tables"] | {name: table.digest()}
    forge_manifest(store, tables=tables)


def forge_offsets(store, number, change, files=False):
    keys = list(Text(*(np.asarray(a) for a in Table(table_of(store, OBJECTS_KEY)).arrays("key"))))
    key = files_key(keys[number]) if files else Key(f"offsets/{keys[number]}.arrow")
    columns = table_of(store, key)
    change(columns)
    table = Table(columns)
    store.write(key, encode_table(table))

    def objects(found):
        column = "version" if files else "offsets_sha256"
        values = list(found[column])
        values[number] = ("files:" if files else "") + table.digest()
        found[column] = Text.of(values)

    forge(store, OBJECTS_KEY, objects)


def put(column, row, value):
    def change(columns):
        values = np.array(columns[column])
        values[row] = value
        columns[column] = values

    return change


BLOCKS = {
    "overlapping": put("offset", 1, 0),
    "beyond its object": put("length", 0, 10**6),
    "2^63 long": put("length", 0, HUGE),
    "at 2^63": put("offset", 1, HUGE),
    "at 2^63 less its length": put("offset", 1, HUGE - 10),
    "at a negative place": put("offset", 0, -1),
    "negative": put("length", 0, -512),
    "empty": put("length", 0, 0),
    "of an object that is not there": put("object", 0, 99),
    "of a negative object": put("object", 0, -1),
    "of more samples than there are": put("sample_count", 0, HUGE),
    "of a negative number of samples": put("sample_count", 0, -1),
    "of a sample that is not there": put("first_sample", 1, HUGE),
}


@pytest.mark.parametrize("change", BLOCKS.values(), ids=BLOCKS)
def test_a_block_that_cannot_be_is_refused(store, change):
    forge(store, BLOCKS_KEY, change)
    with pytest.raises(FormatError, match="makes no sense"):
        open_dataset(store)


NAMES = [
    "file:///etc/passwd",
    "http://169.254.169.254/latest/meta-data",
    "s3://other/bucket",
    "../x",
    "a/../../x",
    "/etc/passwd",
    "",
    "a//b",
    "a/./b",
    "a\x00b",
    "a\nb",
    "x" * 1025,
]


@pytest.mark.parametrize("name", NAMES)
def test_an_object_in_another_place_is_refused(store, name):
    def change(columns):
        columns["key"] = Text.of([name, *list(columns["key"])[1:]])

    forge(store, OBJECTS_KEY, change)
    with pytest.raises(FormatError, match="the name of an object cannot be used"):
        open_dataset(store)


OBJECTS = {
    "of 2^63 bytes": (put("size_bytes", 0, HUGE), None),
    "of no bytes": (put("size_bytes", 0, 0), FormatError),
    "of negative size": (put("size_bytes", 0, -5), FormatError),
    "of 2^63 samples": (put("sample_count", 0, HUGE), FormatError),
    "of negative samples": (put("sample_count", 0, -1), FormatError),
    "twice": (lambda c: c.update(key=Text.of([next(iter(c["key"]))] * len(c["key"]))), FormatError),
    "with a digest that is none": (lambda c: c.update(offsets_sha256=Text.of(["x"] * len(c["key"]))), FormatError),
    "with a version of 1 MiB": (lambda c: c.update(version=Text.of(["v" * 2**20] * len(c["key"]))), FormatError),
}


@pytest.mark.parametrize(("change", "error"), OBJECTS.values(), ids=OBJECTS)
def test_an_object_that_cannot_be_is_refused_or_does_no_harm(store, change, error):
    forge(store, OBJECTS_KEY, change)
    if error is None:  # nothing is taken for a size: the blocks say what is read
        assert len(read_sample(open_dataset(store), 0)["txt"]) == SIZE
        return
    with pytest.raises(error):
        open_dataset(store)


OFFSETS = {
    "beyond the object": put("txt/offset", 0, 10**9),
    "at 2^63": put("txt/offset", 0, HUGE),
    "of 2^63 bytes": put("txt/size", 0, HUGE),
    "of negative size": put("txt/size", 0, -1),
    "at a negative place": put("txt/offset", 0, -2),
    "missing but with a size": put("txt/offset", 0, -1),
    "in the block of another": put("txt/offset", 0, 70_000),
    "without checksums": lambda c: c.pop("txt/crc32c"),
    "of a field that nobody knows": lambda c: c.update(
        {f"zip/{n}": c.pop(f"txt/{n}") for n in ("offset", "size", "crc32c")}
    ),
    "with a column more": lambda c: c.update(more=np.zeros(len(c["key"]), np.int64)),
}


@pytest.mark.parametrize("change", OFFSETS.values(), ids=OFFSETS)
def test_a_field_that_lies_elsewhere_is_refused(store, change):
    forge(store, BLOCKS_KEY, lambda columns: None)
    forge_offsets(store, 0, change)
    with pytest.raises(FormatError):
        open_dataset(store).extents(np.arange(COUNT), ["txt"])


@pytest.fixture
def tree(tmp_path):
    """A tree of files and its index, in two places; beside the tree lies what nobody may read."""
    (tmp_path / "secret.txt").write_bytes(b"1234567890")
    (tmp_path / "tree").mkdir()
    for i in range(4):
        (tmp_path / "tree" / f"{i}.txt").write_bytes(b"%d" % i * 10)
    (tmp_path / "tree" / "link.txt").symlink_to("../secret.txt")
    out = MemoryStore("index")
    index(LocalStore(tmp_path / "tree"), "", out)
    return out, LocalStore(tmp_path / "tree")


@pytest.mark.parametrize("name", [*NAMES, "link.txt", "../secret.txt"])
def test_a_file_outside_of_the_tree_is_never_read(tree, name):
    out, data = tree
    forge_offsets(out, 0, lambda c: c.update(path=Text.of([name, *list(c["path"])[1:]])), files=True)
    with pytest.raises((FormatError, DatasetError, StokerError)) as caught:
        read_sample(open_dataset(out, data), 0)
    assert "1234567890" not in str(caught.value)


@pytest.mark.parametrize("size", [HUGE, -1, 2**62, 11])
def test_a_table_of_files_that_does_not_make_the_object_is_refused(tree, size):
    out, data = tree
    forge_offsets(out, 0, put("size_bytes", 0, size), files=True)
    with pytest.raises(FormatError, match=r"makes no sense|do not make an object"):
        read_sample(open_dataset(out, data), 0)


MANIFESTS = {
    "sample_count": [0, -1, 2**63, 2**80, "12", 1.5, None, True],
    "object_count": [0, 10**9, 2**62],
    "block_count": [0, 10**9, 2**62],
    "block_bytes": [0, 1, 65537, 2**40, -65536],
    "total_bytes": [-1, 2**63],
    "tables": [{}, {"objects": "0" * 64}, {"objects": "../x", "blocks": "y"}, []],
    "fields": [[], {}, [{}], [{"name": "", "sample_count": 1, "total_bytes": 0, "max_bytes": 0}]],
    "parent": ["x", 5],
    "url": ["file:///etc/passwd"],
    "order_version": [0, -1, "1", 1.0],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in MANIFESTS.items() for value in values])
def test_a_manifest_that_cannot_be_is_refused_without_taking_memory_for_it(store, name, value, limited):
    forge_manifest(store, **{name: value})
    error = limited(lambda: open_dataset(store))
    assert isinstance(error, IntegrityError)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[" * 100_000,
        b'{"format":' * 20_000,
        b'{"format": "stoker-dataset", "version": 1e999}',
        b"\xff\xfe{}",
        b'{"format": "\\ud800"}',
        b"1" * 4_000_000,
        b" " * (5 << 20),
    ],
    ids=range(9),
)
def test_a_manifest_that_is_no_json_of_ours_is_refused(store, text, limited):
    store.write(MANIFEST_KEY, text)
    assert isinstance(limited(lambda: open_dataset(store)), FormatError)


def test_wrong_digests_are_named(store):
    body = json.loads(store.read(MANIFEST_KEY))
    store.write(MANIFEST_KEY, json.dumps(body | {"digest": "0" * 64}).encode())
    with pytest.raises(DigestMismatch, match=r"manifest\.json was altered"):
        open_dataset(store)
    forge_manifest(store, tables=body["tables"] | {"blocks": "0" * 64})
    with pytest.raises(DigestMismatch, match=r"'blocks\.arrow' was altered"):
        open_dataset(store)


def arrow(schema, arrays, **options):
    stream = io.BytesIO()
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    with pa.ipc.new_file(stream, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    return stream.getvalue()


def one(kind, values, nullable=False, **options):
    return arrow(pa.schema([pa.field("a", kind, nullable=nullable)]), [pa.array(values, kind)], **options)


INTS = list(range(4))
ARROWS = {
    "int32": one(pa.int32(), INTS),
    "uint64": one(pa.uint64(), INTS),
    "float64": one(pa.float64(), INTS),
    "string with 32-bit offsets": one(pa.utf8(), ["a"] * 4),
    "binary": one(pa.large_binary(), [b"a"] * 4),
    "nullable": one(pa.int64(), INTS, nullable=True),
    "nulls": one(pa.int64(), [1, None, 3, 4], nullable=True),
    "list": one(pa.list_(pa.int64()), [[1]] * 4),
    "struct": one(pa.struct([("x", pa.int64())]), [{"x": 1}] * 4),
    "dictionary": one(pa.dictionary(pa.int32(), pa.large_utf8()), ["a"] * 4),
    "extension of null": one(pa.null(), [None] * 4, nullable=True),
    "compressed by zstd": one(pa.int64(), INTS, compression="zstd"),
    "compressed by lz4": one(pa.int64(), INTS, compression="lz4"),
    "a bomb": one(pa.int64(), [0] * 4_000_000, compression="zstd"),
    "two columns of one name": arrow(
        pa.schema([pa.field("a", pa.int64(), nullable=False)] * 2), [pa.array(INTS), pa.array(INTS)]
    ),
    "other rows": one(pa.int64(), list(range(5))),
}


@pytest.mark.parametrize("data", ARROWS.values(), ids=ARROWS)
def test_an_arrow_file_of_other_types_or_ways_is_refused(data, limited):
    assert isinstance(limited(lambda: decode_table(pa.py_buffer(data), 4, "here")), FormatError)


def test_an_arrow_file_cut_anywhere_is_refused_or_whole():
    data = bytes(encode_table(Table({"key": Text.of(["a", "bc"]), "n": np.array([1, 2], np.int64)})))
    for cut in range(len(data)):
        try:
            table = decode_table(pa.py_buffer(data[:cut]), 2, "here")
        except FormatError:
            continue
        assert table.int64("n").tolist() == [1, 2]  # all but the footer, which says nothing new


def test_a_table_larger_than_its_rows_can_be_is_not_read(store, limited):
    store.write(BLOCKS_KEY, bytes(64 << 20))
    assert isinstance(limited(lambda: open_dataset(store)), FormatError)
