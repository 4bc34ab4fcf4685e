import numpy as np
import pytest

from stoker.dataset.splitmix import Hasher
from stoker.dataset.walk import EPOCHS_KEPT, KEPT_MOST, ExactWalk, WindowWalk, compact


def uneven(block_count, most, seed=0):
    return np.random.default_rng(seed).integers(1, most, block_count, dtype=np.int64)


def window_walk(blocks, lanes=8, batch=64, window=4):
    hasher = Hasher(7)
    return WindowWalk(blocks, lane_count=lanes, batch_size=batch, window=window, hasher=hasher), hasher


def test_sample_numbers_are_kept_in_4_bytes_as_long_as_they_fit():
    numbers = np.array([0, 2**32 - 1])
    assert compact(numbers, 2**32).dtype == np.uint32
    assert compact(numbers, 2**32).tolist() == numbers.tolist()
    assert compact(np.array([2**32]), 2**32 + 1).tolist() == [2**32]


def test_a_walk_keeps_the_pieces_of_two_epochs_and_hashes_blocks_only_for_others():
    blocks = np.ones(600, np.int64)
    walk, hasher = window_walk(blocks, lanes=1, batch=600, window=16)
    assert hasher.count == 600
    costs = []
    for epoch in (0, 1, 0, 1, 2, 0):
        before = hasher.count
        walk.take(epoch, 0, 0, 600)
        costs.append(hasher.count - before)
    assert EPOCHS_KEPT == 2
    assert costs == [1200, 1200, 600, 600, 1200, 1200]  # 600 samples each, and 600 blocks where they are not kept


def test_an_exact_walk_sorts_an_epoch_once():
    hasher = Hasher(7)
    walk = ExactWalk(1000, 10, hasher)
    first = [walk.take(0, step, 0, 10).tolist() for step in range(100)]
    assert hasher.count == 1000
    walk.take(1, 0, 0, 10)
    assert [walk.take(0, step, 0, 10).tolist() for step in range(100)] == first
    assert hasher.count == 2000


def test_only_the_lanes_that_a_slice_lies_in_are_hashed():
    blocks = uneven(40_000, 200)
    walk, hasher = window_walk(blocks, lanes=64, batch=64)
    made = hasher.count
    walk.take(0, 500, 0, 1)
    one_lane = hasher.count - made - blocks.size
    walk, hasher = window_walk(blocks, lanes=64, batch=64)
    walk.take(0, 500, 0, 64)
    all_lanes = hasher.count - made - blocks.size
    assert 40 * one_lane < all_lanes < 100 * one_lane


def test_lanes_renew_what_they_keep_at_different_steps():
    # 3.2 million samples: far more than is kept, so that lanes renew many times.
    blocks = uneven(64_000, 100)
    walk, hasher = window_walk(blocks, lanes=64, batch=64)
    walk.take(0, 0, 0, 64)
    costs = []
    for step in range(1, 8000):
        before = hasher.count
        walk.take(0, step, 0, 64)
        costs.append(hasher.count - before)
    window = 2 * 4 * 64 * blocks.mean()
    assert max(costs) < window / 4  # a quarter of the lanes' windows at once would be a stall
    assert np.count_nonzero(costs) > 64


@pytest.mark.parametrize(("lanes", "batch"), [(1, 64), (512, 1024)])
def test_what_is_kept_is_bounded_for_samples_however_small(lanes, batch):
    # 16 GiB of blocks open, at 100 bytes a sample: 80,000 in each block of 8 MiB.
    walk, _ = window_walk(np.full(3 * 512 * 64 if lanes > 1 else 1000, 80_000), lanes=lanes, batch=batch)
    slots = batch // lanes
    for lane in range(3 if lanes > 1 else 1):
        walk.take(0, 0, lane * slots, (lane + 1) * slots)
    for lane, stretch in walk._stretches.items():
        assert stretch.samples.size <= KEPT_MOST // lanes, lane
