"""Verifying goes on after a fault and names every one of them, and nothing else."""

import os

import pytest

from stoker.dataset.index import IndexOptions, index
from stoker.dataset.verify import verify_dataset
from stoker.errors import AccessDenied, DatasetError, NewerFormat, NotFound
from stoker.store.local import LocalStore
from stoker.store.memory import MemoryStore
from stoker.testing.stores import Fault, FaultStore
from stoker.values import Key

SAMPLES = [(f"k{i:02d}", {"txt": b"text %02d" % i, "bin": bytes([i]) * 700}) for i in range(40)]


@pytest.fixture
def packed(write_samples):
    return write_samples(MemoryStore("packed"), SAMPLES, shard_bytes=16384)


def verify(store, data=None, **options):
    return verify_dataset(store, data or store, **options)


def whats(found):
    return [(fault.error, fault.what) for fault in found.faults]


def test_a_whole_data_set_has_no_fault_and_deep_reads_all_of_it(packed):
    assert verify(packed, deep=False).faults == ()
    told = []
    found = verify(packed, deep=True, progress=lambda done, total: told.append((done, total)))
    total = sum(len(v) for _, fields in SAMPLES for v in fields.values())
    assert (found.faults, found.read_bytes, found.unchecked_bytes) == ((), total, 0)
    assert told[-1] == (total, total)


def test_every_wrong_byte_is_found_and_only_by_reading_deep(packed):
    for info in list(packed.list("shard-")):
        data = packed.read(info.key)
        packed.write(info.key, data.replace(b"text 03", b"text 0X").replace(b"text 25", b"text XX"))
    assert verify(packed, deep=False).faults == ()
    found = verify(packed, deep=True)
    assert [error for error, _ in whats(found)] == ["DigestMismatch"] * 2
    assert [fault.where.split(" (")[0] for fault in found.faults] == [
        "field 'txt' of sample 'k03'",
        "field 'txt' of sample 'k25'",
    ]


def test_each_thing_that_is_gone_cut_or_altered_is_one_fault_and_the_rest_is_looked_at(packed):
    packed.delete(Key("shard-000000.tar"))
    packed.write(Key("shard-000001.tar"), packed.read(Key("shard-000001.tar"))[:-512])
    packed.write(Key("offsets/shard-000002.tar.arrow"), packed.read(Key("offsets/shard-000003.tar.arrow")))
    found = verify(packed, deep=False)
    assert [error for error, _ in whats(found)] == ["NotFound", "Truncated", whats(found)[2][0]]
    assert whats(found)[2][0] in ("DigestMismatch", "FormatError")
    assert len(verify(packed, deep=True).faults) == 3


@pytest.mark.parametrize("key", ["manifest.json", "objects.arrow", "blocks.arrow"])
def test_a_damaged_table_at_the_root_is_a_fault(packed, key):
    packed.write(Key(key), packed.read(Key(key)).replace(b"s", b"t"))
    (fault,) = verify(packed, deep=False).faults
    assert fault.error in ("DigestMismatch", "FormatError")


def test_no_data_set_and_a_newer_one_are_errors_and_no_faults(packed):
    with pytest.raises(NotFound, match="nothing is stored there"):
        verify(MemoryStore("none"), deep=True)
    other = MemoryStore("other")
    other.write(Key("file"), b"")
    with pytest.raises(DatasetError, match="not a data set"):
        verify(other, deep=True)
    packed.write(Key("manifest.json"), packed.read(Key("manifest.json")).replace(b'"version": 1', b'"version": 2'))
    with pytest.raises(NewerFormat):
        verify(packed, deep=True)


def test_a_store_that_refuses_is_an_error_and_no_fault(packed):
    refusing = FaultStore(packed, [Fault("read", AccessDenied("no"), prefix="shard-")])
    with pytest.raises(AccessDenied):
        verify(refusing, deep=True)


@pytest.mark.parametrize("checksums", [False, True])
def test_of_a_tree_every_file_that_changed_is_one_fault(fill, tmp_path, checksums):
    tree, out = fill(tmp_path / "tree", {f"{i}.txt": b"text %d" % i for i in range(9)}), MemoryStore("out")
    index(LocalStore(tree), "", out, IndexOptions(checksums=checksums))
    assert verify(out, LocalStore(tree), deep=True).faults == ()
    assert verify(out, LocalStore(tree), deep=True).unchecked_bytes == (0 if checksums else 54)
    (tree / "3.txt").unlink()
    (tree / "5.txt").write_bytes(b"longer than before")
    for deep in (False, True):
        found = verify(out, LocalStore(tree), deep=deep)
        assert [fault.what.split("'")[1] for fault in found.faults[:2]] == ["3.txt", "5.txt"]
        assert [fault.error for fault in found.faults[2:]] == (["DigestMismatch"] if deep and checksums else [])


def test_of_archives_one_that_was_written_to_is_one_fault(packed, tmp_path):
    tars = tmp_path / "tars"
    tars.mkdir()
    for info in packed.list("shard-"):
        (tars / info.key).write_bytes(packed.read(info.key))
    index(LocalStore(tars), "")
    assert verify(LocalStore(tars), deep=True).faults == ()
    os.utime(tars / "shard-000001.tar", ns=(1, 1))
    for deep in (False, True):
        assert [error for error, _ in whats(verify(LocalStore(tars), deep=deep))] == ["SourceChanged"]
