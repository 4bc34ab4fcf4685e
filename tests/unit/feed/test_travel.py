import sys

import pytest

from stoker.dataset.describe import Dataset
from stoker.dataset.open import open_dataset
from stoker.dataset.order import Order, plan_recipe
from stoker.dataset.write import DatasetWriter
from stoker.feed.options import FeedOptions
from stoker.feed.travel import pack_hello, unpack_hello
from stoker.store.local import LocalStore
from stoker.values import Layout


@pytest.mark.parametrize(("shuffle", "epochs"), [("window", 1), ("window", 3), (False, 2)])
def test_what_a_feeder_is_told_is_what_the_trainer_has(tmp_path, monkeypatch, shuffle, epochs):
    monkeypatch.setattr(sys, "path", list(sys.path))
    with DatasetWriter(LocalStore(tmp_path, create=True)) as writer:
        for i in range(10):
            writer.write(f"s{i:02d}", {"bin": b"%d" % i})
    opened = open_dataset(LocalStore(tmp_path))
    blocks, manifest = opened.blocks.sample_count, opened.manifest
    recipe = plan_recipe(blocks, manifest.block_bytes, seed=3, global_batch_size=4, shuffle=shuffle)
    order = Order(blocks, recipe, block_bytes=manifest.block_bytes, manifest_digest=manifest.digest)
    options = FeedOptions(epochs=epochs, prefetch_bytes=1000, gather_bytes=2000, threads=3, map_workers=0)
    steps = order.steps_per_epoch * epochs
    fed = unpack_hello(pack_hello(Dataset(str(tmp_path)), opened, order, Layout(), options, steps))
    assert fed.options == options
    for step in (0, steps - 1):
        assert fed.batches(step).samples.tolist() == order.batch(step).samples.tolist()
