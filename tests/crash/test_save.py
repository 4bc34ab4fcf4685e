"""A save, and the start of a run, are killed at every place where they may die: a step is whole or not there at all."""

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import stoker
from stoker.checkpoint.generation import end_run, start_generation
from stoker.checkpoint.inventory import flaw
from stoker.checkpoint.layout import StepId
from stoker.checkpoint.save import Checkpoint, SaveOptions
from stoker.errors import SaveFailed
from stoker.ledger import Ledger, LedgerIdentity
from stoker.store.local import LocalStore
from stoker.testing import crash
from stoker.testing.training import ArrayState
from stoker.values import Key, Layout

pytestmark = pytest.mark.crash


def state(seed):
    rng = np.random.default_rng(seed)
    arrays = {f"model.{i}": rng.standard_normal(40) for i in range(3)} | {"model.step": np.array(seed)}
    return ArrayState(arrays, shared={"seed": seed}, private={"seed": seed}, stream=seed)


def begin(root, training):
    """The run's next generation."""
    home = LocalStore(root, create=True)
    generation = start_generation(home, run="r", layout=Layout())
    ledger = Ledger.create(None, LedgerIdentity("r", 0, 1, generation.number, "h"))
    return Checkpoint(home, generation=generation, state=training, data=None, every=1, ledger=ledger)


def save(root, step):
    with begin(root, state(step)) as checkpoint:
        checkpoint.save(after=step - 1).wait()


def go_on(root, step):
    """A generation that restores and saves `step`, in two files."""
    training = state(0)
    with begin(root, training) as checkpoint:
        assert checkpoint.restore() == step - 10
        training.arrays = state(step).arrays
        training.shared, training.private, training.stream = {"seed": step}, {"seed": step}, step
        checkpoint.save(after=step - 1).wait()
    end_run(LocalStore(root), checkpoint._generation)


@pytest.fixture
def rooted(tmp_path):
    """rooted(prepared) is a fresh copy of a prepared home."""
    made = []

    def copy(prepared):
        root = tmp_path / f"home{len(made)}"
        made.append(root)
        shutil.copytree(prepared, root) if prepared is not None else root.mkdir()
        return root

    yield copy
    for root in made:
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="module")
def with_step_10(tmp_path_factory):
    root = tmp_path_factory.mktemp("prepared") / "home"
    save(root, 10)
    return root


def visible_steps(root):
    """The steps that a reader sees; each must be whole."""
    home = LocalStore(root)
    steps = [StepId.parse(name) for name in home.list_dirs()]
    found = [step for step in steps if step is not None]
    assert [flaw(home, step.name, step) for step in found] == [""] * len(found)
    return {step.step for step in found}


def check_restart(root):
    """Start again: restores what is visible, and leaves nothing unfinished."""
    training = state(0)
    with begin(root, training) as checkpoint:
        restored = checkpoint.restore()
    steps = visible_steps(root)
    assert restored == (max(steps) if steps else None)
    if restored is not None:
        right = state(restored)
        assert all(np.array_equal(training.arrays[n], a) for n, a in right.arrays.items())
        assert (training.shared, training.private, training.stream) == (right.shared, right.private, right.stream)
    left = [str(p.relative_to(root)) for p in root.rglob("*")]
    assert [name for name in left if ".tmp-" in name or ".partial" in name or ".aborted" in name] == []
    return steps


def test_a_point_stands_between_every_two_durable_operations_of_a_save(rooted, with_step_10):
    events = crash.trace(partial(go_on, rooted(with_step_10), 20))
    crash.assert_point_between_durables(events)


