import io
import logging
import tarfile
from array import array

import numpy as np
import pytest

from stoker.dataset.manifest import MANIFEST_KEY, PACK_KEY
from stoker.dataset.open import open_dataset
from stoker.dataset.pack import PackOptions, pack
from stoker.dataset.write import DatasetWriter
from stoker.errors import (
    AlreadyExists,
    CapacityError,
    ClosedError,
    ConfigError,
    DatasetError,
    EmptyDataset,
    NotFound,
    Unavailable,
)
from stoker.store.memory import MemoryStore
from stoker.testing import Fault, FaultStore
from stoker.values import Key


def write_and_fail(store, samples, shard_bytes=2048, look=lambda: None):
    """A `with` block that writes samples, looks around, and ends in ZeroDivisionError; returns the writer."""
    writer = DatasetWriter(store, shard_bytes=shard_bytes)

    def block():
        with writer:
            write_all(writer, samples)
            look()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()
    return writer


def write_all(writer, samples):
    for key, fields in samples:
        writer.write(key, fields)


SAMPLES = [(f"d/{i:02d}", {"txt": b"text %d" % i, "seg.png": bytes(i * 97)}) for i in range(12)]


def read_members(store):
    """(name, content) of all members of all shards, in order, by Python's tarfile."""
    found = []
    for key in sorted(str(info.key) for info in store.list("shard-")):
        with tarfile.open(fileobj=io.BytesIO(store.read(Key(key)))) as tar:
            found += [(member.name, tar.extractfile(member).read()) for member in tar]
    return found


def test_samples_keep_their_order_and_fields_stand_sorted(store, write_samples):
    shuffled = [SAMPLES[i] for i in (3, 0, 11, 7, 5)]
    write_samples(store, shuffled)
    expected = [(f"{key}.{field}", fields[field]) for key, fields in shuffled for field in sorted(fields)]
    assert read_members(store) == expected
    assert open_dataset(store).keys(np.arange(5)) == [key for key, _ in shuffled]


def test_the_writer_makes_the_bytes_that_pack_makes_of_the_same_samples(tmp_path, fill, contents):
    files = {f"{key}.{field}": data for key, fields in SAMPLES for field, data in fields.items()}
    packed, written = MemoryStore("packed"), MemoryStore("written")
    pack(fill(tmp_path / "source", files), packed, PackOptions(shard_bytes=4096))
    with DatasetWriter(written, shard_bytes=4096) as writer:
        for key, fields in SAMPLES:
            writer.write(key, dict(reversed(fields.items())))
    expected = contents(packed)
    del expected[".pack.json"]
    assert contents(written) == expected
    assert sum(key.startswith("shard-") for key in expected) > 3


def test_anything_with_bytes_can_be_a_field(store):
    values = {
        "a": b"bytes",
        "b": bytearray(b"array"),
        "c": memoryview(b"..view..")[2:6],
        "d": np.arange(4, dtype=np.uint8),
    }
    with DatasetWriter(store) as writer:
        writer.write("x", values)
    assert [data for _, data in read_members(store)] == [
        b"bytes",
        b"array",
        b"view",
        bytes(range(4)),
    ]


def test_a_field_larger_than_a_piece_and_a_shard_is_written_whole(store):
    large = np.random.default_rng(1).bytes(3 * 1024 * 1024 + 7)
    with DatasetWriter(store, shard_bytes=64 * 1024) as writer:
        writer.write("small", {"bin": b"1"})
        writer.write("large", {"bin": large})
        writer.write("after", {"bin": b"2"})
    assert read_members(store) == [("small.bin", b"1"), ("large.bin", large), ("after.bin", b"2")]
    assert open_dataset(store).objects.sample_count.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("key", "fields", "words"),
    [
        ("a", {}, "has no field"),
        ("d/00", {"txt": b""}, "'d/00' was written before"),
        ("a.b", {"txt": b""}, "no dot after its last slash"),
        ("a", {"TXT": b""}, "lower case"),
        ("__a__/b", {"txt": b""}, "plain component"),
        ("a", {"txt": "text"}, "field 'txt' of sample 'a' is a str, not bytes"),
        ("a", {"txt": 3}, "is a int, not bytes"),
        ("a", {"txt": np.zeros((4, 4), dtype=np.uint8).T[:2]}, "is a ndarray, not bytes"),
        ("a", {"good": b"1", "bad": None}, "field 'bad' of sample 'a' is a NoneType"),
    ],
)
def test_a_sample_that_cannot_be_is_refused_and_leaves_no_trace(store, key, fields, words):
    with DatasetWriter(store) as writer:
        writer.write("d/00", {"txt": b"first"})
        with pytest.raises(ConfigError, match=words):
            writer.write(key, fields)
        writer.write("d/01", {"txt": b"second"})
    assert read_members(store) == [("d/00.txt", b"first"), ("d/01.txt", b"second")]
    assert open_dataset(store).manifest.field_names == ("txt",)


