"""Safetensors headers, receipts, manifests and ledgers made to do harm: each is refused, at no great cost."""

import json
import struct
import zlib
from pathlib import Path

import pytest

from stoker.checkpoint.manifest import decode_manifest, decode_receipt
from stoker.errors import FormatError, IntegrityError, NewerFormat
from stoker.io.safetensors import HEADER_MAX_BYTES, header_bytes, parse_header
from stoker.ledger import Ledger, LedgerIdentity, parse_ledger
from stoker.values import json_digest

GOLDEN = Path(__file__).parent / "golden" / "checkpoint-v1" / "step-00000040.g0002"
HUGE = 2**63 - 1


def file_of(text, data=8):
    text = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(text)) + text + bytes(data)


def tensor(start=0, stop=8, shape=(2,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}


def header(**tensors):
    return file_of(json.dumps(tensors))


HEADERS = {
    "a hole at the front": header(a=tensor(4, 8, (1,))),
    "a hole between": header(a=tensor(0, 2, (2,), "U8"), b=tensor(4, 8, (1,))),
    "an overlap": header(a=tensor(0, 8), b=tensor(4, 8, (1,))),
    "the same bytes twice": header(a=tensor(), b=tensor()),
    "bytes behind the last": header(a=tensor(0, 4, (1,))),
    "beyond the file": header(a=tensor(0, 16, (4,))),
    "backwards": header(a=tensor(8, 0)),
    "negative": header(a=tensor(-8, 0)),
    "2^63 bytes": header(a=tensor(0, HUGE, (HUGE,), "U8")),
    "a shape whose product overflows": header(a=tensor(0, 8, (2**32, 2**32))),
    "a shape of 2^63 times nothing": header(a=tensor(0, 8, (HUGE, 0))),
    "a number of 5,000 digits": file_of('{"a":{"dtype":"U8","shape":[' + "9" * 5000 + '],"data_offsets":[0,8]}}'),
    "a shape of 100,000 dimensions": header(a=tensor(0, 8, (1,) * 100_000)),
    "fractions": header(a=tensor(0.0, 8.0)),
    "true": header(a=tensor(False, 8)),
    "an unknown dtype": header(a=tensor(dtype="F33")),
    "double keys": file_of(f'{{"a":{json.dumps(tensor())},"a":{json.dumps(tensor())}}}'),
    "double keys inside": file_of('{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}'),
    "deep lists": file_of('{"a":' + "[" * 200_000),
    "deep objects": file_of('{"a":' * 100_000),
    "invalid UTF-8": file_of(b'{"\xff\xfe":{}}'),
    "half a surrogate": file_of('{"\\ud800":' + json.dumps(tensor()) + "}"),
    "NaN": file_of('{"a":NaN}'),
    "no object": file_of("[]"),
    "nothing": file_of(""),
    "white space": file_of(" " * 4096),
    "metadata that is no text": file_of('{"__metadata__":{"a":[1]}}'),
    "metadata of lists": file_of('{"__metadata__":[]}'),
}


@pytest.mark.parametrize("data", HEADERS.values(), ids=HEADERS)
def test_a_safetensors_header_that_breaks_a_rule_is_refused(data, limited):
    assert isinstance(limited(lambda: parse_header(data, len(data))), FormatError)


@pytest.mark.parametrize("size", [2**64 - 1, 2**63, HEADER_MAX_BYTES + 1, HEADER_MAX_BYTES, 100])
def test_a_header_larger_than_its_file_is_refused_before_memory_is_taken_for_it(size, limited):
    assert isinstance(limited(lambda: header_bytes(struct.pack("<Q", size), 64)), FormatError)


def test_a_header_of_a_hundred_thousand_tensors_takes_linear_time_and_little_memory(limited):
    tensors = {f"t{i}": tensor(i, i + 1, (1,), "U8") for i in range(100_000)}
    data = file_of(json.dumps(tensors), data=100_000)
    assert limited(lambda: parse_header(data, len(data))) is None


RECEIPT = json.loads((GOLDEN / "rank-00000.json").read_bytes())
MANIFEST = json.loads((GOLDEN / "MANIFEST.json").read_bytes())

FILES = {
    "a name that leads elsewhere": {"name": "../x"},
    "an absolute name": {"name": "/etc/passwd"},
    "a URL": {"name": "file:///etc/passwd"},
    "no name": {"name": ""},
    "a temporary name": {"name": ".tmp-1"},
    "negative bytes": {"bytes": -1},
    "2^80 bytes": {"bytes": 2**80},
    "bytes that are text": {"bytes": "12"},
    "bytes that are true": {"bytes": True},
}


@pytest.mark.parametrize("change", FILES.values(), ids=FILES)
def test_a_file_that_cannot_be_is_refused_in_a_receipt_and_a_manifest(change, limited):
    receipt = RECEIPT | {"files": [RECEIPT["files"][0] | change]}
    assert isinstance(limited(lambda: decode_receipt(json.dumps(receipt).encode(), "here")), FormatError)
    body = MANIFEST | {"files": [MANIFEST["files"][0] | change]}
    del body["digest"]
    text = json.dumps(body | {"digest": json_digest(body)}).encode()
    assert isinstance(limited(lambda: decode_manifest(text, "here")), FormatError)


@pytest.mark.parametrize("bytes_", [HUGE, 2**62, 5 * 2**20])
def test_a_receipt_whose_chunks_do_not_make_its_bytes_is_refused(bytes_, limited):
    receipt = RECEIPT | {"files": [RECEIPT["files"][0] | {"bytes": bytes_}]}
    assert isinstance(limited(lambda: decode_receipt(json.dumps(receipt).encode(), "here")), FormatError)


TEXTS = [b"", b"null", b"[]", b"[" * 200_000, b'{"format":' * 50_000, b"\xff\xfe", b'{"format": "1"}', b'{"format": 0}']


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_what_is_no_record_is_refused(text, limited):
    for decode in (decode_receipt, decode_manifest):
        assert isinstance(limited(lambda decode=decode: decode(text, "here")), FormatError)


def test_a_record_of_a_later_format_is_refused_by_name_before_its_fields_are_looked_at():
    for decode in (decode_receipt, decode_manifest):
        with pytest.raises(NewerFormat):
            decode(b'{"format": 2, "files": "?"}', "here")


@pytest.fixture(scope="module")
def ledger():
    with Ledger.create(None, LedgerIdentity("run", 0, 1, 1, "host")) as made:
        return made.image()


IDENTITY = b'{"run":"","rank":RANK,"world":1,"generation":1,"host":"","pid":1,"boot_id":"","wall_s":0,"perf_ns":0}'
IDENTITIES = {
    "deep": b"[" * 3000,
    "a list": b"[]",
    "no text": b"\xff\xff",
    "infinite": IDENTITY.replace(b"RANK", b"1e999"),
    "NaN": IDENTITY.replace(b"RANK", b"NaN"),
    "an object": IDENTITY.replace(b"RANK", b"{}"),
}


@pytest.mark.parametrize("identity", IDENTITIES.values(), ids=IDENTITIES)
def test_a_ledger_with_a_right_checksum_over_nonsense_is_refused(ledger, identity, limited):
    from stoker.ledger_format import _HEADER

    values = list(_HEADER.unpack_from(ledger))
    values[2], values[4] = len(identity), zlib.crc32(identity)
    image = bytearray(ledger)
    _HEADER.pack_into(image, 0, *values)
    image[_HEADER.size : _HEADER.size + len(identity)] = identity
    assert isinstance(limited(lambda: parse_ledger(bytes(image), "here")), FormatError)


@pytest.mark.parametrize("size", [0, 1, 8, 100, 4096])
def test_a_ledger_that_is_cut_is_refused(ledger, size):
    with pytest.raises(IntegrityError):
        parse_ledger(ledger[:size], "here")
