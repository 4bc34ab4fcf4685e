import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.dataset.order import Order, Recipe, plan_recipe
from stoker.dataset.position import Position, Segment
from stoker.errors import ConfigError, FormatError, NewerFormat
from stoker.units import MIB

DIGEST = "ab" * 32


def make_order(seed=7, batch=16, shuffle="window", manifest=DIGEST, block_count=40):
    blocks = np.full(block_count, 10, np.int64)
    recipe = plan_recipe(blocks, MIB, seed=seed, global_batch_size=batch, shuffle=shuffle)
    return Order(blocks, recipe, block_bytes=MIB, manifest_digest=manifest)


def saved(**changed):
    return make_order().position(after=39).to_json() | changed


def saved_segment(**changed):
    position = saved()
    position["segments"][0] |= changed
    return position


def test_a_position_is_written_as_documented():
    recipe = make_order().recipe
    assert saved() == {
        "format": 1,
        "order": 1,
        "segments": [{"manifest": DIGEST, "recipe": recipe.digest, "first_step": 0, "fields": recipe.to_json()}],
        "next_step": 40,
    }


@given(st.integers(-1, 10**12), st.integers(0, 2**64 - 1))
def test_a_position_comes_back_from_json_text_as_it_was(after, seed):
    position = make_order(seed=seed).position(after=after)
    back = Position.from_json(json.loads(json.dumps(position.to_json())))
    assert back == position
    assert back.to_json() == position.to_json()


def test_a_position_takes_less_than_1_kib_of_json_with_the_longest_values_there_are():
    recipe = Recipe(seed=2**64 - 1, global_batch_size=2**63, shuffle="window", window=16)
    position = Position((Segment("f" * 128, recipe.digest, 2**63 - 1, recipe.to_json()),), 2**63 - 1)
    assert len(json.dumps(position.to_json(), indent=2).encode()) < 1024


def test_a_position_is_the_same_whatever_was_read_before():
    order, fresh = make_order(), make_order()
    order.batch(3)
    order.batch(77)
    assert order.position(after=5) == fresh.position(after=5)
    assert hash(order.position(after=5)) == hash(fresh.position(after=5))


def test_a_position_before_the_first_step_is_step_0():
    assert make_order().position(after=-1).next_step == 0
    with pytest.raises(ConfigError, match="after step -2"):
        make_order().position(after=-2)


@pytest.mark.parametrize("after", [1.5, 2.0, True, "3", None, -2])
def test_a_position_after_what_is_no_step_is_refused(after):
    with pytest.raises(ConfigError, match=f"position after step {after!r}"):
        make_order().position(after)
    assert make_order().position(np.int64(3)).to_json()["next_step"] == 4


def test_a_position_fits_the_order_it_was_made_of():
    make_order().position(after=10).check(make_order())
    Position.from_json(saved()).check(make_order())


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"seed": 8}, "seed was 7, is 8"),
        ({"batch": 20}, "global_batch_size was 16, is 20"),
        ({"shuffle": "exact"}, "shuffle was 'window', is 'exact'"),
        ({"block_count": 10}, "shuffle was 'window', is 'exact'; window was 16, is 10"),
        ({"manifest": "cd" * 32}, f"manifest was {DIGEST!r}, is {'cd' * 32!r}"),
        (
            {"manifest": "cd" * 32, "seed": 8, "batch": 20},
            f"manifest was {DIGEST!r}, is {'cd' * 32!r}; global_batch_size was 16, is 20; seed was 7, is 8",
        ),
    ],
)
def test_a_position_of_another_order_is_refused_naming_exactly_the_fields_that_differ(changed, named):
    with pytest.raises(ConfigError) as caught:
        Position.from_json(saved()).check(make_order(**changed))
    assert caught.value.what == f"the position is of another order: {named}"
    assert caught.value.hint


def test_without_the_recipes_fields_the_digests_are_named():
    position = saved()
    del position["segments"][0]["fields"]
    loaded = Position.from_json(position)
    loaded.check(make_order())
    assert loaded.to_json() == position
    with pytest.raises(ConfigError, match=f"recipe digest was '{make_order().recipe.digest}', is '[0-9a-f]{{64}}'"):
        loaded.check(make_order(seed=8))