def test_hundreds_of_different_fields_are_names_with_dots_not_a_schema(store):
    with DatasetWriter(store) as writer:
        for i in range(256):
            writer.write(f"{i}", {f"f{i}": b""})
        with pytest.raises(DatasetError, match="more than 256 different fields"):
            writer.write("x", {"f256": b""})
        writer.write("y", {"f0": b""})
    assert open_dataset(store).manifest.sample_count == 257


def test_an_exception_publishes_nothing_and_leaves_nothing(store, contents):
    seen = []
    writer = write_and_fail(store, SAMPLES, look=lambda: seen.extend(contents(store)))
    assert len(seen) > 4
    assert contents(store) == {}
    with pytest.raises((DatasetError, NotFound), match=r"not a data set|nothing is stored there"):
        open_dataset(store)
    with pytest.raises(ClosedError, match="discarded"):
        writer.write("x", {"txt": b""})


def test_nothing_is_a_data_set_before_close(store):
    writer = DatasetWriter(store, shard_bytes=2048)
    for key, fields in SAMPLES:
        writer.write(key, fields)
    with pytest.raises(DatasetError, match="not a data set yet"):
        open_dataset(store)
    manifest = writer.close()
    assert open_dataset(store).manifest == manifest


def test_close_is_idempotent_and_ends_writing(store, contents):
    writer = DatasetWriter(store)
    writer.write("a", {"txt": b""})
    first = writer.close()
    before = contents(store)
    assert writer.close() == first
    writer.discard()
    assert contents(store) == before
    with pytest.raises(ClosedError, match="published"):
        writer.write("b", {"txt": b""})


def test_discard_inside_the_block_is_not_an_error(store, contents):
    with DatasetWriter(store) as writer:
        writer.write("a", {"txt": b""})
        writer.discard()
    assert contents(store) == {}


def test_an_empty_data_set_is_refused_and_leaves_nothing(store, contents):
    with pytest.raises(EmptyDataset, match="at least one sample"), DatasetWriter(store):
        pass
    assert contents(store) == {}


def test_the_mark_of_the_writer_is_gone_when_it_is_done(store, write_samples, contents):
    write_samples(store, SAMPLES)
    assert str(PACK_KEY) not in contents(store)


@pytest.mark.parametrize("size", [0, -1, 2**60])
def test_impossible_sizes_of_shards_are_refused(size):
    with pytest.raises(ConfigError, match="not a size for shards"):
        DatasetWriter(MemoryStore(), shard_bytes=size)


def test_another_data_set_is_never_written_over(store, write_samples, contents):
    write_samples(store, SAMPLES)
    before = contents(store)
    with pytest.raises(AlreadyExists, match="a data set is there already"):
        DatasetWriter(store)
    assert contents(store) == before


def test_parts_that_nobody_marked_are_not_touched(store, contents):
    store.write(Key("shard-000000.tar"), b"someone else's")
    with pytest.raises(AlreadyExists, match=r"shard-000000\.tar"):
        DatasetWriter(store)
    assert contents(store) == {"shard-000000.tar": b"someone else's"}


def test_an_unfinished_pack_is_not_touched(store, contents):
    store.write(PACK_KEY, b'{"format": "stoker-pack"}')
    with pytest.raises(AlreadyExists, match="an unfinished pack"):
        DatasetWriter(store)
    assert list(contents(store)) == [str(PACK_KEY)]


def test_other_objects_in_the_place_stay(store, contents, write_samples):
    store.write(Key("README.md"), b"mine")
    write_and_fail(store, SAMPLES)
    assert contents(store) == {"README.md": b"mine"}
    write_samples(store, SAMPLES)
    assert store.read(Key("README.md")) == b"mine"


def test_what_an_abandoned_writer_left_is_removed_by_the_next(store, write_samples, contents):
    abandoned = DatasetWriter(store, shard_bytes=2048)
    for key, fields in SAMPLES:
        abandoned.write(key, fields)
    with pytest.warns(ResourceWarning):
        del abandoned
    write_samples(store, SAMPLES[:1])
    assert set(contents(store)) == {
        "shard-000000.tar",
        "offsets/shard-000000.tar.arrow",
        "objects.arrow",
        "blocks.arrow",
        "manifest.json",
    }


def test_a_writer_whose_place_was_taken_over_publishes_and_removes_nothing(store, contents):
    first = DatasetWriter(store)
    first.write("a", {"txt": b"of the first"})
    second = DatasetWriter(store)
    second.write("b", {"txt": b"of the second"})
    with pytest.raises(AlreadyExists, match="taken over"):
        first.close()
    second.close()
    assert read_members(store) == [("b.txt", b"of the second")]
    assert open_dataset(store).keys(np.arange(1)) == ["b"]


