"""From the name of a data set to the loader of one rank."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass

from stoker.dataset.describe import Dataset
from stoker.dataset.open import open_dataset
from stoker.dataset.order import Order
from stoker.dataset.recipe import Shuffle, plan_recipe
from stoker.feed.loader import Loader
from stoker.feed.options import FeedOptions
from stoker.ledger import Ledger
from stoker.store.base import Store
from stoker.store.open import open_store
from stoker.values import Layout


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
) -> Loader:
    """Open the data set, fix its order, and make the loader of the rank that `layout` names.

    The store is closed with the loader, unless it is the caller's own.
    Costs O(blocks). Raises DatasetError, EmptyDataset, LayoutError, ConfigError, StoreError, IntegrityError.
    """
    description = dataset if isinstance(dataset, Dataset) else Dataset(os.fspath(dataset))
    source = description.source
    with ExitStack() as opening:
        if isinstance(source, Store):
            store, closes = source, _leave_open
        else:
            store = open_store(source)
            closes = store.close
        opening.callback(closes)
        opened = open_dataset(store)
        manifest, block_samples = opened.manifest, opened.blocks.sample_count
        recipe = plan_recipe(
            block_samples,
            manifest.block_bytes,
            seed=wish.seed,
            global_batch_size=wish.global_batch_size,
            shuffle=wish.shuffle,
        )
        order = Order(block_samples, recipe, block_bytes=manifest.block_bytes, manifest_digest=manifest.digest)
        loader = Loader(description, opened, order=order, layout=layout, options=options, ledger=ledger, closes=closes)
        opening.pop_all()  # the store is the loader's now
        return loader


def _leave_open() -> None:
    """What closes a store that is the caller's own."""
