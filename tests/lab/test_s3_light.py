"""A real server keeps what the mock keeps; where it does not, the difference is written down here.

`make test-lab` starts ../shared/lab/s3-light.sh and s3-weak.sh and exports what they print, STOKER_LAB_S3 (the URL of
a bucket on the first) and STOKER_LAB_S3_WEAK (the endpoint of the second, with the same keys and bucket).
"""

from __future__ import annotations

import io
import os
import tarfile
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from stoker.dataset.index import index
from stoker.dataset.open import open_dataset
from stoker.dataset.sample import read_sample
from stoker.dataset.verify import verify_dataset
from stoker.errors import AccessDenied, AlreadyExists, SourceChanged, UnsupportedError
from stoker.store.base import Store
from stoker.store.object import ObjectStore
from stoker.store.object_options import ObjectOptions
from stoker.store.open import open_store
from stoker.store.retry import RetryStore
from stoker.testing import ObjectSuite, StoreSuite, WrappedStore
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


@pytest.mark.parametrize("kind", ["tars", "tree"])
def test_data_are_indexed_in_a_bucket_and_one_that_changed_is_noticed(url, kind):
    samples = {f"s{number}": bytes([number]) * 400_000 for number in range(30)}
    with closing(ObjectStore(url, replace(ObjectOptions.from_environ(os.environ), part_bytes=8 << 20))) as store:
        if kind == "tars":
            with store.writer(Key("all.tar")) as writer:  # 12 MB, in two parts
                writer.write(tar_of(samples))
                assert writer.commit() == store.stat(Key("all.tar")) == next(store.list())
        else:
            for key, data in samples.items():
                assert store.write(Key(f"{key}.bin"), data) == store.stat(Key(f"{key}.bin"))
        recording = Counting(store)
        report = index(recording, "")
        assert (report.samples, report.kind) == (30, kind.rstrip("s"))
        assert recording.read_bytes <= 32 * 4096
        opened = open_dataset(store)
        found = {str(opened.keys(np.array([n]))[0]): read_sample(opened, n)["bin"] for n in range(30)}
        assert found == samples
        assert verify_dataset(store, store, deep=True).faults == ()
        changed = Key("all.tar") if kind == "tars" else Key("s7.bin")
        data = bytearray(store.read(changed))
        data[-1400:-1200] = b"x" * 200
        store.write(changed, data)
        assert [fault.error for fault in verify_dataset(store, store, deep=False).faults] == ["SourceChanged"]
        with pytest.raises(SourceChanged):
            read_sample(open_dataset(store), sorted(samples).index("s7"))


class Counting(WrappedStore):
    """Counts the bytes that are read of data."""

    read_bytes = 0

    def read_into(self, key, start, buffer):
        self.inner.read_into(key, start, buffer)
        if key.endswith((".tar", ".bin")):
            self.read_bytes += memoryview(buffer).nbytes


def tar_of(samples):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for key, data in samples.items():
            info = tarfile.TarInfo(f"{key}.bin")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def test_an_empty_object_and_a_whole_one_are_read_in_full(url):
    with closing(ObjectStore(url)) as store:
        store.write(Key("empty"), b"")
        store.write(Key("whole"), b"0123456789")
        assert (store.read(Key("empty")), store.read(Key("whole"))) == (b"", b"0123456789")


def token_kept(store):
    """Whether an object in parts carries the token by which its writer knows it."""
    small = ObjectStore(store.url, replace(store.options, part_bytes=8 << 20))
    with closing(small), small.writer(Key("parts")) as writer:
        writer.write(bytes(9 << 20))
        writer.commit()
        return small._bucket.head(f"{small._base}parts", "parts").token == writer._token


def test_the_light_server_keeps_the_token_of_an_upload(url):
    with closing(ObjectStore(url)) as store:
        assert token_kept(store)


def test_the_weak_server_keeps_the_token_of_an_upload(weak):
    assert token_kept(weak)


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

    store = RetryStore(weak, settles=True)  # it answers with errors while an object is replaced

    def race(number):
        try:
            store.write(Key("race"), str(number).encode(), if_absent=True)
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
    weak.write(Key("empty"), b"")
    assert weak.read(Key("empty")) == b""
    with pytest.raises(UnsupportedError, match="range"):
        weak.read(Key("object"), ByteRange(2, 5))
