import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from stoker.errors import SampleError
from stoker.feed.decode import DECODERS, Packed, Rows, decode_json, decode_npy, decode_text


def rows_of(*samples):
    data = np.frombuffer(bytearray(b"".join(samples)), np.uint8)
    offsets = [0, *np.cumsum([len(sample) for sample in samples], dtype=int).tolist()]
    return Rows("f", data, offsets, lambda: [f"k{i}" for i in range(len(samples))])


def unpack(rows, packed):
    return np.ndarray(packed.shape, packed.dtype, buffer=rows.data)


def test_there_are_five_decoders():
    assert list(DECODERS) == ["raw", "text", "json", "npy", "image"]


def test_text_is_utf8():
    assert decode_text(rows_of(b"abc", b"", "ä€".encode())) == ["abc", "", "ä€"]
    with pytest.raises(SampleError, match="field 'f' of sample 'k1' is not UTF-8: invalid start byte at byte 2"):
        decode_text(rows_of(b"abc", b"ab\xff"))


def test_json_is_parsed():
    values = [{"a": [1, 2.5, None, True]}, "x", 12345678901234567890]
    assert decode_json(rows_of(*(json.dumps(value).encode() for value in values))) == values


@pytest.mark.parametrize("bad", [b"", b"{", b"{} x", b'"\xff"', b"NaN", b"[" * 100_000])
def test_what_is_not_json_names_the_sample(bad):
    with pytest.raises(SampleError, match="field 'f' of sample 'k1' is not JSON: "):
        decode_json(rows_of(b"{}", bad))


DTYPES = ["<f4", ">f4", "<i8", "|u1", "|b1", "<c16", "<f2", "<U3", "|S5", "<M8[ns]"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 0, 3)])
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_becomes_one_array(npy, dtype, shape, version, order):
    count = int(np.prod(shape))
    samples = [
        np.arange(i * count, (i + 1) * count).astype(np.int64).astype(dtype).reshape(shape, order="C").copy(order)
        for i in range(4)
    ]
    rows = rows_of(*(npy(sample, version=version) for sample in samples))
    packed = decode_npy(rows)
    assert (packed.dtype, packed.shape) == (dtype, (4, *shape))
    assert unpack(rows, packed).tolist() == np.stack(samples).tolist()


@given(st.data())
def test_any_plain_array_survives(data):
    shape = data.draw(array_shapes(min_dims=0, max_dims=3, max_side=4, min_side=0))
    dtype = data.draw(st.sampled_from(["<i4", "<f8", "|u1"]))
    samples = data.draw(st.lists(arrays(dtype, shape), min_size=1, max_size=4))
    import io

    encoded = []
    for sample in samples:
        buffer = io.BytesIO()
        np.save(buffer, sample, allow_pickle=False)
        encoded.append(buffer.getvalue())
    rows = rows_of(*encoded)
    np.testing.assert_array_equal(unpack(rows, decode_npy(rows)), np.stack(samples))


def test_headers_that_say_the_same_in_other_words_are_equal(npy):
    a, b = npy(np.arange(3)), npy(np.arange(3) + 5, version=(2, 0))
    rows = rows_of(a, b, npy(np.arange(3) + 7), npy(np.arange(3), version=(3, 0)))
    assert unpack(rows, decode_npy(rows)).tolist() == [[0, 1, 2], [5, 6, 7], [7, 8, 9], [0, 1, 2]]


@pytest.mark.parametrize("other", [np.zeros(4, "<i8"), np.zeros(3, "<i4"), np.zeros((1, 3), "<i8"), np.zeros(3, ">i8")])
def test_rows_of_another_type_or_shape_name_the_sample_and_both(npy, other):
    with pytest.raises(SampleError) as caught:
        decode_npy(rows_of(npy(np.zeros(3, "<i8")), npy(other)))
    assert f"sample 'k1' is {other.dtype}{list(other.shape)}" in str(caught.value)
    assert "the first is int64[3]" in str(caught.value)


def header(text, version=b"\x01\x00", data=b""):
    encoded = text.encode()
    width = 2 if version[:1] == b"\x01" else 4
    return b"\x93NUMPY" + version + len(encoded).to_bytes(width, "little") + encoded + data


GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"


def test_the_headers_below_would_be_read_if_they_were_right():
    assert decode_npy(rows_of(header(GOOD, data=bytes(8)))) == Packed("<f4", (1, 2))


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\x93NUM",
        b"\x93NUMPY\x01\x00",
        b"\x93NUMPX" + header(GOOD, data=bytes(8))[6:],
        header(GOOD, version=b"\x04\x00", data=bytes(8)),
        header(GOOD, version=b"\x00\x00", data=bytes(8)),
        header(GOOD, data=bytes(7)),
        header(GOOD, data=bytes(9)),
        header(GOOD, data=bytes(8))[:20],
        header("", data=bytes(8)),
        header("{'descr': '<f4'}", data=bytes(8)),
        header("[1, 2]", data=bytes(8)),
        header("__import__('os').getcwd()", data=bytes(8)),
        header(GOOD.replace("(2,)", "(-2,)"), data=bytes(8)),
        header(GOOD.replace("(2,)", "('2x',)"), data=bytes(8)),
        header(GOOD.replace("(2,)", "2"), data=bytes(8)),
        header(GOOD.replace("(2,)", f"({2**62}, 4)"), data=bytes(8)),
        header(GOOD.replace("<f4", "|O"), data=bytes(16)),
        header(GOOD.replace("<f4", "|V4"), data=bytes(8)),
        header(GOOD.replace("<f4", "i4,i4"), data=bytes(16)),
        header(GOOD.replace("'<f4'", "[('a', '<f4')]"), data=bytes(8)),
        header(GOOD.replace("<f4", "nonsense"), data=bytes(8)),
        header(GOOD + " " * 20_000, version=b"\x02\x00", data=bytes(8)),
        header("(" * 5000, data=bytes(8)),
    ],
)
def test_what_is_no_plain_npy_names_the_sample(bad):
    with pytest.raises(SampleError, match="field 'f' of sample 'k1' "):
        decode_npy(rows_of(header(GOOD, data=bytes(8)), bad))


def test_objects_are_never_unpickled(npy):
    class Bomb:
        def __reduce__(self):
            return print, ("boom",)

    import io

    buffer = io.BytesIO()
    np.save(buffer, np.array([Bomb()], dtype=object), allow_pickle=True)
    with pytest.raises(SampleError, match=r"holds '\|O' values") as caught:
        decode_npy(rows_of(buffer.getvalue()))
    assert "never objects" in caught.value.hint


@pytest.mark.parametrize(
    "shape",
    ["(" + "1," * 70 + ")", "(1 << 70,)", f"({2**63},)", f"({2**40}, {2**40})", f"(0, {2**62}, {2**62})", "(1.5,)"],
)
def test_a_header_of_a_shape_that_no_array_has_is_an_error_of_its_sample(shape):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    data = np.frombuffer(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header, np.uint8).copy()
    with pytest.raises(SampleError, match="'bad'"):
        decode_npy(Rows("x", data, [0, len(data)], lambda: ["bad"]))
