"""A run in two tiers: one sequence of generations, the newest step wherever it is, each byte from where it is right."""

import json
import logging
import shutil

import pytest

from stoker.checkpoint.generation import end_run, start_generation
from stoker.checkpoint.inventory import look_everywhere, take_far_inventory, take_inventory
from stoker.checkpoint.layout import StepId
from stoker.checkpoint.tiers import Tiers, open_far
from stoker.config import ObjectTier
from stoker.errors import CheckpointMissing, ConfigError, DigestMismatch, Fenced, NewerFormat, Unavailable
from stoker.store.local import LocalStore
from stoker.store.memory import MemoryStore
from stoker.testing.stores import Fault, FaultStore, WrappedStore
from stoker.values import Key, Layout

STEP = "step-00000010.g0001"
NAMES = ["MANIFEST.json", "rank-00000.json", "rank-00000-of-00001.safetensors"]


@pytest.fixture
def both(start, state, tiers):
    """Step 10 in both tiers."""
    run = start(state(1), store=tiers, tier="nvme")
    run.save(after=9)
    run.checkpoints[0].close()
    return tiers


def again(start, state, tiers, **options):
    run = start(state(2), store=tiers, tier="nvme", **options)
    return run, run.restore()


def served(run):
    stats = run.checkpoints[0].stats()
    return stats.restored_from, stats.fallback_files


