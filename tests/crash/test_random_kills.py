"""50 random kills each of pack, index, save and drain, in a folder and in a bucket; the next run finishes each.

In a folder a kill comes at a random time. In a bucket it comes within a random request: half of the time before the
server has all of it, half of the time when it is carried out and not answered.
"""

import os
import random
import runpy
import shutil
import uuid
from pathlib import Path

import numpy as np
import pytest

from stoker.checkpoint.inventory import flaw, take_far_inventory, take_inventory
from stoker.dataset.open import open_dataset
from stoker.dataset.sample import read_sample
from stoker.dataset.write import DatasetWriter
from stoker.errors import DatasetError
from stoker.store.local import LocalStore
from stoker.store.memory import MemoryContents, MemoryStore
from stoker.store.open import open_store
from stoker.testing import crash
from stoker.testing.fault_server import Nth, Rule, Script, Stall
from stoker.testing.fork_server import after

pytestmark = pytest.mark.crash

SHARDS = 5
KILLS = 50
RUNS_MAX = 150  # a run may end before the moment comes
STALL_S = 20.0
TIMES_NS = (1, 1_700_000_000_000_000_000)
VICTIM = runpy.run_path(str(Path(__file__).with_name("victims.py")))
SAMPLES = {f"{i:02}": {field: bytes([65 + i]) * (700 + i * 100) for field in ("a", "b")} for i in range(18)}


