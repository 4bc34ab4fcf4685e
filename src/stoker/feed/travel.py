"""What a feeder in another process must know, as bytes: the data set, the order, the options, the user's functions."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import partial
from typing import Any, Final, NamedTuple, get_type_hints

import msgspec

from stoker.dataset.describe import Dataset
from stoker.dataset.open import OpenDataset, open_dataset
from stoker.dataset.order import Order, OrderedBatch, Recipe
from stoker.dataset.readable import Readable
from stoker.errors import SourceChanged
from stoker.feed.decode import DECODERS
from stoker.feed.functions import module_paths, pack_functions, unpack_function
from stoker.feed.gather import Pattern, pattern_of
from stoker.feed.options import FeedOptions
from stoker.feed.plan import FeedSpec, choose_fields
from stoker.store.base import Store
from stoker.store.local import LocalStore
from stoker.values import Layout

_PLACES: Final = frozenset({"source", "index"})  # told as `data` and `tables`: where the trainer found them
_FUNCTIONS: Final = "mappers"


class Hello(msgspec.Struct, array_like=True, kw_only=True):
    """Everything that one feeder of a loader must know; `state` is of this start alone."""

    data: bytes  # a path may be no UTF-8
    tables: bytes
    digest: str
    dataset: dict[str, Any]
    functions: list[bytes]
    recipe: tuple[int, int, Any, int]
    rank: tuple[int, int]
    step_count: int
    prefetch_bytes: int
    gather_bytes: int
    threads: int
    deadline_s: float
    patience_s: float
    map_workers: int
    paths: list[bytes]
    state: State


class State(msgspec.Struct, array_like=True):
    """Where a feeder takes over: the size of the arena, the loans in it (number, offset, bytes) that are still alive,
    the first number for its own, and what its predecessors counted: reads, bytes read, batches copied.
    """

    arena_bytes: int
    loans: list[tuple[int, int, int]]
    first_loan: int
    counted: tuple[int, int, int]
    log_levels: tuple[int, int]


def pack_hello(
    dataset: Dataset, opened: Readable, order: Order, layout: Layout, options: FeedOptions, step_count: int
) -> Hello:
    """Describe what is to be fed. Functions travel by the name they are imported by; nested ones, lambdas and those of
    the main module or a notebook by value, with a copy of what they refer to. Raises ConfigError for a function that
    cannot travel, naming it and why.
    """
    recipe = order.recipe
    plain = {
        each.name: msgspec.to_builtins(getattr(dataset, each.name))
        for each in fields(dataset)
        if each.name not in _PLACES and each.name != _FUNCTIONS
    }
    return Hello(
        data=os.fsencode(_absolute(dataset.source) if dataset.windows is not None else opened.store.url),
        tables=os.fsencode(opened.tables.url if isinstance(opened, OpenDataset) else ""),
        digest=opened.manifest.digest,
        dataset=plain,
        functions=pack_functions(dataset.mappers),
        recipe=(recipe.seed, recipe.global_batch_size, recipe.shuffle, recipe.window),
        rank=(layout.dp_rank, layout.dp_size),
        step_count=step_count,
        prefetch_bytes=options.prefetch_bytes,
        gather_bytes=options.gather_bytes,
        threads=options.threads,
        deadline_s=options.deadline_s,
        patience_s=options.patience_s,
        map_workers=options.count_map_workers(in_child=True) if dataset.mappers else 0,
        paths=list(map(os.fsencode, module_paths())),
        state=State(options.prefetch_bytes, [], 0, (0, 0, 0), (0, 0)),
    )


def _absolute(source: object) -> str:
    """A name that means the same in another working directory; patterns stay what they are."""
    place = os.fspath(source) if isinstance(source, str | os.PathLike) else ""
    return place if "://" in place else os.path.abspath(place)  # noqa: PTH100  links stay


class Fed(NamedTuple):
    """What a feeder works with."""

    opened: Readable
    batches: Callable[[int], OrderedBatch]
    pattern: Pattern
    spec: FeedSpec
    options: FeedOptions


def unpack_hello(hello: Hello) -> Fed:
    """Open what is described. Raises SourceChanged if it is not what the trainer opened, ConfigError for a function
    that cannot be loaded here, and what `open_dataset` raises.
    """
    if hello.functions and not hello.map_workers:  # now: where the trainer looks may lie a random.py of the user
        import stoker.feed.mapper  # noqa: PLC0415
        import stoker.feed.randomness  # noqa: F401, PLC0415
    sys.path[:] = map(os.fsdecode, hello.paths)
    hints = get_type_hints(Dataset)
    plain = {name: msgspec.convert(value, hints[name]) for name, value in hello.dataset.items()}
    mappers = () if hello.map_workers else tuple(map(unpack_function, hello.functions))
    dataset = Dataset(os.fsdecode(hello.data), **plain, mappers=mappers)
    opened = _open_data(hello, dataset)
    if opened.manifest.digest != hello.digest:
        raise SourceChanged(
            "the data set was written anew between its opening by the trainer and by its feeder",
            where=opened.store.url,
            hint="make the loader again",
        )
    seed, batch_size, shuffle, window = hello.recipe
    recipe = Recipe(seed=seed, global_batch_size=batch_size, shuffle=shuffle, window=window)
    blocks, manifest = opened.blocks.sample_count, opened.manifest
    order = Order(blocks, recipe, block_bytes=manifest.block_bytes, manifest_digest=manifest.digest)
    layout = Layout(*hello.rank)
    return Fed(
        opened=opened,
        batches=partial(share, order, layout),
        pattern=pattern_of(order, layout),
        spec=replace(
            choose_fields(dataset, manifest, tuple(DECODERS)),
            packed=tuple(hello.functions) if hello.map_workers else (),
            seed=seed,
            seeds_process=dataset.seeded,
        ),
        options=FeedOptions(
            epochs=-(-hello.step_count // order.steps_per_epoch),
            prefetch_bytes=hello.prefetch_bytes,
            gather_bytes=hello.gather_bytes,
            threads=hello.threads,
            deadline_s=hello.deadline_s,
            patience_s=hello.patience_s,
            map_workers=hello.map_workers,
        ),
    )


def _open_data(hello: Hello, dataset: Dataset) -> Readable:
    if dataset.windows is not None:
        from stoker.dataset.tokens import open_tokens  # noqa: PLC0415  not for every data set

        return open_tokens(
            os.fsdecode(hello.data), dataset.windows, ExitStack()
        )  # the store is open as long as this process
    tables = _open_place(hello.tables)
    return open_dataset(tables, tables if hello.data == hello.tables else _open_place(hello.data))


def _open_place(name: bytes) -> Store:
    place = os.fsdecode(name)
    if place.startswith("/"):
        return LocalStore(place)
    from stoker.store.open import open_store  # noqa: PLC0415  not for local files

    return open_store(place)


def share(order: Order, layout: Layout, step: int) -> OrderedBatch:
    """What a rank reads of a global batch."""
    return order.rank_batch(step, layout.dp_rank, layout.dp_size)
