"""Data that lie in a bucket are indexed there: by ranges, held to their ETag, through faults, and counted."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("obstore", reason="obstore is not installed")

from stoker.cli.main import run
from stoker.dataset.index import IndexOptions, index
from stoker.dataset.open import open_dataset
from stoker.dataset.sample import read_sample
from stoker.dataset.verify import verify_dataset
from stoker.errors import SourceChanged
from stoker.store.memory import MemoryStore
from stoker.store.object import ObjectStore
from stoker.store.object_options import ObjectOptions
from stoker.store.retry import RetryPolicy, RetryStore
from stoker.testing.fault_server import Answer, Changed, Cut, Every, FaultServer, Nth, Reset, Rule, Script, WrongETag
from stoker.units import KIB, MIB
from stoker.values import Key

URL = "s3://bucket/data"
POLICY = RetryPolicy(attempts=40, base_s=0.001, cap_s=0.01, budget=1e9)
LARGE = 600 * KIB
SAMPLES = {f"s{number:02d}": {"bin": bytes([number]) * LARGE, "cls": b"%d" % number} for number in range(8)}


@pytest.fixture
def server(monkeypatch) -> Iterator[FaultServer]:
    with FaultServer() as server:
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def store(server) -> Iterator[RetryStore]:
    options = replace(ObjectOptions.from_environ(server.environ), part_bytes=8 * MIB)
    with closing(RetryStore(ObjectStore(URL, options, environ=server.environ), POLICY, settles=True)) as store:
        yield store


def tar_of(samples):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for key, fields in samples.items():
            for name, data in fields.items():
                info = tarfile.TarInfo(f"{key}.{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


@pytest.fixture
def tars(server):
    """Two archives of large samples; they were put in one request each."""
    names = sorted(SAMPLES)
    for number, part in enumerate((names[:4], names[4:])):
        server.put(f"data/part-{number}.tar", tar_of({name: SAMPLES[name] for name in part}))
    server.forget_requests()


@pytest.fixture
def tree(server):
    """The same samples as files."""
    for key, fields in SAMPLES.items():
        for name, data in fields.items():
            server.put(f"data/{key}.{name}", data)
    server.forget_requests()


def play(server, *rules):
    server.play(Script(rules))
    server.forget_requests()


def samples_of(store):
    opened = open_dataset(store)
    numbers = np.arange(opened.manifest.sample_count)
    found = (read_sample(opened, number) for number in numbers.tolist())
    return dict(zip(opened.keys(numbers), found, strict=True))


def sent(server, pattern):
    return sum(record.sent_bytes for record in server.requests("GetObject", pattern))


def test_of_archives_with_large_members_headers_alone_are_read(server, store, tars):
    report = index(store, "*.tar")
    assert (report.kind, report.samples, report.objects) == ("tar", 8, 2)
    members = sum(map(len, SAMPLES.values()))
    assert report.total_bytes > 8 * LARGE
    assert sent(server, "*.tar") <= (members + 2) * 4 * KIB  # and the end of each archive
    assert len(server.requests("GetObject", "*.tar")) <= members + 2
    assert len(server.requests("HeadObject", "*.tar")) == 2  # whether it is still what was listed
    assert samples_of(store) == SAMPLES


def test_of_a_tree_no_file_is_read(server, store, tree):
    report = index(store, "")
    assert (report.kind, report.samples) == ("tree", 8)
    assert server.requests("GetObject", "data/s*") == []
    assert server.requests("HeadObject", "data/s*") == []
    assert samples_of(store) == SAMPLES


@pytest.mark.parametrize("how", ["one request", "parts"])
def test_a_listing_and_a_look_agree_about_each_object(server, store, how):
    data = bytes(9 * MIB) if how == "parts" else b"1"
    with store.writer(Key("a/object")) as writer:
        writer.write(data)
        written = writer.commit()
    assert ("-2" in written.version) is (how == "parts")
    assert list(store.list()) == list(store.list("a/")) == [store.stat(Key("a/object"))] == [written]


def test_an_archive_that_was_uploaded_in_parts_is_held_to_its_etag(server, store):
    with store.writer(Key("part-0.tar")) as writer:
        writer.write(tar_of({f"{turn}{key}": fields for turn in range(3) for key, fields in SAMPLES.items()}))
        assert "-" in writer.commit().version
    index(store, "")
    assert len(samples_of(store)) == 24
    assert verify_dataset(store, store, deep=True).faults == ()


@pytest.mark.parametrize("kind", ["tars", "tree"])
def test_an_object_that_changed_since_it_was_indexed_is_never_read_as_data(server, store, kind, request):
    request.getfixturevalue(kind)
    index(store, "")
    victim = "data/part-1.tar" if kind == "tars" else "data/s05.bin"
    server.put(victim, server.get(victim).replace(bytes([5]) * 100, bytes([6]) * 100))  # as large as before
    faults = verify_dataset(store, store, deep=False).faults
    assert [fault.error for fault in faults] == ["SourceChanged"]
    opened = open_dataset(store)
    with pytest.raises(SourceChanged, match=victim.partition("/")[2]):
        read_sample(opened, list(SAMPLES).index("s05"))
    assert read_sample(opened, 0) == SAMPLES["s00"]


@pytest.mark.parametrize("fault", [Changed(), WrongETag()], ids=str)
def test_an_archive_that_changes_while_it_is_indexed_is_an_error_and_nothing_is_published(server, store, tars, fault):
    play(server, Rule(fault, Nth(1), operation="HeadObject", key="*-1.tar"))
    with pytest.raises(SourceChanged, match=r"part-1\.tar"):
        index(store, "")
    assert server.keys("data/manifest") == server.keys("data/offsets/") == []


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("kind", ["tars", "tree"])
@pytest.mark.parametrize("fault", [Answer(), Answer(500, "InternalError", done=True), Reset(), Cut()], ids=str)
def test_an_index_made_through_faults_is_the_one_made_without(server, store, kind, fault, checksums, request):
    request.getfixturevalue(kind)
    options = IndexOptions(checksums=checksums)
    apart = MemoryStore("apart")
    right = index(store, "", apart, options)
    play(server)
    index(store, "", None, options)
    needed = len(server.requests())
    for key in [
        *server.keys("data/manifest"),
        *server.keys("data/o"),
        *server.keys("data/blocks"),
        *server.keys("data/pack"),
    ]:
        store.delete(Key(key.removeprefix("data/")))
    play(server, Rule(fault, Every(6)))
    report = index(store, "", None, options)
    assert (report.digest, report.samples) == (right.digest, 8)
    failed = [record for record in server.requests() if record.fault]
    assert failed
    assert len(server.requests()) <= needed * 6 / 5 + 6  # and what a listing or a write does anew
    play(server)
    assert samples_of(store) == SAMPLES


def test_the_command_indexes_and_verifies_by_url(server, tars, capfd):
    assert run(["index", f"{URL}/part-{{0..1}}.tar", "--json"]) == 0
    facts = json.loads(capfd.readouterr().out)
    assert (facts["kind"], facts["samples"], facts["index"]) == ("tar", 8, URL)
    assert run(["index", URL, "--out", "s3://bucket/index", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["already_there"] is False
    assert run(["verify", URL, "--index", "s3://bucket/index", "--json"]) == 0
    server.put("data/part-0.tar", server.get("data/part-0.tar"))  # the same bytes are the same version
    assert run(["verify", URL]) == 0
    server.put("data/part-0.tar", server.get("data/part-0.tar").replace(b"\x01" * 99, b"\x02" * 99))
    assert run(["verify", URL]) == 4
    assert "SourceChanged" in capfd.readouterr().out
