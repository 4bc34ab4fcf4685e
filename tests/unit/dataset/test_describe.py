import dataclasses

import numpy as np
import pytest

from stoker.dataset.describe import Dataset
from stoker.dataset.write import DatasetWriter
from stoker.errors import ConfigError
from stoker.store.memory import MemoryStore


def test_each_method_returns_a_new_description_and_leaves_the_old_one():
    plain = Dataset("some/where")
    chosen = plain.fields("jpg", "json")
    decoded = chosen.decode({"json": "json"})
    mapped = decoded.map(dict)
    assert plain.field_names is None
    assert chosen.field_names == ("jpg", "json")
    assert chosen.decoders == {}
    assert decoded.decoders == {"json": "json"}
    assert decoded.mappers == ()
    assert mapped.mappers == (dict,)
    assert mapped.source == "some/where"


def test_a_description_is_a_frozen_hashable_value():
    description = Dataset("a").fields("x").decode({"x": "text"})
    assert description == Dataset("a").fields("x").decode({"x": "text"})
    assert hash(description) == hash(Dataset("a").fields("x").decode({"x": "text"}))
    with pytest.raises(dataclasses.FrozenInstanceError):
        description.source = "b"


def test_a_later_decode_adds_to_and_replaces_an_earlier_one():
    assert Dataset("a").decode({"x": "text"}).decode({"y": "npy", "x": "json"}).decoders == {"x": "json", "y": "npy"}


def test_map_twice_applies_both_in_order():
    assert Dataset("a").map(dict).map(len).mappers == (dict, len)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda d: d.fields(), "one name or more"),
        (lambda d: d.fields(""), "one name or more"),
        (lambda d: d.fields("a", "b", "a"), "twice: 'a'"),
        (lambda d: d.decode({"a": "jpeg"}), "unknown decoder 'jpeg'"),
        (lambda d: d.fields("a").decode({"b": "text"}), "leaves out: 'b'"),
        (lambda d: d.decode({"b": "text"}).fields("a"), "leaves out: 'b'"),
        (lambda d: d.map("not a function"), "takes a function"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_written(make, words):
    with pytest.raises(ConfigError, match=words):
        make(Dataset("somewhere"))


@pytest.mark.parametrize("names", [(["a", "b"],), (1,), ()])
def test_names_of_fields_are_texts(names):
    with pytest.raises(ConfigError, match="takes one name or more"):
        Dataset("x").fields(*names)


@pytest.mark.parametrize("decoders", ["npy", ["a"], None])
def test_decoders_are_given_by_field(decoders):
    with pytest.raises(ConfigError, match="decode\\(\\) takes field -> decoder"):
        Dataset("x").decode(decoders)


@pytest.mark.parametrize("value", ["text", None, 7, np.arange(12, dtype=np.uint8)[::2], memoryview(b"abcdef")[::2]])
def test_a_field_to_write_that_is_no_row_of_bytes_is_refused_with_nothing_written(value):
    with DatasetWriter(MemoryStore("d")) as writer:
        with pytest.raises(ConfigError, match="not bytes"):
            writer.write("a", {"bin": value})
        with pytest.raises(ConfigError, match="not fields"):
            writer.write("a", [("bin", b"")])
        writer.write("a", {"bin": b"x"})
        assert writer.close().sample_count == 1


def test_a_description_shows_itself_as_it_would_be_written():
    def double(sample):
        return sample

    full = Dataset("train", index="idx").fields("jpg", "json").decode({"json": "json"}).map(double).map(dict)
    assert repr(Dataset("train")) == "Dataset('train')"
    assert repr(Dataset(MemoryStore("m"))) == "Dataset('memory://m')"
    begin, _, rest = repr(full).partition(".map(")
    assert begin == "Dataset('train', index='idx').fields('jpg', 'json').decode({'json': 'json'})"
    assert rest.endswith("double).map(dict)")


@pytest.mark.parametrize("source", [None, 3, b"train", ["a", "b"], Dataset("train")])
def test_what_cannot_name_a_data_set_is_refused_at_once(source):
    with pytest.raises(ConfigError, match="not a data set"):
        Dataset(source)
