"""What is to be read for a batch, and where each byte of it goes. Only choices: offset tables are all that is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.dataset.describe import BadPolicy, Dataset
from stoker.dataset.order import OrderedBatch
from stoker.dataset.places import NO_CHECKSUM
from stoker.dataset.readable import Facts, Namer, Readable
from stoker.dataset.windows import TOKENS
from stoker.errors import ConfigError, DatasetError
from stoker.io.memory import ALIGNMENT, room

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
        namer: what makes the keys of the samples; None: `known_keys` are they, as `key_bytes` and `key_offsets`.
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
    known_keys: tuple[bytes, NDArray[np.int64]] | None
    namer: Namer | None

    @property
    def step(self) -> int:
        """The step of the batch."""
        return self.ordered.step

    @cached_property
    def has_checksums(self) -> bool:
        """Whether any field of any sample has one."""
        return bool(self.crc32cs.size) and int(self.crc32cs.max()) != NO_CHECKSUM

    @cached_property
    def _keys(self) -> tuple[bytes, NDArray[np.int64]]:
        return self.known_keys or _join(self.namer(self.ordered.samples) if self.namer is not None else [])

    @property
    def key_bytes(self) -> bytes:
        """The keys of the samples: UTF-8 end to end."""
        return self._keys[0]

    @property
    def key_offsets(self) -> NDArray[np.int64]:
        """int64[n + 1]: where each begins and ends there."""
        return self._keys[1]

    @cached_property
    def keys(self) -> list[str]:
        """The key of each sample, for messages."""
        return [self.key_bytes[start:stop].decode() for start, stop in pairwise(self.key_offsets.tolist())]


def plan_batch(opened: Readable, ordered: OrderedBatch, fields: tuple[str, ...]) -> BatchPlan:
    """The plan of a batch. Reads offset tables that are not at hand; raises what that raises, DatasetError."""
    return plan_batches(opened, [ordered], fields)[0]


def plan_batches(opened: Readable, batches: Sequence[OrderedBatch], fields: tuple[str, ...]) -> list[BatchPlan]:
    """The plans of batches of the same size, for little more than one of them costs (64 samples: 60 us). As above."""
    samples = np.concatenate([batch.samples for batch in batches]) if len(batches) > 1 else batches[0].samples
    count, namer = len(batches[0].samples), opened.namer
    all_keys: list[tuple[bytes, NDArray[np.int64]] | None] = [None] * len(batches)
    if namer is not None:
        extents = opened.extents(samples, fields)
    else:
        extents, blob, key_offsets = opened.find(samples, fields)
        all_keys = list(_cut_keys(blob.tobytes(), key_offsets, count))
    if extents.equal_bytes:
        all_laid = [_lay_out_equal(count, len(fields), extents.equal_bytes)] * len(batches)
    else:
        if extents.offset.size and int(extents.offset.min()) < 0:
            row, column = np.argwhere(extents.offset < 0)[0].tolist()
            key = opened.key_bytes(samples[row : row + 1])[0].tobytes().decode()
            raise DatasetError(f"sample {key!r} has no field {fields[column]!r}", opened.store.url)
        all_laid = list(_lay_out(extents.size.reshape(len(batches), count, len(fields))))
    plans = []
    for number, (batch, known_keys, laid) in enumerate(zip(batches, all_keys, all_laid, strict=True)):
        rows = slice(number * count, (number + 1) * count)
        plans.append(
            BatchPlan(
                ordered=batch,
                fields=fields,
                field_starts=laid.starts,
                row_offsets=laid.row_offsets,
                nbytes=laid.nbytes,
                objects=extents.object[rows],
                offsets=extents.offset[rows],
                sizes=extents.size[rows],
                crc32cs=extents.crc32c[rows],
                targets=laid.targets,
                known_keys=known_keys,
                namer=namer,
            )
        )
    return plans


def _cut_keys(blob: bytes, offsets: NDArray[np.int64], count: int) -> Iterator[tuple[bytes, NDArray[np.int64]]]:
    """The keys of each `count` samples, of those of all."""
    for number, (start, stop) in enumerate(pairwise(offsets[::count].tolist())):
        yield blob[start:stop], offsets[number * count : (number + 1) * count + 1] - start


def lay_out(sizes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Places for int64[k, n, f] sizes of k batches: int64[k, f], the start of each field; int64[k, n + 1, f], its row
    offsets; int64[k], the bytes in all.
    """
    batches, count, width = sizes.shape
    row_offsets = np.zeros((batches, count + 1, width), np.int64)
    np.cumsum(sizes, axis=1, out=row_offsets[:, 1:])
    ends = np.cumsum(-(-row_offsets[:, -1] // ALIGNMENT) * ALIGNMENT, axis=1)
    starts = np.zeros((batches, width), np.int64)
    starts[:, 1:] = ends[:, :-1]
    return starts, row_offsets, ends[:, -1]


class _Laid(NamedTuple):
    """What a plan has of its layout."""

    starts: tuple[int, ...]
    row_offsets: tuple[NDArray[np.int64], ...]
    nbytes: int
    targets: NDArray[np.int64]


def _lay_out(sizes: NDArray[np.int64]) -> Iterator[_Laid]:
    """Of int64[k, n, f] sizes, for each of k batches."""
    starts, row_offsets, nbytes = lay_out(sizes)
    targets = starts[:, None, :] + row_offsets[:, :-1]
    by_field = np.ascontiguousarray(row_offsets.transpose(0, 2, 1))
    for number in range(len(sizes)):
        yield _Laid(tuple(starts[number].tolist()), tuple(by_field[number]), int(nbytes[number]), targets[number])


@lru_cache(maxsize=8)
def _lay_out_equal(count: int, width: int, nbytes: int) -> _Laid:
    """The layout of `count` samples of `width` fields of `nbytes` each, which batch after batch shares."""
    (laid,) = _lay_out(np.full((1, count, width), nbytes, np.int64))
    for shared in (*laid.row_offsets, laid.targets):
        shared.flags.writeable = False
    return laid


def _join(keys: Sequence[str]) -> tuple[bytes, NDArray[np.int64]]:
    """Keys as UTF-8 end to end, and int64[n + 1]: where each begins and ends."""
    encoded = [key.encode() for key in keys]
    return b"".join(encoded), np.cumsum([0, *map(len, encoded)], dtype=np.int64)


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
