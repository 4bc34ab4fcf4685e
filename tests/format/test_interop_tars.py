"""Tars that others wrote are indexed and read here, and what we write is read by others: GNU tar and webdataset."""

import gc
import shutil
import subprocess

import numpy as np
import pytest

from stoker.dataset.index import IndexOptions, index
from stoker.dataset.open import open_dataset
from stoker.dataset.pack import PackOptions, pack
from stoker.dataset.sample import read_sample
from stoker.store.local import LocalStore

leaves_files_open = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

FILES = {
    "cat/001.jpg": b"\xff\xd8picture" * 300,
    "cat/001.json": b'{"label": 0}',
    "cat/002.jpg": b"",
    "cat/002.json": b'{"label": 1}',
    "dog/003.seg.png": bytes(range(256)) * 40,
    "dog/003.jpg": b"x" * 512,
    "dog/" + "n" * 80 + ".txt": b"a name of 88",
}
LONG = {
    "deep/" + "d" * 80 + "/" + "n" * 90 + ".txt": b"a name that ustar splits",
}
LONGER = {
    "deep/" + "n" * 150 + ".txt": b"a name that ustar cannot have",
    "zürich/straße.txt": "Wörter".encode(),
}


def wanted(files):
    found = {}
    for path, content in files.items():
        folder, _, name = path.rpartition("/")
        key, _, field = name.partition(".")
        found.setdefault(f"{folder}/{key}", {})[field] = content
    return found


def samples_of(opened):
    numbers = np.arange(opened.manifest.sample_count)
    return dict(zip(opened.keys(numbers), (read_sample(opened, n) for n in numbers.tolist()), strict=True))


@pytest.fixture
def write(tmp_path):
    def write(files):
        for path, content in files.items():
            target = tmp_path / "source" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        return tmp_path / "source"

    return write


@pytest.mark.parametrize("checksums", [False, True])
@pytest.mark.parametrize(
    ("kind", "files"),
    [
        ("v7", FILES),
        ("oldgnu", FILES | LONG | LONGER),
        ("ustar", FILES | LONG),
        ("gnu", FILES | LONG | LONGER),
        ("pax", FILES | LONG | LONGER),
    ],
)
def test_what_gnu_tar_wrote_is_indexed_and_read(kind, files, checksums, write, tmp_path):
    tar = shutil.which("tar")
    if tar is None:
        pytest.skip("there is no tar")
    source = write(files)
    (tmp_path / "tars").mkdir()
    for number, folder in enumerate(sorted({path.split("/")[0] for path in files})):
        archive = tmp_path / "tars" / f"{number:03d}.tar"
        names = [f"./{folder}"] if number % 2 else [folder]
        subprocess.run([tar, "--sort=name", f"--format={kind}", "-C", source, "-cf", archive, *names], check=True)
    store = LocalStore(tmp_path / "tars")
    report = index(store, "*.tar", options=IndexOptions(checksums=checksums))
    assert samples_of(open_dataset(store)) == wanted(files)
    assert report.skipped == {}


def test_a_large_sparse_or_linked_file_of_gnu_tar_is_refused_or_left_out(tmp_path):
    tar = shutil.which("tar")
    if tar is None:
        pytest.skip("there is no tar")
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.txt").write_bytes(b"first")
    (source / "b.txt").hardlink_to(source / "a.txt")
    (source / "c.txt").symlink_to("a.txt")
    (tmp_path / "tars").mkdir()
    subprocess.run([tar, "--sort=name", "-C", source, "-cf", tmp_path / "tars" / "0.tar", "."], check=True)
    store = LocalStore(tmp_path / "tars")
    report = index(store, "")
    assert (report.samples, report.skipped) == (1, {"members that are no files (link)": 2})


def webdataset():
    """The package, whatever it warns of while it is imported."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("webdataset", reason="the package webdataset is not installed")


@leaves_files_open
def test_what_webdataset_wrote_is_indexed_and_read_in_the_same_samples(tmp_path):
    wds = webdataset()
    (tmp_path / "tars").mkdir()
    with wds.ShardWriter(f"{tmp_path}/tars/train-%06d.tar", maxcount=4, verbose=0) as writer:
        for i in range(10):
            writer.write({"__key__": f"sample{i:04d}", "txt": f"text {i}", "cls": i, "seg.bin": bytes(range(i))})
    store = LocalStore(tmp_path / "tars")
    index(store, "train-{000000..000002}.tar")
    found = samples_of(open_dataset(store))
    assert found == {
        f"sample{i:04d}": {"txt": f"text {i}".encode(), "cls": b"%d" % i, "seg.bin": bytes(range(i))} for i in range(10)
    }
    assert list(found) == [sample["__key__"] for sample in read_by_webdataset(wds, tmp_path / "tars")]


def read_by_webdataset(wds, folder):
    urls = sorted(str(path) for path in folder.glob("*.tar"))
    found = list(wds.WebDataset(urls, shardshuffle=False))
    gc.collect()  # it leaves files open: they are to be closed in here, where that is no error
    return found


@leaves_files_open
@pytest.mark.parametrize("prefix", ["", "data"])
def test_our_shards_iterate_with_webdataset_in_our_order(prefix, write, tmp_path):
    wds = webdataset()
    source = write(FILES | LONG | LONGER)
    store = LocalStore(tmp_path / "set")
    pack(source, store, PackOptions(shard_bytes=16384, prefix=prefix))
    ours = samples_of(open_dataset(store))
    theirs = read_by_webdataset(wds, tmp_path / "set")
    assert [sample["__key__"] for sample in theirs] == list(ours)
    for sample, fields in zip(theirs, ours.values(), strict=True):
        assert {name: value for name, value in sample.items() if not name.startswith("__")} == fields
