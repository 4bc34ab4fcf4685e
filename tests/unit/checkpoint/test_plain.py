"""Values keep their types on the way through JSON."""

import json
import math
from collections import Counter, OrderedDict
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.checkpoint.plain import decode, encode, tensor_names
from stoker.errors import CheckpointError, FormatError
from stoker.values import canonical_json

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.binary(max_size=9)
KEYS = st.booleans() | st.integers() | TEXT | st.tuples(TEXT, st.integers())
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.sets(st.integers() | TEXT, max_size=3)
        | st.frozensets(TEXT, max_size=3)
    ),
    max_leaves=12,
)


def there_and_back(value):
    data = json.loads(canonical_json(encode(value, "x", lambda *_: None)))
    return decode(data, pytest.fail)


def same(a, b):
    """Equal, with the same types all the way down; nan equals nan, 0.0 does not equal -0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return math.copysign(1, a) == math.copysign(1, b) and (a == b or (math.isnan(a) and math.isnan(b)))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(any(same(k, j) and same(v, b[j]) for j in b) for k, v in a.items())
    return a == b


@given(VALUES)
def test_every_value_comes_back_with_its_types(value):
    back = there_and_back(value)
    if "nan" not in repr(value):
        assert back == value
    assert same(back, value) or "nan" in repr(value)


def test_special_values_and_containers_come_back():
    for value in [
        -0.0,
        math.inf,
        -math.inf,
        5e-324,
        1e22,
        2**200,
        (0.9, 0.999),
        [],
        (),
        {},
        {"$tuple": [1]},
        {1: {2: 3}},
    ]:
        assert same(there_and_back(value), value)
    assert math.isnan(there_and_back(math.nan))
    milestones = there_and_back(Counter([30, 80, 80]))
    assert type(milestones) is Counter
    assert milestones == {30: 1, 80: 2}
    assert milestones[31] == 0
    assert there_and_back(OrderedDict(a=1)) == {"a": 1}
    for data in (b"x", bytearray(b"x")):
        assert same(there_and_back(data), data)


@pytest.mark.parametrize("dtype", ["<f8", ">f4", "u1", "bool", "<c16", "<i2"])
def test_numpy_arrays_and_numbers_come_back(dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    back = there_and_back({"a": array, "n": array[1, 2]})
    assert np.array_equal(back["a"], array)
    assert back["a"].dtype == array.dtype.newbyteorder("=")
    assert back["a"].flags.writeable
    assert type(back["n"]) is type(array[1, 2])
    assert back["n"] == array[1, 2]


def test_the_words_of_the_format_are_these_for_ever():
    value = {
        "a": (1, [2.5, None, True]),
        "b": {3},
        "c": frozenset({"x"}),
        "d": {1: "one"},
        "e": Counter({30: 2}),
        "f": [math.nan, math.inf, -math.inf],
        "g": b"\x00\xff",
        "h": np.array([1, 258], ">u2"),
        "i": np.float32(1.5),
        "j": {"$k": 0},
    }
    assert encode(value, "", lambda *_: None) == {
        "a": {"$tuple": [1, [2.5, None, True]]},
        "b": {"$set": [3]},
        "c": {"$frozenset": ["x"]},
        "d": {"$dict": [[1, "one"]]},
        "e": {"$counter": [[30, 2]]},
        "f": [{"$float": "nan"}, {"$float": "inf"}, {"$float": "-inf"}],
        "g": {"$bytes": "AP8="},
        "h": {"$array": {"dtype": "<u2", "shape": [2], "data": "AQACAQ=="}},
        "i": {"$number": {"dtype": "<f4", "shape": [], "data": "AADAPw=="}},
        "j": {"$dict": [["$k", 0]]},
    }


class Pair(NamedTuple):
    x: int


class Opaque:
    pass


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ({"a": [1, Opaque()]}, r"'top\.a\.1' cannot be saved: a .*Opaque"),
        (lambda: None, "builtins.function"),
        (Pair(1), "Pair is neither"),
        ({Opaque(): 1}, "key"),
        (np.array(["a"]), "ndarray"),
        (np.array([None]), "ndarray"),
        ("\ud800", "Unicode"),
        ({"\ud800": 1}, "Unicode"),
        (1j, "complex"),
        (True.__class__, "type"),
    ],
)
def test_what_is_not_on_the_list_is_refused_by_name(value, what):
    with pytest.raises(CheckpointError, match=what):
        encode(value, "top", lambda *_: None)


@pytest.mark.parametrize(
    "value",
    [
        {"$unknown": 1},
        {"$float": "1"},
        {"$bytes": "!"},
        {"$dict": [1]},
        {"$dict": [[[], 1]]},
        {"$array": {"dtype": "O", "shape": [], "data": ""}},
        {"$array": {"dtype": "<f8", "shape": [2], "data": ""}},
        {"$array": {}},
        {"$tuple": 1},
    ],
)
def test_what_was_never_saved_is_refused(value):
    with pytest.raises(FormatError):
        decode(value, pytest.fail)


def test_tensors_are_stored_beside_under_their_path():
    taken = {}

    def take(value, path):
        if not isinstance(value, Opaque):
            return None
        taken[path] = value
        return path

    one, two = Opaque(), Opaque()
    value = {"a": [one, 1], 7: (two,)}
    data = encode(value, "extra.ema", take)
    assert taken == {"extra.ema.a.0": one, "extra.ema.7.0": two}
    assert tensor_names(data) == set(taken)
    assert decode(data, taken.__getitem__) == value


def test_what_lies_too_deep_or_contains_itself_is_named():
    deep = []
    for _ in range(99):
        deep = [deep]
    assert there_and_back({"a": deep}) == {"a": deep}
    loop = {"a": {}}
    loop["a"]["b"] = [loop]
    for value in ({"a": [deep]}, loop, (loop,)):
        with pytest.raises(CheckpointError, match=r"'x\.[a0.]+.*' cannot be saved: it lies more than 100 levels deep"):
            there_and_back(value)
