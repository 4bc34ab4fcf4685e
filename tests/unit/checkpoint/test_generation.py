"""Starting a run again: what was whole is finished, the rest goes, and all ranks hear one decision."""

import json
import shutil
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.checkpoint import generation as module
from stoker.checkpoint.generation import end_run, start_generation
from stoker.checkpoint.inventory import choose_step, flaw, take_inventory
from stoker.checkpoint.layout import StepId
from stoker.errors import (
    CapacityError,
    CheckpointError,
    CheckpointMissing,
    ConfigError,
    Fenced,
    FormatError,
    LayoutError,
    NewerFormat,
    TimedOut,
)
from stoker.values import Key, Layout

STEPS = st.builds(StepId, generation=st.integers(1, 4), step=st.integers(1, 9))


@given(st.lists(STEPS), st.sets(STEPS))
def test_the_highest_generation_then_step_that_is_whole_is_chosen(found, whole):
    asked = []

    def is_whole(step):
        asked.append(step)
        return step in whole

    chosen = choose_step(found, is_whole)
    assert chosen == max(whole.intersection(found), default=None)
    assert len(asked) == len(set(asked))
    assert chosen is None or min(asked) == chosen  # nothing below it is looked at


def test_a_run_begins_with_generation_1_and_says_so(home, start, state):
    run = start(state())
    assert run.generation[0].number == 1
    assert run.generation[0].restore is None
    assert json.loads(home.read(Key("run.json"))).keys() == {"format", "name", "started"}
    record = json.loads(home.read(Key("gen-0001.json")))
    assert record.keys() == {"format", "world", "restore", "restore_generation", "started"}
    assert (record["format"], record["world"], record["restore"]) == (1, 1, None)


def test_a_later_generation_records_the_step_it_goes_on_from(home, start, state):
    start(state(1)).save_and_wait(after=39)
    again = start(state(2))
    assert again.generation[0].restore == StepId(generation=1, step=40)
    record = json.loads(home.read(Key("gen-0002.json")))
    assert (record["restore"], record["restore_generation"]) == (40, 1)


def test_a_newer_generation_counts_more_than_a_higher_step(start, state):
    start(state(1)).save_and_wait(after=99)
    again = start(state(2))
    again.save_and_wait(after=9)
    assert start(state(3)).generation[0].restore == StepId(generation=2, step=10)


def test_a_whole_step_without_its_name_is_finished(home, start, state, equal, listing):
    first = start(state(1))
    first.save_and_wait(after=9)
    home.promote("step-00000010.g0001", "step-00000010.g0001.partial")
    again = start(state(2))
    assert again.restore() == [10]
    assert equal(again.states[0], state(1))
    assert set(home.list_dirs()) == {"step-00000010.g0001"}
    assert not [name for name in listing() if "partial" in name]


@pytest.mark.parametrize("loss", ["manifest", "file", "short file", "receipt", "garbage"])
def test_a_step_that_is_not_whole_is_removed(home, start, state, loss):
    start(state(1)).save_and_wait(after=9)
    home.promote("step-00000010.g0001", "step-00000010.g0001.partial")
    base = home.root / "step-00000010.g0001.partial"
    name = {"manifest": "MANIFEST.json", "receipt": "rank-00000.json", "garbage": "MANIFEST.json"}.get(
        loss, "rank-00000-of-00001.safetensors"
    )
    if loss == "garbage":
        (base / name).write_bytes(b"{}")
    elif loss == "short file":
        (base / name).write_bytes((base / name).read_bytes()[:-1])
    else:
        (base / name).unlink()
    home.delete(Key("committed.json"))  # it never was
    again = start(state(2))
    assert list(home.list_dirs()) == []
    assert again.restore() == [None]


@pytest.mark.parametrize("name", ["MANIFEST.json", "rank-00000.json", "rank-00000-of-00001.safetensors"])
def test_a_damaged_step_is_passed_over_for_an_older_one(home, start, state, equal, name, caplog):
    run = start(state(1))
    run.save_and_wait(after=9)
    run.states[0].arrays["model.weight"][:] = 5
    run.save_and_wait(after=19)
    (home.root / "step-00000020.g0001" / name).unlink()
    again = start(state(2))
    assert again.restore() == [10]
    assert equal(again.states[0], state(1))
    assert "step-00000020.g0001 cannot be restored" in caplog.text


