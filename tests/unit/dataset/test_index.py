"""Indexing tars and trees in place: what is found, what it is held to, and what is never touched."""

import os
import threading

import numpy as np
import pytest

from stoker.dataset import index_tree
from stoker.dataset.index import IndexOptions, index
from stoker.dataset.open import NO_CHECKSUM, open_dataset
from stoker.dataset.pack import PackOptions, pack
from stoker.dataset.sample import read_sample
from stoker.errors import (
    AlreadyExists,
    ConfigError,
    DatasetError,
    DigestMismatch,
    EmptyDataset,
    NotFound,
    SourceChanged,
)
from stoker.store.local import LocalStore
from stoker.store.memory import MemoryStore
from stoker.testing import RecordingStore
from stoker.values import Key

FILES = {f"d{i % 3}/{i:03d}.{ext}": (f"{ext} {i} " * (i % 9)).encode() for i in range(60) for ext in ("txt", "cls")}
CHECKED = IndexOptions(checksums=True)


@pytest.fixture
def tree(fill, tmp_path):
    return fill(tmp_path / "tree", FILES)


@pytest.fixture
def tars(tree, tmp_path):
    """Shards that pack wrote, without what makes them a data set."""
    store = LocalStore(tmp_path / "packed")
    digest = pack(tree, store, PackOptions(shard_bytes=16384)).digest
    folder = tmp_path / "tars"
    folder.mkdir()
    for path in (tmp_path / "packed").glob("*.tar"):
        os.link(path, folder / path.name)
    return LocalStore(folder), digest


def samples_of(opened):
    numbers = np.arange(opened.manifest.sample_count)
    return dict(zip(opened.keys(numbers), (read_sample(opened, n) for n in numbers.tolist()), strict=True))


def wanted():
    found = {}
    for path, content in FILES.items():
        key, field = path.rsplit(".", 1)
        found.setdefault(key, {})[field] = content
    return found


def state_of(folder):
    return {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in sorted(folder.rglob("*")) if p.is_file()}


def test_tars_are_indexed_beside_themselves_and_read_as_what_was_packed(tars):
    store, _ = tars
    before = state_of(store.root)
    report = index(store, "")
    assert (report.kind, report.samples, report.fields, report.already_there) == ("tar", 60, ("cls", "txt"), False)
    opened = open_dataset(store)
    assert samples_of(opened) == wanted()
    assert (opened.extents(np.arange(60), ["txt"]).crc32c == NO_CHECKSUM).all()
    after = state_of(store.root)
    assert {path: after[path] for path in before} == before
    assert not (store.root / ".pack.json").exists()


def test_with_checksums_it_is_the_data_set_that_pack_made(tars):
    store, digest = tars
    assert index(store, "", options=CHECKED).digest == digest
    assert samples_of(open_dataset(store)) == wanted()


@pytest.mark.parametrize("options", [IndexOptions(), CHECKED], ids=["versions", "checksums"])
def test_the_same_source_has_the_same_digest_and_nothing_is_written_again(tars, options):
    store, _ = tars
    first = index(store, "", options=options)
    recording = RecordingStore(store)
    again = index(recording, "", options=options)
    assert (again.digest, again.already_there, recording.writes) == (first.digest, True, [])
    elsewhere = MemoryStore("elsewhere")
    assert index(store, "*.tar", elsewhere, options).digest == first.digest
    assert index(store, f"shard-{{000000..{first.objects - 1:06d}}}.tar", MemoryStore(), options).digest == first.digest


def test_an_index_elsewhere_names_no_place_and_is_opened_with_the_data(tars):
    store, _ = tars
    out = MemoryStore("out")
    index(store, "", out)
    assert samples_of(open_dataset(out, store)) == wanted()
    assert all(str(store.root).encode() not in out.read(info.key) for info in out.list())


def test_an_archive_that_was_written_to_since_is_refused_when_it_is_first_used(tars):
    store, _ = tars
    index(store, "")
    opened = open_dataset(store)
    last = max(store.root.glob("*.tar"))
    os.utime(last, ns=(1, 1))
    opened.keys(np.arange(1))
    with pytest.raises(SourceChanged, match=f"'{last.name}' was written to since it was indexed"):
        opened.keys(np.array([59]))
    last.write_bytes(last.read_bytes() + bytes(512))
    with pytest.raises(SourceChanged, match="bytes when it was indexed"):
        open_dataset(store).keys(np.array([59]))
    last.unlink()
    with pytest.raises(SourceChanged, match="is gone"):
        open_dataset(store).keys(np.array([59]))
    with pytest.raises(AlreadyExists, match="another index or data set is there"):
        index(store, "")


def test_with_checksums_another_time_does_not_matter_and_other_bytes_do(tars):
    store, _ = tars
    index(store, "", options=CHECKED)
    first = min(store.root.glob("*.tar"))
    os.utime(first, ns=(1, 1))
    assert samples_of(open_dataset(store)) == wanted()
    data = bytearray(first.read_bytes())
    place = data.index(b"txt 3 ")
    data[place] ^= 1
    first.unlink()
    first.write_bytes(data)
    with pytest.raises(DigestMismatch):
        samples_of(open_dataset(store))


def test_an_archive_that_changes_meanwhile_is_noticed(tars):
    store, _ = tars

    class Changing(RecordingStore):
        def read_into(self, key, start, buffer):
            super().read_into(key, start, buffer)
            os.utime(store.root / key, ns=(2, 2))

    with pytest.raises(SourceChanged, match="changed while it was indexed"):
        index(Changing(store), "", MemoryStore())


