"""From a URL to batches: of tars and trees that nobody packed, the same bytes and the same order as when packed."""

import os

import pytest

from stoker.dataset.attach import IndexCache
from stoker.dataset.describe import Dataset
from stoker.dataset.index import IndexOptions, index
from stoker.dataset.pack import PackOptions, pack
from stoker.dataset.write import DatasetWriter
from stoker.errors import ConfigError, DatasetError, DigestMismatch, EmptyDataset, SampleError, SourceChanged
from stoker.feed.open import OrderWish, open_loader
from stoker.feed.options import FeedOptions
from stoker.store.local import LocalStore
from stoker.values import Layout

COUNT = 48


@pytest.fixture
def places(tmp_path):
    """The same files as a tree, packed, and as tars without a manifest."""
    for i in range(COUNT):
        path = tmp_path / "tree" / f"{i % 3}" / f"{i:03d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"text {i} ".encode() * (i % 5))
    pack(tmp_path / "tree", LocalStore(tmp_path / "packed"), PackOptions(shard_bytes=16384))
    (tmp_path / "tars").mkdir()
    for path in (tmp_path / "packed").glob("*.tar"):
        os.link(path, tmp_path / "tars" / path.name)
    return tmp_path


@pytest.fixture
def read(places, ledger):
    """The batches of a description: [(keys, texts)]."""

    def read(dataset, **options):
        with open_loader(
            dataset,
            OrderWish(8, 5, "window"),
            layout=Layout(),
            options=FeedOptions(**options),
            ledger=ledger,
            indexes=IndexCache(places / "index"),
        ) as loader:
            return [(list(batch.sample_keys), [bytes(text) for text in batch["txt"]]) for batch in loader]

    return read


@pytest.mark.parametrize("prefetch_bytes", [0, 1 << 20])
def test_tars_without_a_manifest_give_the_batches_of_the_pack(places, read, prefetch_bytes):
    expected = read(str(places / "packed"))
    assert len(expected) == COUNT // 8
    assert read(f"{places}/tars/shard-*.tar", prefetch_bytes=prefetch_bytes) == expected
    assert read(str(places / "tars"), prefetch_bytes=prefetch_bytes) == expected


@pytest.mark.parametrize("checksums", [False, True])
def test_a_tree_gives_every_file_in_place(places, read, checksums):
    index(LocalStore(places / "tree"), "", LocalStore(places / "at"), IndexOptions(checksums=checksums))
    found = dict(
        pair
        for keys, texts in read(Dataset(places / "tree", index=places / "at"))
        for pair in zip(keys, texts, strict=True)
    )
    assert found == {f"{i % 3}/{i:03d}": f"text {i} ".encode() * (i % 5) for i in range(COUNT)}


def test_an_archive_that_was_written_to_stops_training_by_its_name(places, read):
    index(LocalStore(places / "tars"), "")
    os.utime(places / "tars" / "shard-000001.tar", ns=(1, 1))
    with pytest.raises(SourceChanged, match=r"shard-000001\.tar"):
        read(str(places / "tars"))


def test_a_file_that_was_written_to_stops_training_by_its_name(places, read):
    index(LocalStore(places / "tree"), "", LocalStore(places / "at"))
    (places / "tree" / "1" / "004.txt").write_bytes(b"something else")
    with pytest.raises(SourceChanged, match=r"1/004\.txt"):
        read(Dataset(places / "tree", index=places / "at"))


def test_with_checksums_a_wrong_byte_stops_training(places, read):
    index(LocalStore(places / "tree"), "", LocalStore(places / "at"), IndexOptions(checksums=True))
    (places / "tree" / "1" / "004.txt").write_bytes(b"text 5 " * 4)
    with pytest.raises(DigestMismatch, match="field 'txt' of sample '1/004'"):
        read(Dataset(places / "tree", index=places / "at"))


@pytest.mark.parametrize(
    ("batch", "describe", "kind", "words"),
    [
        (1000, lambda d: d, EmptyDataset, "fewer than one global batch of 1000"),
        (2, lambda d: d.fields("jpeg"), ConfigError, "no field 'jpeg'"),
        (2, lambda d: d.fields("odd"), DatasetError, "have field 'odd'"),
        (2, lambda d: d.fields("txt").decode({"txt": "json"}), SampleError, "is not JSON"),
    ],
)
def test_what_is_wrong_with_a_data_set_names_its_place(tmp_path, ledger, batch, describe, kind, words):
    with DatasetWriter(LocalStore(tmp_path / "set")) as writer:
        for i in range(4):
            writer.write(f"{i}", {"txt": b"{"} | ({"odd": b""} if i % 2 else {}))
    wish = OrderWish(batch, 0, "window")
    with (
        pytest.raises(kind, match=words) as caught,
        open_loader(
            describe(Dataset(tmp_path / "set")), wish, layout=Layout(), options=FeedOptions(), ledger=ledger
        ) as loader,
    ):
        next(iter(loader))
    assert caught.value.where == str(tmp_path / "set")
