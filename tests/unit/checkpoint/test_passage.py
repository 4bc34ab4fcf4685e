"""Drains behind training: one after the other, the newest first, failures told once, other ranks told at all."""

import logging
import threading

import pytest

from stoker.checkpoint.drain_plan import PaceLimits
from stoker.checkpoint.inventory import take_far_inventory, take_inventory
from stoker.checkpoint.layout import StepId
from stoker.checkpoint.passage import DrainOptions
from stoker.checkpoint.tiers import Tiers
from stoker.errors import ConfigError, Fenced, SaveFailed, TimedOut, Unavailable
from stoker.store.local import LocalStore
from stoker.store.memory import MemoryStore
from stoker.testing.stores import Fault, FaultStore, RecordingStore, WrappedStore
from stoker.values import Key


class Gate(WrappedStore):
    """A store whose writers wait until the gate is open."""

    def __init__(self, inner):
        super().__init__(inner)
        self.opened = threading.Event()
        self.waiting = threading.Event()

    def writer(self, key, *, size_bytes=0):
        self.waiting.set()
        assert self.opened.wait(20)
        return self.inner.writer(key, size_bytes=size_bytes)


def steps(store):
    return [step.step for step in take_far_inventory(store).steps]


def counted(run):
    """What the ledger of rank 0 says of drains, without what is 0."""
    counters = run.ledgers[0].snapshot().counters
    return {str(counter): count for counter, count in counters.items() if "drain" in counter and count}


def test_what_was_drained_and_how_long_it_took_stands_in_the_ledger(home, far, start, state):
    run = start(state(1), store=Tiers(home, far))
    run.save(after=9)[0].wait("object")
    size = sum(info.size_bytes for info in far.list("step-") if not info.key.endswith("MANIFEST.json"))
    found = counted(run)
    assert found.pop("drain_ns") > 0
    assert found == {"drained_steps": 1, "drained_bytes": size}


def test_a_drain_that_ends_after_the_ledger_was_closed_is_no_error(home, far, start, state):
    gate = Gate(far)
    run = start(state(1), store=Tiers(home, gate))
    (save,) = run.save(after=9)
    save.wait()
    assert gate.waiting.wait(20)
    run.ledgers[0].close()
    gate.opened.set()
    save.wait("object")
    assert counted(run) == {"drain_backlog": 1}  # when it was closed


def test_a_save_commits_nearby_first_and_then_reaches_the_object_tier(home, far, start, state):
    gate = Gate(far)
    run = start(state(1), store=Tiers(home, gate), tier="nvme")
    (save,) = run.save(after=9)
    assert save.reached == () or save.settled
    save.wait()
    assert gate.waiting.wait(20)
    assert (save.reached, steps(far)) == (("nvme",), [])
    gate.opened.set()
    save.wait("object")
    assert (save.reached, steps(far)) == (("nvme", "object"), [10])
    run.checkpoints[0].wait("nvme")
    run.checkpoints[0].wait("object")


def test_training_can_save_while_a_drain_hangs_and_steps_it_overtakes_are_left_out_said_once(
    home, far, start, state, caplog
):
    gate = Gate(far)
    run = start(state(1), store=Tiers(home, gate))
    saves = [run.save(after=9)[0]]
    saves[0].wait()
    assert gate.waiting.wait(20)
    for after in (19, 29, 39):
        saves += run.save(after=after)
        saves[-1].wait()
    assert counted(run) == {"drain_backlog": 4}
    gate.opened.set()
    with caplog.at_level(logging.INFO, "stoker"):
        run.checkpoints[0].wait("object")
    assert steps(far) == [10, 40]
    assert [s.step for s in take_inventory(home).steps] == [10, 20, 30, 40]
    stats = run.checkpoints[0].stats().drains
    assert (stats.drained, stats.overtaken, stats.failed, stats.last_drained_step) == (2, 2, 0, 40)
    assert counted(run).items() >= {"drained_steps": 2, "drains_overtaken": 2}.items()
    assert not {"drain_backlog", "drains_failed"} & counted(run).keys()
    said = [r.levelname for r in caplog.records if "was not drained" in r.getMessage()]
    assert said == ["WARNING", "INFO"]
    with pytest.raises(SaveFailed, match="step 20 was not drained to tier 'object': step 40 was ready"):
        saves[1].wait("object")
    run.save_and_wait(after=49)  # being overtaken is no failure
    run.checkpoints[0].close()


