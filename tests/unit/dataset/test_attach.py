"""From a URL to an open data set: by its manifest, by an index elsewhere, or indexed by one process of the node."""

import logging
import threading
import time
from contextlib import ExitStack

import numpy as np
import pytest

from stoker.dataset.attach import IndexCache, open_described
from stoker.dataset.describe import Dataset
from stoker.dataset.index import index
from stoker.dataset.pack import pack
from stoker.errors import DatasetError, SourceChanged, TimedOut
from stoker.io.lock import FileLock
from stoker.store.local import LocalStore
from stoker.store.memory import MemoryStore


@pytest.fixture
def tree(fill, tmp_path):
    return fill(tmp_path / "tree", {f"{i:02d}.txt": b"%d" % i for i in range(20)})


@pytest.fixture
def cache(tmp_path):
    return IndexCache(tmp_path / "index", deadline_s=10.0)


@pytest.fixture
def open_it():
    with ExitStack() as stack:
        yield lambda dataset, cache=None: open_described(dataset, stack, cache)


def keys(opened):
    return opened.keys(np.arange(opened.manifest.sample_count))


KEYS = [f"{i:02d}" for i in range(20)]


def test_without_a_manifest_and_a_cache_it_is_no_data_set(tree, open_it):
    with pytest.raises(DatasetError, match="not a data set") as caught:
        open_it(Dataset(tree))
    assert "stoker index URL" in caught.value.hint


def test_an_index_elsewhere_is_named_beside_the_data(tree, tmp_path, open_it):
    index(LocalStore(tree), "", LocalStore(tmp_path / "there"))
    assert keys(open_it(Dataset(tree, index=tmp_path / "there"))) == KEYS
    out = MemoryStore()
    index(LocalStore(tree), "", out)
    assert keys(open_it(Dataset(LocalStore(tree), index=out))) == KEYS


def test_what_has_no_manifest_is_indexed_once_and_the_advice_is_given(tree, cache, open_it, caplog):
    with caplog.at_level(logging.INFO, "stoker.dataset"):
        assert keys(open_it(Dataset(tree), cache)) == KEYS
        assert f"stoker index '{tree}'" in caplog.text
        caplog.clear()
        assert keys(open_it(Dataset(tree), cache)) == KEYS
        assert caplog.text == ""
    assert not (tree / "manifest.json").exists()
    assert len(list(cache.root.glob("*/manifest.json"))) == 1


def test_a_source_that_changed_is_indexed_anew(tree, cache, open_it):
    first = open_it(Dataset(tree), cache)
    (tree / "20.txt").write_bytes(b"more")
    second = open_it(Dataset(tree), cache)
    assert (first.manifest.sample_count, second.manifest.sample_count) == (20, 21)
    (tree / "00.txt").write_bytes(b"other")
    from stoker.dataset.sample import read_sample

    with pytest.raises(SourceChanged):
        read_sample(second, 0)


def test_a_manifest_beside_the_data_is_used_and_for_a_pattern_only_if_it_names_the_same(tree, tmp_path, cache, open_it):
    packed = tmp_path / "packed"
    pack(tree, LocalStore(packed))
    assert keys(open_it(Dataset(packed), cache)) == KEYS
    assert keys(open_it(Dataset(f"{packed}/shard-{{000000..000000}}.tar"), cache)) == KEYS
    assert not cache.root.exists()
    (packed / "other.tar").write_bytes((packed / "shard-000000.tar").read_bytes())
    assert keys(open_it(Dataset(f"{packed}/*.tar"), cache)) == KEYS + KEYS
    assert cache.root.exists()


def test_processes_that_come_at_once_make_one_index(tree, cache, monkeypatch):
    from stoker.dataset import index as indexing

    made, made_by = [], indexing.index

    def counted(*args, **options):
        made.append(1)
        time.sleep(0.05)
        return made_by(*args, **options)

    monkeypatch.setattr(indexing, "index", counted)
    found = []

    def look():
        with ExitStack() as stack:
            found.append(keys(open_described(Dataset(tree), stack, cache)))

    threads = [threading.Thread(target=look) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [KEYS] * 6
    assert len(made) == 1


def test_waiting_for_an_index_has_a_deadline_that_names_who_makes_it(tree, cache, open_it):
    open_it(Dataset(tree), cache)
    (lock,) = cache.root.glob("*.lock")
    for path in sorted((cache.root / lock.stem).rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    with FileLock(lock) as held:
        assert held.try_acquire()
        with pytest.raises(TimedOut, match="another process makes: pid"):
            open_it(Dataset(tree), IndexCache(cache.root, deadline_s=0.02))


def test_an_unfinished_pack_is_not_indexed_but_reported(tree, cache, open_it):
    (tree / ".pack.json").write_text('{"format": "stoker-pack"}')
    with pytest.raises(DatasetError, match="not written to its end"):
        open_it(Dataset(tree), cache)