def test_the_digest_decides_and_fields_of_a_later_recipe_are_named():
    from stoker.values import json_digest

    fields = make_order().recipe.to_json() | {"mixture": {"a": 0.7}}
    loaded = Position.from_json(saved_segment(recipe=json_digest(fields), fields=fields))
    with pytest.raises(ConfigError, match=r"another order: mixture was \{'a': 0.7\}, is None"):
        loaded.check(make_order())


def test_a_position_of_two_segments_is_read_but_resumed_by_a_newer_release_only():
    first = saved()["segments"][0]
    position = Position.from_json(saved(segments=[first, first | {"first_step": 20}]))
    assert [one.first_step for one in position.segments] == [0, 20]
    with pytest.raises(NewerFormat, match="2 segments"):
        position.check(make_order())


@pytest.mark.parametrize("newer", [saved(format=2), saved(order=2), {"format": 7, "anything": "else"}])
def test_a_newer_position_is_refused_by_name(newer):
    with pytest.raises(NewerFormat, match="this release knows up to 1"):
        Position.from_json(newer)


def without(name):
    position = saved()
    del position[name]
    return position


def without_in_segment(name):
    position = saved()
    del position["segments"][0][name]
    return position


@pytest.mark.parametrize(
    "nonsense",
    [
        None,
        [],
        "position",
        7,
        {},
        {1: 2},
        without("format"),
        without("order"),
        without("segments"),
        without("next_step"),
        without_in_segment("manifest"),
        without_in_segment("recipe"),
        without_in_segment("first_step"),
        saved(format=0),
        saved(format=True),
        saved(format="1"),
        saved(order=1.0),
        saved(order=-1),
        saved(more=1),
        saved(segments=[]),
        saved(segments={}),
        saved(segments=[None]),
        saved(next_step=-1),
        saved(next_step=2**63),
        saved(next_step=40.0),
        saved(next_step=True),
        saved(next_step="40"),
        saved(next_step=None),
        saved_segment(more=1),
        saved_segment(manifest=7),
        saved_segment(manifest=""),
        saved_segment(manifest="a b"),
        saved_segment(manifest="a" * 129),
        saved_segment(manifest="ä"),
        saved_segment(recipe=None),
        saved_segment(recipe=DIGEST),  # the fields have another digest
        saved_segment(fields=[]),
        saved_segment(fields=None),
        saved_segment(fields={"seed": 7}),
        saved_segment(fields={"seed": float("nan")}),
        saved_segment(first_step=1),  # the first segment begins at 0
        saved_segment(first_step=True),
        saved(segments=[saved()["segments"][0]] * 2),  # both begin at 0
        saved(segments=[saved()["segments"][0], saved()["segments"][0] | {"first_step": 41}]),  # after next_step
    ],
)
def test_nonsense_is_a_format_error(nonsense):
    with pytest.raises(FormatError) as caught:
        Position.from_json(nonsense)
    assert not isinstance(caught.value, NewerFormat)


@pytest.mark.parametrize("value", [["x" * 10**6], "9" * 10**6])
def test_errors_stay_short_whatever_they_are_about(value):
    for nonsense in (saved(next_step=value), saved_segment(manifest=value), saved(format=value)):
        with pytest.raises(FormatError) as caught:
            Position.from_json(nonsense)
        assert len(str(caught.value)) < 300


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["format", "order", "segments", "next_step", "manifest", "x"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)


@given(json_values, st.sampled_from(["format", "order", "segments", "next_step"]))
def test_any_json_is_a_position_or_a_format_error(value, name):
    for candidate in (value, saved(**{name: value}), saved(segments=[value])):
        try:
            position = Position.from_json(candidate)
        except FormatError:
            continue
        assert Position.from_json(position.to_json()) == position


def test_replacing_the_next_step_keeps_a_position_readable():
    position = replace(make_order().position(after=3), next_step=99)
    assert Position.from_json(position.to_json()).next_step == 99
