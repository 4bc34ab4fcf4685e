"""Small data sets for the tests of this room."""

from __future__ import annotations

import pytest

from stoker.dataset.write import DatasetWriter
from stoker.store.local import LocalStore
from stoker.store.memory import MemoryStore
from stoker.values import Key


@pytest.fixture
def fill():
    """Write files under a folder: {path: content}; content None makes nothing."""

    def fill(folder, files):
        for path, content in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        return folder

    return fill


@pytest.fixture(params=["local", "memory"])
def store(request, tmp_path):
    """A store with files, and one without."""
    made = LocalStore(tmp_path / "store", create=True) if request.param == "local" else MemoryStore("test")
    yield made
    made.close()


@pytest.fixture
def contents():
    """All objects of a store: {key: bytes}."""

    def contents(store):
        return {str(info.key): store.read(Key(info.key)) for info in store.list()}

    return contents


@pytest.fixture
def write_samples():
    """Write samples [(key, fields)] into a store with the writer."""

    def write_samples(store, samples, shard_bytes=4096):
        with DatasetWriter(store, shard_bytes=shard_bytes) as writer:
            for key, fields in samples:
                writer.write(key, fields)
        return store

    return write_samples
