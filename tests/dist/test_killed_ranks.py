"""A job of two ranks loses a rank, and a feeder while it saves; torchrun starts it again, and it ends the same."""

import runpy
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.dist, pytest.mark.crash]

SOAK = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "soak" / "scenarios.py")))


@pytest.fixture(scope="module")
def root():
    """In memory, since a kill leaves what the kernel has."""
    memory = Path("/dev/shm")
    place = tempfile.mkdtemp(prefix="stoker-test-ranks-", dir=memory if memory.is_dir() else None)
    yield Path(place)
    shutil.rmtree(place, ignore_errors=True)


def test_a_job_that_loses_a_feeder_in_a_save_and_then_a_rank_ends_as_one_that_loses_none(root):
    data = SOAK.make_data(root)
    expected = {2: SOAK.uninterrupted(root / "whole", data, ranks=2)}
    SOAK.play("feeder and rank", 3, root / "killed", data, expected)


def test_other_samples_other_weights_and_what_is_left_over_would_be_found(root):
    folder = root / "told"
    training = SOAK.Training(folder, root, ranks=1)
    (folder / "said").mkdir()
    said = folder / "said" / "rank-0.jsonl"
    steps = [f'{{"step": {step}, "loss": {step}}}\n' for step in range(SOAK.STEPS)]
    end = '{"weights": "w", "feeder": "child", "longest_s": 1.0}\n'
    said.write_text("".join(steps) + end)
    right = training.story()
    training.judge(right)
    for wrong in (steps[1:], [*steps, '{"step": 3, "loss": 4}\n']):
        said.write_text("".join(wrong) + end)
        with pytest.raises(AssertionError, match="trained"):
            training.judge(right)
    for old, new in (('"w"', '"v"'), ("1.0", "11.0"), ("child", "inline")):
        said.write_text("".join(steps) + end.replace(old, new))
        with pytest.raises(AssertionError, match="it trained something else|waited 11|not made in a child"):
            training.judge(right)
    said.write_text("".join(steps) + end)
    (folder / ".tmp-x").touch()
    with pytest.raises(AssertionError, match="tmp-x"):
        training.judge(right)
