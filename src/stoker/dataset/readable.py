"""`Readable`: what training needs of an open data set, whatever kind it is of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.dataset.layout import Int64s
from stoker.dataset.manifest import FieldSchema
from stoker.dataset.objects import ObjectTable
from stoker.dataset.open import Extents
from stoker.store.base import Store

Namer: TypeAlias = Callable[[Int64s], list[str]]


class Facts(Protocol):
    """What a data set is: `Manifest`, or what says the same of data that have none."""

    @property
    def sample_count(self) -> int:
        """Samples in it, at least 1."""

    @property
    def block_bytes(self) -> int:
        """The most bytes of a block of several samples."""

    @property
    def fields(self) -> tuple[FieldSchema, ...]:
        """Its fields, sorted by name."""

    @property
    def digest(self) -> str:
        """Its identity: visible ASCII, at most 128 characters."""


class Blocks(Protocol):
    """The blocks, in manifest order, int64[n] each: as `BlockTable` has them."""

    def __len__(self) -> int:
        """How many there are."""

    @property
    def object(self) -> Int64s:
        """The object of each."""

    @property
    def offset(self) -> Int64s:
        """Where it begins there."""

    @property
    def length(self) -> Int64s:
        """Its bytes."""

    @property
    def first_sample(self) -> Int64s:
        """The first of its samples."""

    @property
    def sample_count(self) -> Int64s:
        """How many they are."""


class Readable(Protocol):
    """An open data set: `OpenDataset` and `OpenTokens`. Immutable, thread-safe."""

    @property
    def store(self) -> Store:
        """Where the objects are read."""

    @property
    def manifest(self) -> Facts:
        """What it is."""

    @property
    def objects(self) -> ObjectTable:
        """Its objects."""

    @property
    def blocks(self) -> Blocks:
        """Its blocks."""

    @property
    def readable(self) -> NDArray[np.bool_]:
        """bool[objects], whether one read may reach across samples."""

    @property
    def namer(self) -> Namer | None:
        """What makes keys of the numbers of samples (int64[n]) by arithmetic: then they need not travel."""

    def load(self, index: int, fields: tuple[str, ...]) -> None:
        """Do ahead of `find` what the first use of an object takes."""

    def find(self, samples: Int64s, fields: tuple[str, ...]) -> tuple[Extents, NDArray[np.uint8], Int64s]:
        """What `extents` and `key_bytes` say, for a reader that asks again and again for the same fields."""

    def extents(self, samples: Int64s, fields: Sequence[str]) -> Extents:
        """Where `fields` of `samples` (int64[n]) lie; objects that are used for the first time are checked."""

    def key_bytes(self, samples: Int64s) -> tuple[NDArray[np.uint8], Int64s]:
        """Keys of `samples` (int64[n]): their UTF-8 bytes end to end, and int64[n + 1] offsets into them."""

    def largest_batch_bytes(self, fields: Sequence[str], sample_count: int, *, exact: bool = False) -> int:
        """The most bytes that `fields` of any `sample_count` samples take; a bound, or with `exact` the number."""