def damage(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_records_of_runs_and_generations_are_the_same_in_both_tiers(both, home, far):
    for key in ("run.json", "gen-0001.json"):
        assert home.read(Key(key)) == far.read(Key(key))
    assert take_inventory(home).steps == take_far_inventory(far).steps == (StepId(1, 10),)


def test_a_step_that_both_tiers_hold_is_read_from_the_near_one(both, start, state, equal, home):
    class Untouched(WrappedStore):
        def read_into(self, key, start, buffer):
            raise AssertionError("read from afar")

    run, restored = again(start, state, Tiers(home, Untouched(both.far)))
    assert (restored, served(run)) == ([10], ("nvme", 0))
    assert equal(run.states[0], state(1))


def test_a_near_tier_that_was_wiped_is_restored_from_the_far_one(both, start, state, equal, home, tmp_path):
    shutil.rmtree(home.root)
    fresh = LocalStore(tmp_path / "other node", create=True)
    run, restored = again(start, state, Tiers(fresh, both.far))
    assert (restored, served(run)) == ([10], ("object", 0))
    assert equal(run.states[0], state(1))
    assert run.generation[0].number == 2  # no generation is begun twice, though this node has no record of the first
    run.save(after=19)
    run.checkpoints[0].close()
    assert take_far_inventory(both.far).steps == (StepId(1, 10), StepId(2, 20))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", ["gone", "one bit"])
def test_a_file_that_is_damaged_nearby_is_read_from_afar_said_once(both, start, state, equal, home, name, how, caplog):
    run = start(state(2), store=both, tier="nvme")
    path = home.root / STEP / name
    damage(path) if how == "one bit" else path.unlink()
    with caplog.at_level(logging.WARNING, "stoker"):
        assert run.restore() == [10]
    assert equal(run.states[0], state(1))
    no_manifest_no_step = (name, how) == ("MANIFEST.json", "gone")
    whole_step_from_afar = name == "MANIFEST.json"
    assert served(run) == ("object" if whole_step_from_afar else "nvme", 0 if no_manifest_no_step else 1)
    said = [r.getMessage() for r in caplog.records if "serves" in r.getMessage()]
    assert len(said) == (0 if no_manifest_no_step else 1)
    assert all("memory://far serves" in line and name in line for line in said)


@pytest.mark.parametrize("name", NAMES)
def test_damage_before_the_start_does_not_lose_the_step_either(both, start, state, equal, home, name):
    (home.root / STEP / name).unlink()
    run, restored = again(start, state, both)
    assert restored == [10]
    assert equal(run.states[0], state(1))
    run.checkpoints[0].close()  # and there is nothing to drain


def test_damage_in_both_tiers_is_an_error_that_names_the_file(both, start, state, home, far):
    run = start(state(2), store=both)
    (home.root / STEP / NAMES[2]).unlink()
    data = bytearray(far.read(Key(f"{STEP}/{NAMES[2]}")))
    data[-1] ^= 1
    far.write(Key(f"{STEP}/{NAMES[2]}"), data)
    with pytest.raises(DigestMismatch, match=NAMES[2]) as caught:
        run.restore()
    assert caught.value.where.startswith("memory://far/")


def test_each_tier_may_be_damaged_where_the_other_is_right(start, tiers, state, equal, home, far):
    run = start(state(1), state(1), store=tiers)
    for save in run.save(after=9):
        save.wait("object")
    damage(home.root / STEP / "rank-00000-of-00002.safetensors")
    name = Key(f"{STEP}/rank-00001-of-00002.safetensors")
    data = bytearray(far.read(name))
    data[-1] ^= 1
    far.write(name, data)
    run = start(state(2), state(2), store=tiers)
    assert run.restore() == [10, 10]
    assert equal(run.states[0], state(1))


def test_a_manifest_of_a_later_format_nearby_is_refused_not_passed_over(both, start, state, home):
    run = start(state(2), store=both)
    home.write(Key(f"{STEP}/MANIFEST.json"), b'{"format":2}')
    with pytest.raises(NewerFormat):
        run.restore()


def test_a_step_of_a_newer_generation_afar_counts_more_than_a_higher_one_nearby(
    start, state, equal, tiers, home, far, tmp_path
):
    old = start(state(1), store=tiers, tier="nvme")
    old.save(after=9)
    old.checkpoints[0].wait("object")
    # Another node goes on; this one does not notice before its next drain.
    other = start(state(5), store=Tiers(LocalStore(tmp_path / "other node", create=True), far))
    assert other.restore() == [10]
    (late,) = old.save(after=99)
    late.wait("nvme")
    with pytest.raises(Fenced, match="generation 2"):
        old.checkpoints[0].close()
    other.states[0].arrays["model.weight"][:] = 5
    other.save(after=19)
    other.checkpoints[0].close()
    assert take_inventory(home).steps == (StepId(1, 10), StepId(1, 100))
    run, restored = again(start, state, tiers)
    assert (restored, served(run), run.generation[0].number) == ([20], ("object", 0), 3)
    assert equal(run.states[0], other.states[0])
    run.checkpoints[0].close()
    assert take_far_inventory(far).steps == (StepId(1, 10), StepId(2, 20))  # nor is what was fenced drained later


def test_a_far_step_whose_manifest_is_damaged_is_evidence_of_a_step_that_is_lost(both, start, state, far, home):
    far.write(Key(f"{STEP}/MANIFEST.json"), b"{}")
    shutil.rmtree(home.root / STEP)
    run = start(state(2), store=both)
    with pytest.raises(CheckpointMissing):
        run.restore()


def test_steps_that_vanish_from_both_tiers_are_missed_on_a_node_that_never_saw_them(both, start, state, far, tmp_path):
    assert take_far_inventory(far).noted
    for info in list(far.list("step-")):
        far.delete(info.key)
    run = start(state(2), store=Tiers(LocalStore(tmp_path / "other node", create=True), far))
    with pytest.raises(CheckpointMissing):
        run.restore()


def test_a_record_that_is_damaged_nearby_is_read_afar_and_the_start_goes_on(both, start, state, home, caplog):
    home.write(Key("gen-0001.json"), b"{")
    assert look_everywhere(both).generations[1] is not None
    assert "gen-0001.json cannot be read" in caplog.text
    _, restored = again(start, state, both)
    assert restored == [10]


def test_damage_in_both_tiers_says_how_to_go_on_from_what_one_of_them_has(both, start, state, home, far):
    run = start(state(1), store=both)
    run.save_and_wait(after=19)
    run.checkpoints[0].close()
    newest = StepId(2, 20).name
    damage(home.root / newest / NAMES[2])
    data = bytearray(far.read(Key(f"{newest}/{NAMES[2]}")))
    data[-1] ^= 1
    far.write(Key(f"{newest}/{NAMES[2]}"), data)
    shutil.rmtree(home.root / STEP)
    with pytest.raises(DigestMismatch) as caught:
        again(start, state, both)
    assert f"out of the run's folders in both tiers and start again, from {STEP}" in caught.value.hint


def test_a_step_under_way_afar_is_no_step_and_no_evidence_of_one(start, state, tiers, far):
    far.write(Key("step-00000010.g0001/rank-00000-of-00001.safetensors"), b"x")
    run = start(state(1), store=tiers)
    assert run.restore() == [None]
    assert run.generation[0].number == 2


def test_a_manifest_that_a_listing_does_not_show_is_still_found(both, start, state, far, home, monkeypatch):
    shutil.rmtree(home.root / STEP)
    listed = far.list
    monkeypatch.setattr(
        far, "list", lambda prefix="": (i for i in listed(prefix) if not i.key.endswith("MANIFEST.json"))
    )
    _, restored = again(start, state, both)
    assert restored == [10]


def test_of_two_starts_on_two_nodes_one_takes_the_number_and_the_other_the_next(home, far, tmp_path, monkeypatch):
    other = Tiers(LocalStore(tmp_path / "other", create=True), far)
    write = far.write
    numbers = []

    def race(key, data, *, if_absent=False):
        if key == "gen-0001.json" and not numbers:
            numbers.append(0)
            numbers.append(start_generation(other, run="r", layout=Layout()).number)
        return write(key, data, if_absent=if_absent)

    monkeypatch.setattr(far, "write", race)
    assert start_generation(Tiers(home, far), run="r", layout=Layout()).number == 2
    assert numbers == [0, 1]


def test_a_listing_that_lags_does_not_hold_up_a_start(home, far, monkeypatch, tmp_path):
    for number in range(1, 4):
        far.write(Key(f"gen-{number:04d}.json"), b"{}")
    monkeypatch.setattr(far, "list", lambda prefix="": iter(()))
    assert start_generation(Tiers(home, far), run="r", layout=Layout()).number == 4


def test_an_object_tier_that_cannot_be_reached_stops_the_start_before_anything_is_written(home, far, listing):
    broken = FaultStore(far, [Fault("write", Unavailable("no route"), count=None)])
    with pytest.raises(Unavailable):
        start_generation(Tiers(home, broken), run="r", layout=Layout())
    assert listing() == []


def test_the_end_of_a_run_is_noted_in_both_tiers(both, home, far, tmp_path):
    end_run(both, start_generation(both, run="run-1", layout=Layout()))
    assert home.read(Key("ended.json")) == far.read(Key("ended.json"))
    assert json.loads(far.read(Key("ended.json")))["step"] == 10
    fresh = Tiers(LocalStore(tmp_path / "n", create=True), far)
    assert look_everywhere(fresh).ended_step == 10


def test_a_far_tier_is_the_folder_of_the_run_at_its_url(tmp_path):
    assert open_far(ObjectTier(), "r") is None
    assert open_far(ObjectTier("memory://runs/"), "r").url == "memory://runs/r"
    assert open_far(ObjectTier(f"file://{tmp_path}"), "r").url == str(tmp_path / "r")
    assert isinstance(open_far(ObjectTier("memory://runs"), "r"), MemoryStore)
    with pytest.raises(ConfigError, match="scheme"):
        open_far(ObjectTier("gopher://x"), "r")


def test_a_bucket_is_reached_as_the_settings_say_else_as_the_environment_does(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://usual")
    monkeypatch.setenv("AWS_REGION", "r-1")
    far = open_far(ObjectTier("s3://bucket/runs", region="r-2"), "r")
    assert far.url == "s3://bucket/runs/r"
    options = far.inner.options
    assert (options.endpoint, options.region, options.allow_http) == ("https://usual", "r-2", False)
    far = open_far(ObjectTier("s3://bucket/runs", endpoint="http://own", allow_http=True), "r")
    options = far.inner.options
    assert (options.endpoint, options.region, options.allow_http) == ("http://own", "r-1", True)
