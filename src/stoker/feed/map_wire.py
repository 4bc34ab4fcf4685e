"""What a feeder and the processes that map for it say to each other; samples and arrays lie in memory both have."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from stoker.feed.mapper import Column
from stoker.feed.wire import MadeField, Said, Told

_ROW_BYTES: Final = 8  # of row offsets
_SHAPE_BYTES: Final = 24  # of the shape of an image


class MapHello(msgspec.Struct, array_like=True, kw_only=True):
    """What a worker must know; the arena, and a page of one word for the row it is at, come along."""

    functions: list[bytes]
    paths: list[bytes]
    seed: int
    seeded: bool
    arena_bytes: int
    log_levels: tuple[int, int]


class Target(msgspec.Struct, array_like=True, tag=True):
    """Where results go: `columns` in `nbytes` from `offset` of an arena of `arena_bytes` on, or in a file that comes
    with the message.
    """

    columns: list[Column]
    offset: int
    nbytes: int
    arena_bytes: int


class Task(msgspec.Struct, array_like=True, tag=True, kw_only=True):
    """Map samples [first_row, ...) of a batch of `count`, whose bytes lie as a Target's; without `target`, ask for it.

    `fields` are those of these rows alone, `samples` their numbers (int64), `keys` theirs as the fields of a batch.
    """

    number: int
    step: int
    epoch: int
    first_row: int
    count: int
    samples: bytes
    keys: bytes
    key_offsets: bytes
    fields: list[MadeField]
    offset: int
    nbytes: int
    arena_bytes: int
    target: Target | None


class Shown(msgspec.Struct, array_like=True, tag=True):
    """The first sample has shown what a batch of results takes; a Target is the answer."""

    columns: list[Column]
    nbytes: int


class Mapped(msgspec.Struct, array_like=True, tag=True):
    """A task is done: its lists; arrays are where they belong. `kept`: the function still holds some of its input."""

    lists: list[MadeField]
    kept: bool


class NotMapped(msgspec.Struct, array_like=True, tag=True):
    """A task has failed at `row` of the batch (-1: at none of them), which `is_bad` or unlike the first."""

    row: int
    is_bad: bool
    error: Told
    kept: bool


class Freed(msgspec.Struct, array_like=True, tag=True):
    """The input of task `number`, which was kept, is not held any more."""

    number: int


ToWorker: TypeAlias = Task | Target
FromWorker: TypeAlias = Shown | Mapped | NotMapped | Freed | Said

decode_to_worker: Final[Callable[[Any], ToWorker]] = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker: Final[Callable[[Any], FromWorker]] = msgspec.msgpack.Decoder(FromWorker).decode


def rows_of(field: MadeField, start: int, stop: int) -> MadeField:
    """A field of samples [start, stop) alone, where they lie. Not for values that travel in the message."""
    if field.shape is not None:
        row_bytes = math.prod(field.shape[1:]) * np.dtype(field.dtype).itemsize
        shape = (stop - start, *field.shape[1:])
        return msgspec.structs.replace(field, offset=field.offset + start * row_bytes, shape=shape)
    offsets = field.row_offsets[start * _ROW_BYTES : (stop + 1) * _ROW_BYTES]
    shapes = field.row_shapes[start * _SHAPE_BYTES : stop * _SHAPE_BYTES]
    return msgspec.structs.replace(field, row_offsets=offsets, row_shapes=shapes)