def test_a_drain_that_fails_is_raised_by_the_next_save_naming_the_tier_once_and_the_next_step_is_tried(
    home, start, state
):
    inner = MemoryStore("far")
    far = FaultStore(inner, [Fault("commit", Unavailable("no route"), prefix="step-00000010")])
    run = start(state(1), store=Tiers(home, far))
    (save,) = run.save(after=9)
    save.wait()
    save._passage.wait_settled(20)
    with pytest.raises(SaveFailed, match="step 10 is saved, but did not reach tier 'object': no route"):
        run.save(after=19)
    assert save.reached == ("shared",)
    with pytest.raises(SaveFailed, match="step 10 is saved"):
        run.checkpoints[0].wait("object")  # and it is still not there
    run.save_and_wait(after=19)
    run.checkpoints[0].wait("object")
    assert steps(inner) == [20]
    assert run.checkpoints[0].stats().drains.failed == 1
    assert counted(run).items() >= {"drained_steps": 1, "drains_failed": 1}.items()
    run.checkpoints[0].close()


def test_waiting_for_the_object_tier_raises_what_became_of_the_drain_and_close_does_not_again(home, start, state):
    far = FaultStore(MemoryStore("far"), [Fault("commit", Unavailable("no route"), prefix="step-")])
    run = start(state(1), store=Tiers(home, far))
    (save,) = run.save(after=9)
    with pytest.raises(SaveFailed, match="'object': no route"):
        save.wait("object")
    run.checkpoints[0].close()


def test_close_raises_a_drain_that_failed(home, start, state):
    far = FaultStore(MemoryStore("far"), [Fault("commit", Unavailable("no route"), prefix="step-")])
    run = start(state(1), store=Tiers(home, far))
    run.save(after=9)
    with pytest.raises(SaveFailed, match="'object': no route"):
        run.checkpoints[0].close()
    run.checkpoints[0].close()


def test_close_waits_for_the_drain_and_does_not_keep_to_its_pace(home, far, start, state):
    slowest = DrainOptions(PaceLimits(1e-3, 1e-3))
    run = start(state(1), store=Tiers(home, far), drain=slowest)
    run.save(after=9)
    run.checkpoints[0].close()
    assert steps(far) == [10]


def test_a_drain_that_hangs_is_a_timeout_that_names_the_tier(home, far, start, state):
    gate = Gate(far)
    run = start(state(1), store=Tiers(home, gate), limit_s=0.5)
    (save,) = run.save(after=9)
    save.wait()
    with pytest.raises(TimedOut, match="did not reach tier 'object' within"):
        save.wait("object")
    gate.opened.set()


def test_a_run_without_an_object_tier_says_so(start, state):
    run = start(state(1))
    (save,) = run.save(after=9)
    for wait in (save.wait, run.checkpoints[0].wait):
        with pytest.raises(ConfigError, match="does not save to tier 'object'"):
            wait("object")


def test_a_newer_generation_fences_the_drains_of_an_older_one(home, far, start, state):
    old = start(state(1), store=Tiers(home, far))
    far.write(Key("gen-0002.json"), b'{"format":1,"world":1,"restore":null,"restore_generation":null,"started":""}')
    (save,) = old.save(after=9)
    with pytest.raises(Fenced):
        save.wait("object")
    assert steps(far) == []


def test_rank_0_drains_the_files_of_all_ranks_and_the_others_see_it(home, far, start, state):
    recording = RecordingStore(far)
    run = start(*[state(1) for _ in range(3)], store=Tiers(home, recording))
    saves = run.save(after=9)
    for save in saves:
        save.wait("object")
        assert save.reached == ("shared", "object")
    assert len([w for w in recording.writes if w.verb == "commit"]) == 3
    assert [c.stats().drains.drained for c in run.checkpoints] == [1, 0, 0]
    for checkpoint in run.checkpoints:
        checkpoint.wait("object")
        checkpoint.close()


@pytest.mark.parametrize("fate", ["failed", "overtaken"])
def test_other_ranks_hear_from_rank_0_why_a_step_does_not_come(home, start, state, fate):
    inner = MemoryStore("far")
    prefix = "step-00000010"
    far = Gate(FaultStore(inner, [Fault("commit", Unavailable("no route"), prefix=prefix, count=None)]))
    if fate == "failed":
        far.opened.set()
    run = start(state(1), state(1), store=Tiers(home, far))
    saves = [run.save(after=9)]
    run.checkpoints[0]._last.wait()
    if fate == "overtaken":
        assert far.waiting.wait(20)
        for after in (19, 29):
            saves.append(run.save(after=after))
            for save in saves[-1]:
                save.wait()
        far.opened.set()
    mine = saves[0] if fate == "failed" else saves[1]
    with pytest.raises(SaveFailed, match="no route" if fate == "failed" else "step 20 was not drained"):
        mine[1].wait("object")
    assert mine[1].reached == ("shared",)
    with pytest.raises(SaveFailed):
        run.checkpoints[0].close()
    run.checkpoints[1].close()
    # The next start takes the notes away.
    assert take_inventory(home).undrained
    again = start(state(2), store=Tiers(home, inner))
    assert take_inventory(home).undrained == ()
    again.restore()


