"""What trainer and feeder say arrives as it was meant."""

import gc
import sys

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker import errors
from stoker.errors import InternalError, NotFound, SampleError, StokerError
from stoker.feed.batch import BYTES, OBJECTS, Batch, Field, InReply, InSlot, read_field
from stoker.feed.wire import (
    Erred,
    Made,
    MadeField,
    Release,
    Seek,
    Wait,
    decode_from_feeder,
    decode_from_trainer,
    encode,
    hear_batch,
    hear_error,
    hear_field,
    tell_error,
    tell_field,
)

NOTHING = np.zeros(0, np.uint8)


@pytest.mark.parametrize(
    "message", [Seek(3, 7, 1 << 60, [1, 5], [2]), Seek(0, 0, 0, [], []), Wait(1, 2, 3), Release([9, 10])]
)
def test_what_the_trainer_says_arrives(message):
    assert decode_from_trainer(encode(message)) == message


def travel(field):
    return hear_field(msgspec.msgpack.decode(encode(tell_field(field, None)), type=MadeField))


texts = st.lists(st.text(st.characters(exclude_categories=())), min_size=1)
raws = st.lists(
    st.one_of(st.binary(), st.builds(bytearray, st.binary()), st.builds(memoryview, st.binary())), min_size=1
)


@given(st.one_of(texts, raws))
def test_strings_and_bytes_of_a_map_come_back_with_their_types(values):
    found = read_field(travel(Field("x", OBJECTS, InReply(values))), NOTHING)
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


def test_arrays_and_rows_are_told_by_where_they_lie():
    array = Field("a", "<f4", InSlot(64), shape=(2, 3))
    found = travel(array)
    assert (found.name, found.dtype, found.place, found.shape) == ("a", "<f4", InSlot(64), (2, 3))
    rows = travel(Field("r", "|u1", InSlot(128), row_offsets=np.array([0, 2, 5])))
    memory = np.arange(200, dtype=np.uint8)
    assert [bytes(row) for row in read_field(rows, memory)] == [bytes([128, 129]), bytes([130, 131, 132])]


def made(count):
    """The message of a batch of `count` samples with a field of each kind."""
    offsets = np.arange(count + 1) * 4
    words = Field("words", OBJECTS, InReply(["abcd"] * count))
    fields = [
        tell_field(Field("raw", BYTES, InSlot(0), row_offsets=offsets), None),
        tell_field(Field("x", "<f4", InSlot(0), shape=(count,)), None),
        tell_field(words, (0, offsets, "text")),
        tell_field(words, None),
    ]
    valid, keys = b"\1" * count, b"abcd" * count
    return encode(Made(1, 2, 3, 0, 0, 4 * count, 1 << 20, 9, (1, 2, 3, 4), valid, keys, offsets.tobytes(), fields, []))


def objects_of(message, memory):
    """How many objects and blocks of memory a batch has that nobody has looked into."""
    gc.collect()
    gc.disable()
    try:
        objects, blocks = len(gc.get_objects()), sys.getallocatedblocks()
        batch = Batch(hear_batch(decode_from_feeder(message), memory))
        found = len(gc.get_objects()) - objects, sys.getallocatedblocks() - blocks
    finally:
        gc.enable()
    assert len(batch["raw"]) == len(batch["x"]) == len(batch["words"]) == len(batch.sample_keys) == len(batch.valid)
    return found


def test_a_batch_has_as_many_objects_as_fields_whatever_its_size_until_it_is_looked_into():
    memory = np.full(1 << 13, ord("a"), np.uint8)
    objects_of(made(8), memory)  # what is made once
    (few, few_blocks), (many, many_blocks) = objects_of(made(8), memory), objects_of(made(2048), memory)
    assert many <= few < 40
    assert many_blocks <= few_blocks + 8 < 100  # numbers above 256 are objects


def test_an_empty_field_of_any_kind_arrives():
    assert read_field(travel(Field("a", "<f4", InSlot(0), shape=(0, 3))), NOTHING).shape == (0, 3)
    assert read_field(travel(Field("r", "|u1", InSlot(0), row_offsets=np.zeros(1, np.int64))), NOTHING) == []


def test_what_was_decoded_travels_as_its_bytes_and_is_decoded_when_it_is_looked_at():
    memory = np.frombuffer(b"..[1][2]", np.uint8).copy()
    told = tell_field(Field("json", OBJECTS, InReply([[1], [2]])), (2, np.array([0, 3, 6]), "json"))
    assert told.blob == b""
    assert read_field(hear_field(told), memory) == [[1], [2]]


@pytest.mark.parametrize(
    "kind", [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, StokerError)]
)
def test_every_error_of_stoker_arrives_as_itself(kind):
    found = hear_error(tell_error(kind("what", "where", "hint")))
    assert type(found) is kind
    assert (found.what, found.where, found.hint) == ("what", "where", "hint")


def test_only_errors_of_user_code_and_bugs_show_where_they_came_from():
    def raised(error):
        try:
            raise error
        except Exception as caught:  # noqa: BLE001  it is what is tested
            return hear_error(decode_from_feeder(encode(Erred(1, 2, tell_error(caught)))).error)

    assert raised(NotFound("gone")).__cause__ is None
    for error in (SampleError("s"), InternalError("i"), RuntimeError("r"), KeyError("k")):
        assert "in raised" in str(raised(error).__cause__)


def test_errors_of_python_are_themselves_and_those_of_libraries_are_named():
    assert type(hear_error(tell_error(ZeroDivisionError("by zero")))) is ZeroDivisionError

    class Strange(Exception):
        pass

    found = hear_error(tell_error(Strange("very")))
    assert type(found) is InternalError
    assert "Strange: very" in str(found)
    assert type(hear_error(tell_error(UnicodeDecodeError("utf-8", b"x", 0, 1, "no")))) is InternalError
    assert type(hear_error(tell_error(SystemExit(3)))) is InternalError
