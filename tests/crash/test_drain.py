"""A drain is killed at every place where it may die: the far tier shows a step with all its files, or not at all."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import stoker
from stoker.checkpoint.generation import start_generation
from stoker.checkpoint.inventory import flaw, take_far_inventory
from stoker.checkpoint.layout import StepId
from stoker.checkpoint.save import Checkpoint, SaveOptions
from stoker.checkpoint.tiers import Tiers
from stoker.errors import SaveFailed
from stoker.ledger import Ledger, LedgerIdentity
from stoker.store.local import LocalStore
from stoker.testing import crash
from stoker.testing.stores import WrappedStore
from stoker.testing.training import ArrayState
from stoker.values import Layout

pytestmark = pytest.mark.crash


class ObjectLike(WrappedStore):
    """A directory that nothing in can be renamed, and that knows no sweeping: an object store that outlives a kill."""

    @property
    def limits(self):
        return replace(self.inner.limits, promotes=False)


def tiers(root):
    return Tiers(LocalStore(root / "nvme", create=True), ObjectLike(LocalStore(root / "object")))


def state(seed):
    rng = np.random.default_rng(seed)
    arrays = {f"model.{i}": rng.standard_normal(40) for i in range(3)} | {"model.step": np.array(seed)}
    return ArrayState(arrays, shared={"seed": seed}, private={"seed": seed}, stream=seed)


class Alone:
    """The rendezvous of a rank 0 whose peers have died."""

    def broadcast(self, name, value, deadline_s):
        return value


def begin(root, training, world=1):
    stores = tiers(root)
    generation = start_generation(stores, run="r", layout=Layout(0, world), rendezvous=Alone())
    ledger = Ledger.create(None, LedgerIdentity("r", 0, world, generation.number, "h"))
    options = SaveOptions(tier="nvme", header_split_bytes=1)  # a file a tensor
    return Checkpoint(stores, generation=generation, state=training, data=None, every=1, ledger=ledger, options=options)


def save(root, step):
    with begin(root, state(step)) as checkpoint:
        checkpoint.save(after=step - 1).wait("object")


def restore(root):
    """Start again; the step that came back, checked against what it was."""
    training = state(0)
    with begin(root, training) as checkpoint:
        restored = checkpoint.restore()
    if restored is not None:
        right = state(restored)
        assert all(np.array_equal(training.arrays[n], a) for n, a in right.arrays.items())
        assert (training.shared, training.private, training.stream) == (right.shared, right.private, right.stream)
    return restored


def visible(root):
    """The steps that a reader of the object tier sees; each must be whole."""
    far = tiers(root).far
    found = take_far_inventory(far).steps
    assert [flaw(far, step.name, step) for step in found] == [""] * len(found)
    return [step.step for step in found]


def nearby(root):
    return sorted(step.step for name in LocalStore(root / "nvme").list_dirs() if (step := StepId.parse(name)))


@pytest.fixture(scope="module")
def with_step_10(tmp_path_factory):
    root = tmp_path_factory.mktemp("prepared") / "tiers"
    save(root, 10)
    return root


def test_a_point_to_die_stands_between_every_two_durable_operations_of_a_drain(tmp_path, with_step_10):
    root = shutil.copytree(with_step_10, tmp_path / "r")
    events = crash.trace(partial(save, root, 20))
    crash.assert_point_between_durables(events)
    passed = {event.name for event in events if event.kind == "point"}
    assert {"drain-file-copied", "drain-receipt-copied", "drain-committed"} <= passed


def test_a_save_that_is_killed_anywhere_on_its_way_outward_is_whole_there_or_absent_and_the_next_start_brings_it(
    tmp_path, with_step_10
):
    events = crash.trace(partial(save, shutil.copytree(with_step_10, tmp_path / "trace"), 20))
    outcomes = []
    for spec in crash.every_pass(events):
        root = shutil.copytree(with_step_10, tmp_path / "r")
        assert crash.run_killed(partial(save, root, 20), spec) == crash.KILLED
        seen = visible(root)
        assert seen in ([10], [10, 20])
        assert set(seen) <= set(nearby(root))
        restored = restore(root)
        assert restored in (10, 20)
        assert restored >= max(seen)
        assert visible(root) == ([10, 20] if restored == 20 else [10])  # what was left nearby has arrived
        outcomes.append((len(seen), restored))
        shutil.rmtree(root)
    assert outcomes == sorted(outcomes), "a kill later on lost what one before it kept"
    assert outcomes[-1] == (2, 20)
    assert (1, 20) in outcomes


def test_a_node_that_is_lost_at_any_moment_leaves_what_the_object_tier_shows(tmp_path, with_step_10):
    events = crash.trace(partial(save, shutil.copytree(with_step_10, tmp_path / "trace"), 20))
    for spec in list(crash.every_pass(events))[::3]:
        root = shutil.copytree(with_step_10, tmp_path / "r")
        assert crash.run_killed(partial(save, root, 20), spec) == crash.KILLED
        shutil.rmtree(root / "nvme")
        assert restore(root) == max(visible(root))
        save(root, 30)
        assert visible(root)[-1] == 30
        shutil.rmtree(root)


def drain_again(root):
    """A start that finds a step nearby that is not afar."""
    with begin(root, state(0)) as checkpoint:
        checkpoint.wait("object")


def test_a_drain_that_is_killed_again_and_again_is_finished_by_the_start_that_is_not(tmp_path, with_step_10):
    root = shutil.copytree(with_step_10, tmp_path / "r")
    assert crash.run_killed(partial(save, root, 20), "drain-file-copied:3") == crash.KILLED
    for point in ("drain-file-copied:2", "drain-receipt-copied"):
        assert crash.run_killed(partial(drain_again, root), point) == crash.KILLED
        assert visible(root) == [10]
    assert crash.run_killed(partial(drain_again, root), "drain-file-copied") == 0  # the receipt proves all files
    assert visible(root) == [10, 20]
    assert restore(root) == 20


def fail_to_drain(root):
    """Rank 0 of two finds a step nearby whose file is damaged: it leaves a note for its peer."""
    checkpoint = begin(root, state(0), world=2)
    with pytest.raises(SaveFailed, match="did not reach tier 'object'"):
        checkpoint.wait("object")
    checkpoint.close()


@pytest.fixture
def undrainable(tmp_path, with_step_10):
    """Step 20 nearby, with a wrong byte, and not afar."""
    root = shutil.copytree(with_step_10, tmp_path / "undrainable")
    assert crash.run_killed(partial(save, root, 20), "drain-file-copied") == crash.KILLED
    file = max((root / "nvme" / "step-00000020.g0002").glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    return root


def test_a_drain_that_fails_and_is_killed_anywhere_on_the_way_leaves_nothing_that_holds_up_a_start(
    tmp_path, undrainable
):
    events = crash.trace(partial(fail_to_drain, shutil.copytree(undrainable, tmp_path / "trace")))
    crash.assert_point_between_durables(events)
    for spec in crash.every_pass(events):
        root = shutil.copytree(undrainable, tmp_path / "r")
        assert crash.run_killed(partial(fail_to_drain, root), spec) == crash.KILLED
        assert visible(root) == [10]
        start_generation(tiers(root), run="r", layout=Layout())
        assert not [name for name in LocalStore(root / "nvme").list_dirs() if not StepId.parse(name)]
        shutil.rmtree(root)


def test_every_crash_point_of_drains_is_passed_by_these_tests(tmp_path, with_step_10, undrainable):
    passed = {event.name for event in crash.trace(partial(save, shutil.copytree(with_step_10, tmp_path / "a"), 20))}
    passed |= {event.name for event in crash.trace(partial(fail_to_drain, undrainable))}
    again = partial(start_generation, tiers(undrainable), run="r", layout=Layout())
    passed |= {event.name for event in crash.trace(again)}
    here = {name for name in crash.points(Path(stoker.__file__).parent / "checkpoint") if "drain" in name}
    assert len(here) > 4
    assert here <= passed