class Folders:
    """Places are folders; a kill comes when a share of the time of an undisturbed run has passed."""

    def __init__(self, root):
        self.root = root
        self.whole_s = 0.0

    def new_place(self):
        return str(self.root / uuid.uuid4().hex)

    def put(self, place, objects):
        for key, data in objects.items():
            path = Path(place, key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            os.utime(path, ns=TIMES_NS)

    def objects(self, place):
        """All files, also those of unfinished writes; and folders of such."""
        found = {str(path.relative_to(place)): path for path in Path(place).rglob("*")}
        return {
            name: path.read_bytes() if path.is_file() else b""
            for name, path in found.items()
            if path.is_file() or ".tmp-" in name
        }

    def stamps(self, place):
        """What changes when an object is written again."""
        return {str(p.relative_to(place)): (p.stat().st_ino, p.stat().st_mtime_ns) for p in Path(place).rglob("*.tar")}

    def measure(self, run):
        self.whole_s = min(run().seconds for _ in range(3))

    def moment(self, share, _dice):
        return after(share * self.whole_s)

    def learn(self, ended):
        """How long runs take changes with what else this machine does."""
        self.whole_s = self.whole_s * 1.01 if ended.status == crash.KILLED else ended.seconds


class Buckets:
    """Places are prefixes in a bucket; a kill comes within a request."""

    def __init__(self, server):
        self.server = server
        self.request_count = 0

    def new_place(self):
        return f"s3://{self.server.bucket}/{uuid.uuid4().hex}"

    def put(self, place, objects):
        for key, data in objects.items():
            self.server.put(f"{place.rpartition('/')[2]}/{key}", data)

    def objects(self, place):
        prefix = f"{place.rpartition('/')[2]}/"
        return {key.removeprefix(prefix): self.server.get(key) for key in self.server.keys(prefix)}

    def stamps(self, place):
        prefix = place.rpartition("/")[2]
        written = [r for r in self.server.requests(key=f"{prefix}/*.tar") if r.method in ("PUT", "POST")]
        return {key: sum(r.key == f"{prefix}/{key}" for r in written) for key in self.objects(place) if "tar" in key}

    def measure(self, run):
        self.server.forget_requests()
        run()
        self.request_count = len(self.server.requests())

    def moment(self, share, dice):
        within_request = dice.random() < 0.5
        stall = Stall(STALL_S, after_bytes=dice.randrange(2000) if within_request else None)
        self.server.forget_requests()
        self.server.play(Script(rules=(Rule(stall, Nth(1 + int(share * self.request_count))),)))
        return lambda: any(r.fault == "Stall" and (within_request or r.status) for r in self.server.requests())

    def learn(self, _ended):
        """A run makes as many requests as any other; those of the next ones are answered."""
        self.server.play(Script())


@pytest.fixture(params=["folder", "bucket"])
def world(request, tmp_path, bucket):
    return Folders(tmp_path) if request.param == "folder" else Buckets(bucket)


def kill_often(world, new_place, run, judge, seed):
    """Kill `run(place, kill_when)` 50 times, at moments spread over its length; `judge` what each kill left."""
    dice = random.Random(seed)
    killed, states = 0, set()
    world.measure(lambda: run(new_place(), None))
    for number in range(RUNS_MAX):
        place = new_place()
        share = (number % KILLS + dice.random()) / KILLS
        ended = run(place, world.moment(share, dice))
        world.learn(ended)
        killed += ended.status == crash.KILLED
        states.add(frozenset(world.objects(place)))
        judge(place)
        if killed == KILLS:
            break
    assert killed == KILLS
    assert len(states) > 4, "all kills found the same"


def tars_of(samples):
    store = MemoryStore("tars", MemoryContents())
    with DatasetWriter(store, shard_bytes=VICTIM["SHARD_BYTES"]) as writer:
        for key, fields in samples.items():
            writer.write(key, fields)
    return {str(info.key): store.read(info.key) for info in store.list("shard-")}


def is_whole(place):
    """True for a data set that is there and whole, False for none; anything between is a failure."""
    try:
        opened = open_dataset(open_store(place))
    except DatasetError as error:
        if "not a data set" in error.what:
            return False
        raise
    count = opened.manifest.sample_count
    assert {key: read_sample(opened, i) for i, key in enumerate(opened.keys(np.arange(count)))} == SAMPLES
    return True


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    for key, fields in SAMPLES.items():
        for field, content in fields.items():
            path = folder / f"{key}.{field}"
            path.write_bytes(content)
            os.utime(path, ns=TIMES_NS)
    return folder


def test_a_pack_killed_at_random_shows_nothing_or_all_and_the_next_one_finishes_it(world, victims, source):
    def run(place, kill_when):
        return victims.run("pack", str(source), place, kill_when=kill_when)

    whole = world.new_place()
    run(whole, None)
    expected = world.objects(whole)
    assert len([key for key in expected if key.startswith("shard-")]) == SHARDS

    def judge(place):
        there = world.objects(place)
        assert is_whole(place) == ("manifest.json" in there)
        finished = world.stamps(place)
        run(place, None)
        assert world.objects(place) == expected
        assert {key: stamp for key, stamp in world.stamps(place).items() if key in finished} == finished

    kill_often(world, world.new_place, run, judge, "pack")


def test_an_index_killed_at_random_shows_nothing_or_all_and_the_next_one_finishes_it(world, victims):
    tars = tars_of(SAMPLES)
    assert len(tars) == SHARDS

    def new_place():
        place = world.new_place()
        world.put(place, tars)
        return place

    def run(place, kill_when):
        return victims.run("index", place, kill_when=kill_when)

    whole = new_place()
    run(whole, None)
    assert is_whole(whole)
    expected = world.objects(whole)
    assert {key: expected[key] for key in tars} == tars

    def judge(place):
        there = world.objects(place)
        assert {key: there[key] for key in tars} == tars
        assert is_whole(place) == ("manifest.json" in there)
        run(place, None)
        assert world.objects(place) == expected

    kill_often(world, new_place, run, judge, "index")


def steps(store, take=take_inventory):
    """The steps that a reader sees in a tier, by their number; each must be whole."""
    found = take(store).steps
    assert [flaw(store, step.name, step) for step in found] == [""] * len(found)
    return {step.step: step for step in found}


def tensors(store, step):
    """The bytes of the tensors of a step, by the name of their file."""
    infos = store.list(f"{step.name}/")
    return {info.key.rpartition("/")[2]: store.read(info.key) for info in infos if info.key.endswith(".safetensors")}


def unfinished(world, place):
    """Names that nothing finished has: those of partial steps, of notes, and of files that are being written."""
    return [
        n for n in world.objects(place) if any(m in n for m in (".partial", ".aborted", ".undrained", ".tmp-", "probe"))
    ]


@pytest.fixture(scope="module")
def with_a_step(tmp_path_factory, victims):
    """A run's folder with one step, and what its second step holds when nothing is killed."""
    folder, whole = tmp_path_factory.mktemp("run") / "near", tmp_path_factory.mktemp("whole") / "near"
    victims.run("train", str(folder), "", "10")
    shutil.copytree(folder, whole)
    victims.run("train", str(whole), "", "20")
    store = LocalStore(whole)
    expected = tensors(store, steps(store)[20])
    assert len(expected) == 5
    return folder, expected


def test_a_save_killed_at_random_is_whole_or_absent_and_the_next_start_finishes_it(tmp_path, victims, with_a_step):
    folder, expected = with_a_step
    world = Folders(tmp_path)

    def new_place():
        return shutil.copytree(folder, world.new_place())

    def run(place, kill_when):
        return victims.run("train", str(place), "", "20", kill_when=kill_when)

    def judge(place):
        before = steps(LocalStore(place))
        assert before.keys() in ({10}, {10, 20})
        run(place, None)
        after_it = steps(LocalStore(place))
        assert after_it.keys() == {10, 20}
        assert before.items() <= after_it.items()  # what was committed is not written again
        assert tensors(LocalStore(place), after_it[20]) == expected
        assert unfinished(world, place) == []

    kill_often(world, new_place, run, judge, "save")


def test_a_drain_killed_at_random_shows_whole_steps_alone_and_the_next_start_brings_them(
    world, tmp_path, victims, with_a_step
):
    folder, expected = with_a_step
    folders = Folders(tmp_path)
    nears = {}

    def new_place():
        """A far tier without a step, and the node beside it that has one."""
        place = world.new_place()
        nears[place] = shutil.copytree(folder, folders.new_place())
        return place

    def run(place, kill_when):
        return victims.run("train", str(nears[place]), place, "20", kill_when=kill_when)

    def judge(place):
        near, far = LocalStore(nears[place]), open_store(place)
        before = steps(far, take_far_inventory)
        assert before.keys() <= {10, 20}
        assert before.items() <= steps(near).items()
        run(place, None)
        after_it = steps(near)
        assert after_it.keys() == {10, 20}
        assert before.items() <= steps(far, take_far_inventory).items() <= after_it.items()
        newest = after_it[20].name
        for info in near.list(f"{newest}/"):
            assert far.read(info.key) == near.read(info.key)
        assert tensors(far, after_it[20]) == expected
        assert unfinished(folders, nears[place]) == unfinished(world, place) == []

    kill_often(world, new_place, run, judge, "drain")
