from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.dataset.layout import choose_block_bytes, cut_shards, make_blocks
from stoker.units import KIB, MIB

EXTENTS = st.lists(st.integers(1, 40).map(lambda n: n * 512), min_size=1, max_size=60)


def as_array(extents):
    return np.array(extents, dtype=np.int64)


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (1, 64 * KIB),
        (4096 * 64 * KIB, 64 * KIB),
        (4096 * 64 * KIB + 1, 128 * KIB),
        (4096 * 128 * KIB, 128 * KIB),
        (10**9, 256 * KIB),
        (4096 * 4 * MIB + 1, 8 * MIB),
        (2**60, 8 * MIB),
    ],
)
def test_block_bytes_is_the_least_power_of_two_that_gives_at_most_4096_blocks_within_its_bounds(total, expected):
    assert choose_block_bytes(total) == expected


def brute_shards(extents, limit):
    """The rule as a writer that sees one sample after the other follows it."""
    cuts, size = [0], 0
    for index, extent in enumerate(extents):
        if index > cuts[-1] and size + extent + 1024 > limit:
            cuts.append(index)
            size = 0
        size += extent
    return [*cuts, len(extents)]


@given(EXTENTS, st.integers(1, 60 * 512))
def test_a_shard_is_closed_before_it_would_pass_its_size(extents, limit):
    cuts = cut_shards(as_array(extents), limit).tolist()
    assert cuts == brute_shards(extents, limit)
    for first, stop in pairwise(cuts):
        assert sum(extents[first:stop]) + 1024 <= limit or stop - first == 1


@given(EXTENTS, st.integers(1, 60 * 512), st.integers(512, 30 * 512))
def test_blocks_are_the_longest_runs_of_whole_samples_of_one_shard_that_fit(extents, limit, block_bytes):
    shards = cut_shards(as_array(extents), limit)
    blocks = make_blocks(as_array(extents), shards, block_bytes)
    assert blocks.sample_count.sum() == len(extents)
    assert blocks.first_sample.tolist() == [0, *np.cumsum(blocks.sample_count)[:-1].tolist()]
    for i in range(len(blocks)):
        first, count, shard = int(blocks.first_sample[i]), int(blocks.sample_count[i]), int(blocks.object[i])
        start, stop = int(shards[shard]), int(shards[shard + 1])
        assert start <= first
        assert first + count <= stop
        assert blocks.offset[i] == sum(extents[start:first])
        assert blocks.length[i] == sum(extents[first : first + count])
        assert blocks.length[i] <= block_bytes or count == 1
        longer = sum(extents[first : first + count + 1])
        assert first + count == stop or longer > block_bytes


def test_a_sample_larger_than_a_block_or_a_shard_stands_alone():
    extents = as_array([512, 4096, 512, 512])
    assert cut_shards(extents, 2048).tolist() == [0, 1, 2, 4]
    blocks = make_blocks(extents, as_array([0, 4]), 1024)
    assert blocks.sample_count.tolist() == [1, 1, 2]
    assert blocks.length.tolist() == [512, 4096, 1024]


def test_ten_million_samples_are_cut_without_a_step_for_each():
    extents = np.full(10_000_000, 2048, dtype=np.int64)
    shards = cut_shards(extents, 64 * MIB)
    blocks = make_blocks(extents, shards, 8 * MIB)
    assert len(shards) - 1 == -(-10_000_000 // ((64 * MIB - 1024) // 2048))
    assert blocks.sample_count.sum() == 10_000_000
