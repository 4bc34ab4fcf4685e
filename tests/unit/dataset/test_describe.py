import dataclasses

import pytest

from stoker.dataset.describe import Dataset
from stoker.errors import ConfigError


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
