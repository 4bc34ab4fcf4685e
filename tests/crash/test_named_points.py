"""What writes to a bucket is killed at every named place where it may die, and so are the rarer ways of an index."""

import http.client
import runpy
import shutil
from collections import Counter
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

import stoker
from stoker.checkpoint.inventory import take_far_inventory
from stoker.store.local import LocalStore
from stoker.store.open import open_store
from stoker.testing import crash
from stoker.testing.fault_server import Answer, Nth, Rule, Script, Stall
from stoker.units import MIB

pytestmark = pytest.mark.crash

ROOMS = Path(stoker.__file__).parent
VICTIM = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("victims.py"))))
TARS = VICTIM.tars_of()
DAMAGED = {**TARS, "z.tar": next(iter(TARS.values()))[:-2048] + bytes(range(256)) * 8}


def prepare_nothing(world, victims, place):
    pass


def prepare_tars(world, victims, place):
    world.put(place, TARS)


def prepare_part_of_an_index(world, victims, place):
    """What an index with other options left when it was killed."""
    world.put(place, TARS)
    assert victims.run("index", place, spec="index-offsets-written:3").status == crash.KILLED


def prepare_damaged_tars(world, victims, place):
    world.put(place, DAMAGED)


def prepare_part_of_a_set(world, victims, place):
    assert victims.run("write", place, spec="dataset-blocks-written").status == crash.KILLED


# The work of victims.py, what lies there before, and whether a whole data set is there in the end.
WORKS = {
    "pack": (prepare_nothing, True),
    "index": (prepare_tars, True),
    "index_with_checksums": (prepare_part_of_an_index, True),
    "fail_to_index": (prepare_damaged_tars, False),
    "write": (prepare_part_of_a_set, True),
    "abandon": (prepare_part_of_a_set, False),
}


def arguments(name, source, place):
    return (str(source), place) if name == "pack" else (place,)


@pytest.mark.parametrize("name", WORKS)
def test_killed_at_any_place_it_shows_nothing_or_all_and_the_next_one_finishes_it(name, buckets, victims, source):
    kill_at_every_point(name, buckets, victims, source)


@pytest.mark.parametrize("name", ["index_with_checksums", "fail_to_index"])
def test_in_a_folder_too(name, folders, victims, source):
    kill_at_every_point(name, folders, victims, source)


def kill_at_every_point(name, world, victims, source):
    prepare, is_made = WORKS[name]

    def new_place():
        place = world.new_place()
        prepare(world, victims, place)
        return place

    def run(place, spec=None):
        return victims.run(name, *arguments(name, source, place), spec=spec).status

    whole = new_place()
    run(whole)
    expected = world.objects(whole)
    assert VICTIM.is_whole(whole) == is_made
    seen = set()
    for nth in count(1):
        place = new_place()
        if run(place, f"*:{nth}") != crash.KILLED:
            break
        seen.add(VICTIM.is_whole(place))
        assert ("manifest.json" in world.objects(place)) == VICTIM.is_whole(place)
        run(place)
        assert world.objects(place) == expected
    assert nth > 7
    assert seen == ({False, True} if is_made else {False})


def test_every_crash_point_of_the_room_of_data_sets_is_passed_by_these(folders, victims, source):
    passed = set()
    for name, (prepare, _) in WORKS.items():
        place = folders.new_place()
        prepare(folders, victims, place)
        work = partial(getattr(VICTIM, name), *arguments(name, source, place))
        passed |= {event.name for event in crash.trace(work)}
    tree = folders.new_place()
    folders.put(tree, {"a.txt": b"a", "b.txt": b"b"})
    passed |= {event.name for event in crash.trace(partial(VICTIM.index, tree))}
    marked = folders.new_place()
    victims.run("write", marked, spec="dataset-manifest-written")
    passed |= {event.name for event in crash.trace(partial(VICTIM.write, marked))}
    here = set(crash.points(ROOMS / "dataset"))
    assert len(here) > 15
    assert here <= passed


def test_a_drain_to_a_bucket_killed_at_any_place_shows_whole_steps_alone_and_the_next_start_brings_them(
    buckets, folders, victims, with_a_step
):
    folder, expected = with_a_step

    def begin():
        return shutil.copytree(folder, folders.new_place()), buckets.new_place()

    near, far = begin()
    events = crash.trace(partial(VICTIM.train, near, far, 20))
    assert "drain-file-copied" in {event.name for event in events}
    here = set(crash.points(ROOMS / "checkpoint"))
    passes = Counter(event.name for event in events if event.kind == "point" and event.name in here)
    seen = set()
    for name, nth in ((name, nth) for name, passed in passes.items() for nth in range(1, passed + 1)):
        near, far = begin()
        assert victims.run("train", str(near), far, "20", spec=f"{name}:{nth}").status == crash.KILLED
        before = VICTIM.steps(open_store(far), take_far_inventory)
        seen.add(tuple(before))
        assert before.items() <= VICTIM.steps(LocalStore(near)).items()
        victims.run("train", str(near), far, "20")
        arrived = VICTIM.steps(open_store(far), take_far_inventory)
        assert before.items() <= arrived.items() <= VICTIM.steps(LocalStore(near)).items()
        assert VICTIM.tensors(open_store(far), arrived[20]) == expected
        assert VICTIM.unfinished([*buckets.objects(far), *folders.objects(near)]) == []
    assert {(), (10, 20)} <= seen


def uploads(server):
    """How many unfinished uploads the server keeps."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=20)
    connection.request("GET", f"/{server.bucket}?uploads")
    text = connection.getresponse().read()
    connection.close()
    return text.count(b"<Upload>")


@pytest.mark.parametrize(
    ("operation", "nth", "left"),
    [("CreateMultipartUpload", 1, 1), ("UploadPart", 1, 1), ("UploadPart", 2, 1), ("CompleteMultipartUpload", 1, 0)],
)
def test_a_pack_killed_within_an_upload_in_parts_is_finished_by_the_next_and_only_the_parts_stay(
    operation, nth, left, buckets, victims, tmp_path
):
    (tmp_path / "large.bin").write_bytes(bytes(17 * MIB))
    place, before = buckets.new_place(), uploads(buckets.server)
    buckets.server.play(Script(rules=(Rule(Stall(20.0), Nth(nth), operation=operation),)))
    ended = victims.run(
        "pack",
        str(tmp_path),
        place,
        kill_when=lambda: any(r.fault == "Stall" and r.status for r in buckets.server.requests()),
    )
    buckets.server.play(Script())
    assert ended.status == crash.KILLED
    assert not VICTIM.exists(place)
    assert [key for key in buckets.objects(place) if key.startswith("shard-")] == ["shard-000000.tar"] * (not left)
    assert victims.run("pack", str(tmp_path), place).status == 0
    assert VICTIM.exists(place)
    assert uploads(buckets.server) == before + left  # a lifecycle rule of the bucket removes them
    assert len(buckets.server.requests("CompleteMultipartUpload")) == 1


def test_a_pack_that_is_refused_midway_aborts_its_upload(buckets, victims, tmp_path):
    (tmp_path / "large.bin").write_bytes(bytes(17 * MIB))
    place, before = buckets.new_place(), uploads(buckets.server)
    buckets.server.play(Script(rules=(Rule(Answer(507, "InsufficientStorage"), operation="UploadPart"),)))
    with pytest.raises(AssertionError, match="CapacityError"):
        victims.run("pack", str(tmp_path), place)
    buckets.server.play(Script())
    assert uploads(buckets.server) == before
    assert not VICTIM.exists(place)
    assert victims.run("pack", str(tmp_path), place).status == 0
