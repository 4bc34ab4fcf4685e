"""Keys, ranges, canonical JSON, and where a process stands among the others."""

import json
import pickle
import unicodedata
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import ConfigError, LayoutError
from stoker.values import KEY_MAX_BYTES, ByteRange, Key, Layout, ObjectInfo, canonical_json, json_digest, whole_number

# ---- keys


@pytest.mark.parametrize(
    "text",
    ["a", "a/b/c.tar", "ünïcode/日本語", "a b", "...", "a..b/.hidden", "-", "x" * KEY_MAX_BYTES, "~", "a\\b", "é"],
)
def test_a_good_key_is_its_text(text):
    assert Key(text) == text
    assert type(Key(text)) is Key
    assert Key(Key(text)) is not None
    assert f"{Key(text)}" == text
    assert {Key(text): 1}[text] == 1
    assert type(pickle.loads(pickle.dumps(Key(text)))) is Key


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "empty"),
        ("/a", "between slashes"),
        ("a/", "between slashes"),
        ("a//b", "between slashes"),
        (".", "between slashes"),
        ("a/../b", "between slashes"),
        ("..", "between slashes"),
        ("./a", "between slashes"),
        ("a\x00", "control"),
        ("a\nb", "control"),
        ("a\x7f", "control"),
        ("e\u0301", "NFC"),
        ("\ud800", "Unicode"),
        ("x" * (KEY_MAX_BYTES + 1), "1024 bytes"),
        ("é" * 513, "1024 bytes"),
    ],
)
def test_a_bad_key_is_refused_with_the_rule_it_breaks(text, rule):
    with pytest.raises(ConfigError, match=rule):
        Key(text)


@given(st.text(max_size=40))
def test_a_key_stays_below_the_place_it_is_put(text):
    try:
        key = Key(text)
    except ConfigError:
        return
    parts = key.split("/")
    assert not key.startswith("/")
    assert not {"", ".", ".."} & set(parts)
    assert unicodedata.is_normalized("NFC", key)
    assert "\x00" not in key


# ---- ranges and what is known of objects


def test_a_range_is_half_open():
    assert ByteRange(3, 10).length == 7
    assert ByteRange(3, 3).length == 0


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (2, 1), (-2, -1)])
def test_an_impossible_range_is_refused(start, stop):
    with pytest.raises(ConfigError, match=rf"\[{start}, {stop}\)"):
        ByteRange(start, stop)


def test_values_cannot_be_changed():
    for value, name in ((ByteRange(0, 1), "start"), (ObjectInfo(Key("a"), 1, "v"), "version"), (Layout(), "dp_rank")):
        with pytest.raises(FrozenInstanceError):
            setattr(value, name, 5)
        assert pickle.loads(pickle.dumps(value)) == value


# ---- canonical JSON


def test_canonical_json_is_one_text():
    assert canonical_json({"b": [1, 2.5, None, True], "a": "é"}) == '{"a":"é","b":[1,2.5,null,true]}'.encode()
    assert json_digest({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [float("-inf")]])
def test_numbers_that_json_does_not_know_are_refused(value):
    with pytest.raises(ValueError, match="Out of range"):
        canonical_json(value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(JSON)
def test_canonical_json_does_not_depend_on_the_order_of_keys_and_can_be_read_back(value):
    text = canonical_json(value)
    again = json.loads(text)
    assert again == value
    assert canonical_json(again) == text
    if isinstance(value, dict):
        assert canonical_json(dict(reversed(value.items()))) == text


# ---- layouts


@pytest.mark.parametrize(
    "wrong", [(1, 1, 0, 1), (-1, 1, 0, 1), (0, 0, 0, 1), (0, 2, 2, 2), (0, 2, -1, 1), (0, 2, 0, 3), (0, 1, 0, 0)]
)
def test_an_impossible_layout_is_refused(wrong):
    with pytest.raises(LayoutError, match=f"rank {wrong[0]} of {wrong[1]} on node {wrong[2]} of {wrong[3]}") as caught:
        Layout(*wrong)
    assert caught.value.hint


@pytest.mark.parametrize("name", ["dp_rank", "dp_size", "node", "nodes"])
@pytest.mark.parametrize("value", [1.0, True, "1", None])
def test_a_layout_of_anything_but_whole_numbers_is_refused_by_name(name, value):
    with pytest.raises(LayoutError, match=f"{name} is {value!r}"):
        Layout(**({"dp_rank": 0, "dp_size": 2} | {name: value}))


def test_a_layout_takes_whole_numbers_of_any_type():
    layout = Layout(np.int64(1), np.uint8(2))
    assert layout == Layout(1, 2)
    assert all(type(value) is int for value in (layout.dp_rank, layout.dp_size))


@pytest.mark.parametrize("value", [1.5, 1.0, True, "1", None, b"1"])
def test_only_whole_numbers_are_whole_numbers(value):
    assert whole_number(value) is None
    assert whole_number(np.int32(7)) == 7


TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "LOCAL_RANK": "1"}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_NODEID": "1",
    "SLURM_NNODES": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "77",
}


@pytest.mark.parametrize(
    ("environ", "layout"),
    [
        ({}, Layout(0, 1, 0, 1)),
        ({"HOME": "/"}, Layout(0, 1, 0, 1)),
        (TORCHRUN, Layout(5, 8, 1, 2)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, Layout(1, 2, 0, 1)),
        (SLURM, Layout(5, 8, 1, 2)),
        (SLURM | TORCHRUN | {"RANK": "3"}, Layout(3, 8, 1, 2)),  # torchrun started by srun: torchrun's count
        (SLURM | {"SLURM_STEP_ID": "batch"}, Layout(0, 1, 0, 1)),  # the batch script itself is no task of a step
        ({k: v for k, v in SLURM.items() if k != "SLURM_STEP_ID"}, Layout(0, 1, 0, 1)),  # an allocation alone
        ({"SLURM_JOB_ID": "77", "SLURM_NTASKS": "8"}, Layout(0, 1, 0, 1)),
    ],
)
def test_the_layout_is_read_from_what_the_launcher_says(environ, layout):
    assert Layout.from_environment(environ) == layout


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"RANK": "1"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "2"}, "RANK"),
        ({"RANK": "", "WORLD_SIZE": "2"}, "RANK"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK"),
        (TORCHRUN | {"GROUP_RANK": "x"}, "GROUP_RANK"),
        ({k: v for k, v in SLURM.items() if k != "SLURM_NTASKS"}, "SLURM_NTASKS"),
    ],
)
def test_half_a_description_is_refused_by_name(environ, name):
    with pytest.raises(LayoutError, match=f"incomplete: {name} is") as caught:
        Layout.from_environment(environ)
    assert "layout=" in caught.value.hint


def test_a_rank_beyond_the_world_is_refused():
    with pytest.raises(LayoutError, match="rank 8 of 8"):
        Layout.from_environment(TORCHRUN | {"RANK": "8"})