def test_when_all_that_was_committed_is_damaged_nothing_begins_anew_in_silence(home, start, state):
    start(state(1)).save_and_wait(after=9)
    (home.root / "step-00000010.g0001" / "rank-00000.json").unlink()
    with pytest.raises(CheckpointMissing, match="committed, but none of them is whole"):
        start(state(2)).restore()
    # Also when the directory itself is gone, as long as anything says that there was one.
    home.delete_tree("step-00000010.g0001")
    home.write(Key("gen-0003.json"), b'{"format":1,"world":1,"restore":10,"restore_generation":1,"started":""}')
    with pytest.raises(CheckpointMissing):
        start(state(3)).restore()


def test_the_end_of_a_run_is_evidence_of_a_step_only_if_it_names_one(home, start, state):
    end_run(home, start(state(1)).generation[0])
    assert json.loads(home.read(Key("ended.json"))) == {"format": 1, "generation": 1, "step": None}
    assert start(state(1)).restore() == [None]
    home.delete(Key("ended.json"))
    run = start(state(1))
    run.save_and_wait(after=69)
    end_run(home, run.generation[0])
    assert json.loads(home.read(Key("ended.json"))) == {"format": 1, "generation": 3, "step": 70}
    home.delete_tree("step-00000070.g0003")
    with pytest.raises(CheckpointMissing):
        start(state(2)).restore()


def test_the_end_of_a_run_is_that_of_the_first_generation_that_came_so_far(home, start, state):
    for _ in range(2):
        end_run(home, start(state(1)).generation[0])
    assert json.loads(home.read(Key("ended.json")))["generation"] == 1


def test_a_whole_step_whose_name_is_taken_is_removed(home, start, state, equal):
    start(state(1)).save_and_wait(after=9)
    shutil.copytree(home.root / "step-00000010.g0001", home.root / "step-00000010.g0001.partial")
    again = start(state(2))
    assert again.restore() == [10]
    assert list(home.list_dirs()) == ["step-00000010.g0001"]


def test_notes_and_unfinished_files_of_older_generations_are_swept(home, start, state, listing):
    start(state())
    home.write(Key("step-00000010.g0001.aborted/rank-00000.json"), b"{}")
    home.write(Key("step-00000010.g0001.partial/rank-00000-of-00001.safetensors"), b"x")
    unfinished = home.root / f".tmp-{'0' * 8}-dead"
    unfinished.mkdir()
    start(state())
    assert not unfinished.exists()
    assert listing() == ["gen-0001.json", "gen-0002.json", "run.json"]


def test_what_a_generation_of_the_future_left_is_not_touched(home, start, state):
    home.write(Key("step-00000010.g0009.partial/rank-00000-of-00001.safetensors"), b"x")
    assert start(state()).generation[0].number == 10


def test_other_directories_in_the_home_are_left_alone(home, start, state, listing):
    home.write(Key("ledger/rank-00000.g0001.ledger"), b"x")
    home.write(Key("step-7/notes.txt"), b"x")
    start(state())
    assert {"ledger/rank-00000.g0001.ledger", "step-7/notes.txt"} < set(listing())


def test_the_loser_of_a_race_takes_the_next_number(home, start, state, monkeypatch):
    write = home.write
    raced = []

    def lose_once(key, data, *, if_absent=False):
        if key == "gen-0001.json" and not raced:
            raced.append(write(key, data, if_absent=True))
        return write(key, data, if_absent=if_absent)

    monkeypatch.setattr(home, "write", lose_once)
    assert start(state()).generation[0].number == 2


def test_a_step_committed_while_a_generation_begins_is_the_one_it_goes_on_from(home, start, state, monkeypatch):
    old = start(state(1))
    write = home.write

    def commit_first(key, data, *, if_absent=False):
        if key == "gen-0002.json":
            monkeypatch.setattr(home, "write", write)
            old.save_and_wait(after=9)
        return write(key, data, if_absent=if_absent)

    monkeypatch.setattr(home, "write", commit_first)
    again = start(state(2))
    assert again.generation[0].number == 3
    assert again.restore() == [10]
    assert json.loads(home.read(Key("gen-0003.json")))["restore"] == 10


def test_what_a_newer_generation_did_meanwhile_is_not_what_an_older_one_goes_on_from(home, start, state, monkeypatch):
    sweep = home.sweep

    def overtake(prefix=""):
        monkeypatch.setattr(home, "sweep", sweep)
        start(state(2)).save_and_wait(after=9)
        return sweep(prefix)

    monkeypatch.setattr(home, "sweep", overtake)
    slow = start(state(1))
    assert (slow.generation[0].number, slow.restore()) == (1, [None])
    with pytest.raises(Fenced, match="generation 1 is over: generation 2"):
        slow.save_and_wait(after=19)


