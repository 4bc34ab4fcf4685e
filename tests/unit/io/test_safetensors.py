"""The safetensors header: what is written is what the format says, and what breaks a rule is refused."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import FormatError
from stoker.io.safetensors import (
    DTYPE_BYTES,
    HEADER_MAX_BYTES,
    TensorSpec,
    build_header,
    header_bytes,
    parse_header,
)

SPECS = st.lists(
    st.builds(
        TensorSpec,
        name=st.text(st.characters(exclude_categories=["Cs"]), max_size=20).filter(lambda n: n != "__metadata__"),
        dtype=st.sampled_from(sorted(DTYPE_BYTES)),
        shape=st.lists(st.integers(0, 7), max_size=4).map(tuple),
    ),
    unique_by=lambda spec: spec.name,
    max_size=8,
)


def raw(entries, data=b"", text=None):
    """A file as a hostile writer might make it."""
    header = text if text is not None else json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + data


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@given(SPECS, st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), st.text(max_size=9)))
def test_what_is_built_is_read_back_and_padded_to_4_kib(specs, metadata):
    metadata = {k: v for k, v in metadata.items() if v.isprintable()}
    header = build_header(specs, metadata)
    size = len(header) + sum(spec.nbytes for spec in specs)
    found = parse_header(header, size)
    assert len(header) % 4096 == 0
    assert found.data_start == len(header) == header_bytes(header[:8], size)
    assert found.metadata == metadata
    assert {(n, p.dtype, p.shape) for n, p in found.tensors.items()} == {(s.name, s.dtype, s.shape) for s in specs}
    assert sum(p.stop - p.start for p in found.tensors.values()) == size - len(header)


def test_tensors_lie_end_to_end_in_the_order_given():
    header = build_header([TensorSpec("b", "F32", (2,)), TensorSpec("a", "U8", (3,))], {"format": "pt"})
    found = parse_header(header, len(header) + 11)
    assert list(found.tensors) == ["b", "a"]
    assert (found.tensors["a"].start, found.tensors["a"].stop) == (len(header) + 8, len(header) + 11)
    size = struct.unpack("<Q", header[:8])[0]
    assert json.loads(header[8 : 8 + size])["__metadata__"] == {"format": "pt"}
    assert header.endswith(b" ")


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "too short"),
        (b"\0" * 7, "too short"),
        (struct.pack("<Q", HEADER_MAX_BYTES + 1) + b"{}", "more than"),
        (struct.pack("<Q", 2**63) + b"{}", "more than"),
        (struct.pack("<Q", 3) + b"{}", "in a file of 10"),
        (raw(None, text=b" {}"), "does not begin"),
        (raw(None, text=b""), "does not begin"),
        (raw(None, text=b"{"), "not JSON"),
        (raw(None, text=b"{\xff}"), "not JSON"),
        (raw(None, text=b"{}{}"), "not JSON"),
        (raw(None, text=b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "not JSON"),
        (raw(None, text=b'{"__metadata__":{"a":' + b"9" * 5000 + b"}}"), "not JSON"),
        (raw({"__metadata__": {"a": 1}}), "texts"),
        (raw({"__metadata__": []}), "texts"),
        (raw(None, text=b'{"a":{},"a":{}}'), "two entries of one name: 'a'"),
        (raw(None, text=b'{"\\ud800":{}}'), "Unicode"),
        (raw({"a": []}), "not described"),
        (raw({"a": {"dtype": "F32", "shape": []}}), "not described"),
        (raw({"a": entry() | {"x": 1}}, b"1234"), "not described"),
        (raw({"a": entry("F4", offsets=(0, 4))}, b"1234"), "'F4'"),
        (raw({"a": entry(7)}, b"1234"), "dtype is 7"),
        (raw({"a": entry(shape=(-1,))}, b"1234"), "shape is"),
        (raw({"a": entry(shape=(1.0,))}, b"1234"), "shape is"),
        (raw({"a": entry(shape=(True,))}, b"1234"), "shape is"),
        (raw({"a": entry(shape=(1,) * 65)}, b"1234"), "shape is"),
        (raw({"a": entry(shape=(2**63, 0), offsets=(0, 0))}), "shape is"),
        (raw({"a": entry(offsets=(0,))}, b"1234"), "data_offsets"),
        (raw({"a": entry(offsets=(4, 0))}, b"1234"), "bytes where"),
        (raw({"a": entry(offsets=(0, 5))}, b"12345"), "bytes where"),
        (raw({"a": entry(shape=(2,), offsets=(0, 4))}, b"1234"), "has 4 bytes where F32 of shape [2] takes 8"),
        (raw({"a": entry(offsets=(4, 8))}, b"12345678"), "hole"),
        (raw({"a": entry(), "b": entry()}, b"1234"), "overlaps"),
        (raw({"a": entry(), "b": entry(offsets=(2, 6))}, b"123456"), "overlaps"),
        (raw({"a": entry()}, b"123"), "end at byte"),
        (raw({"a": entry()}, b"12345"), "end at byte"),
        (raw({}, b"1"), "end at byte"),
    ],
)
def test_a_file_that_breaks_a_rule_is_refused(data, what):
    with pytest.raises(FormatError) as caught:
        parse_header(data, len(data), "place")
    assert what in str(caught.value)
    assert caught.value.where == "place"


def test_a_file_without_tensors_or_metadata_is_fine():
    assert parse_header(raw({}), 10).tensors == {}


def test_tensors_may_stand_in_any_order_in_the_header():
    data = raw({"b": entry(offsets=(4, 8)), "e": entry(shape=(0,), offsets=(8, 8)), "a": entry()}, b"12345678")
    assert list(parse_header(data, len(data)).tensors) == ["a", "b", "e"]


def test_a_header_that_is_not_all_there_is_refused():
    data = build_header([TensorSpec("a", "U8", (5,))], {})
    with pytest.raises(FormatError, match="at hand"):
        parse_header(data[:100], len(data) + 5)


def test_names_that_cannot_be_written_are_refused():
    one = TensorSpec("a", "U8", (1,))
    for specs, what in [
        ([one, one], "one name"),
        ([TensorSpec("__metadata__", "U8", ())], "may not be named"),
        ([TensorSpec("\ud800", "U8", ())], "Unicode"),
        ([TensorSpec("a", "F128", ())], "F128"),
    ]:
        with pytest.raises(FormatError, match=what):
            build_header(specs, {})


def test_a_header_that_no_reader_takes_is_not_written():
    with pytest.raises(FormatError, match="too large"):
        build_header([TensorSpec("a" * HEADER_MAX_BYTES, "U8", ())], {})
