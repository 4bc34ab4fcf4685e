import io
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import tarfile
import tracemalloc

import numpy as np
import pytest

from stoker.dataset.manifest import MANIFEST_KEY, PACK_KEY
from stoker.dataset.open import open_dataset
from stoker.dataset.pack import PackOptions, pack, plan_pack
from stoker.dataset.tables import Table, Text, encode_table, read_table
from stoker.dataset.write import DatasetWriter
from stoker.errors import (
    AlreadyExists,
    CapacityError,
    ConfigError,
    DatasetError,
    EmptyDataset,
    SourceChanged,
)
from stoker.io.checksum import crc32c
from stoker.store.local import LocalStore
from stoker.store.memory import MemoryStore
from stoker.testing import Fault, FaultStore, RecordingStore
from stoker.values import ByteRange, Key

SMALL = PackOptions(shard_bytes=8192)
FILES = {f"d{i % 3}/s{i:02d}.{field}": bytes([i]) * (i * 40) for i in range(20) for field in ("bin", "txt")}


@pytest.fixture
def source(tmp_path, fill):
    return fill(tmp_path / "source", FILES)


def shards_of(store):
    return sorted(str(info.key) for info in store.list("shard-"))


def test_every_file_comes_back_byte_for_byte_through_the_manifest(source, store):
    report = pack(source, store, SMALL)
    opened = open_dataset(store)
    keys = opened.keys(np.arange(opened.manifest.sample_count))
    assert keys == sorted({path.partition(".")[0] for path in FILES})
    places = opened.extents(np.arange(len(keys)), ["bin", "txt"])
    for row, key in enumerate(keys):
        for column, field in enumerate(["bin", "txt"]):
            start = int(places.offset[row, column])
            part = ByteRange(start, start + int(places.size[row, column]))
            content = store.read(opened.objects.keys[places.object[row]], part)
            assert content == FILES[f"{key}.{field}"]
            assert crc32c(content) == places.crc32c[row, column]
    assert (report.files, report.samples, report.total_bytes) == (40, 20, sum(map(len, FILES.values())))
    assert (report.shards, report.blocks) == (len(shards_of(store)), opened.manifest.block_count)
    assert (report.digest, report.dataset) == (opened.manifest.digest, store.url)
    assert (report.skipped_shards, report.skipped_files, report.already_there) == (0, 0, False)


def test_every_shard_is_a_plain_tar_of_at_most_the_size_asked_for(source, store, tmp_path):
    pack(source, store, SMALL)
    names = []
    for key in shards_of(store):
        data = store.read(Key(key))
        assert len(data) <= SMALL.shard_bytes
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            names += tar.getnames()
            assert all(tar.extractfile(name).read() == FILES[name] for name in tar.getnames())
    assert names == sorted(FILES)
    assert len(shards_of(store)) > 3