def test_an_older_generation_is_fenced_at_its_next_commit_and_its_data_goes(home, start, state):
    old = start(state(1))
    old.save_and_wait(after=9)
    new = start(state(2))
    save = old.checkpoints[0].save(after=19)
    with pytest.raises(Fenced, match="generation 1 is over: generation 2"):
        save.wait()
    for _ in range(2):  # for ever
        with pytest.raises(Fenced):
            old.checkpoints[0].save(after=29)
    old.checkpoints[0].close()  # told already
    assert set(home.list_dirs()) == {"step-00000010.g0001"}
    new.save_and_wait(after=29)
    assert set(home.list_dirs()) == {"step-00000010.g0001", "step-00000030.g0002"}


def test_a_generation_that_begins_between_manifest_and_name_finishes_the_step_and_both_agree(
    home, start, state, monkeypatch
):
    old = start(state(1))
    promote = home.promote

    def begin_first(source, target):
        monkeypatch.setattr(home, "promote", promote)
        begun.append(start(state(2)))
        return promote(source, target)

    begun = []
    monkeypatch.setattr(home, "promote", begin_first)
    old.save_and_wait(after=9)
    assert begun[0].generation[0].restore == StepId(generation=1, step=10)
    assert begun[0].restore() == [10]
    with pytest.raises(Fenced):
        old.save_and_wait(after=19)


def test_a_generation_that_removes_the_data_before_the_manifest_leaves_no_torn_step(home, start, state, monkeypatch):
    old = start(state(1))
    write = home.write
    begun = []

    def begin_first(key, data, *, if_absent=False):
        if key.endswith("MANIFEST.json"):
            monkeypatch.setattr(home, "write", write)
            begun.append(start(state(2)))
        return write(key, data, if_absent=if_absent)

    monkeypatch.setattr(home, "write", begin_first)
    with pytest.raises(Fenced):
        old.save_and_wait(after=9)
    assert list(home.list_dirs()) == []
    assert begun[0].restore() == [None]


def test_ranks_hear_from_rank_0(start, state):
    start(state(1)).save_and_wait(after=9)
    run = start(state(2), state(3), state(4))
    assert {g.number for g in run.generation} == {2}
    assert {g.restore for g in run.generation} == {StepId(generation=1, step=10)}
    assert [g.layout.dp_rank for g in run.generation] == [0, 1, 2]
    assert {g.committed for g in run.generation} == {True}


def test_several_ranks_without_a_rendezvous_are_refused(home):
    with pytest.raises(LayoutError, match="torchrun"):
        start_generation(home, run="r", layout=Layout(1, 2))
    assert list(home.list()) == []


class Broken:
    """Delivers what rank 0 says to the next caller."""

    def __init__(self):
        self.said = None

    def broadcast(self, name, value, deadline_s):
        self.said = value or self.said
        if self.said is None:
            raise TimedOut("nothing heard")
        return self.said


def test_an_error_on_rank_0_reaches_all_ranks(home, start, state):
    start(state(), run="other")
    wire = Broken()
    with pytest.raises(ConfigError, match="belongs to run 'other', not 'mine'"):
        start_generation(home, run="mine", layout=Layout(0, 2), rendezvous=wire)
    with pytest.raises(CheckpointError, match=r"rank 0 could not start the run: .*'other'"):
        start_generation(home, run="mine", layout=Layout(1, 2), rendezvous=wire)


def test_a_silent_rank_0_is_a_timeout(home):
    with pytest.raises(TimedOut, match="nothing heard"):
        start_generation(home, run="r", layout=Layout(1, 2), rendezvous=Broken())


@pytest.mark.parametrize(
    "name", ["run.json", "gen-0001.json", "step-00000010.g0001/MANIFEST.json", "ended.json", "committed.json"]
)
def test_a_later_format_anywhere_stops_the_start(home, start, state, name):
    start(state()).save_and_wait(after=9)
    home.write(Key(name), b'{"format":2}')
    with pytest.raises(NewerFormat, match="format 2"):
        start(state())
    assert not home.path(Key("gen-0002.json")).exists()


def test_a_later_format_in_an_unfinished_step_is_not_removed(home, start, state):
    start(state())
    home.write(Key("step-00000010.g0001.partial/MANIFEST.json"), b'{"format":2}')
    with pytest.raises(NewerFormat):
        start(state())
    assert list(home.list_dirs()) == ["step-00000010.g0001.partial"]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"format":1}', b"\xff"])
