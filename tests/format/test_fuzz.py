"""Every parser of bytes from outside, fed with valid input that was damaged: it reads it, or raises a StokerError.

Nothing else: no other exception, no crash of the interpreter, no hang (pytest's timeout), no end of memory.
"""

import io
import json
import tarfile
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.checkpoint.manifest import decode_manifest as decode_step
from stoker.checkpoint.manifest import decode_receipt
from stoker.dataset.index import index
from stoker.dataset.manifest import decode_manifest
from stoker.dataset.offsets import OffsetsTable
from stoker.dataset.position import Position
from stoker.dataset.tables import decode_table
from stoker.errors import StokerError
from stoker.io.safetensors import parse_header
from stoker.ledger import Ledger, LedgerIdentity, parse_ledger
from stoker.store.memory import MemoryStore
from stoker.values import Key

GOLDEN = Path(__file__).parent / "golden"
STEP = GOLDEN / "checkpoint-v1" / "step-00000040.g0002"
EXAMPLES = 250
NUMBERS = [0, 1, -1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, -(2**63)]


@st.composite
def damaged(draw, data):
    """`data` with one to four wounds: bits, numbers, cuts, copies, other bytes."""
    found = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(found) - 1, 0)))
        length = draw(st.sampled_from([1, 2, 8, 64, 512, 4096]))
        wound = draw(st.sampled_from(["bit", "number", "cut", "end", "copy", "bytes", "digit"]))
        if wound == "bit" and found:
            found[at] ^= 1 << draw(st.integers(0, 7))
        elif wound == "number":
            at -= at % 8
            found[at : at + 8] = (draw(st.sampled_from(NUMBERS)) % 2**64).to_bytes(8, "little")
        elif wound == "cut":
            del found[at : at + length]
        elif wound == "end":
            del found[at:]
        elif wound == "copy":
            found[at:at] = found[at : at + length]
        elif wound == "digit":
            found[at : at + 1] = draw(st.sampled_from([b"9", b"-", b'"', b"[", b"{", b"\\", b"\0", b"\xff"]))
        else:
            found[at : at + length] = draw(st.binary(max_size=16))
    return bytes(found)


def make_tar(kind):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=kind) as tar:
        for name in ("a/1.txt", "a/1.json", "d" * 90 + "/" + "é" * 60 + ".txt", "z.bin"):
            info = tarfile.TarInfo(name)
            info.size = len(name)
            tar.addfile(info, io.BytesIO(name.encode()))
    return stream.getvalue()[:8192]


def seal_tar(data):
    """Right checksums in the headers of a damaged tar, so that the damage is seen by what comes after them."""
    found = bytearray(data)
    for at in range(0, len(found) - 511, 512):
        if found[at + 257 : at + 262] == b"ustar":
            found[at + 148 : at + 156] = b" " * 8
            found[at + 148 : at + 156] = b"%06o\0 " % sum(found[at : at + 512])
    return bytes(found)


def index_tar(data):
    store = MemoryStore()
    store.write(Key("x.tar"), data)
    index(store, "")


def index_sealed_tar(data):
    index_tar(seal_tar(data))


def offsets(data):
    rows = 13
    OffsetsTable.check(decode_table(pa.py_buffer(data), rows, "here"), ["txt", "bin"], 100_000, "here")


def read_ledger(data):
    parse_ledger(data.ljust(len(LEDGER), b"\0")[: len(LEDGER)], "here")


def safetensors(data):
    parse_header(data, len(data))


def position(data):
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    Position.from_json(value)


with Ledger.create(None, LedgerIdentity("run", 0, 1, 1, "host")) as _ledger:
    LEDGER = _ledger.image()

TENSORS = next(STEP.glob("*.safetensors")).read_bytes()
OFFSETS = next((GOLDEN / "dataset-v1" / "offsets").glob("*.arrow")).read_bytes()
POSITION = (
    b'{"format": 1, "order": 1, "segments": [{"manifest": "ab", "recipe": "cd", "first_step": 0}], "next_step": 40}'
)

TARGETS = {
    "tar, gnu": (index_tar, make_tar(tarfile.GNU_FORMAT)),
    "tar, pax": (index_sealed_tar, make_tar(tarfile.PAX_FORMAT)),
    "tar, gnu, sealed": (index_sealed_tar, make_tar(tarfile.GNU_FORMAT)),
    "manifest": (lambda data: decode_manifest(data, "here"), (GOLDEN / "dataset-v1" / "manifest.json").read_bytes()),
    "table": (lambda data: decode_table(pa.py_buffer(data), None, "here"), OFFSETS),
    "offsets": (offsets, OFFSETS),
    "safetensors": (safetensors, TENSORS[:8192]),
    "receipt": (lambda data: decode_receipt(data, "here"), (STEP / "rank-00000.json").read_bytes()),
    "step": (lambda data: decode_step(data, "here"), (STEP / "MANIFEST.json").read_bytes()),
    "ledger": (read_ledger, LEDGER),
    "position": (position, POSITION),
}


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_input_is_read_or_refused_by_an_error_of_stokers(name):
    target, data = TARGETS[name]

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(damaged(data))
    def feed(found):
        with suppress(StokerError):
            target(found)

    feed()


@settings(max_examples=EXAMPLES, deadline=None, database=None)
@given(st.binary(max_size=2048), st.sampled_from(sorted(TARGETS)))
def test_noise_is_refused_by_an_error_of_stokers(data, name):
    with suppress(StokerError):
        TARGETS[name][0](data)
