"""Several ranks, no barrier: a step appears when all receipts are there, or not at all, and every rank hears why."""

import time

import numpy as np
import pytest

from stoker.checkpoint.commit import name_ranks
from stoker.checkpoint.manifest import decode_manifest
from stoker.checkpoint.save import SaveOptions
from stoker.checkpoint.state import TensorEntry
from stoker.errors import CapacityError, CheckpointError, Fenced, SaveFailed, StoreError, TimedOut
from stoker.values import Key


def shared_state(state, **arrays):
    """Ranks of one data-parallel run: the same tensors, other random numbers."""
    return [
        state(1, private={"rank": rank}, stream=100 + rank, arrays={**state(1).arrays, **arrays}) for rank in range(3)
    ]


def settle(save):
    try:
        save.wait()
    except StoreError as error:
        return error
    except CheckpointError as error:
        return error
    return None


def test_ranks_write_each_tensor_once_and_the_step_appears_when_all_have(home, start, state, equal):
    run = start(*shared_state(state))
    saves = [run.checkpoints[rank].save(after=9) for rank in (2, 1)]
    time.sleep(0.02)
    assert set(home.list_dirs()) == {"step-00000010.g0001.partial"}
    assert [save.reached for save in saves] == [(), ()]
    saves.append(run.checkpoints[0].save(after=9))
    assert [settle(save) for save in saves] == [None] * 3
    assert set(home.list_dirs()) == {"step-00000010.g0001"}
    manifest = decode_manifest(home.read(Key("step-00000010.g0001/MANIFEST.json")), "")
    assert manifest.ranks == (0, 1, 2)
    assert {f.name for f in manifest.files} == {p.name for p in (home.root / "step-00000010.g0001").iterdir()} - {
        "MANIFEST.json"
    }
    again = start(*[state(5, private={}) for _ in range(3)])
    assert again.restore() == [10] * 3
    assert all(equal(a, b) for a, b in zip(again.states, run.states, strict=True))


def test_a_rank_without_tensors_leaves_a_receipt_alone(home, start, state):
    run = start(*[state(1, arrays={"model.one": np.arange(4.0)}) for _ in range(2)])
    run.save_and_wait(after=0)
    assert sorted(p.name for p in (home.root / "step-00000001.g0001").iterdir()) == [
        *("MANIFEST.json", "rank-00000-of-00002.safetensors", "rank-00000.json", "rank-00001.json"),
    ]


def test_a_rank_that_does_not_save_is_named_at_the_deadline_and_nothing_is_left(home, start, state):
    run = start(*shared_state(state), deadline_s=0.1)
    run.checkpoints[2]._options = SaveOptions(deadline_s=60)
    saves = [run.checkpoints[rank].save(after=9) for rank in (0, 2)]
    errors = [settle(save) for save in saves]
    assert isinstance(errors[0], SaveFailed)
    assert "no receipt of rank 1 within 100 ms" in errors[0].what
    assert isinstance(errors[1], SaveFailed)
    assert errors[1].what.startswith("step 10 was given up by rank 0: step 10: no receipt of rank 1")
    assert set(home.list_dirs()) == {"step-00000010.g0001.aborted"}
    start(*shared_state(state))
    assert set(home.list_dirs()) == set()


def test_a_rank_that_comes_after_the_step_was_given_up_removes_what_it_wrote(home, start, state):
    run = start(*shared_state(state), deadline_s=0.1)
    assert isinstance(settle(run.checkpoints[0].save(after=9)), SaveFailed)
    late = run.checkpoints[1].save(after=9)
    assert isinstance(settle(late), SaveFailed)
    assert set(home.list_dirs()) == {"step-00000010.g0001.aborted"}


def test_a_rank_whose_receipt_comes_after_the_step_was_given_up_removes_what_it_wrote(home, start, state, monkeypatch):
    run = start(*shared_state(state), deadline_s=0.1)
    given_up = run.checkpoints[0].save(after=9)
    write = home.write

    def late(key, data, *, if_absent=False):
        if key.endswith("partial/rank-00001.json"):
            assert isinstance(settle(given_up), SaveFailed)
        return write(key, data, if_absent=if_absent)

    monkeypatch.setattr(home, "write", late)
    run.checkpoints[1]._options = SaveOptions(deadline_s=60)
    assert isinstance(settle(run.checkpoints[1].save(after=9)), SaveFailed)
    assert set(home.list_dirs()) == {"step-00000010.g0001.aborted"}