@pytest.mark.parametrize("name", ["gen-0001.json", "ended.json", "committed.json"])
def test_a_record_that_is_damaged_does_not_stop_the_start(home, start, state, equal, caplog, name, data):
    start(state(1)).save_and_wait(after=9)
    home.write(Key(name), data)
    again = start(state(2))
    assert again.generation[0].number == 2  # numbers are in the names
    assert again.restore() == [10]
    assert equal(again.states[0], state(1))
    assert f"{name} cannot be read" in caplog.text


def test_a_damaged_note_of_a_commit_is_still_one(home, start, state):
    start(state(1)).save_and_wait(after=9)
    home.write(Key("committed.json"), b"")
    home.delete_tree("step-00000010.g0001")
    with pytest.raises(CheckpointMissing):
        start(state(2)).restore()


@pytest.mark.parametrize("data", [b"", b"{", b'{"format":1}'])
def test_a_run_whose_name_cannot_be_read_says_what_to_do(home, start, state, data):
    start(state(1)).save_and_wait(after=9)
    home.write(Key("run.json"), data)
    with pytest.raises(FormatError, match="it cannot be read whose run this is") as caught:
        start(state(2))
    assert caught.value.where.endswith("/run.json")
    assert "run 'run-1', remove this file" in caught.value.hint
    home.delete(Key("run.json"))
    assert start(state(2)).restore() == [10]


def test_a_run_notes_its_first_commit_and_misses_steps_that_vanish(home, start, state):
    run = start(state(1))
    assert not home.path(Key("committed.json")).exists()
    for after in (9, 19):
        run.save_and_wait(after=after)
        assert json.loads(home.read(Key("committed.json"))) == {"format": 1, "generation": 1, "step": 10}
    for name in list(home.list_dirs()):
        home.delete_tree(name)
    for _ in range(2):
        with pytest.raises(CheckpointMissing, match="were committed, but none of them is whole"):
            start(state(2)).restore()


def test_a_commit_that_cannot_be_noted_is_a_commit(home, start, state, monkeypatch, caplog):
    write = home.write

    def refuse(key, data, *, if_absent=False):
        if key == "committed.json":
            raise CapacityError("no space left")
        return write(key, data, if_absent=if_absent)

    run = start(state(1))
    with monkeypatch.context() as patch:
        patch.setattr(home, "write", refuse)
        run.save_and_wait(after=9)
    assert "could not note" in caplog.text
    assert start(state(2)).restore() == [10]


def test_a_step_that_was_moved_to_another_disk_is_followed_and_missed_if_that_is_not_there(
    home, start, state, equal, tmp_path, caplog
):
    run = start(state(1))
    run.save_and_wait(after=9)
    run.states[0].arrays["model.weight"][:] = 5
    run.save_and_wait(after=19)
    place, disk = home.root / "step-00000020.g0001", tmp_path / "disk"
    shutil.move(place, disk)
    place.symlink_to(disk)
    again = start(state(2))
    assert again.restore() == [20]
    assert (again.states[0].arrays["model.weight"] == 5).all()
    disk.rename(tmp_path / "unmounted")
    assert start(state(2)).restore() == [10]
    assert "step step-00000020.g0001 cannot be restored" in caplog.text
    home.delete_tree("step-00000010.g0001")
    with pytest.raises(CheckpointMissing):
        start(state(2)).restore()


def test_a_flaw_is_told_in_words(home, start, state):
    start(state()).save_and_wait(after=9)
    step = StepId(generation=1, step=10)
    assert flaw(home, step.name, step) == ""
    assert flaw(home, "nowhere", step) == "it has no manifest"
    assert "of step 10, generation 1" in flaw(home, step.name, StepId(generation=1, step=11))
    assert take_inventory(home).steps == (step,)


def test_two_that_start_at_once_end_with_two_numbers(home, state):
    found = []
    ready = threading.Barrier(4)

    def begin():
        ready.wait()
        found.append(start_generation(home, run="r", layout=Layout()).number)

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(found) == sorted(set(found))
    assert len(found) == 4


def test_a_run_that_is_started_over_and_over_gives_up(home, monkeypatch):
    write = home.write

    def always_late(key, data, *, if_absent=False):
        if key.startswith("gen-"):
            write(key, data, if_absent=True)
        return write(key, data, if_absent=if_absent)

    monkeypatch.setattr(module, "_TRIES", 3)
    monkeypatch.setattr(home, "write", always_late)
    with pytest.raises(CheckpointError, match="no generation could be begun in 3 tries"):
        start_generation(home, run="r", layout=Layout())
