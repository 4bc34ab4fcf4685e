import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.dataset.lanes import cut_lanes, lane_stretch, order_epoch, reachable
from stoker.dataset.splitmix import Hasher

blocks_of_samples = st.lists(st.integers(1, 30) | st.integers(1, 3), min_size=1, max_size=60).map(
    lambda sizes: np.array(sizes, np.int64)
)


def sorted_lane(pieces, lane, window, seed):
    """The lane's samples by a sort of all of it, from the rule alone."""
    hasher = Hasher(seed)
    low, high = pieces.lanes.pieces[lane : lane + 2]
    keyed = []
    for position, at in enumerate(range(low, high)):
        samples = np.arange(pieces.first[at], pieces.first[at] + pieces.prefix[at + 1] - pieces.prefix[at])
        hashes = hasher.hash(3, pieces.epoch, samples).tolist()
        keyed += [((position << 32) + window * (h >> 32), s) for h, s in zip(hashes, samples.tolist(), strict=True)]
    return [sample for _, sample in sorted(keyed)]


@given(blocks_of_samples, st.integers(1, 9), st.integers(0, 99))
def test_lanes_hold_every_sample_once_in_the_shares_of_the_rule(blocks, lane_count, seed):
    lane_count = min(lane_count, int(blocks.sum()))
    lanes = cut_lanes(blocks, lane_count, Hasher(seed))

    total = int(blocks.sum())
    samples = np.concatenate([np.arange(f, f + s) for f, s in zip(lanes.first, lanes.size, strict=True)])
    assert sorted(samples.tolist()) == list(range(total))
    assert lanes.cuts.tolist() == [g * total // lane_count for g in range(lane_count + 1)]
    stops = np.cumsum(blocks)
    for g in range(lane_count):
        of_lane = slice(lanes.pieces[g], lanes.pieces[g + 1])
        assert lanes.size[of_lane].sum() == lanes.cuts[g + 1] - lanes.cuts[g]
        assert len(set(lanes.block[of_lane].tolist())) == lanes.block[of_lane].size
    assert lanes.size.min() >= 1
    assert (lanes.first >= stops[lanes.block] - blocks[lanes.block]).all()
    assert (lanes.first + lanes.size <= stops[lanes.block]).all()


def test_a_large_block_becomes_a_piece_in_every_lane_it_reaches():
    blocks = np.array([1, 100, 1], np.int64)
    lanes = cut_lanes(blocks, 4, Hasher(7))
    of_large = lanes.block == 1
    assert of_large.sum() == 4
    firsts, sizes = lanes.first[of_large], lanes.size[of_large]
    assert firsts[0] == 1
    assert (firsts[1:] == firsts[:-1] + sizes[:-1]).all()  # end to end, so the first and last samples are in order too
    assert firsts[-1] + sizes[-1] == 101


@given(blocks_of_samples, st.integers(1, 4), st.integers(0, 99), st.integers(0, 3))
def test_an_epoch_keeps_the_pieces_of_each_lane_and_other_epochs_order_them_otherwise(blocks, lane_count, seed, epoch):
    lane_count = min(lane_count, int(blocks.sum()))
    hasher = Hasher(seed)
    lanes = cut_lanes(blocks, lane_count, hasher)
    pieces = order_epoch(lanes, blocks.size, epoch, hasher)
    assert hasher.count == 2 * blocks.size
    for g in range(lane_count):
        of_lane = slice(lanes.pieces[g], lanes.pieces[g + 1])
        assert sorted(pieces.first[of_lane].tolist()) == sorted(lanes.first[of_lane].tolist())
        assert pieces.prefix[lanes.pieces[g]] == lanes.cuts[g]
    sizes = dict(zip(lanes.first.tolist(), lanes.size.tolist(), strict=True))
    assert [sizes[f] for f in pieces.first.tolist()] == np.diff(pieces.prefix).tolist()


def test_the_order_of_pieces_differs_from_epoch_to_epoch():
    hasher = Hasher(7)
    lanes = cut_lanes(np.full(50, 3, np.int64), 2, hasher)
    orders = {tuple(order_epoch(lanes, 50, epoch, hasher).first.tolist()) for epoch in range(20)}
    assert len(orders) == 20


# The largest and smallest hashes there are, and few in between: ties and the ends of each window are common.
high_words = st.sampled_from([0, 1, 2**31, 2**32 - 2, 2**32 - 1]) | st.integers(0, 2**32 - 1)


@given(st.lists(st.lists(high_words, min_size=1, max_size=6), min_size=1, max_size=12), st.integers(1, 16), st.data())
def test_only_reachable_pieces_land_in_a_stretch_whatever_the_hashes_are(pieces, window, data):
    prefix = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])])
    keyed = sorted(
        ((position << 32) + window * word, position, number)
        for position, piece in enumerate(pieces)
        for number, word in enumerate(piece)
    )
    start = data.draw(st.integers(0, len(keyed) - 1))
    stop = data.draw(st.integers(start + 1, len(keyed)))

    low, high = reachable(prefix, window, start, stop)

    spanned = np.searchsorted(prefix, stop, "left") - np.searchsorted(prefix, start, "right") + 1
    assert high - low <= spanned + 2 * window - 2
    among_themselves = [entry for entry in keyed if low <= entry[1] < high]
    assert among_themselves[start - prefix[low] : stop - prefix[low]] == keyed[start:stop]