def test_a_step_that_was_given_up_is_not_tried_again_by_that_generation(start, state):
    run = start(*shared_state(state), deadline_s=0.1)
    settle(run.checkpoints[0].save(after=9))
    with pytest.raises(CheckpointError, match="step 10 was given up"):
        run.checkpoints[0].save(after=9)


def test_a_rank_that_cannot_write_ends_the_save_on_all_ranks_at_once(home, start, state, monkeypatch):
    run = start(*shared_state(state), deadline_s=60)
    writer = home.writer

    def full(key):
        if "rank-00001-of" in key:
            raise CapacityError("no space left for rank 1")
        return writer(key)

    monkeypatch.setattr(home, "writer", full)
    began = time.monotonic()
    errors = [settle(save) for save in run.save(after=9)]
    assert time.monotonic() - began < 10
    assert errors[0].what == "step 10 failed on rank 1: no space left for rank 1"
    assert errors[1].what == "the save of step 10 failed on rank 1: no space left for rank 1"
    assert errors[2].what == "step 10 was given up by rank 0: step 10 failed on rank 1: no space left for rank 1"
    assert set(home.list_dirs()) == {"step-00000010.g0001.aborted"}


def test_a_rank_that_cannot_take_its_snapshot_ends_the_save_on_all_ranks_at_once(home, start, state):
    run = start(*shared_state(state), deadline_s=60)
    run.states[2].arrays["model.bad"] = np.zeros(1, "c16")
    with pytest.raises(KeyError):
        run.checkpoints[2].save(after=9)
    errors = [settle(run.checkpoints[rank].save(after=9)) for rank in (0, 1)]
    assert all(isinstance(error, SaveFailed) for error in errors)
    assert "failed on rank 2: the snapshot failed" in errors[0].what


def test_rank_0_cannot_write_and_all_hear_it(home, start, state, monkeypatch):
    run = start(*shared_state(state), deadline_s=60)
    writer = home.writer

    def full(key):
        if "rank-00000-of" in key:
            raise CapacityError("no space left for rank 0")
        return writer(key)

    monkeypatch.setattr(home, "writer", full)
    errors = [settle(save) for save in run.save(after=9)]
    assert ["rank 0: no space left" in str(error) or "given up by rank 0" in str(error) for error in errors] == [
        True
    ] * 3


def test_ranks_that_hold_other_tensors_are_found_out(start, state):
    states = shared_state(state)
    states[2].arrays["model.weight"] = np.zeros((5, 4), "f4")
    run = start(*states)
    errors = [settle(save) for save in run.save(after=9)]
    assert "ranks 0 and 2 hold different tensors" in errors[0].what
    assert all(isinstance(error, SaveFailed) for error in errors)


def test_a_file_that_lost_bytes_before_the_commit_is_found_out(home, start, state, monkeypatch):
    run = start(*shared_state(state))
    write = home.write

    def shorten(key, data, *, if_absent=False):
        if key.endswith("rank-00001.json"):
            path = home.root / key.replace("rank-00001.json", "rank-00001-of-00003.safetensors")
            path.write_bytes(path.read_bytes()[:-1])
        return write(key, data, if_absent=if_absent)

    monkeypatch.setattr(home, "write", shorten)
    errors = [settle(save) for save in run.save(after=9)]
    assert "rank 1 wrote" in errors[0].what


def test_a_file_that_vanished_before_the_name_is_found_out(home, start, state, monkeypatch):
    run = start(state(1))
    write = home.write

    def remove(key, data, *, if_absent=False):
        info = write(key, data, if_absent=if_absent)
        if key.endswith("MANIFEST.json"):
            (home.root / key).with_name("rank-00000.json").unlink()
        return info

    monkeypatch.setattr(home, "write", remove)
    with pytest.raises(SaveFailed, match=r"1 files of step 10 were removed, 'rank-00000\.json'"):
        run.save_and_wait(after=9)
    assert list(home.list_dirs()) == []


