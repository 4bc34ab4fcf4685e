"""Any partition of a tensor in, any partition out: each element exactly once."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.checkpoint.reshard import Box, Piece, pieces, run_of, whole_shape
from stoker.errors import FormatError


def cut(shape, cuts):
    """The boxes of a grid: `cuts` are, per dimension, the inner places where it is cut."""
    boxes = [Box((), ())]
    for size, places in zip(shape, cuts, strict=True):
        edges = [0, *sorted(places), size]
        spans = list(pairwise(edges))
        boxes = [Box((*b.offsets, lo), (*b.shape, hi - lo)) for b in boxes for lo, hi in spans]
    return boxes


@st.composite
def partitions(draw):
    """A shape and two partitions of it into boxes; some boxes are empty, some are cut again on their own."""
    shape = tuple(draw(st.lists(st.integers(0, 6), max_size=3)))
    found = []
    for _ in range(2):
        boxes = cut(shape, [draw(st.lists(st.integers(0, n), max_size=2, unique=True)) for n in shape])
        if boxes and draw(st.booleans()):
            box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
            again = cut(box.shape, [draw(st.lists(st.integers(0, n), max_size=1)) for n in box.shape])
            boxes += [
                Box(tuple(a + b for a, b in zip(box.offsets, sub.offsets, strict=True)), sub.shape) for sub in again
            ]
        found.append(boxes)
    return shape, *found


@given(partitions())
def test_each_element_moves_exactly_once_and_to_its_place(drawn):
    shape, stored, wanted = drawn
    whole = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    everything = Box((0,) * len(shape), shape)
    rebuilt = np.full(shape, -1, np.int64)
    moved = 0
    for target in wanted:
        for piece in pieces(target, stored):
            source = whole[(*stored[piece.index].within(everything), ...)]
            part = source[(*piece.box.within(stored[piece.index]), ...)]
            assert part.size == piece.box.volume > 0
            rebuilt[(*target.within(everything), ...)][(*piece.box.within(target), ...)] = part
            moved += part.size
    assert moved == whole.size
    assert np.array_equal(rebuilt, whole)


@given(partitions())
def test_a_run_is_the_shortest_that_holds_the_box_and_solid_only_if_it_holds_nothing_else(drawn):
    _, stored, wanted = drawn
    for target in wanted:
        for piece in pieces(target, stored):
            outer = stored[piece.index]
            numbers = np.arange(outer.volume).reshape(outer.shape)[piece.box.within(outer)].ravel()
            run = run_of(piece.box, outer)
            assert (run.start, run.stop) == (numbers.min(), numbers.max() + 1)
            assert run.solid == (numbers.size == run.stop - run.start)


@given(partitions())
def test_the_shape_is_known_from_the_boxes(drawn):
    shape, stored, _ = drawn
    assert whole_shape(stored) == shape


def test_a_missing_box_is_noticed():
    stored = [Box((0, 0), (2, 4)), Box((2, 0), (2, 3))]
    with pytest.raises(FormatError, match="14 elements are stored of a part with 16"):
        pieces(Box((0, 0), (4, 4)), stored)
    assert pieces(Box((2, 0), (2, 3)), stored) == [Piece(1, Box((2, 0), (2, 3)))]
    with pytest.raises(FormatError, match="0 elements"):
        pieces(Box((9, 9), (1, 1)), stored)


def test_a_box_that_is_there_twice_is_noticed():
    with pytest.raises(FormatError, match="8 elements are stored of a part with 4"):
        pieces(Box((0,), (4,)), [Box((0,), (4,)), Box((0,), (4,))])


@pytest.mark.parametrize(
    "stored",
    [
        [Box((0, 0), (2, 2)), Box((1, 1), (1, 3)), Box((0, 2), (1, 1))],  # one twice, one missing
        [Box((0, 0), (1, 4)), Box((0, 0), (1, 4))],
    ],
)
def test_elements_that_are_there_twice_do_not_hide_those_that_are_missing(stored):
    assert sum(box.volume for box in stored) == 8
    with pytest.raises(FormatError, match="twice"):
        pieces(Box((0, 0), (2, 4)), stored)


def test_a_tensor_without_dimensions_is_one_element():
    assert pieces(Box((), ()), [Box((), ())]) == [Piece(0, Box((), ()))]
    assert run_of(Box((), ()), Box((), ())).stop == 1
    assert whole_shape([Box((), ())]) == ()


def test_an_empty_part_needs_nothing():
    assert pieces(Box((0, 3), (4, 0)), []) == []


def test_parts_of_unlike_tensors_have_no_shape():
    with pytest.raises(FormatError, match="dimensions"):
        whole_shape([Box((0,), (1,)), Box((0, 0), (1, 1))])
