"""50 random kills each of pack, index, save and drain, in a folder and in a bucket; the next run finishes each.

In a folder a kill comes before a random one of the calls that Python makes to anything else. In a bucket it comes
within a random request: half of the time before the server has all of it, half of the time when it is carried out and
not answered.
"""

import random
import runpy
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from stoker.checkpoint.inventory import take_far_inventory
from stoker.store.local import LocalStore
from stoker.store.open import open_store
from stoker.testing import crash

pytestmark = pytest.mark.crash

KILLS = 50
LEAST_KILLED = 45  # two runs differ by a few calls or requests: the last moments may not come
VICTIM = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("victims.py"))))


def kill_often(world, new_place, run, judge, seed):
    """Kill `run(place, **when)` 50 times, at moments spread over its length; `judge` what each kill left."""
    dice = random.Random(seed)
    killed, states = 0, set()
    world.measure(partial(run, new_place()))
    for number in range(KILLS):
        place = new_place()
        ended = run(place, **world.moment((number + dice.random()) / KILLS, dice))
        world.calm()
        killed += ended.status == crash.KILLED
        states.add(frozenset(world.objects(place)))
        judge(place)
    assert killed >= LEAST_KILLED
    assert len(states) > 4, "all kills found the same"


def test_a_pack_killed_at_random_shows_nothing_or_all_and_the_next_one_finishes_it(world, victims, source):
    def run(place, **when):
        return victims.run("pack", str(source), place, **when)

    whole = world.new_place()
    run(whole)
    expected = world.objects(whole)
    assert len([key for key in expected if key.startswith("shard-")]) == VICTIM.SHARDS

    def judge(place):
        there = world.objects(place)
        assert VICTIM.is_whole(place) == ("manifest.json" in there)
        finished = world.stamps(place)
        run(place)
        assert world.objects(place) == expected
        assert {key: stamp for key, stamp in world.stamps(place).items() if key in finished} == finished

    kill_often(world, world.new_place, run, judge, "pack")


def test_an_index_killed_at_random_shows_nothing_or_all_and_the_next_one_finishes_it(world, victims):
    tars = VICTIM.tars_of()
    assert len(tars) == VICTIM.SHARDS

    def new_place():
        place = world.new_place()
        world.put(place, tars)
        return place

    def run(place, **when):
        return victims.run("index", place, **when)

    whole = new_place()
    run(whole)
    assert VICTIM.is_whole(whole)
    expected = world.objects(whole)
    assert {key: expected[key] for key in tars} == tars

    def judge(place):
        there = world.objects(place)
        assert {key: there[key] for key in tars} == tars
        assert VICTIM.is_whole(place) == ("manifest.json" in there)
        run(place)
        assert world.objects(place) == expected

    kill_often(world, new_place, run, judge, "index")


def test_a_save_killed_at_random_is_whole_or_absent_and_the_next_start_finishes_it(folders, victims, with_a_step):
    folder, expected = with_a_step
    world = folders

    def new_place():
        return shutil.copytree(folder, world.new_place())

    def run(place, **when):
        return victims.run("train", str(place), "", "20", **when)

    def judge(place):
        before = VICTIM.steps(LocalStore(place))
        assert before.keys() in ({10}, {10, 20})
        run(place)
        after_it = VICTIM.steps(LocalStore(place))
        assert after_it.keys() == {10, 20}
        assert before.items() <= after_it.items()  # what was committed is not written again
        assert VICTIM.tensors(LocalStore(place), after_it[20]) == expected
        assert VICTIM.unfinished(world.objects(place)) == []

    kill_often(world, new_place, run, judge, "save")


def test_a_drain_killed_at_random_shows_whole_steps_alone_and_the_next_start_brings_them(
    world, folders, victims, with_a_step
):
    folder, expected = with_a_step
    nears = {}

    def new_place():
        """A far tier without a step, and the node beside it that has one."""
        place = world.new_place()
        nears[place] = shutil.copytree(folder, folders.new_place())
        return place

    def run(place, **when):
        return victims.run("train", str(nears[place]), place, "20", **when)

    def judge(place):
        near, far = LocalStore(nears[place]), open_store(place)
        before = VICTIM.steps(far, take_far_inventory)
        assert before.keys() <= {10, 20}
        assert before.items() <= VICTIM.steps(near).items()
        run(place)
        after_it = VICTIM.steps(near)
        assert after_it.keys() == {10, 20}
        assert before.items() <= VICTIM.steps(far, take_far_inventory).items() <= after_it.items()
        newest = after_it[20].name
        for info in near.list(f"{newest}/"):
            assert far.read(info.key) == near.read(info.key)
        assert VICTIM.tensors(far, after_it[20]) == expected
        assert VICTIM.unfinished(folders.objects(nears[place])) == VICTIM.unfinished(world.objects(place)) == []

    kill_often(world, new_place, run, judge, "drain")
