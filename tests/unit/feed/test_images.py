"""JPEG and PNG become arrays, side by side and where their batch lies; what is no image, or too large, is an error."""

import gc
import io
import struct
import sys
import zlib
from contextlib import ExitStack

import numpy as np
import pytest
from PIL import Image

from stoker.dataset.describe import Dataset
from stoker.dataset.open import open_dataset
from stoker.dataset.write import DatasetWriter
from stoker.errors import ConfigError, SampleError, UnsupportedError
from stoker.feed import images
from stoker.feed.loader import Loader
from stoker.feed.options import FeedOptions
from stoker.feed.start import Start, start_child
from stoker.store.local import LocalStore
from stoker.values import Layout

COUNT = 24


def encoded(array, kind="PNG", mode=None):
    buffer = io.BytesIO()
    image = Image.fromarray(array)
    (image.convert(mode) if mode else image).save(buffer, kind)
    return buffer.getvalue()


def picture(number, height=6, width=5):
    return np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)


@pytest.fixture
def make(tmp_path):
    """A data set of pictures, JSON beside them, from the bytes of each."""

    def make(pictures):
        store = LocalStore(tmp_path / "data", create=True)
        with DatasetWriter(store, shard_bytes=1 << 20) as writer:
            for i, data in enumerate(pictures):
                writer.write(f"s{i:03d}", {"png": data, "json": b'{"i": %d}' % i, "bin": b"%03d" % i})
        return store

    return make


@pytest.fixture
def load(ledger, make_order):
    made = []

    def load(store, kind="inline", describe=lambda d: d, **options):
        opened = open_dataset(store)
        options.setdefault("prefetch_bytes", 1 << 20)
        with ExitStack() as on_error:
            start = Start(start_child()) if kind == "child" else Start()
            on_error.callback(start.give_up)
            loader = Loader(
                describe(Dataset(str(store.root)).decode({"png": "image", "json": "json"})),
                opened,
                order=make_order(opened, 8),
                layout=Layout(),
                options=FeedOptions(**options),
                ledger=ledger,
                start=start,
            )
            on_error.pop_all()
        made.append(loader)
        return loader

    yield load
    for loader in made:
        loader.close()


@pytest.mark.parametrize("prefetch_bytes", [0, 1 << 20])
@pytest.mark.parametrize("kind", ["inline", "child"])
def test_images_of_one_size_are_one_array_and_other_fields_are_as_ever(make, load, kind, prefetch_bytes):
    store = make(encoded(picture(i)) for i in range(COUNT))
    held = []
    for batch in load(store, kind, prefetch_bytes=prefetch_bytes, epochs=2):
        numbers = [row["i"] for row in batch["json"]]
        assert batch["png"].shape == (8, 6, 5, 3)
        assert batch["png"].flags.writeable
        assert [bytes(row) for row in batch["bin"]] == [b"%03d" % i for i in numbers]
        held.append((batch["png"], numbers))
    assert len(held) == 2 * COUNT // 8
    for values, numbers in held:
        assert (values == np.stack([picture(i) for i in numbers])).all()


@pytest.mark.parametrize(("kind", "workers"), [("inline", 0), ("child", 0)])
def test_images_of_several_sizes_are_a_list_of_arrays(make, load, kind, workers):
    store = make(encoded(picture(i, 3 + i, 9)) for i in range(COUNT))
    for batch in load(store, kind):
        assert isinstance(batch["png"], list)
        for row, value in zip(batch["json"], batch["png"], strict=True):
            assert value.flags.writeable
            assert (value == picture(row["i"], 3 + row["i"], 9)).all()


@pytest.mark.parametrize(("kind", "workers"), [("inline", 0), ("inline", 2), ("child", 1)])
def test_a_map_gets_the_images(make, load, kind, workers):
    store = make(encoded(picture(i, 3 + i, 9)) for i in range(COUNT))

    def crop(sample):
        return {"i": sample["json"]["i"], "x": sample["png"][:2, :2]}

    for batch in load(store, kind, lambda d: d.map(crop), map_workers=workers):
        for i, x in zip(batch["i"].tolist(), batch["x"], strict=True):
            assert (x == picture(i, 3 + i, 9)[:2, :2]).all()


def test_jpeg_grey_palettes_and_transparency_become_rgb(make, load):
    array = picture(1, 16, 16)
    kinds = [encoded(array, "JPEG"), *(encoded(array, mode=mode) for mode in ("L", "P", "RGBA", "LA", "1"))]
    expected = [np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for data in kinds]
    store = make((kinds * 4)[:COUNT])
    for batch in load(store):
        for row, value in zip(batch["json"], batch["png"], strict=True):
            assert (value == expected[row["i"] % 6]).all()