@pytest.mark.parametrize(("piece", "late"), [(1, [1]), (2, [2, 4]), (3, []), (4, [3]), (5, [3, 4])])
def test_every_reachable_piece_does_land_in_the_stretch_for_some_hashes(piece, late):
    # Window 3, pieces of one sample, position 3: pieces in `late` have the largest hash, all others the smallest.
    assert reachable(np.arange(9), 3, 3, 4) == (1, 6)
    keys = {p: (p << 32) + 3 * (2**32 - 1 if p in late else 0) for p in range(8)}
    assert sorted(keys, key=lambda p: keys[p])[3] == piece


@given(blocks_of_samples, st.integers(1, 3), st.integers(1, 16), st.integers(0, 5), st.data())
def test_any_stretch_of_a_lane_equals_that_part_of_the_whole_lane_sorted(blocks, lane_count, window, epoch, data):
    lane_count = min(lane_count, int(blocks.sum()))
    hasher = Hasher(11)
    lanes = cut_lanes(blocks, lane_count, hasher)
    pieces = order_epoch(lanes, blocks.size, epoch, hasher)
    lane = data.draw(st.integers(0, lane_count - 1))
    length = int(lanes.cuts[lane + 1] - lanes.cuts[lane])
    start = data.draw(st.integers(0, length - 1))
    stop = data.draw(st.integers(start + 1, length))

    stretch = lane_stretch(pieces, lane, (start, stop), window, hasher)

    assert stretch.tolist() == sorted_lane(pieces, lane, window, 11)[start:stop]


class TiedHasher(Hasher):
    """Every sample hashes alike, so that only ties decide."""

    def hash(self, purpose, epoch, numbers):
        hashes = super().hash(purpose, epoch, numbers)
        return hashes if purpose != 3 else np.full_like(hashes, self.value)


@pytest.mark.parametrize("value", [0, 2**63, 2**64 - 1])
def test_ties_go_by_sample_number(value):
    hasher = TiedHasher(5)
    hasher.value = value
    blocks = np.array([4, 1, 7, 2, 5], np.int64)
    lanes = cut_lanes(blocks, 1, hasher)
    pieces = order_epoch(lanes, 5, 0, hasher)
    stretch = lane_stretch(pieces, 0, (0, 19), 5, hasher)
    in_piece_order = np.concatenate(
        [np.arange(f, f + s) for f, s in zip(pieces.first, np.diff(pieces.prefix), strict=True)]
    )
    assert stretch.tolist() == in_piece_order.tolist()


def test_ties_across_pieces_go_by_sample_number_too():
    # Keys of pieces 0 and 1 tie when the window is 2 and their hashes' high words differ by 2^31.
    class Steps(TiedHasher):
        def hash(self, purpose, epoch, numbers):
            hashes = super().hash(purpose, epoch, numbers)
            return hashes if purpose != 3 else np.array([self.words[n] for n in numbers.tolist()], np.uint64) << 32

    hasher = Steps(5)
    hasher.value = 0
    lanes = cut_lanes(np.array([3, 3], np.int64), 1, hasher)
    for epoch in range(20):  # in some epochs the pieces stand in descending order of their samples
        pieces = order_epoch(lanes, 2, epoch, hasher)
        before = range(int(pieces.first[0]), int(pieces.first[0]) + 3)
        hasher.words = {n: 2**31 if n in before else 0 for n in range(6)}
        assert lane_stretch(pieces, 0, (0, 6), 2, hasher).tolist() == list(range(6))
