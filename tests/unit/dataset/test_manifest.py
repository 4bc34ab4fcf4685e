import hashlib
import json

import pytest

from stoker.dataset.manifest import (
    MANIFEST_KEY,
    PACK_KEY,
    FieldSchema,
    Manifest,
    TableDigests,
    decode_manifest,
    read_manifest,
)
from stoker.errors import DatasetError, DigestMismatch, FormatError, NewerFormat, NotFound
from stoker.store.local import LocalStore
from stoker.store.memory import MemoryStore
from stoker.units import KIB
from stoker.values import Key, canonical_json

MANIFEST = Manifest(
    sample_count=3,
    object_count=1,
    block_count=2,
    total_bytes=30,
    block_bytes=64 * KIB,
    fields=(FieldSchema("jpg", 3, 20, 10), FieldSchema("json", 2, 10, 9)),
    tables=TableDigests(objects="a" * 64, blocks="b" * 64),
)


def edited(change, *, digest=True):
    """The text of the manifest after `change(body)`, with the digest of what it then says."""
    body = json.loads(MANIFEST.encode())
    change(body)
    if digest:
        body.pop("digest", None)
        body["digest"] = hashlib.sha256(canonical_json(body)).hexdigest()
    return json.dumps(body).encode()


def put(*path, value):
    def change(body):
        for name in path[:-1]:
            body = body[name]
        body[path[-1]] = value

    return change


def test_a_manifest_comes_back_as_it_was_written():
    assert decode_manifest(MANIFEST.encode(), "here") == MANIFEST


def test_the_digest_is_sha256_of_the_canonical_json_without_it():
    body = json.loads(MANIFEST.encode())
    stated = body.pop("digest")
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert stated == MANIFEST.digest == hashlib.sha256(text.encode()).hexdigest()


def test_white_space_and_the_order_of_keys_do_not_matter():
    body = json.loads(MANIFEST.encode())
    text = json.dumps(dict(reversed(body.items())), indent=7).encode()
    assert decode_manifest(text, "here").digest == MANIFEST.digest


@pytest.mark.parametrize(
    "change",
    [
        put("sample_count", value=4),
        put("tables", "blocks", value="c" * 64),
        put("fields", 0, "max_bytes", value=11),
        put("parent", value="d" * 64),
        put("digest", value="e" * 64),
        put("digest", value=None),
    ],
)
def test_a_manifest_that_was_altered_is_refused(change):
    with pytest.raises(DigestMismatch, match=r"manifest\.json was altered"):
        decode_manifest(edited(change, digest=False), "here")


@pytest.mark.parametrize("name", ["version", "order_version"])
def test_a_newer_version_is_refused_by_name_whatever_else_it_holds(name):
    text = json.dumps({"format": "stoker-dataset", "version": 1, "order_version": 1, "new": "thing"} | {name: 2})
    with pytest.raises(NewerFormat, match=f"{name} 2, this release of stoker knows 1"):
        decode_manifest(text.encode(), "here")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("format", value="other"), "format is not 'stoker-dataset'"),
        (put("version", value="1"), "no version: '1'"),
        (put("version", value=True), "no version: True"),
        (put("version", value=0), "no version: 0"),
        (lambda body: body.pop("parent"), "lacks these keys or should not have them: 'parent'"),
        (put("extra", value=1), "should not have them: 'extra'"),
        (put("sample_count", value=-3), "not valid"),
        (put("sample_count", value=2**63), "not valid"),
        (put("sample_count", value=10**400), "not valid|not JSON"),
        (put("sample_count", value="3"), "not valid"),
        (put("sample_count", value=True), "not valid"),
        (put("tables", "objects", value="A" * 64), "not valid"),
        (put("parent", value="x"), "not valid"),
        (put("fields", value={}), "not valid"),
        (put("fields", 0, "name", value=""), "not valid"),
        (put("block_bytes", value=2**40), "not valid"),
        (put("block_bytes", value=64 * KIB + 1), "not a power of two"),
        (put("block_count", value=4), "more blocks than samples"),
        (put("object_count", value=3), "more objects than blocks"),
        (put("total_bytes", value=31), "not the sum over the fields"),
        (put("fields", 0, "max_bytes", value=21), "impossible numbers"),
        (put("fields", 0, "max_bytes", value=1), "impossible numbers"),
        (put("fields", 0, "sample_count", value=4), "impossible numbers"),
        (put("fields", 0, "name", value="zzz"), "not sorted"),
        (put("fields", 0, "name", value="json"), "stands twice"),
        (put("fields", 0, "name", value="a/offset"), "slash in its name"),
        (lambda body: body.update(fields=[], total_bytes=0), "no field"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(change, words):
    with pytest.raises(FormatError, match=words):
        decode_manifest(edited(change), "here")


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"null", b'"stoker-dataset"', b"\xff\xfe", b"[" * 100_000, b'{"format": "\\ud800"}', b"{1: 2}"],
    ids=repr,
)
def test_what_is_no_manifest_at_all_is_refused(text):
    with pytest.raises(FormatError):
        decode_manifest(text, "here")


def test_numbers_that_only_equal_whole_numbers_are_refused():
    with pytest.raises(FormatError):
        decode_manifest(edited(put("sample_count", value=3.0)), "here")


@pytest.mark.parametrize(
    ("place", "words"), [(LocalStore("/no/such/folder"), "no such folder"), (MemoryStore("none"), "nothing is stored")]
)
def test_a_place_that_is_not_there_is_not_found(place, words):
    with pytest.raises(NotFound, match=words) as caught:
        read_manifest(place)
    assert caught.value.where == place.url


def test_a_place_without_a_manifest_is_no_data_set(store):
    store.write(Key("other"), b"")
    with pytest.raises(DatasetError, match="not a data set") as caught:
        read_manifest(store)
    assert "stoker pack" in caught.value.hint
    store.write(PACK_KEY, b"{}")
    with pytest.raises(DatasetError, match="not a data set yet") as caught:
        read_manifest(store)
    assert "again" in caught.value.hint


def test_the_folder_of_a_run_is_said_to_be_one(store):
    store.write(Key("run.json"), b"{}")
    with pytest.raises(DatasetError, match="but the folder of a run") as caught:
        read_manifest(store)
    assert "stoker report RUN" in caught.value.hint


def test_a_manifest_of_many_megabytes_is_not_read(store):
    store.write(MANIFEST_KEY, bytes(5 << 20))
    with pytest.raises(FormatError, match="5242880 bytes long"):
        read_manifest(store)


def test_a_manifest_shows_itself_on_one_line():
    assert repr(MANIFEST) == f"<Manifest {MANIFEST.digest[:12]}: 3 samples with 'jpg', 'json'>"
