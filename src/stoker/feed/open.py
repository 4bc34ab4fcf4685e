"""From the name of a data set to the loader of one rank."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass

from stoker.dataset.attach import IndexCache, open_described
from stoker.dataset.describe import Dataset
from stoker.dataset.order import Order
from stoker.dataset.readable import Readable
from stoker.dataset.recipe import Shuffle, plan_recipe
from stoker.errors import CapacityError, EmptyDataset, naming
from stoker.feed.decode import DECODERS
from stoker.feed.loader import Loader
from stoker.feed.options import FeedOptions
from stoker.feed.start import Start, start_feeder
from stoker.ledger import Ledger
from stoker.values import Layout, check_layout


@dataclass(frozen=True, slots=True)
class OrderWish:
    """What the user says about the order: samples a step over all ranks, seed of the shuffle, and its kind."""

    global_batch_size: int
    seed: int
    shuffle: Shuffle


def open_loader(
    dataset: Dataset | str | os.PathLike[str],
    wish: OrderWish,
    *,
    layout: Layout,
    options: FeedOptions,
    ledger: Ledger,
    indexes: IndexCache | None = None,
    start: Start | None = None,
) -> Loader:
    """Open the data set, fix its order, and make the loader of the rank that `layout` names.

    What has no manifest is indexed into `indexes`, by one process of the node. What is opened here is closed with the
    loader. `start` is what `start_feeder` gave, where it was called before; it is given up if there is no loader. Costs
    O(blocks). Raises DatasetError, EmptyDataset, LayoutError, ConfigError, StoreError, IntegrityError.
    """
    path = os.fspath(dataset) if isinstance(dataset, os.PathLike) else dataset
    description = path if isinstance(path, Dataset) else Dataset(path)
    start = start or start_feeder(dataset, "inline" if options.decoders is not DECODERS else options.feeder)
    opened_here = ExitStack()
    start.closes = opened_here.close
    with ExitStack() as on_error:
        on_error.callback(start.give_up)
        check_layout(layout)
        opened = open_described(description, opened_here, indexes)
        with naming(opened.store.url, EmptyDataset):
            order = _fix_order(opened, wish)
        with naming(opened.store.url, CapacityError):
            loader = Loader(
                description, opened, order=order, layout=layout, options=options, ledger=ledger, start=start
            )
        on_error.pop_all()
        return loader


def _fix_order(opened: Readable, wish: OrderWish) -> Order:
    manifest, block_samples = opened.manifest, opened.blocks.sample_count
    recipe = plan_recipe(
        block_samples,
        manifest.block_bytes,
        seed=wish.seed,
        global_batch_size=wish.global_batch_size,
        shuffle=wish.shuffle,
    )
    return Order(block_samples, recipe, block_bytes=manifest.block_bytes, manifest_digest=manifest.digest)