@pytest.mark.skipif(shutil.which("tar") is None, reason="there is no tar here")
def test_gnu_tar_unpacks_what_was_packed(source, tmp_path):
    store = LocalStore(tmp_path / "packed")
    pack(source, store, SMALL)
    out = tmp_path / "out"
    out.mkdir()
    for key in shards_of(store):
        done = subprocess.run(["tar", "-xf", store.path(Key(key)), "-C", out], capture_output=True, check=True)
        assert done.stderr == b""
    assert {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*.*")} == FILES


def test_the_same_files_give_the_same_bytes_in_whatever_order_they_were_made(tmp_path, source, fill, contents):
    names = list(FILES)
    random.Random(5).shuffle(names)
    again = fill(tmp_path / "again", {name: FILES[name] for name in names})
    for name in names:
        state = (source / name).stat()
        os.utime(again / name, ns=(state.st_atime_ns, state.st_mtime_ns))
    one, two, three = MemoryStore("1"), MemoryStore("2"), LocalStore(tmp_path / "3")
    reports = [pack(folder, store, SMALL) for folder, store in ((source, one), (again, two), (source, three))]
    assert contents(one) == contents(two) == contents(three)
    assert len({report.digest for report in reports}) == 1


def test_times_and_places_are_nowhere_but_in_the_mark(tmp_path, source, fill, contents):
    one, two = MemoryStore("1"), MemoryStore("2")
    pack(source, one, SMALL)
    later = fill(tmp_path / "later", FILES)
    for name in FILES:
        os.utime(later / name, (1, 1))
    pack(later, two, SMALL)
    first, second = contents(one), contents(two)
    assert first.pop(str(PACK_KEY)) != second.pop(str(PACK_KEY))
    assert first == second


def test_a_prefix_stands_before_every_key(source, store):
    pack(source, store, PackOptions(include=("d0/*.txt",), prefix="train/a/"))
    assert open_dataset(store).keys(np.arange(2)) == ["train/a/d0/s00", "train/a/d0/s03"]


def test_a_finished_pack_is_not_done_again(source, store):
    pack(source, store, SMALL)
    recording = RecordingStore(store)
    report = pack(source, recording, SMALL)
    assert recording.writes == []
    assert report.already_there
    assert report.skipped_shards == report.shards
    assert report.digest == open_dataset(store).manifest.digest


def stop_after(source, inner, shards):
    """Pack until the writing of one more shard than `shards` fails; returns the names of those that stand."""
    faulty = FaultStore(inner, [Fault("commit", CapacityError("disk full"), skip=shards)])
    with pytest.raises(CapacityError):
        pack(source, faulty, SMALL)
    assert len(shards_of(inner)) == shards
    return shards_of(inner)


@pytest.mark.parametrize("finished", [0, 1, 3])
def test_no_byte_of_a_finished_shard_is_written_again(source, store, contents, finished):
    whole = MemoryStore("whole")
    expected = pack(source, whole, SMALL)
    there = stop_after(source, store, finished)
    recording = RecordingStore(store)
    report = pack(source, recording, SMALL)
    written = {write.key: write.size_bytes for write in recording.writes}
    assert not set(there) & set(written)
    assert written.keys() == contents(whole).keys() - {*there, str(PACK_KEY)} - {f"offsets/{k}.arrow" for k in there}
    assert report.skipped_shards == finished
    assert report.digest == expected.digest
    assert contents(store) == contents(whole)


def test_sources_of_finished_shards_are_not_read_again(source, store, monkeypatch):
    there = stop_after(source, store, 3)
    packed = set()
    for key in there:
        with tarfile.open(fileobj=io.BytesIO(store.read(Key(key)))) as tar:
            packed |= set(tar.getnames())
    opened, real = [], os.open
    monkeypatch.setattr(os, "open", lambda path, *more, **kw: opened.append(str(path)) or real(path, *more, **kw))
    pack(source, store, SMALL)
    read = {os.path.relpath(path, source) for path in opened if path.startswith(str(source))}
    assert read == set(FILES) - packed


def change(name, value):
    """The bytes of a table of offsets with another value in the first row of a column."""

    def changed(store, key):
        rows = int(open_dataset(store).objects.sample_count[1])
        columns = dict(read_table(store, key, rows).columns)
        if name == "key":
            columns["key"] = Text.of([value, *list(columns["key"])[1:]])
        else:
            columns[name] = columns[name].copy()
            columns[name][0] = value
        return encode_table(Table(columns))

    return changed


@pytest.mark.parametrize(
    "damage",
    [
        None,
        lambda _store, _key: b"",
        lambda _store, _key: b"no table",
        lambda store, _key: store.read(Key("offsets/shard-000000.tar.arrow")),
        change("key", "other"),
        change("bin/offset", 512 * 7),
        change("bin/size", 1),
    ],
)
def test_offsets_that_are_gone_or_wrong_are_made_from_the_finished_shard(source, store, contents, damage):
    whole = MemoryStore("whole")
    pack(source, whole, SMALL)
    there = stop_after(source, store, 2)
    key = Key(f"offsets/{there[1]}.arrow")
    if damage is None:
        store.delete(key)
    else:
        store.write(key, damage(whole, key))
    recording = RecordingStore(store)
    pack(source, recording, SMALL)
    assert not set(there) & {write.key for write in recording.writes}
    assert str(key) in {write.key for write in recording.writes}
    assert contents(store) == contents(whole)


def test_a_shard_that_is_not_what_this_pack_would_have_written_is_refused(source, store):
    there = stop_after(source, store, 2)
    store.write(Key(there[1]), b"short")
    with pytest.raises(AlreadyExists, match=f"'{there[1]}' has 5 bytes, this pack writes"):
        pack(source, store, SMALL)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (PackOptions(shard_bytes=16384), "other options: shard_bytes 8192, now 16384"),
        (PackOptions(shard_bytes=8192, prefix="x"), "other options: prefix '', now 'x'"),
        (PackOptions(shard_bytes=8192, exclude=("none",)), r"other options: exclude \[\], now \['none'\]"),
    ],
)
def test_another_pack_does_not_go_on_with_an_unfinished_one(source, store, contents, options, words):
    stop_after(source, store, 2)
    before = contents(store)
    with pytest.raises(SourceChanged, match=words) as caught:
        pack(source, store, options)
    assert "another place" in caught.value.hint
    assert contents(store) == before