def test_after_a_failed_write_nothing_is_published(contents):
    inner = MemoryStore()
    store = FaultStore(inner, [Fault("write", CapacityError("disk full"), prefix="shard-")])
    writer = DatasetWriter(store, shard_bytes=2048)
    with pytest.raises(CapacityError):
        write_all(writer, SAMPLES)
    with pytest.raises(DatasetError, match="an earlier write failed"):
        writer.write("z", {"txt": b""})
    with pytest.raises(DatasetError, match="an earlier write failed"):
        writer.close()
    assert contents(inner) == {}


def test_a_failure_while_publishing_removes_what_was_written(contents):
    inner = MemoryStore()
    store = FaultStore(inner, [Fault("write", Unavailable("away"), prefix="blocks.arrow")])
    with pytest.raises(Unavailable), DatasetWriter(store) as writer:
        writer.write("a", {"txt": b""})
    assert contents(inner) == {}


def test_what_cannot_be_removed_is_said_and_does_not_hide_the_error(contents, caplog):
    inner = MemoryStore()
    store = FaultStore(inner, [Fault("delete", Unavailable("away"), count=None)])
    write_and_fail(store, SAMPLES)
    assert "the next writer there removes it" in caplog.text
    assert caplog.records[0].levelno == logging.WARNING
    with DatasetWriter(inner) as writer:
        writer.write("c", {"txt": b""})
    assert open_dataset(inner).keys(np.arange(1)) == ["c"]


def test_a_manifest_that_was_written_after_all_keeps_its_shards(contents):
    class Ambiguous(FaultStore):
        """Writes the manifest and then says that it could not."""

        def write(self, key, data, *, if_absent=False):
            info = super().write(key, data, if_absent=if_absent)
            if key == MANIFEST_KEY:
                raise Unavailable("the answer was lost")
            return info

    inner = MemoryStore()
    with pytest.raises(Unavailable), DatasetWriter(Ambiguous(inner, [])) as writer:
        writer.write("a", {"txt": b"here"})
    assert open_dataset(inner).keys(np.arange(1)) == ["a"]
    assert read_members(inner) == [("a.txt", b"here")]


def test_an_array_in_a_field_npy_is_kept_with_its_type_and_shape(store):
    arrays = {"npy": np.arange(6, dtype=np.float32).reshape(2, 3), "mask.npy": np.array([1, 0], dtype=np.uint8)}
    with DatasetWriter(store) as writer:
        writer.write("a", arrays | {"raw.npy": b"bytes stay as they are"})
    found = {name.partition(".")[2]: data for name, data in read_members(store)}
    assert found.pop("raw.npy") == b"bytes stay as they are"
    for field, values in arrays.items():
        read = np.load(io.BytesIO(found[field]), allow_pickle=False)
        assert (read.dtype, read.tolist()) == (values.dtype, values.tolist())


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("txt", np.arange(2, dtype=np.int64), "is an array of int64 and shape 2, not bytes"),
        ("jpg", np.zeros((2, 3), dtype=np.uint8), "is an array of uint8 and shape 2x3, not bytes"),
        ("bin", np.array(1.0), "not bytes"),
        ("bin", array("d", [1.0]), "is an array of format 'd' and shape 1, not bytes"),
        ("bin", memoryview(array("d", [1.0])), "not bytes"),
        ("npy", np.array([None]), "without pickle"),
        ("npy", [1, 2], "is a list, not bytes"),
    ],
)
def test_an_array_whose_bytes_would_not_say_what_they_are_is_refused(store, field, value, words):
    with DatasetWriter(store) as writer:
        writer.write("good", {field: b""})
        with pytest.raises(ConfigError, match=words) as caught:
            writer.write("bad", {field: value})
        assert "npy" in str(caught.value)
    assert len(read_members(store)) == 1


def test_a_writer_that_nobody_closed_says_so_with_its_url(store, caplog):
    writer = DatasetWriter(store)
    writer.write("a", {"txt": b""})
    with pytest.warns(ResourceWarning) as told:
        del writer
    assert store.url in str(told[0].message)
    assert "never closed" in str(told[0].message)
    assert "call close()" in caplog.text


@pytest.mark.parametrize("end", ["close", "discard", "with"])
def test_a_writer_that_was_ended_says_nothing_when_it_goes(store, caplog, end):
    writer = DatasetWriter(store)
    writer.write("a", {"txt": b""})
    if end == "with":
        with writer:
            pass
    else:
        getattr(writer, end)()
    assert (
        repr(writer) == f"<DatasetWriter to {store.url}: {'discarded' if end == 'discard' else 'published'}, 1 sample>"
    )
    del writer
    assert caplog.text == ""
