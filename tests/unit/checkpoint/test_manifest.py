"""Receipts and manifests are read with every field checked."""

import json

import pytest

from stoker.checkpoint.manifest import (
    FileRecord,
    GenerationRecord,
    Manifest,
    Note,
    RankState,
    Receipt,
    WrittenFile,
    decode,
    decode_manifest,
    decode_receipt,
    describe_bytes,
    encode,
    encode_manifest,
)
from stoker.errors import DigestMismatch, FormatError, NewerFormat
from stoker.io.checksum import CHUNK_BYTES, chunk_digests, root_digest

DATA = bytes(range(256)) * 40
CHUNKS = tuple(chunk_digests(memoryview(DATA)))
FILE = WrittenFile("a.safetensors", len(DATA), root_digest(CHUNKS), CHUNKS)
RECEIPT = Receipt(1, 40, 2, 0, 1, "d" * 64, (FILE,), RankState({"x": 1}, {}))
MANIFEST = Manifest(1, "run", 40, 2, 1, (0,), None, (FileRecord("a", 1, "b" * 32),), {"optimizer": None})


def test_a_receipt_is_read_back():
    assert decode_receipt(encode(RECEIPT), "") == RECEIPT
    assert set(json.loads(encode(RECEIPT))) == {
        *("format", "step", "generation", "rank", "world", "deal", "files", "state"),
    }


def test_a_manifest_is_read_back_with_its_digest():
    found = decode_manifest(encode_manifest(MANIFEST), "")
    assert found.digest
    assert decode_manifest(encode_manifest(found), "") == found
    assert set(json.loads(encode_manifest(MANIFEST))) == {
        *("format", "run", "step", "generation", "world", "ranks", "position", "files", "state", "digest"),
    }


def test_a_changed_manifest_is_noticed():
    data = encode_manifest(MANIFEST).replace(b'"step":40', b'"step":41')
    with pytest.raises(DigestMismatch, match="digest"):
        decode_manifest(data, "here")


def test_unknown_fields_are_covered_by_the_digest_but_do_not_disturb():
    body = json.loads(encode_manifest(MANIFEST)) | {"note": "x"}
    with pytest.raises(DigestMismatch):
        decode_manifest(json.dumps(body).encode(), "")


@pytest.mark.parametrize("kind", [Receipt, Manifest, GenerationRecord, Note])
def test_a_later_format_is_refused_by_name_whatever_else_it_holds(kind):
    with pytest.raises(NewerFormat, match=r"has format 2, .* up to 1"):
        decode(b'{"format":2,"new":true}', kind, "")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"format":0}',
        b'{"format":true}',
        b'{"format":"1"}',
        b'{"format":1}',
        b"[" * 5000,
        encode(RECEIPT).replace(b'"step":40', b'"step":-1'),
        encode(RECEIPT).replace(b'"step":40', b'"step":4.5'),
        encode(RECEIPT).replace(b'"rank":0', b'"rank":"0"'),
        encode(RECEIPT).replace(b'"bytes":10240', b'"bytes":10241'.replace(b"10241", str(CHUNK_BYTES + 1).encode())),
        encode(RECEIPT).replace(CHUNKS[0].encode(), CHUNKS[0][::-1].encode()),
        encode(RECEIPT).replace(CHUNKS[0].encode(), b"xyz"),
        encode(RECEIPT).replace(b"a.safetensors", b"../a"),
        encode(RECEIPT).replace(b"a.safetensors", b".tmp-a"),
    ],
)
def test_what_is_no_receipt_is_refused(data):
    with pytest.raises(FormatError) as caught:
        decode_receipt(data, "place")
    assert caught.value.where == "place"


def test_the_record_of_a_small_file_is_of_its_bytes():
    assert describe_bytes("a", DATA) == FileRecord("a", FILE.bytes, FILE.root)
    assert describe_bytes("a", b"").bytes == 0
