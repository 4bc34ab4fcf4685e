"""A pack and a writer are killed at every place where they may die; the next one at the same place goes on."""

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from stoker.dataset.open import open_dataset
from stoker.dataset.pack import PackOptions, pack
from stoker.dataset.write import DatasetWriter
from stoker.errors import AlreadyExists, DatasetError
from stoker.store.local import LocalStore
from stoker.testing import RecordingStore, crash

pytestmark = pytest.mark.crash

FILES = {f"{i}.{field}": bytes([65 + i]) * (i * 100) for i in range(6) for field in ("a", "b")}
OPTIONS = PackOptions(shard_bytes=6144)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
        os.utime(folder / name, ns=(1, 1_700_000_000_000_000_000))
    return folder


def run_pack(source, place):
    pack(source, LocalStore(place), OPTIONS)


def run_writer(place):
    with DatasetWriter(LocalStore(place), shard_bytes=OPTIONS.shard_bytes) as writer:
        for i in range(6):
            writer.write(f"{i}", {field: FILES[f"{i}.{field}"] for field in ("a", "b")})


def files_of(place):
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def is_whole(place):
    """True for a data set that is there and whole, False for none; anything between is a failure."""
    if not (place / "manifest.json").exists():
        with pytest.raises(DatasetError, match="not a data set"):
            open_dataset(LocalStore(place))
        return False
    opened = open_dataset(LocalStore(place))
    samples = np.arange(opened.manifest.sample_count)
    places = opened.extents(samples, ["a", "b"])
    for row, key in enumerate(opened.keys(samples)):
        for column, field in enumerate(("a", "b")):
            with (place / opened.objects.keys[places.object[row]]).open("rb") as shard:
                shard.seek(places.offset[row, column])
                assert shard.read(places.size[row, column]) == FILES[f"{key}.{field}"]
    return True


def finished_shards(place):
    return {path.name: path.stat() for path in place.glob("shard-*.tar")}


def test_a_point_to_die_stands_between_every_two_durable_operations_of_a_pack(source, tmp_path):
    events = crash.trace(partial(run_pack, source, tmp_path / "set"))
    crash.assert_point_between_durables(events)
    renamed = [event.what for event in events if event.kind == "durable" and event.name in ("rename", "link")]
    expected = [
        f"{name}{kind}"
        for name in ("shard-000000.tar", "shard-000001.tar", "shard-000002.tar")
        for kind in ("", ".arrow")
    ]
    names = [Path(name).name for name in renamed]
    assert names == [".pack.json", *expected, "objects.arrow", "blocks.arrow", "manifest.json"]
    points = {event.name for event in events if event.kind == "point"}
    assert {"pack-marked", "pack-shard-written", "pack-offsets-written"} <= points
    assert {"dataset-objects-written", "dataset-blocks-written", "dataset-manifest-written"} <= points


def test_a_pack_killed_anywhere_shows_nothing_or_all_and_the_next_one_finishes_it(source, tmp_path):
    events = crash.trace(partial(run_pack, source, tmp_path / "whole"))
    expected = files_of(tmp_path / "whole")
    seen = set()
    for number, spec in enumerate(crash.every_pass(events)):
        place = tmp_path / f"killed-{number}"
        assert crash.run_killed(partial(run_pack, source, place), spec) == crash.KILLED
        seen.add(is_whole(place))
        before = finished_shards(place)
        recording = RecordingStore(LocalStore(place))
        report = pack(source, recording, OPTIONS)
        assert report.skipped_shards == len(before)
        assert not before.keys() & {write.key for write in recording.writes}
        assert {name: (s.st_ino, s.st_mtime_ns) for name, s in finished_shards(place).items() if name in before} == {
            name: (s.st_ino, s.st_mtime_ns) for name, s in before.items()
        }
        assert files_of(place) == expected
        assert is_whole(place)
    assert number > 40
    assert seen == {False, True}


def test_a_pack_killed_again_and_again_still_comes_to_its_end(source, tmp_path):
    run_pack(source, tmp_path / "whole")
    place = tmp_path / "killed"
    kills = 0
    while crash.run_killed(partial(run_pack, source, place), f"*:{7 + kills}") == crash.KILLED:
        assert is_whole(place) is (place / "manifest.json").exists()
        kills += 1
        assert kills < 40
    assert kills > 3
    run_pack(source, place)
    assert files_of(place) == files_of(tmp_path / "whole")


def test_a_point_to_die_stands_between_every_two_durable_operations_of_a_writer(tmp_path):
    crash.assert_point_between_durables(crash.trace(partial(run_writer, tmp_path / "set")))


def test_a_writer_killed_anywhere_shows_nothing_or_all_and_the_next_one_clears_up(tmp_path):
    events = crash.trace(partial(run_writer, tmp_path / "whole"))
    expected = files_of(tmp_path / "whole")
    seen = set()
    for number, spec in enumerate(crash.every_pass(events)):
        place = tmp_path / f"killed-{number}"
        assert crash.run_killed(partial(run_writer, place), spec) == crash.KILLED
        whole = is_whole(place)
        seen.add(whole)
        if whole:
            with pytest.raises(AlreadyExists):
                run_writer(place)
        else:
            run_writer(place)
        assert files_of(place) == expected
        assert is_whole(place)
    assert number > 40
    assert seen == {False, True}


def abandon(place):
    """A writer that clears up after another, and is then discarded."""
    writer = DatasetWriter(LocalStore(place), shard_bytes=OPTIONS.shard_bytes)
    writer.write("x", {"a": b""})
    writer.write("y", {"a": bytes(OPTIONS.shard_bytes)})
    writer.discard()


def test_clearing_up_can_be_killed_anywhere_too(tmp_path):
    def leave_parts(place):
        assert crash.run_killed(partial(run_writer, place), "dataset-blocks-written") == crash.KILLED

    leave_parts(tmp_path / "traced")
    events = crash.trace(partial(abandon, tmp_path / "traced"))
    crash.assert_point_between_durables(events)
    assert files_of(tmp_path / "traced") == {}
    for number, spec in enumerate(crash.every_pass(events)):
        place = tmp_path / f"killed-{number}"
        leave_parts(place)
        assert crash.run_killed(partial(abandon, place), spec) == crash.KILLED
        assert not is_whole(place)
        abandon(place)
        assert files_of(place) == {}
    assert number > 20
