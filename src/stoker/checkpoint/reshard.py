"""From any partition of a tensor into boxes to any other: which elements of which stored box go where. Pure.

Boxes are half-open in every dimension and row-major inside. A 0-d tensor is a box without dimensions, of one element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stoker.errors import FormatError


@dataclass(frozen=True, slots=True)
class Box:
    """`shape` elements from `offsets` on."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def volume(self) -> int:
        """Elements in it."""
        return math.prod(self.shape)

    def within(self, outer: Box) -> tuple[slice, ...]:
        """Where it lies in `outer`, as an index of an array of outer's shape."""
        return tuple(
            slice(start - base, start - base + size)
            for start, base, size in zip(self.offsets, outer.offsets, self.shape, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """The elements that stored box number `index` has of a target: `box`, in the coordinates of the whole tensor."""

    index: int
    box: Box


@dataclass(frozen=True, slots=True)
class Run:
    """Elements [start, stop) of a row-major array: the shortest run that holds a box. `solid`: it holds no others."""

    start: int
    stop: int
    solid: bool


def pieces(target: Box, stored: Sequence[Box]) -> list[Piece]:
    """How `target` is put together from `stored` boxes, each element exactly once; at most one piece a box.

    Costs one pass of numpy over the boxes, and one over the pairs of those that have a part of `target` unless they are
    slices of one dimension. Raises FormatError if elements are missing or there twice.
    """
    if target.volume == 0:
        return []
    ndim = len(target.shape)
    starts = np.array([box.offsets for box in stored], np.int64).reshape(len(stored), ndim)
    stops = starts + np.array([box.shape for box in stored], np.int64).reshape(len(stored), ndim)
    low = np.maximum(starts, np.array(target.offsets, np.int64))
    high = np.minimum(stops, np.array(target.offsets, np.int64) + np.array(target.shape, np.int64))
    found = []
    for index in np.flatnonzero((high > low).all(axis=1)):
        size = high[index] - low[index]
        found.append(Piece(int(index), Box(tuple(low[index].tolist()), tuple(size.tolist()))))
    covered = sum(piece.box.volume for piece in found)
    if covered != target.volume or _overlap([piece.box for piece in found]):
        raise FormatError(f"{covered:,} elements are stored of a part with {target.volume:,}, or some of them twice")
    return found


def _overlap(boxes: Sequence[Box]) -> bool:
    """Whether two of the boxes, none of them empty, share an element."""
    if len(boxes) < 2 or not boxes[0].shape:  # noqa: PLR2004  two
        return len(boxes) > 1
    starts = np.array([box.offsets for box in boxes], np.int64)
    stops = starts + np.array([box.shape for box in boxes], np.int64)
    for dim in range(starts.shape[1]):
        order = np.argsort(starts[:, dim])
        if (stops[order[:-1], dim] <= starts[order[1:], dim]).all():
            return False
    shared = (starts[:, None] < stops[None]).all(axis=2) & (starts[None] < stops[:, None]).all(axis=2)
    return bool(shared.sum() > len(boxes))


def run_of(box: Box, outer: Box) -> Run:
    """The elements that `box` spans in a row-major array that holds `outer`. The box is not empty and lies inside."""
    stride = 1
    start = last = 0
    solid = True
    partial = False  # whether an inner dimension is cut, so that an outer one must not repeat
    for dim in reversed(range(len(box.shape))):
        at = box.offsets[dim] - outer.offsets[dim]
        size = box.shape[dim]
        start += at * stride
        last += (at + size - 1) * stride
        if size > 1 and partial:
            solid = False
        partial = partial or size < outer.shape[dim]
        stride *= outer.shape[dim]
    return Run(start, last + 1, solid)


def whole_shape(stored: Sequence[Box]) -> tuple[int, ...]:
    """The shape of the tensor that `stored` boxes, at least one, make up. Raises FormatError if they do not fit."""
    if len({len(box.shape) for box in stored}) != 1:
        raise FormatError("the parts of a tensor have different numbers of dimensions")
    ends = [[at + size for at, size in zip(box.offsets, box.shape, strict=True)] for box in stored]
    return tuple(max(sizes) for sizes in zip(*ends, strict=True))