def test_a_source_that_changed_does_not_go_on_with_an_unfinished_pack(source, store, contents):
    stop_after(source, store, 2)
    before = contents(store)
    (source / "d0" / "new.txt").write_bytes(b"")
    with pytest.raises(SourceChanged, match="other files"):
        pack(source, store, SMALL)
    assert contents(store) == before


def test_a_file_that_changes_while_it_is_packed_stops_the_pack(source, store):
    victim = source / "d2" / "s17.bin"

    def meddle(_done, _total, _files):
        os.utime(victim, (5, 5))

    with pytest.raises(SourceChanged, match=r"'d2/s17\.bin' changed while it was packed"):
        pack(source, store, SMALL, meddle)
    with pytest.raises(DatasetError, match="not a data set yet"):
        open_dataset(store)


def test_the_order_of_globs_means_nothing(source, store):
    pack(source, store, PackOptions(include=("*.txt", "*.bin")))
    assert pack(source, store, PackOptions(include=["*.bin", "*.txt"])).already_there


def test_another_data_set_is_never_written_over(source, store, contents):
    pack(source, store, SMALL)
    before = contents(store)
    with pytest.raises(AlreadyExists, match="another data set is there already"):
        pack(source, store, PackOptions(shard_bytes=16384))
    store.delete(PACK_KEY)
    with pytest.raises(AlreadyExists, match="another data set is there already"):
        pack(source, store, SMALL)
    del before[str(PACK_KEY)]
    assert contents(store) == before


@pytest.mark.parametrize("key", ["shard-000007.tar", "offsets/x.arrow", "blocks.arrow", "objects.arrow"])
def test_parts_that_nobody_marked_are_not_touched(source, store, contents, key):
    store.write(Key(key), b"someone else's")
    with pytest.raises(AlreadyExists, match=key):
        pack(source, store, SMALL)
    assert contents(store) == {key: b"someone else's"}


def test_an_unfinished_writer_is_not_touched(source, store, contents):
    unfinished = DatasetWriter(store)
    before = contents(store)
    with pytest.raises(AlreadyExists, match="of another writer"):
        pack(source, store, SMALL)
    assert contents(store) == before
    unfinished.discard()


def test_shards_of_a_few_bytes_are_warned_of_and_made(source, store, caplog):
    pack(source, store, PackOptions(shard_bytes=10))
    assert "shards of at most 10 B" in caplog.text
    assert "64MiB suits most" in caplog.text
    caplog.clear()
    PackOptions(shard_bytes=1 << 20)
    assert caplog.text == ""


def test_a_mark_that_is_no_json_belongs_to_someone_else(source, store):
    store.write(PACK_KEY, b"\xff not json")
    with pytest.raises(AlreadyExists, match="of another writer"):
        pack(source, store, SMALL)


def test_two_packs_of_the_same_source_at_once_make_one_data_set(source, store, contents):
    whole = MemoryStore("whole")
    pack(source, whole, SMALL)
    begun = []

    def second(_done, _total, _files):
        if not begun:
            begun.append(pack(source, store, SMALL))

    report = pack(source, store, SMALL, second)
    assert report.digest == begun[0].digest
    assert contents(store) == contents(whole)