def test_a_save_that_is_killed_anywhere_is_whole_or_absent_and_the_run_goes_on(rooted, with_step_10):
    events = crash.trace(partial(go_on, rooted(with_step_10), 20))
    outcomes = []
    for spec in crash.every_pass(events):
        root = rooted(with_step_10)
        assert crash.run_killed(partial(go_on, root, 20), spec) == crash.KILLED
        before = visible_steps(root)
        assert before in ({10}, {10, 20})
        after = check_restart(root)
        assert before <= after <= {10, 20}
        outcomes.append(after)
    save(root, 30)
    assert check_restart(root) == {10, 20, 30}
    assert outcomes == sorted(outcomes, key=len), "a kill later on lost what one before it kept"
    assert {len(after) for after in outcomes} == {1, 2}


def test_the_first_save_of_a_run_that_is_killed_anywhere_leaves_a_run_that_can_begin(rooted):
    events = crash.trace(partial(save, rooted(None), 10))
    for spec in crash.every_pass(events):
        root = rooted(None)
        assert crash.run_killed(partial(save, root, 10), spec) == crash.KILLED
        assert visible_steps(root) <= {10}
        assert check_restart(root) <= {10}
        shutil.rmtree(root)


@pytest.fixture(scope="module")
def with_leftovers(tmp_path_factory, with_step_10):
    """Step 20 whole but for its name, step 30 without its manifest, a note of step 25."""
    root = tmp_path_factory.mktemp("leftovers") / "home"
    shutil.copytree(with_step_10, root)
    save(root, 20)
    save(root, 30)
    home = LocalStore(root)
    home.promote("step-00000020.g0002", "step-00000020.g0002.partial")
    home.promote("step-00000030.g0003", "step-00000030.g0003.partial")
    home.delete(Key("step-00000030.g0003.partial/MANIFEST.json"))
    home.write(Key("step-00000025.g0003.aborted/rank-00000.json"), b"{}")
    return root


def test_a_start_that_is_killed_anywhere_is_done_by_the_next(rooted, with_leftovers):
    def start(root):
        start_generation(LocalStore(root), run="r", layout=Layout())

    events = crash.trace(partial(start, rooted(with_leftovers)))
    crash.assert_point_between_durables(events)
    for spec in crash.every_pass(events):
        root = rooted(with_leftovers)
        assert crash.run_killed(partial(start, root), spec) == crash.KILLED
        assert visible_steps(root) in ({10}, {10, 20})
        assert check_restart(root) == {10, 20}
        shutil.rmtree(root)


def give_up(root):
    """Rank 0 of two, of which the other never comes."""

    class Alone:
        def broadcast(self, name, value, deadline_s):
            return value

    home = LocalStore(root, create=True)
    generation = start_generation(home, run="r", layout=Layout(0, 2), rendezvous=Alone())
    ledger = Ledger.create(None, LedgerIdentity("r", 0, 2, generation.number, "h"))
    options = SaveOptions(deadline_s=0.02)
    checkpoint = Checkpoint(
        home, generation=generation, state=state(20), data=None, every=1, ledger=ledger, options=options
    )
    with pytest.raises(SaveFailed):
        checkpoint.save(after=19).wait()


def test_a_save_that_is_given_up_and_killed_anywhere_on_the_way_leaves_nothing(rooted, with_step_10):
    events = crash.trace(partial(give_up, rooted(with_step_10)))
    crash.assert_point_between_durables(events)
    for spec in crash.every_pass(events):
        root = rooted(with_step_10)
        assert crash.run_killed(partial(give_up, root), spec) == crash.KILLED
        assert visible_steps(root) == {10}
        assert check_restart(root) == {10}
        shutil.rmtree(root)


def test_every_crash_point_of_the_room_is_passed_by_these_tests(rooted, with_step_10, with_leftovers):
    passed = set()
    for work in (
        partial(save, rooted(None), 10),
        partial(go_on, rooted(with_step_10), 20),
        partial(begin, rooted(with_leftovers), state(0)),
        partial(give_up, rooted(with_step_10)),
    ):
        passed |= {event.name for event in crash.trace(work)}
    here = {name for name in crash.points(Path(stoker.__file__).parent / "checkpoint") if "drain" not in name}
    assert here
    assert here <= passed