def test_a_step_that_an_earlier_generation_left_nearby_is_drained_by_the_next(home, far, start, state):
    start(state(1)).save_and_wait(after=9)
    run = start(state(2), store=Tiers(home, far))
    assert run.generation[0].restore == StepId(1, 10)
    run.checkpoints[0].wait("object")
    assert steps(far) == [10]
    recording = RecordingStore(far)
    again = start(state(2), store=Tiers(home, recording))
    again.checkpoints[0].close()
    assert not [w for w in recording.writes if w.key.startswith("step-")]
    assert again.checkpoints[0].stats().drains.drained == 0


def test_only_the_step_that_is_restored_is_drained_later_not_those_before_it(home, far, start, state):
    run = start(state(1))
    run.save_and_wait(after=9)
    run.save_and_wait(after=19)
    start(state(2), store=Tiers(home, far)).checkpoints[0].close()
    assert steps(far) == [20]


def test_a_process_that_goes_back_drains_what_it_saves_again_and_is_not_fenced_by_itself(home, far, start, state):
    gate = Gate(far)
    run = start(state(1), store=Tiers(home, gate))
    (save,) = run.save(after=9)
    save.wait()
    assert gate.waiting.wait(20)
    assert run.restore() == [10]  # it does not wait for the drain that is under way
    assert home.read(Key("gen-0002.json")) == far.read(Key("gen-0002.json"))
    gate.opened.set()
    run.checkpoints[0].wait("object")  # the step it went back to
    save.wait("object")
    run.save_and_wait(after=9)
    run.checkpoints[0].wait("object")
    assert take_far_inventory(far).steps == (StepId(1, 10), StepId(2, 10))
    drains = run.checkpoints[0].stats().drains
    assert (drains.drained, drains.failed, drains.overtaken) == (2, 0, 0)
    run.checkpoints[0].close()


def test_a_step_that_waits_for_its_drain_while_the_process_goes_back_still_comes(home, far, start, state):
    gate = Gate(far)
    run = start(state(1), store=Tiers(home, gate))
    saves = []
    for after in (9, 19):
        saves += run.save(after=after)
        saves[-1].wait()
        assert gate.waiting.wait(20)
    assert run.restore() == [20]
    gate.opened.set()
    for save in saves:
        save.wait("object")
    assert take_far_inventory(far).steps == (StepId(1, 10), StepId(1, 20))
    run.checkpoints[0].close()


def test_going_back_tries_again_to_bring_outward_what_failed(home, far, start, state):
    broken = FaultStore(far, [Fault("commit", Unavailable("no route"), prefix="step-")])
    run = start(state(1), store=Tiers(home, broken))
    (save,) = run.save(after=9)
    with pytest.raises(SaveFailed, match="no route"):
        save.wait("object")
    assert run.restore() == [10]
    run.checkpoints[0].close()
    assert take_far_inventory(far).steps == (StepId(1, 10),)


def test_a_drain_that_another_process_fenced_stays_fenced_though_its_process_tries_to_go_back(
    home, far, start, state, tmp_path
):
    gate = Gate(far)
    run = start(state(1), store=Tiers(home, gate))
    run.save_and_wait(after=9)
    assert gate.waiting.wait(20)
    other = start(state(2), store=Tiers(LocalStore(tmp_path / "other node", create=True), far))
    with pytest.raises(Fenced, match="generation 1 is over: generation 2"):  # known afar alone
        run.restore()
    assert not list(home.list("gen-0002"))
    gate.opened.set()
    with pytest.raises(Fenced):
        run.checkpoints[0].close()
    assert steps(far) == []
    other.save_and_wait(after=19)
    other.checkpoints[0].close()
    assert steps(far) == [20]


def test_going_back_is_fenced_also_by_a_record_that_no_listing_shows_yet(home, far, start, state, monkeypatch):
    run = start(state(1), store=Tiers(home, far))
    run.save_and_wait(after=9)
    run.checkpoints[0].wait("object")
    far.write(Key("gen-0002.json"), b"{}")
    monkeypatch.setattr(far, "list", lambda prefix="": iter(()))
    with pytest.raises(Fenced, match="generation 1 is over: generation 2"):
        run.restore()


def test_a_process_on_a_new_node_that_goes_back_reads_what_it_saved_there(home, far, start, state, tmp_path, equal):
    first = start(state(1), store=Tiers(home, far))
    first.save_and_wait(after=9)
    first.checkpoints[0].close()
    run = start(state(2), store=Tiers(LocalStore(tmp_path / "other node", create=True), far))
    assert run.restore() == [10]
    run.states[0].arrays["model.weight"][:] = 5
    run.save_and_wait(after=19)
    run.states[0].arrays["model.weight"][:] = 7
    assert run.restore() == [20]
    assert (run.states[0].arrays["model.weight"] == 5).all()
    run.checkpoints[0].close()
    assert take_far_inventory(far).steps == (StepId(1, 10), StepId(2, 20))
    assert sorted(take_far_inventory(far).generations) == [1, 2, 3]
