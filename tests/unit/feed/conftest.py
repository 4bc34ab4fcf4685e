"""Small data sets, loaders over them, and a check that no thread outlives its loader."""

from __future__ import annotations

import io
import threading
import time

import numpy as np
import pytest

from stoker.dataset.describe import Dataset
from stoker.dataset.open import open_dataset
from stoker.dataset.order import Order, plan_recipe
from stoker.dataset.write import DatasetWriter
from stoker.feed.loader import FeedOptions, Loader
from stoker.ledger import Ledger, LedgerIdentity
from stoker.store.memory import MemoryStore
from stoker.testing.stores import WrappedStore
from stoker.values import Layout


def stoker_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("stoker-")]


@pytest.fixture(autouse=True)
def no_thread_lingers():
    yield
    assert stoker_threads() == []


@pytest.fixture
def threads():
    """Names of the threads that feed now."""
    return stoker_threads


@pytest.fixture
def npy():
    """An array as the bytes of a .npy file."""

    def npy(array, **options):
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.asanyarray(array), **options)
        return buffer.getvalue()

    return npy


@pytest.fixture
def make_store():
    """A memory store with a data set of samples [(key, {field: bytes})]."""

    def make_store(samples, shard_bytes=1 << 20):
        store = MemoryStore("data")
        with DatasetWriter(store, shard_bytes=shard_bytes) as writer:
            for key, fields in samples:
                writer.write(key, fields)
        return store

    return make_store


@pytest.fixture
def numbered():
    """Samples s000, s001, ... of one field `bin` with `size` bytes each, all different."""

    def numbered(count, size=100, field="bin"):
        rng = np.random.default_rng(count)
        return [(f"s{i:03d}", {field: rng.bytes(size)}) for i in range(count)]

    return numbered


@pytest.fixture
def make_order():
    """The order of an open data set."""

    def make_order(opened, batch, *, shuffle="window", seed=3):
        blocks, manifest = opened.blocks.sample_count, opened.manifest
        recipe = plan_recipe(blocks, manifest.block_bytes, seed=seed, global_batch_size=batch, shuffle=shuffle)
        return Order(blocks, recipe, block_bytes=manifest.block_bytes, manifest_digest=manifest.digest)

    return make_order


@pytest.fixture
def ledger():
    identity = LedgerIdentity(run="", rank=0, world=1, generation=1, host="host")
    with Ledger.create(None, identity) as ledger:
        yield ledger


@pytest.fixture
def load(ledger, make_order):
    """A loader over the data set in a store, which reads each sample by itself; `describe` changes the description."""
    made = []

    def load(store, *, batch=8, shuffle="window", describe=lambda d: d, layout=None, **options):
        opened = open_dataset(store)
        order = make_order(opened, batch, shuffle=shuffle)
        options.setdefault("prefetch_bytes", 1 << 20)
        options.setdefault("gather_bytes", 0)
        loader = Loader(
            describe(Dataset(store)),
            opened,
            order=order,
            layout=layout or Layout(),
            options=FeedOptions(**options),
            ledger=ledger,
        )
        made.append(loader)
        return loader

    yield load
    for loader in made:
        loader.close()


class WatchedStore(WrappedStore):
    """Reads of shards wait for `gate`, then take `read_s`; counts them, and how many bytes are read at once."""

    def __init__(self, inner, read_s=0.0):
        super().__init__(inner)
        self.read_s = read_s
        self.gate = threading.Event()
        self.gate.set()
        self.lock = threading.Lock()
        self.reads = []
        self.readers = 0
        self.most_readers = 0
        self.errors = {}  # offset -> exception
        self.gates = {}  # offset -> event to wait for

    def read_into(self, key, start, buffer):
        if not key.startswith("shard-"):
            return super().read_into(key, start, buffer)
        with self.lock:
            self.reads.append((start, len(buffer)))
            self.readers += 1
            self.most_readers = max(self.most_readers, self.readers)
        try:
            assert self.gates.get(start, self.gate).wait(30)
            if self.read_s:
                time.sleep(self.read_s)
            if start in self.errors:
                raise self.errors[start]
            super().read_into(key, start, buffer)
        finally:
            with self.lock:
                self.readers -= 1


@pytest.fixture
def watched():
    """Put a WatchedStore around a store."""
    return WatchedStore
