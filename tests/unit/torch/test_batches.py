"""Batches as tensors: over the same memory, and still knowing which step they are."""

import copy
import gc

import numpy as np
import pytest
import torch

from stoker.errors import ConfigError
from stoker.torch.batches import TensorBatch, as_tensor


@pytest.fixture
def batch(run, numbers):
    return next(iter(run.loader(numbers, global_batch_size=4, device="cpu")))


def test_on_the_cpu_arrays_are_tensors_and_everything_else_stays(run, numbers):
    plain = run.loader(numbers, global_batch_size=4, epochs=2)
    tensors = run.loader(numbers, global_batch_size=4, epochs=2, device="cpu")
    count = 0
    for there, here in zip(plain, tensors, strict=True):
        assert (here.step, here.epoch, here.sample_keys) == (there.step, there.epoch, there.sample_keys)
        assert here.valid.dtype == torch.bool
        assert here.valid.tolist() == there.valid.tolist()
        assert here["npy"].dtype == torch.int64
        assert here["npy"].numpy().tolist() == there["npy"].tolist()
        assert [bytes(sample) for sample in here["bin"]] == [bytes(sample) for sample in there["bin"]]
        assert here["txt"] == there["txt"]
        assert list(here) == list(there)
        count += 1
    assert count == 12


def test_a_tensor_lies_in_the_arena_and_keeps_its_slot_until_it_dies(run, numbers):
    data = run.loader(numbers, global_batch_size=4, device="cpu")
    tensor = next(iter(data))["npy"]
    before = data.stats().lent_bytes
    assert before > 0
    view = tensor[1:]
    del tensor
    gc.collect()
    assert data.stats().lent_bytes == before
    expected = view.clone()
    list(data)
    assert torch.equal(view, expected)


def test_what_a_tensor_batch_says_of_itself_keeps_no_slot(run, numbers, until):
    data = run.loader(numbers, global_batch_size=4, device="cpu", prefetch_bytes=1 << 20)
    kept = list(data)
    for batch in kept:
        batch.clear()
    gc.collect()
    until(lambda: data.stats().lent_bytes == 0)
    assert kept[0].sample_keys[0].startswith("s")
    assert [batch.step for batch in kept] == list(range(6))


def test_copies_and_moves_keep_the_attributes(batch):
    for other in (copy.copy(batch), batch.to("cpu"), batch.to(torch.device("cpu"), non_blocking=True)):
        assert type(other) is TensorBatch
        assert (other.step, other.epoch, other.sample_keys) == (batch.step, batch.epoch, batch.sample_keys)
        assert other.valid.tolist() == [True] * 4
        assert torch.equal(other["npy"], batch["npy"])
        assert other["txt"] == batch["txt"]


def test_a_move_changes_the_type_of_the_device_of_every_tensor(batch):
    moved = batch.to("meta")
    assert {moved["npy"].device.type, moved.valid.device.type} == {"meta"}
    assert batch["npy"].device.type == "cpu"


def test_made_anew_by_another_library_it_says_what_is_missing(batch):
    anew = type(batch)({name: value for name, value in batch.items()})  # noqa: C416  as accelerate does it
    assert torch.equal(anew["npy"], batch["npy"])
    for name in ("step", "epoch", "valid", "sample_keys"):
        with pytest.raises(AttributeError, match="another library made it anew"):
            getattr(anew, name)
    assert anew.to("cpu")["txt"] == batch["txt"]
    with pytest.raises(AttributeError, match="no attribute 'no_such'"):
        anew.no_such  # noqa: B018
    assert "step ?" in repr(anew)
    assert "step 0" in repr(batch)


def test_a_type_that_pytorch_lacks_is_refused_by_field():
    with pytest.raises(ConfigError, match=r"'<U3'.*field 'words'"):
        as_tensor("words", np.array(["abc"]))
    with pytest.raises(ConfigError, match="field 'swapped'"):
        as_tensor("swapped", np.zeros(2, ">i4"))
