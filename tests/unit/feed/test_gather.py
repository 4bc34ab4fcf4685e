from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stoker.dataset.layout import BLOCK_MAX_BYTES, make_blocks
from stoker.dataset.order import Order, plan_recipe
from stoker.feed.gather import NEAR_S, Pattern, ReadFacts, choose_units, cut_units, pattern_of
from stoker.units import KIB, MIB
from stoker.values import Layout

LOCAL_S, FAR_S = 100e-6, 20e-3


def blocks_of(sample_bytes, count, block_bytes, shard_samples):
    extents = np.full(count, sample_bytes)
    shards = np.array([*range(0, count, shard_samples), count])
    return make_blocks(extents, shards, block_bytes)


def facts(sample_bytes, latency_s, gather_bytes=256 * MIB):
    return ReadFacts(
        field_count=1,
        sample_bytes=sample_bytes,
        latency_s=latency_s,
        ahead_bytes=MIB,
        threads=64,
        gather_bytes=gather_bytes,
    )


def readable(blocks):
    return np.ones(int(blocks.object[-1]) + 1, np.bool_)


WINDOW = Pattern("window", window=16, lane_count=8, lane_ratio=1.0, share=64, rank_count=1)
SMALL = blocks_of(2560, 20_000, 64 * KIB, 1600)
LARGE = blocks_of(103_000, 3000, 128 * KIB, 160)


def test_small_samples_are_gathered_from_blocks_near_and_far():
    for latency_s in (LOCAL_S, FAR_S):
        chosen = choose_units(SMALL, readable(SMALL), WINDOW, facts(2048, latency_s, 24 * MIB))
        assert chosen.units is not None
        assert len(chosen.units.offset) == len(SMALL)
        assert chosen.needed_bytes <= chosen.frame_count * chosen.units.frame_bytes <= 24 * MIB


def test_large_samples_nearby_are_read_by_themselves_straight_into_their_slot():
    two = blocks_of(103_000, 3000, 256 * KIB, 160)
    for blocks in (LARGE, two):
        chosen = choose_units(blocks, readable(blocks), WINDOW, facts(102_400, LOCAL_S))
        assert (chosen.units, chosen.needed_bytes) == (None, 0)


def test_rows_that_are_read_together_are_gathered_only_while_they_are_small():
    for sample_bytes, gathers in ((2048, True), (4096, True), (16_384, False)):
        blocks = blocks_of(sample_bytes, 20_000, 64 * KIB, 1600)
        rows = facts(sample_bytes, LOCAL_S)._replace(rows=True)
        assert (choose_units(blocks, readable(blocks), WINDOW, rows).units is not None) == gathers


def test_a_far_data_set_that_fits_is_read_in_spans_of_many_blocks():
    chosen = choose_units(LARGE, readable(LARGE), WINDOW, facts(102_400, FAR_S, 512 * MIB))
    assert chosen.units is not None
    assert len(LARGE) / len(chosen.units.offset) > 5
    assert chosen.frame_count == len(chosen.units.offset)


def test_what_does_not_fit_is_read_by_itself_and_what_it_would_take_is_told():
    chosen = choose_units(LARGE, readable(LARGE), WINDOW, facts(102_400, FAR_S, 64 * MIB))
    assert chosen.units is None
    assert chosen.needed_bytes > 64 * MIB
    enough = choose_units(LARGE, readable(LARGE), WINDOW, facts(102_400, FAR_S, chosen.needed_bytes))
    assert enough.units is not None
    chosen = choose_units(SMALL, readable(SMALL), WINDOW, facts(2048, LOCAL_S, 0))
    assert chosen.units is None


def test_with_an_exact_shuffle_every_unit_is_open_all_the_time():
    exact = replace(WINDOW, shuffle="exact")
    chosen = choose_units(SMALL, readable(SMALL), exact, facts(2048, LOCAL_S, 24 * MIB))
    assert chosen.units is None
    assert chosen.needed_bytes > 48 * MIB