@pytest.mark.parametrize("options", [IndexOptions(), CHECKED], ids=["versions", "checksums"])
def test_a_tree_is_read_where_it_lies(tree, options, monkeypatch):
    monkeypatch.setattr(index_tree, "FILES_PER_OBJECT", 50)
    store, out, before = LocalStore(tree), MemoryStore("out"), state_of(tree)
    report = index(store, "", out, options)
    assert (report.kind, report.samples, report.objects) == ("tree", 60, 120)
    opened = open_dataset(out, store)
    assert opened.objects.keys == ("tree-000000", "tree-000001", "tree-000002")
    assert samples_of(opened) == wanted()
    assert state_of(tree) == before
    assert index(store, "", MemoryStore(), options).digest == report.digest
    assert index(store, "", out, options).already_there


def test_a_tree_is_indexed_beside_itself_as_elsewhere(tree):
    store = LocalStore(tree)
    elsewhere = index(store, "", MemoryStore()).digest
    assert index(store, "").digest == elsewhere
    assert index(store, "").already_there
    assert samples_of(open_dataset(store)) == wanted()


def test_a_file_of_a_tree_that_changed_is_refused_by_its_name(tree):
    store, out = LocalStore(tree), MemoryStore("out")
    index(store, "", out)
    opened = open_dataset(out, store)
    (tree / "d1/004.txt").write_bytes(b"other")
    number = opened.keys(np.arange(60)).index("d1/004")
    with pytest.raises(SourceChanged, match=r"'d1/004.txt' had"):
        read_sample(opened, number)
    read_sample(opened, number - 1)


def test_a_file_that_no_object_can_be_is_counted(tree):
    (tree / "d0/link.txt").symlink_to("000.txt")
    report = index(LocalStore(tree), "", MemoryStore())
    assert (report.samples, list(report.skipped.values())) == (60, [1])


def test_globs_choose_the_files_in_tars_and_trees(tars, tree):
    store, _ = tars
    for source in (store, LocalStore(tree)):
        report = index(source, "", MemoryStore(), IndexOptions(include=("*.txt",), exclude=("d1/*",)))
        assert (report.fields, report.samples) == (("txt",), 40)


def test_files_that_make_no_sample_are_counted_and_nothing_is_left_behind(tree):
    (tree / "README").write_bytes(b"")
    (tree / "d0/000.TXT").write_bytes(b"")
    store = LocalStore(tree)
    before = state_of(tree)
    with pytest.raises(DatasetError, match=r"cannot index 1 file .* and 1 with other problems") as caught:
        index(store, "")
    assert "--include" in caught.value.hint
    assert state_of(tree) == before


def test_an_index_never_writes_over_files_that_are_not_its_own(tree):
    (tree / "objects.arrow").write_bytes(b"mine")
    with pytest.raises(AlreadyExists, match=r"'objects\.arrow', which is no part of one"):
        index(LocalStore(tree), "")
    assert (tree / "objects.arrow").read_bytes() == b"mine"
    out = MemoryStore()
    assert index(LocalStore(tree), "", out).samples == 61
    out = MemoryStore()
    out.write(Key("blocks.arrow"), b"mine")
    with pytest.raises(AlreadyExists, match="not of an index"):
        index(LocalStore(tree), "", out)


def test_an_index_inside_of_what_it_indexes_is_refused(tree):
    with pytest.raises(ConfigError, match="inside what it indexes"):
        index(LocalStore(tree), "", LocalStore(tree / "d0" / "index"))


def test_an_unfinished_index_with_other_options_is_taken_over(tars):
    store, _ = tars
    store.write(Key(".pack.json"), b'{"format": "stoker-index", "version": 1, "options": {}}')
    store.write(Key("offsets/old.tar.arrow"), b"left")
    index(store, "")
    assert not (store.root / "offsets" / "old.tar.arrow").exists()
    assert not (store.root / ".pack.json").exists()
    assert samples_of(open_dataset(store)) == wanted()


def test_a_place_where_something_else_is_under_way_is_left_alone(tars):
    store, _ = tars
    store.write(Key(".pack.json"), b'{"format": "stoker-pack"}')
    with pytest.raises(DatasetError, match="unfinished data set"):
        index(store, "")
    out = MemoryStore()
    out.write(Key(".pack.json"), b'{"format": "stoker-writer"}')
    store.delete(Key(".pack.json"))
    with pytest.raises(AlreadyExists, match="another writer"):
        index(store, "", out)


def test_nothing_to_index_is_an_error(tmp_path, tars):
    with pytest.raises(NotFound, match="no such folder"):
        index(LocalStore(tmp_path / "none"), "")
    with pytest.raises(NotFound, match="no such folder"):
        index(LocalStore(tmp_path / "none"), "*.tar")
    (tmp_path / "empty").mkdir()
    with pytest.raises(EmptyDataset, match="nothing to index"):
        index(LocalStore(tmp_path / "empty"), "")
    with pytest.raises(EmptyDataset, match="no sample in what matches"):
        index(tars[0], "", MemoryStore(), IndexOptions(include=("*.zip",)))


def test_progress_counts_archives(tars):
    told = []
    report = index(tars[0], "", MemoryStore(), progress=lambda done, total: told.append((done, total)))
    assert told == [(i + 1, report.objects) for i in range(report.objects)]


def test_an_index_that_fails_midway_has_ended_its_threads_when_it_says_so(tars):
    def fail(done, total):
        raise InterruptedError(f"{done} of {total}")

    with pytest.raises(InterruptedError) as caught:
        index(tars[0], "", MemoryStore(), progress=fail)
    assert caught.value.__traceback__ is not None  # and with it all that a collector would have to end
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("stoker-index")] == []
