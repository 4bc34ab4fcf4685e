"""Every store of the house, and every wrapper around one, keeps the contract."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stoker.errors import Unavailable, UnsupportedError
from stoker.store.base import Store
from stoker.store.local import LocalStore
from stoker.store.memory import MemoryStore
from stoker.store.open import open_store
from stoker.testing import Fault, FaultStore, RecordingStore, SlowStore, StoreSuite, WrappedStore


class TestLocalStore(StoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        with closing(LocalStore(tmp_path / "root", create=True)) as store:
            yield store
        left = list(tmp_path.rglob(".tmp-*"))  # one alone: a writer whose directory was renamed under it
        assert LocalStore(tmp_path).sweep() == len(left) <= 1
        assert not list(tmp_path.rglob(".tmp-*"))

    def again(self, store: Store) -> Store:
        return LocalStore(store.url)


class TestLocalStoreThatIsMadeByTheFirstWrite(TestLocalStore):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        with closing(open_store(f"file://{tmp_path}/not/yet/there")) as store:
            yield store


class TestLocalStoreThatGoesDirectlyWhereItPays(TestLocalStore):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        with closing(LocalStore(tmp_path, engine="auto")) as store:
            yield store


class TestLocalStoreThatGoesDirectlyAlways(TestLocalStore):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        try:
            store = LocalStore(tmp_path, engine="direct")
        except UnsupportedError as error:
            pytest.skip(str(error))
        with closing(store):
            yield store


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        with closing(MemoryStore("suite")) as store:
            yield store

    def again(self, store: Store) -> Store:
        assert isinstance(store, MemoryStore)
        return MemoryStore("suite", store.contents)


class Wrapped(StoreSuite):
    """A wrapper around a local store; another instance is the bare store."""

    def again(self, store: Store) -> Store:
        return LocalStore(store.url)


class TestSlowStore(Wrapped):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        with closing(SlowStore(LocalStore(tmp_path), read_s=0.0005, write_s=0.0005)) as store:
            yield store


class TestRecordingStore(Wrapped):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        with closing(RecordingStore(LocalStore(tmp_path))) as store:
            yield store


class TestFaultStore(Wrapped):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        faults = [
            Fault("read", Unavailable("elsewhere"), prefix="elsewhere/"),
            Fault("write", Unavailable("no"), skip=10**9),
        ]
        with closing(FaultStore(LocalStore(tmp_path), faults)) as store:
            yield store


class TestWrappersAroundMemory(StoreSuite):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        with closing(WrappedStore(FaultStore(RecordingStore(SlowStore(MemoryStore(), read_s=0.0))))) as store:
            yield store