def bomb(width, height):
    """A PNG whose header says that it is so large."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "is no JPEG or PNG"),
        (b"GIF89a" + bytes(20), "is no JPEG or PNG"),
        (encoded(picture(1, 40, 40))[:-60], "cannot be decoded"),
        (encoded(picture(1, 40, 40), "JPEG")[:400], "(cannot be decoded|is no JPEG)"),
        (bomb(9000, 9000), "is an image of 9000 x 9000 pixels; 67108864 is the most"),
        (bomb(100_000, 100_000), "is no JPEG or PNG"),
        (encoded(np.zeros((4, 4), np.uint16)), "is an image of mode .I;16.; 8 bits a channel are decoded"),
    ],
)
def test_what_is_no_image_or_too_large_is_an_error_that_names_it(make, load, data, text):
    store = make([data] * 8)
    with pytest.raises(SampleError, match=rf"field 'png' of sample 's\d+' {text}"):
        next(iter(load(store)))


@pytest.mark.parametrize("policy", ["substitute", "mask"])
def test_a_bad_image_follows_the_policy(make, load, policy):
    store = make(b"no" if i == 5 else encoded(picture(i, 3 + i, 9)) for i in range(COUNT))
    rows = 0
    for batch in load(store, "inline", lambda d: d.on_bad(policy, 0.1)):
        for row in range(8):
            value, valid = batch["png"][row], batch.valid[row]
            rows += int(valid)
            if valid:
                i = batch["json"][row]["i"]
                assert (value == picture(i, 3 + i, 9)).all()
            else:
                assert not value.any()
                assert batch["json"][row] is None
    assert rows == (COUNT if policy == "substitute" else COUNT - 1)


def refuse_odd(sample):
    held = sample["png"]
    if sample["json"]["i"] % 6 == 5:
        raise ValueError(held.shape)
    return {"png": held, "json": sample["json"]["i"]}


@pytest.mark.parametrize("stage", ["decoder", "map"])
def test_the_memory_of_a_batch_with_a_bad_sample_is_free_again_before_a_collector_comes(make, load, until, stage):
    odd = encoded(picture(0, 100, 100))[:-600] if stage == "decoder" else encoded(picture(0, 100, 100))
    store = make(odd if i % 6 == 5 else encoded(picture(i, 100, 100)) for i in range(COUNT))

    def describe(d):
        return (d if stage == "decoder" else d.map(refuse_odd)).on_bad("substitute", 0.5)

    gc.collect()
    gc.disable()
    try:
        data = load(store, describe=describe, prefetch_bytes=2 << 20, epochs=2, gather_bytes=0)
        for batch in data:
            del batch
        until(lambda: data.stats().lent_bytes == 0)
        assert data.stats().substituted_samples == 8
        assert data.stats().copied_batches == 0
    finally:
        gc.enable()


def test_images_that_never_fit_are_refused_with_both_numbers(make, load):
    store = make(encoded(np.zeros((100, 100, 3), np.uint8)) for _ in range(COUNT))
    with pytest.raises(
        ConfigError, match=r"prefetch_bytes is 100000, and a batch of \d+ bytes with the 24\d+ that it is"
    ):
        next(iter(load(store, prefetch_bytes=100_000)))


def test_without_pillow_the_loader_is_refused(make, load, monkeypatch):
    store = make(encoded(picture(i)) for i in range(COUNT))
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setattr(images.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match="needs Pillow"):
        load(store)


def test_of_several_images_that_end_early_the_first_is_named_whichever_thread_meets_it(make, load):
    store = make(encoded(picture(i, 40, 40))[:-60] for i in range(8))
    made = load(store)
    first = int(made.order.batch(0).samples[0])
    with pytest.raises(SampleError, match=rf"'s{first:03d}' cannot be decoded"):
        next(iter(made))


def test_pillow_keeps_the_memory_of_images_unless_the_environment_says_otherwise(make, load, monkeypatch):
    before = Image.core.get_blocks_max()
    try:
        Image.core.set_blocks_max(0)
        monkeypatch.setenv("PILLOW_BLOCKS_MAX", "0")
        images.keep_memory(4)
        assert Image.core.get_blocks_max() == 0
        monkeypatch.delenv("PILLOW_BLOCKS_MAX")
        store = make(encoded(picture(i, 64, 64)) for i in range(COUNT))
        reused = Image.core.get_stats()["reused_blocks"]
        for batch in load(store):
            assert (batch["png"] == np.stack([picture(row["i"], 64, 64) for row in batch["json"]])).all()
        assert Image.core.get_stats()["reused_blocks"] > reused
        kept = Image.core.get_blocks_max()
        assert kept > 0
        images.keep_memory(kept - 1)
        assert Image.core.get_blocks_max() == kept
    finally:
        Image.core.set_blocks_max(before)
        Image.core.clear_cache()