def test_a_manifest_that_another_wrote_meanwhile_is_not_replaced(source, store):
    def other(done, total, _files):
        if done == total:
            store.write(MANIFEST_KEY, b"of another")

    with pytest.raises(AlreadyExists, match=r"manifest\.json"):
        pack(source, store, SMALL, other)
    assert store.read(MANIFEST_KEY) == b"of another"


def test_bad_sources_are_refused_before_anything_is_written(tmp_path, source, store, contents, fill):
    (source / "Makefile").write_bytes(b"")
    with pytest.raises(DatasetError, match="without an extension"):
        pack(source, store, SMALL)
    with pytest.raises(EmptyDataset):
        pack(source, store, PackOptions(include=("*.jpg",)))
    assert contents(store) == {}


def test_a_data_set_inside_its_own_source_is_refused(source):
    for place in (source, source / "out", source / "d0" / ".." / "out"):
        with pytest.raises(ConfigError, match="inside the folder it is packed from"):
            pack(source, LocalStore(place), SMALL)
    assert sorted(path.name for path in source.iterdir()) == ["d0", "d1", "d2"]


def test_progress_goes_up_to_the_end(source, store):
    seen = []
    pack(source, store, SMALL, lambda *now: seen.append(now))
    total = sum(map(len, FILES.values()))
    assert seen == sorted(seen)
    assert {now[1] for now in seen} == {total}
    assert seen[-1] == (total, total, 40)
    assert len(seen) >= len(shards_of(store))


def test_progress_counts_what_was_there_already(source, store):
    stop_after(source, store, 3)
    seen = []
    pack(source, store, SMALL, lambda *now: seen.append(now))
    assert seen[0][2] > 0
    assert seen[-1] == (sum(map(len, FILES.values())),) * 2 + (40,)


def test_what_killed_packs_left_is_swept(source, tmp_path):
    store = LocalStore(tmp_path / "packed")
    script = "import os,sys; from stoker.store.local import LocalStore; from stoker.values import Key\n"
    script += "w = LocalStore(sys.argv[1]).writer(Key('shard-000000.tar')); w.write(b'x'); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", script, store.root], check=False)
    assert len(list(store.root.glob(".tmp-*"))) == 1
    pack(source, store, SMALL)
    assert list(store.root.glob("**/.tmp-*")) == []


def test_a_plan_is_what_is_then_written(source, store):
    plan = plan_pack(source, SMALL)
    report = pack(source, store, SMALL)
    assert plan.to_json() == {
        "files": report.files,
        "samples": report.samples,
        "bytes": report.total_bytes,
        "shards": report.shards,
        "blocks": report.blocks,
        "fields": ["bin", "txt"],
        "skipped_files": 0,
    }
    sizes = [store.stat(Key(key)).size_bytes for key in shards_of(store)]
    assert sizes == [plan.shard_size(i) for i in range(plan.shard_count)]


def test_a_report_prints_as_json(source, store):
    facts = pack(source, store, SMALL).to_json()
    assert json.loads(json.dumps(facts)) == facts
    assert {"dataset", "files", "samples", "bytes", "shards", "blocks", "digest", "skipped_shards", "seconds"} <= set(
        facts
    )


def test_no_shard_is_ever_held_in_memory(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for i in range(3):
        with (source / f"{i}.bin").open("wb") as file:
            file.truncate(40 << 20)
    store = LocalStore(tmp_path / "packed")
    tracemalloc.start()
    pack(source, store, PackOptions(shard_bytes=100 << 20))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20
    assert store.stat(Key("shard-000000.tar")).size_bytes > 80 << 20


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PackOptions(shard_bytes=0), "not a size for shards"),
        (lambda: PackOptions(include="*.jpg"), "several globs, not a string"),
        (lambda: PackOptions(prefix="../x"), "not a prefix"),
    ],
)
def test_options_that_cannot_work_are_refused_when_they_are_made(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_a_pack_logs_one_line(source, store, caplog):
    with caplog.at_level(logging.INFO, logger="stoker.dataset"):
        pack(source, store, SMALL)
    assert [record.message.split(" in ")[0].split(" into ")[0] for record in caplog.records] == ["packed 40 files"]
    assert store.read(MANIFEST_KEY)
