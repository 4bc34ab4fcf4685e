import numpy as np
import pytest
from msgspec.structs import replace

from stoker.errors import ConfigError, UnknownField
from stoker.feed.batch import BYTES, OBJECTS, Batch, Field, InReply, InSlot, WireBatch
from stoker.io.memory import Arena
from stoker.values import StageTimes


@pytest.fixture
def memory():
    return np.arange(256, dtype=np.uint8)


@pytest.fixture
def wire(memory):
    fields = (
        Field("raw", BYTES, InSlot(64), row_offsets=np.array([0, 3, 3, 5])),
        Field("x", "<u2", InSlot(128), shape=(3, 2)),
        Field("words", OBJECTS, InReply(["a", "b", "c"])),
    )
    return WireBatch(
        step=7,
        epoch=1,
        memory=memory,
        valid=np.array([True, True, False]),
        fields=fields,
        sample_keys=Field("sample_keys", BYTES, InReply("kä1k2".encode()), row_offsets=np.array([0, 4, 6, 6])),
        timing=StageTimes(0, 0, 0, 0),
        nbytes=20,
    )


@pytest.fixture
def batch(wire):
    return Batch(wire)


def test_a_batch_is_a_mapping_of_fields(batch):
    assert (list(batch), len(batch), "x" in batch, "y" in batch) == (["raw", "x", "words"], 3, True, False)
    assert (batch.step, batch.epoch, batch.valid.tolist()) == (7, 1, [True, True, False])
    assert batch["words"] == ["a", "b", "c"]
    assert batch.get("y") is None
    assert dict(batch)["words"] is batch["words"]
    with pytest.raises(KeyError, match="y"):
        batch["y"]


def test_raw_samples_are_writable_views_of_the_memory(batch, memory):
    assert [bytes(sample) for sample in batch["raw"]] == [bytes([64, 65, 66]), b"", bytes([67, 68])]
    batch["raw"][2][1] = 200
    assert memory[68] == 200
    assert batch["raw"] is batch["raw"]


def test_raw_samples_are_one_array_and_offsets_too(batch, memory):
    values, offsets = batch.jagged("raw")
    assert (values.dtype, values.tolist()) == (np.uint8, [64, 65, 66, 67, 68])
    assert (offsets.dtype, offsets.tolist()) == (np.int64, [0, 3, 3, 5])
    assert np.shares_memory(values, memory)
    values[4] = 200
    assert bytes(batch["raw"][2]) == bytes([67, 200])


def test_the_one_array_keeps_the_slot_too(wire):
    arena = Arena(256)
    values = Batch(replace(wire, memory=arena.lend(arena.take(256)))).jagged("raw").values
    assert arena.reclaim() == 0
    del values
    assert arena.reclaim() == 1
    arena.close()


@pytest.mark.parametrize("name", ["x", "words"])
def test_what_is_no_raw_bytes_has_no_jagged_form(batch, name):
    with pytest.raises(ConfigError, match=f"field '{name}' is no raw bytes"):
        batch.jagged(name)


def test_what_is_not_there_has_no_jagged_form_either(batch):
    with pytest.raises(UnknownField, match="there is no field 'rwa'"):
        batch.jagged("rwa")


def test_arrays_are_writable_views_of_the_memory(batch, memory):
    assert batch["x"].shape == (3, 2)
    assert batch["x"].dtype == np.uint16
    assert batch["x"][0, 0] == 128 + 129 * 256
    batch["x"][0, 0] = 0
    assert memory[128:130].tolist() == [0, 0]
    assert batch["x"] is batch["x"]


def test_keys_are_decoded_when_asked_for(batch):
    assert batch.sample_keys == ["kä1", "k2", ""]
    assert batch.sample_keys is batch.sample_keys


def test_the_batch_and_each_of_its_values_keep_the_slot(wire):
    arena = Arena(256)
    lent = Batch(replace(wire, memory=arena.lend(arena.take(256))))
    row, array = lent["raw"][0], lent["x"][1]
    assert arena.reclaim() == 0
    del lent
    assert arena.reclaim() == 0
    del row
    assert arena.reclaim() == 0
    del array
    assert arena.reclaim() == 1
    arena.close()


def test_batches_are_equal_only_to_themselves_and_can_be_keys(batch):
    assert batch == batch  # noqa: PLR0124
    assert batch != dict(batch)
    assert {batch: 1}[batch] == 1


def test_a_batch_shows_what_it_is_without_its_contents(batch):
    padded = "<Batch of step 7, epoch 1: 3 samples, 1 of them padding, with 'raw', 'x', 'words'>"
    assert repr(batch) == padded
    batch.valid[:] = True
    assert repr(batch) == padded.replace(", 1 of them padding,", "")


def test_a_field_that_is_not_there_is_a_key_error_that_names_those_that_are(batch):
    with pytest.raises(KeyError) as caught:
        batch["word"]
    assert isinstance(caught.value, UnknownField)
    assert str(caught.value).splitlines() == [
        "there is no field 'word'",
        "  where: batch of step 7",
        "  hint:  did you mean 'words'? it has 'raw', 'x', 'words'",
    ]
    assert batch.get("word", 1) == 1
