"""Verifying the steps of a run names every file that is not what it was."""

import numpy as np
import pytest

from stoker.checkpoint.layout import StepId
from stoker.checkpoint.verify import verify_run, verify_step
from stoker.io.checksum import CHUNK_BYTES
from stoker.testing.training import ArrayState


def state(seed):
    rng = np.random.default_rng(seed)
    return ArrayState({f"model.{i}": rng.integers(0, 255, 300_000, np.uint8) for i in range(20)})


@pytest.fixture
def saved(start, home):
    """Two steps of a run."""
    run = start(state(1))
    run.save_and_wait(after=9)
    run.save_and_wait(after=19)
    return home


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_whole_run_has_no_fault_and_deep_reads_every_byte(saved):
    quick = list(verify_run(saved, deep=False))
    assert [(one.name, one.read_bytes, one.faults) for one in quick] == [
        ("step-00000010.g0001", 0, ()),
        ("step-00000020.g0001", 0, ()),
    ]
    told = []
    for one in verify_run(saved, deep=True, progress=lambda done, total: told.append((done, total))):
        size = sum(p.stat().st_size for p in (saved.root / one.name).glob("*.safetensors"))
        assert (one.faults, one.read_bytes) == ((), size)
        assert one.read_bytes > CHUNK_BYTES
    assert told[-1][0] == told[-1][1]


def test_one_flipped_bit_is_found_by_reading_deep_and_names_file_and_chunk(saved):
    (file,) = (saved.root / "step-00000020.g0001").glob("*.safetensors")
    flip(file, CHUNK_BYTES + 5)
    assert [one.faults for one in verify_run(saved, deep=False)] == [(), ()]
    first, second = verify_run(saved, deep=True)
    assert first.faults == ()
    (fault,) = second.faults
    assert fault.error == "DigestMismatch"
    assert f"chunk 1 of '{file.name}'" in fault.what


@pytest.mark.parametrize("deep", [False, True])
def test_what_is_gone_or_cut_is_a_fault_and_other_steps_are_looked_at(saved, deep):
    (file,) = (saved.root / "step-00000010.g0001").glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    (receipt,) = (saved.root / "step-00000020.g0001").glob("rank-?????.json")
    flip(receipt, 20)
    first, second = verify_run(saved, deep=deep)
    assert [fault.error for fault in first.faults] == ["Truncated"]
    assert [fault.error for fault in second.faults] == ["DigestMismatch"]


def test_a_step_alone_and_one_without_a_manifest(saved):
    step = StepId(generation=1, step=10)
    assert verify_step(saved, step, deep=True).faults == ()
    (saved.root / step.name / "MANIFEST.json").unlink()
    assert [fault.error for fault in verify_step(saved, step, deep=True).faults] == ["NotFound"]
