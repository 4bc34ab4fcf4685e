"""Reading files so that no unverified byte gets out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.checkpoint import read
from stoker.checkpoint.manifest import WrittenFile
from stoker.checkpoint.read import Span, StepReader
from stoker.errors import DigestMismatch, FormatError
from stoker.io import checksum
from stoker.io.checksum import root_digest, xxh3_128
from stoker.io.safetensors import TensorSpec, build_header
from stoker.store.memory import MemoryStore
from stoker.values import Key

CHUNK = 16


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(read, "CHUNK_BYTES", CHUNK)


def written(data):
    chunks = tuple(xxh3_128(data[at : at + CHUNK]) for at in range(0, len(data), CHUNK))
    return WrittenFile("f", len(data), root_digest(chunks), chunks)


def stored(data):
    store = MemoryStore("m")
    store.write(Key("d/f"), data)
    return store


@given(st.data())
def test_spans_are_filled_and_only_the_chunks_they_touch_are_read(data):
    size = data.draw(st.integers(1, 100))
    content = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    cuts = data.draw(st.lists(st.tuples(st.integers(0, size - 1), st.integers(1, 40)), max_size=6))
    spans = [Span(at, min(at + n, size), memoryview(bytearray(min(at + n, size) - at))) for at, n in cuts]
    touched = {c for span in spans for c in range(span.start // CHUNK, (span.stop - 1) // CHUNK + 1)}
    count = StepReader(stored(content), "d").fill(written(content), spans)
    assert all(bytes(span.target) == content[span.start : span.stop] for span in spans)
    assert count == sum(min(CHUNK, size - c * CHUNK) for c in touched)


def test_damage_in_a_chunk_that_is_read_is_found_and_elsewhere_is_not_looked_at():
    content = bytes(range(64))
    store = stored(content[:20] + b"!" + content[21:])
    reader = StepReader(store, "d")
    assert reader.fill(written(content), [Span(40, 41, memoryview(bytearray(1)))]) == CHUNK
    with pytest.raises(DigestMismatch, match=r"chunk 1 of 'f' \(bytes 16 to 32\)"):
        reader.fill(written(content), [Span(16, 17, memoryview(bytearray(1)))])


def test_bytes_beyond_the_end_are_refused():
    with pytest.raises(FormatError, match="no bytes beyond 5"):
        StepReader(stored(b"12345"), "d").fill(written(b"12345"), [Span(3, 6, memoryview(bytearray(3)))])


def test_a_header_larger_than_a_chunk_is_read_whole():
    header = build_header([TensorSpec("a", "U8", (3,))], {})
    content = header + b"xyz"
    found, count = StepReader(stored(content), "d").header(written(content))
    assert list(found.tensors) == ["a"]
    assert count >= len(header)


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, b"\x03\0\0\0\0\0\0\0{}"])
def test_a_file_that_is_no_safetensors_is_refused_with_its_place(content):
    with pytest.raises(FormatError) as caught:
        StepReader(stored(content), "d").header(written(content))
    assert caught.value.where == "memory://m/d/f"


def test_chunks_are_4_mib():
    assert checksum.CHUNK_BYTES == 4 * 1024 * 1024