def test_a_receipt_of_another_step_is_found_out(home, start, state):
    run = start(*shared_state(state))
    run.save_and_wait(after=9)
    other = home.read(Key("step-00000010.g0001/rank-00001.json"))
    home.write(Key("step-00000020.g0001.partial/rank-00001.json"), other)
    saves = [run.checkpoints[rank].save(after=19) for rank in (0, 2)]
    assert "the receipt of rank 1 is of step 10" in settle(saves[0]).what
    assert isinstance(settle(saves[1]), SaveFailed)


def test_a_rank_that_never_hears_of_rank_0_times_out_and_leaves_its_data(home, start, state):
    run = start(*shared_state(state), deadline_s=0.1)
    error = settle(run.checkpoints[1].save(after=9))
    assert isinstance(error, TimedOut)
    assert "waited 125 ms for rank 0 to commit step 10" in error.what
    assert (home.root / "step-00000010.g0001.partial" / "rank-00001.json").exists()
    # Rank 0 may still come, and then the step is whole.
    for checkpoint in run.checkpoints:
        checkpoint._options = SaveOptions(deadline_s=60)
    saves = [run.checkpoints[rank].save(after=9) for rank in (0, 2)]
    assert [settle(save) for save in saves] == [None, None]


def test_all_ranks_of_an_older_generation_are_fenced(home, start, state):
    old = start(*shared_state(state))
    start(*shared_state(state))
    errors = [settle(save) for save in old.save(after=9)]
    assert all(isinstance(error, Fenced) for error in errors)
    assert list(home.list_dirs()) == []


def test_rank_0_that_waits_for_receipts_is_fenced_at_once_and_removes_what_is_there(home, start, state):
    old = start(*shared_state(state), deadline_s=60)
    save = old.checkpoints[0].save(after=9)
    save.wait_written()
    home.write(Key("gen-0002.json"), home.read(Key("gen-0001.json")))
    began = time.monotonic()
    assert isinstance(settle(save), Fenced)
    assert time.monotonic() - began < 10
    assert list(home.list_dirs()) == []


def test_a_step_that_a_newer_generation_finishes_is_whole_whatever_its_own_ranks_hear(home, start, state, monkeypatch):
    old = start(*shared_state(state))
    promote = home.promote

    def begin_first(source, target):
        monkeypatch.setattr(home, "promote", promote)
        begun.append(start(*[state(5, private={}) for _ in range(3)]))
        return promote(source, target)

    begun = []
    monkeypatch.setattr(home, "promote", begin_first)
    errors = [settle(save) for save in old.save(after=9)]
    assert errors[0] is None
    assert all(error is None or isinstance(error, Fenced) for error in errors[1:])
    assert begun[0].restore() == [10] * 3


def test_a_fenced_rank_that_left_its_receipt_removes_nothing(home, start, state):
    old = start(*shared_state(state))
    save = old.checkpoints[1].save(after=9)
    receipt = home.root / "step-00000010.g0001.partial" / "rank-00001.json"
    while not receipt.exists():
        time.sleep(0.001)
    home.write(Key("gen-0002.json"), home.read(Key("gen-0001.json")))
    assert isinstance(settle(save), Fenced)
    assert receipt.exists()


def test_a_home_that_refuses_even_the_tidying_up_is_logged(home, start, state, monkeypatch, caplog):
    def refuse(*_):
        raise StoreError("the disk is gone")

    monkeypatch.setattr(home, "writer", refuse)
    run = start(state(1))
    checkpoint = run.checkpoints[0]
    monkeypatch.setattr(home, "delete_tree", refuse)
    with pytest.raises(SaveFailed, match="the disk is gone"):
        checkpoint.save(after=9).wait()
    assert "could not remove step 10; the next start will: the disk is gone" in caplog.text


def test_many_ranks_are_named_by_the_first():
    assert name_ranks([1]) == "rank 1"
    assert name_ranks([1, 2]) == "ranks 1, 2"
    assert name_ranks(range(9)) == "ranks 0, 1, 2, 3, 4 and 4 more"


def test_an_entry_of_a_whole_tensor_begins_at_zero():
    assert TensorEntry.whole("a", "F32", [2, 3]).offsets == (0, 0)
