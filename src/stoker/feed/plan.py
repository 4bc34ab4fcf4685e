"""What is to be read for a batch, and where each byte of it goes. Only choices: offset tables are all that is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.dataset.describe import BadPolicy, Dataset
from stoker.dataset.order import OrderedBatch
from stoker.dataset.readable import Facts, Readable
from stoker.dataset.windows import TOKENS
from stoker.errors import ConfigError, DatasetError
from stoker.io.memory import ALIGNMENT, align, room

Mapper = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class FeedSpec:
    """What training wants of each sample, checked against the manifest.

    `decoders` names one for each of `fields`, or numpy's name of a type where all samples are rows of that. `mappers`
    are applied one after the other; where processes of the feeder apply them, they are `packed` instead. `seed` is
    that of the order; `seeds_process` says whether generators of the process are seeded for each sample, `bad_policy`
    and `budget_ratio` what `on_bad` has said.
    """

    fields: tuple[str, ...]
    decoders: tuple[str, ...]
    mappers: tuple[Mapper, ...]
    packed: tuple[bytes, ...] = ()
    seed: int = 0
    seeds_process: bool = False
    bad_policy: BadPolicy = "raise"
    budget_ratio: float = 0.0

    @property
    def grows(self) -> tuple[bool, bool]:
        """Whether decoding, and whether mapping, makes arrays of another size than what is read."""
        return self.has_images, self.is_mapped

    @property
    def has_images(self) -> bool:
        """Whether any field is decoded to images."""
        return "image" in self.decoders

    @property
    def is_mapped(self) -> bool:
        """Whether there is anything to apply."""
        return bool(self.mappers or self.packed)


def choose_fields(dataset: Dataset, manifest: Facts, known_decoders: Sequence[str]) -> FeedSpec:
    """The fields and decoders a description asks for.

    Raises ConfigError for a field that the manifest does not name, with the nearest that it does, or an unknown
    decoder; DatasetError for a field that some samples lack, with the counts.
    """
    if dataset.windows is not None:
        return _spec(dataset, (TOKENS,), (dataset.windows.numpy_name,))
    schema = {field.name: field for field in manifest.fields}
    wanted = dataset.field_names if dataset.field_names is not None else tuple(schema)
    decoders = dataset.decoders
    for name in (*wanted, *decoders):
        if name not in schema:
            import difflib  # noqa: PLC0415  only for an error

            near = difflib.get_close_matches(name, schema, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigError(
                f"the data set has no field {name!r}", hint=f"{hint}it has {', '.join(map(repr, schema))}"
            )
    for name in wanted:
        if schema[name].sample_count < manifest.sample_count:
            whole = [repr(field.name) for field in manifest.fields if field.sample_count == manifest.sample_count]
            raise DatasetError(
                f"only {schema[name].sample_count} of {manifest.sample_count} samples have field {name!r}",
                hint=f"name the fields wanted with .fields(): every sample has {', '.join(whole) or 'none in common'}",
            )
    for name, decoder in decoders.items():
        if decoder not in known_decoders:
            raise ConfigError(
                f"unknown decoder {decoder!r} for field {name!r}", hint=f"there are {', '.join(known_decoders)}"
            )
    return _spec(dataset, wanted, tuple(decoders.get(name, "raw") for name in wanted))


def _spec(dataset: Dataset, fields: tuple[str, ...], decoders: tuple[str, ...]) -> FeedSpec:
    bad_policy, budget_ratio = dataset.bad_policy, dataset.budget_ratio
    return FeedSpec(fields, decoders, dataset.mappers, bad_policy=bad_policy, budget_ratio=budget_ratio)


@dataclass(frozen=True)
class BatchPlan:
    """A batch of n samples with f fields: its place in memory, and the n * f reads that fill it.

    In memory each field begins at a multiple of 64 bytes; its samples follow one another without a gap.

    Attributes:
        field_starts: where each field begins.
        row_offsets: for each field int64[n + 1], where its samples begin and end, from its start.
        nbytes: bytes of memory.
        objects: int64[n], the object that holds each sample.
        offsets, sizes, crc32cs: int64[n, f]: what is read of it, and the checksum that it must have; -1 if it has none.
        targets: int64[n, f], where it goes.
        key_bytes, key_offsets: the keys of the samples: UTF-8 end to end, int64[n + 1].
    """

    ordered: OrderedBatch
    fields: tuple[str, ...]
    field_starts: tuple[int, ...]
    row_offsets: tuple[NDArray[np.int64], ...]
    nbytes: int
    objects: NDArray[np.int64]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    crc32cs: NDArray[np.int64]
    targets: NDArray[np.int64]
    key_bytes: bytes
    key_offsets: NDArray[np.int64]

    @property
    def step(self) -> int:
        """The step of the batch."""
        return self.ordered.step

    @cached_property
    def keys(self) -> list[str]:
        """The key of each sample, for messages."""
        return [self.key_bytes[start:stop].decode() for start, stop in pairwise(self.key_offsets.tolist())]


def plan_batch(opened: Readable, ordered: OrderedBatch, fields: tuple[str, ...]) -> BatchPlan:
    """The plan of a batch. Reads offset tables that are not at hand; raises what that raises, DatasetError."""
    extents, blob, key_offsets = opened.find(ordered.samples, fields)
    if extents.offset.size and int(extents.offset.min()) < 0:
        row, column = np.argwhere(extents.offset < 0)[0].tolist()
        key = bytes(blob)[key_offsets[row] : key_offsets[row + 1]].decode()
        raise DatasetError(f"sample {key!r} has no field {fields[column]!r}", opened.store.url)
    starts, row_offsets, nbytes = lay_out(extents.size)
    return BatchPlan(
        ordered=ordered,
        fields=fields,
        field_starts=tuple(starts),
        row_offsets=tuple(np.ascontiguousarray(row_offsets.T)),
        nbytes=nbytes,
        objects=extents.object,
        offsets=extents.offset,
        sizes=extents.size,
        crc32cs=extents.crc32c,
        targets=np.array(starts, np.int64) + row_offsets[:-1],
        key_bytes=blob.tobytes(),
        key_offsets=key_offsets,
    )


def lay_out(sizes: NDArray[np.int64]) -> tuple[list[int], NDArray[np.int64], int]:
    """Places for int64[n, f] sizes: the start of each field, its int64[n + 1, f] row offsets, and the bytes in all."""
    row_offsets = np.zeros((sizes.shape[0] + 1, sizes.shape[1]), np.int64)
    np.cumsum(sizes, axis=0, out=row_offsets[1:])
    starts = []
    end = 0
    for total in row_offsets[-1].tolist():
        starts.append(end)
        end += align(total)
    return starts, row_offsets, end


def check_fits(
    opened: Readable, fields: tuple[str, ...], count: int, tail: OrderedBatch | None, prefetch_bytes: int
) -> None:
    """Raise ConfigError, with both numbers, if a batch of `count` samples may not fit `prefetch_bytes`.

    `tail` is the last batch of an evaluation, which one sample may pad many times. The manifest answers for most; where
    its bound is too large, all offset tables are read.
    """
    if _padded(opened.largest_batch_bytes(fields, count), len(fields)) <= prefetch_bytes:
        return
    largest = opened.largest_batch_bytes(fields, count, exact=True)
    if tail is not None:
        largest = max(largest, int(opened.extents(tail.samples, fields).size.sum()))
    needed = _padded(largest, len(fields))
    if needed > prefetch_bytes:
        raise ConfigError(
            f"prefetch_bytes is {prefetch_bytes}, and a batch of {count} samples may need {needed}",
            where=opened.store.url,
            hint=f"the least that works is prefetch_bytes={needed}, or 0 to read each batch when it is asked for",
        )


def _padded(count: int, field_count: int) -> int:
    """The most that `count` bytes take when each field begins at a multiple of 64: itself such a multiple."""
    return room((count + field_count * (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT)