def test_an_evaluation_needs_few_units_at_a_time():
    evaluation = replace(WINDOW, shuffle=False)
    chosen = choose_units(LARGE, readable(LARGE), evaluation, facts(102_400, FAR_S, 64 * MIB))
    assert chosen.units is not None
    assert chosen.units.frame_bytes > 512 * KIB


def test_what_other_ranks_read_is_not_read_for_nothing_from_far_away():
    one = choose_units(LARGE, readable(LARGE), WINDOW, facts(102_400, FAR_S, 512 * MIB))
    many = choose_units(LARGE, readable(LARGE), replace(WINDOW, rank_count=64), facts(102_400, FAR_S, 512 * MIB))
    assert one.units is not None
    assert many.units is None


def test_objects_that_stand_for_many_files_are_not_read_across_them():
    assert choose_units(SMALL, ~readable(SMALL), WINDOW, facts(2048, LOCAL_S)).units is None


@given(
    st.lists(st.integers(1, 40_000), min_size=1, max_size=200),
    st.integers(1, 50),
    st.sampled_from([0, 128 * KIB, MIB, BLOCK_MAX_BYTES]),
)
def test_units_hold_their_blocks_and_cover_each_once(sizes, shard_samples, span_bytes):
    count = len(sizes)
    shards = np.array([*range(0, count, shard_samples), count])
    blocks = make_blocks(np.array(sizes), shards, 64 * KIB)
    units = cut_units(blocks, readable(blocks), span_bytes)
    of = units.of_block
    assert of[0] == 0
    assert set(np.diff(of).tolist()) <= {0, 1}
    assert (units.object[of] == blocks.object).all()
    assert (units.offset[of] <= blocks.offset).all()
    assert (blocks.offset + blocks.length <= units.offset[of] + units.length[of]).all()
    assert int(units.length.sum()) == int(blocks.length.sum())
    assert int(units.sample_count.sum()) == count
    if span_bytes == 0:
        assert len(units.offset) == len(blocks)
    assert (units.length[units.usable] <= units.frame_bytes).all()


@given(
    sample_bytes=st.integers(1, 2_000_000),
    count=st.integers(2, 2000),
    latency_s=st.sampled_from([1e-6, LOCAL_S, NEAR_S, FAR_S, 0.3]),
    gather_bytes=st.integers(0, 1 << 30),
    shuffle=st.sampled_from(["window", "exact", False]),
    ranks=st.integers(1, 64),
)
def test_a_choice_never_takes_more_than_the_limit(sample_bytes, count, latency_s, gather_bytes, shuffle, ranks):
    blocks = blocks_of(sample_bytes, count, 64 * KIB, 100)
    pattern = replace(WINDOW, shuffle=shuffle, rank_count=ranks)
    chosen = choose_units(blocks, readable(blocks), pattern, facts(sample_bytes, latency_s, gather_bytes))
    if chosen.units is not None:
        assert 1 <= chosen.frame_count <= chosen.units.usable.sum()
        assert chosen.needed_bytes <= chosen.frame_count * chosen.units.frame_bytes <= gather_bytes
    else:
        assert chosen.needed_bytes == 0 or chosen.needed_bytes > gather_bytes


def test_a_rank_reads_its_lanes_or_its_part_of_one():
    recipe = plan_recipe(np.full(1024, 8), 64 * KIB, seed=1, global_batch_size=64, shuffle="window")
    order = Order(np.full(1024, 8), recipe, block_bytes=64 * KIB, manifest_digest="d")
    assert order.lanes == 16
    for ranks, lanes, ratio in ((1, 16, 1.0), (8, 2, 1.0), (16, 1, 1.0), (32, 1, 0.5)):
        for rank in range(ranks):
            found = pattern_of(order, Layout(dp_rank=rank, dp_size=ranks))
            assert (found.lane_count, found.lane_ratio, found.share) == (lanes, ratio, 64 // ranks)
