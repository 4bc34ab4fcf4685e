import json
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.dataset.recipe import ORDER_VERSION, Recipe, check_blocks, plan_lanes, plan_recipe
from stoker.errors import ConfigError, EmptyDataset
from stoker.units import GIB, KIB, MIB


def plan(block_count, block_bytes=8 * MIB, batch=1024, shuffle="window", seed=7):
    blocks = np.full(block_count, 100, np.int64)
    recipe = plan_recipe(blocks, block_bytes, seed=seed, global_batch_size=batch, shuffle=shuffle)
    return recipe, plan_lanes(block_count, batch, recipe.shuffle)


@pytest.mark.parametrize(
    ("block_count", "block_bytes", "batch", "shuffle", "window", "lanes"),
    [
        (1, 64 * KIB, 4, "exact", 1, 1),
        (16, 64 * KIB, 64, "exact", 16, 1),
        (17, 64 * KIB, 64, "window", 16, 1),
        (526, 64 * KIB, 64, "window", 16, 8),
        (311_000, 8 * MIB, 1024, "window", 4, 512),
        (40_000, 8 * MIB, 1024, "window", 4, 512),
        (40_000, 8 * MIB, 960, "window", 4, 480),
        (40_000, 8 * MIB, 1009, "window", 16, 1),  # a prime batch has no other divisor that fits
        (40_000, 8 * MIB, 257, "window", 7, 257),
        (600, GIB, 96, "window", 2, 8),
        (600, 4 * GIB, 96, "window", 2, 8),  # never fewer than two blocks
    ],
)
def test_window_and_lanes_of_cases_worked_by_hand(block_count, block_bytes, batch, shuffle, window, lanes):
    recipe, planned_lanes = plan(block_count, block_bytes, batch)
    assert (recipe.shuffle, recipe.window, planned_lanes) == (shuffle, window, lanes)


@pytest.mark.parametrize("shuffle", ["exact", False])
def test_exact_and_manifest_order_have_one_lane_and_the_window_that_goes_with_it(shuffle):
    recipe, lanes = plan(40_000, shuffle=shuffle)
    assert (recipe.shuffle, recipe.window, lanes) == (shuffle, 16, 1)


@given(st.integers(1, 100_000), st.integers(1, 5000))
def test_lanes_are_the_largest_divisor_of_the_batch_that_is_allowed(block_count, batch):
    lanes = plan_lanes(block_count, batch, "window")
    allowed = min(max(block_count // 64, 1), 512)
    assert lanes == max(d for d in range(1, batch + 1) if batch % d == 0 and d <= allowed)


@given(st.integers(1, 60_000), st.sampled_from([64 * KIB << k for k in range(8)]), st.integers(1, 2000))
def test_all_lanes_together_have_at_most_16_gib_open_or_two_blocks_each(block_count, block_bytes, batch):
    recipe, lanes = plan(block_count, block_bytes, batch)
    assert 1 <= recipe.window <= 16
    assert recipe.window <= 2 or recipe.window * lanes * block_bytes <= 16 * GIB


def test_the_digest_is_sha256_of_the_canonical_json_of_the_fields():
    import hashlib

    recipe = Recipe(seed=7, global_batch_size=256, shuffle="window", window=4)
    text = '{"filters":[],"global_batch_size":256,"mixture":null,"order":1,"seed":7,"shuffle":"window","window":4}'
    assert json.loads(text) == recipe.to_json()
    assert recipe.digest == hashlib.sha256(text.encode()).hexdigest()
    assert ORDER_VERSION == 1


def test_every_field_of_a_recipe_changes_its_digest():
    base = {"seed": 7, "global_batch_size": 256, "shuffle": "window", "window": 4}
    others = [{"seed": 8}, {"global_batch_size": 255}, {"shuffle": "exact"}, {"shuffle": False}, {"window": 5}]
    assert len({Recipe(**(base | other)).digest for other in [{}, *others]}) == 6


def test_a_recipe_cannot_be_changed():
    recipe = Recipe(seed=7, global_batch_size=256, shuffle="window", window=4)
    with pytest.raises(FrozenInstanceError):
        recipe.seed = 8


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"global_batch_size": 0}, "global_batch_size is 0"),
        ({"global_batch_size": -4}, "global_batch_size is -4"),
        ({"global_batch_size": 4.0}, "global_batch_size is 4.0"),
        ({"shuffle": True}, "shuffle is True"),
        ({"shuffle": "random"}, "shuffle is 'random'"),
        ({"shuffle": 0}, "shuffle is 0"),
        ({"shuffle": None}, "shuffle is None"),
        ({"block_bytes": 0}, "block_bytes is 0"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(changed, said):
    values = {"block_bytes": MIB, "seed": 7, "global_batch_size": 4, "shuffle": "window"} | changed
    with pytest.raises(ConfigError) as caught:
        plan_recipe(np.full(20, 10), **values)
    assert caught.value.what == said
    assert caught.value.hint


def test_a_window_of_no_block_is_refused():
    with pytest.raises(ConfigError, match="window is 0"):
        Recipe(seed=7, global_batch_size=4, shuffle="window", window=0)


def test_numpy_integers_make_the_same_recipe_as_pythons():
    blocks = np.full(20, 10)
    ours = plan_recipe(blocks, MIB, seed=7, global_batch_size=4, shuffle="window")
    theirs = plan_recipe(blocks, MIB, seed=np.uint64(7), global_batch_size=np.int32(4), shuffle="window")
    assert theirs.digest == ours.digest


@pytest.mark.parametrize("blocks", [[], [0], [0, 0]])
def test_a_data_set_without_samples_is_an_empty_dataset(blocks):
    with pytest.raises(EmptyDataset, match="no samples"):
        plan_recipe(np.array(blocks, np.int64), MIB, seed=7, global_batch_size=4, shuffle=False)


def test_a_block_without_samples_is_refused_by_number():
    with pytest.raises(ConfigError, match="block 2 has 0 samples"):
        check_blocks(np.array([3, 1, 0, 5]))


def test_samples_of_blocks_are_one_dimensional():
    with pytest.raises(ConfigError, match="2 dimensions"):
        check_blocks(np.ones((2, 3), np.int64))


@pytest.mark.parametrize("name", ["seed", "global_batch_size"])
@pytest.mark.parametrize("value", [1.0, True, "1", None])
def test_a_recipe_of_anything_but_whole_numbers_is_refused_by_name(name, value):
    wanted = {"seed": 7, "global_batch_size": 2, "shuffle": "exact"}
    with pytest.raises(ConfigError, match=f"{name} is {value!r}"):
        plan_recipe(np.full(4, 3), MIB, **(wanted | {name: value}))
    assert type(plan_recipe(np.full(4, 3), MIB, **(wanted | {name: np.int64(2)})).seed) is int
