"""A real server keeps what the mock keeps; where it does not, the difference is written down here.

`make test-lab` starts ../shared/lab/s3-light.sh and s3-weak.sh and exports what they print, STOKER_LAB_S3 (the URL of
a bucket on the first) and STOKER_LAB_S3_WEAK (the endpoint of the second, with the same keys and bucket).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from stoker.errors import AccessDenied, AlreadyExists, UnsupportedError
from stoker.store.base import Store
from stoker.store.object import ObjectStore
from stoker.store.object_options import ObjectOptions
from stoker.store.open import open_store
from stoker.testing import ObjectSuite, StoreSuite
from stoker.values import ByteRange, Key

pytestmark = pytest.mark.lab


@pytest.fixture
def url() -> str:
    """A place on the light server that no other test uses."""
    bucket = os.environ.get("STOKER_LAB_S3")
    if not bucket:
        pytest.skip("STOKER_LAB_S3 does not name a bucket: run make test-lab")
    return f"{bucket}/{uuid.uuid4().hex}"


class TestLightServer(StoreSuite):
    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        with closing(ObjectStore(url)) as store:
            yield store

    def again(self, store: Store) -> Store:
        return ObjectStore(store.url)

    def test_names_in_any_script_come_back_as_they_were(self, store: Store) -> None:
        """SeaweedFS 4.48 lists a backslash as a slash; everything else is as everywhere."""
        names = ["ünïcode/日本語.txt", "emoji/🚚.bin", "space in name", "dot.", "-dash", "a%2Fb", "quote'\""]
        for name in [*names, "back\\slash"]:
            store.write(Key(name), name.encode())
            assert self.again(store).read(Key(name)) == name.encode()
        assert self.keys(store) == {*names, "back/slash"}


class TestLightServerAsStoresAreOpened(TestLightServer):
    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        with closing(open_store(url)) as store:
            yield store


class TestWhatTheLightServerKeeps(ObjectSuite):
    @pytest.fixture
    def store(self, url: str) -> Iterator[ObjectStore]:
        with closing(ObjectStore(url)) as store:
            yield store


def test_the_light_server_refuses_a_wrong_secret_and_a_reader_that_writes(url):
    for key, secret in (("stoker", "wrong"), ("nobody", "x"), ("reader", "reader-secret-key")):
        environ = {**os.environ, "AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
        with closing(ObjectStore(url, environ=environ)) as store:
            with pytest.raises(AccessDenied) as caught:
                store.write(Key("object"), b"1")
            assert "403" in caught.value.what


@pytest.fixture
def weak(url, monkeypatch) -> Iterator[ObjectStore]:
    endpoint = os.environ.get("STOKER_LAB_S3_WEAK")
    if not endpoint:
        pytest.skip("STOKER_LAB_S3_WEAK does not name a server: run make test-lab")
    options = replace(ObjectOptions.from_environ(os.environ), endpoint=endpoint)
    with closing(ObjectStore(url, options)) as store:
        yield store


def test_a_server_without_conditions_is_noticed_and_still_lets_one_win(weak, caplog):
    assert not weak.keeps_if_absent()
    assert "If-None-Match" in caplog.text
    weak.write(Key("once"), b"first", if_absent=True)
    with pytest.raises(AlreadyExists):
        weak.write(Key("once"), b"second", if_absent=True)
    assert weak.read(Key("once")) == b"first"
    assert [str(info.key) for info in weak.list()] == ["once"]


def test_one_of_several_writers_wins_at_a_server_without_conditions(weak):
    from concurrent.futures import ThreadPoolExecutor

    def race(number):
        try:
            weak.write(Key("race"), str(number).encode(), if_absent=True)
        except AlreadyExists:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        won = [number for number in pool.map(race, range(8)) if number is not None]
    assert len(won) == 1
    assert weak.read(Key("race")) == str(won[0]).encode()


def test_a_server_without_ranges_is_refused_by_name(weak):
    weak.write(Key("object"), b"0123456789")
    assert weak.read(Key("object")) == b"0123456789"
    with pytest.raises(UnsupportedError, match="range"):
        weak.read(Key("object"), ByteRange(2, 5))
