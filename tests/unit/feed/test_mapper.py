import signal
import sys

import numpy as np
import pytest

from stoker.errors import ClosedError, SampleError
from stoker.feed.batch import InReply, InSlot, read_field
from stoker.feed.mapper import Samples, map_batch


class Memory:
    """Hands out memory once, and remembers how much was asked for."""

    def __init__(self):
        self.asked = []

    def __call__(self, nbytes):
        self.asked.append(nbytes)
        self.bytes = np.zeros(nbytes, np.uint8)
        return self.bytes


def run(mappers, count=4, columns=None):
    columns = columns or {"n": list(range(count)), "t": [f"t{i}" for i in range(count)]}
    memory = Memory()
    mappers = mappers if isinstance(mappers, tuple) else (mappers,)
    fields, nbytes = map_batch(Samples(columns, count, lambda: [f"k{i}" for i in range(count)]), mappers, memory)
    return {field.name: read_field(field, memory.bytes) for field in fields}, fields, nbytes, memory


def test_a_map_gets_each_sample_and_makes_a_new_one():
    seen = []

    def f(sample):
        seen.append(dict(sample))
        return {"m": sample["n"] * 2}

    values, *_ = run(f)
    assert seen == [{"n": i, "t": f"t{i}"} for i in range(4)]
    assert values["m"].tolist() == [0, 2, 4, 6]


def test_arrays_and_numbers_become_arrays_in_memory_given_at_once():
    values, fields, nbytes, memory = run(
        lambda s: {"x": np.full((2, 3), s["n"], np.float32), "i": s["n"], "f": 0.5, "b": True, "u": np.uint8(s["n"])}
    )
    assert {name: (value.dtype.name, value.shape) for name, value in values.items()} == {
        "x": ("float32", (4, 2, 3)),
        "i": ("int64", (4,)),
        "f": ("float64", (4,)),
        "b": ("bool", (4,)),
        "u": ("uint8", (4,)),
    }
    assert values["x"][3].tolist() == [[3.0] * 3] * 2
    assert memory.asked == [128 + 4 * 64]
    assert nbytes == 96 + 32 + 32 + 4 + 4
    assert all(isinstance(field.place, InSlot) and field.place.offset % 64 == 0 for field in fields)
    assert all(value.flags.writeable and value.base is not None for value in values.values())


def test_strings_and_bytes_become_lists():
    values, fields, nbytes, memory = run(lambda s: {"s": s["t"] * 2, "b": bytes([s["n"]]), "v": memoryview(b"abc")})
    assert values == {
        "s": ["t0t0", "t1t1", "t2t2", "t3t3"],
        "b": [bytes([i]) for i in range(4)],
        "v": [memoryview(b"abc")] * 4,
    }
    assert all(isinstance(field.place, InReply) for field in fields)
    assert (memory.asked, nbytes) == ([0], 4 * (4 + 1 + 3))


def test_tensors_become_arrays():
    torch = pytest.importorskip("torch")
    values, *_ = run(lambda s: {"x": torch.full((2,), s["n"], dtype=torch.int32)})
    assert values["x"].tolist() == [[i, i] for i in range(4)]
    assert values["x"].dtype == np.int32


def test_maps_are_applied_one_after_the_other():
    values, *_ = run((lambda s: {"a": s["n"] + 1}, lambda s: {"b": s["a"] * 10}))
    assert values["b"].tolist() == [10, 20, 30, 40]


def test_rows_that_a_map_changes_in_place_do_not_reach_its_result():
    column = np.arange(8.0).reshape(4, 2)

    def f(sample):
        row = sample["x"]
        row *= 2
        return {"x": row}

    values, *_ = run(f, columns={"x": column})
    column[:] = -1
    assert values["x"].tolist() == [[0, 2], [4, 6], [8, 10], [12, 14]]


@pytest.mark.parametrize("failure", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), None])
def test_an_exception_whose_text_cannot_be_had_still_names_the_sample_and_its_type(failure):
    class Unspeakable(Exception):
        def __str__(self):
            if failure is not None:
                raise failure
            return self.args  # which is no text

        __repr__ = __str__

    def f(sample):
        raise Unspeakable

    kind = "TypeError" if failure is None else type(failure).__name__
    said = rf"^sample 'k0': map\(\) failed: Unspeakable: <its message cannot be had: {kind}>$"
    with pytest.raises(SampleError, match=said) as caught:
        run(f)
    assert isinstance(caught.value.__cause__, Unspeakable)

    class Odd:
        def __array__(self, *_):
            raise Unspeakable

    with pytest.raises(SampleError, match=r"sample 'k0'.* cannot become an array: Unspeakable: <its message cannot"):
        run(lambda _: {"x": Odd()})


def test_an_exception_in_a_map_names_the_sample_and_keeps_the_original():
    def f(sample):
        if sample["n"] == 2:
            raise ValueError("odd")
        return sample

    with pytest.raises(SampleError, match="sample 'k2': map\\(\\) failed: ValueError: odd") as caught:
        run(f)
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("result", [None, [1], 3, {1: 2}])
def test_a_map_that_returns_no_sample_is_told_so(result):
    with pytest.raises(SampleError, match="sample 'k0': map\\(\\) returned a ") as caught:
        run(lambda s: result)
    assert "return a dict" in caught.value.hint


@pytest.mark.parametrize("value", [None, [1, 2], {"a": 1}, object(), np.array([object()]), np.zeros(2, "i4,i4")])
def test_a_value_that_is_neither_array_number_nor_text_is_refused(value):
    with pytest.raises(SampleError, match=r"sample 'k0': map\(\) returned a .* as 'x'") as caught:
        run(lambda s: {"x": value})
    assert "numpy arrays, numbers, bytes or str" in caught.value.hint


@pytest.mark.parametrize(
    ("first", "other", "message"),
    [
        (np.zeros(3), np.zeros(4), r"float64\[4\] as 'x'"),
        (np.zeros(3), np.zeros(3, np.float32), r"float32\[3\] as 'x'"),
        (1, 1.5, r"float64\[\] as 'x'"),
        ("a", 1, "a int as 'x'"),
        (1, "a", "a str as 'x'"),
        (1, None, "a NoneType as 'x'"),
    ],
)
def test_a_sample_unlike_the_first_is_named(first, other, message):
    with pytest.raises(SampleError, match=f"sample 'k3': map\\(\\) returned {message}"):
        run(lambda s: {"x": other if s["n"] == 3 else first})


def test_a_sample_with_other_names_is_named():
    with pytest.raises(SampleError, match=r"sample 'k1': map\(\) returned \['y'\]") as caught:
        run(lambda s: {"y" if s["n"] == 1 else "x": 1})
    assert "['x']" in caught.value.hint


class Stubborn:
    def __array__(self, *_, **__):
        raise RuntimeError("it wants a gradient")


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("make", [Stubborn, lambda: sys.exit(3), lambda: signal.raise_signal(signal.SIGINT)])
def test_whatever_user_code_raises_names_the_sample(row, make):
    samples = Samples({"i": [0, 1]}, 2, lambda: ["first", "second"])

    def function(sample):
        return {"x": make() if sample["i"] == row else np.float32(1)}

    with pytest.raises(SampleError, match=f"sample '{['first', 'second'][row]}': map\\(\\)") as caught:
        map_batch(samples, (function,), lambda nbytes: np.empty(nbytes, np.uint8))
    assert isinstance(caught.value.__cause__, RuntimeError | SystemExit | KeyboardInterrupt)


def test_mapping_ends_between_two_samples_when_it_is_told_to():
    seen = []
    samples = Samples({"i": [0, 1, 2]}, 3, lambda: ["a", "b", "c"])
    with pytest.raises(ClosedError, match="the loader is closed"):
        map_batch(
            samples, (lambda s: seen.append(s["i"]) or s,), lambda n: np.empty(n, np.uint8), lambda: len(seen) == 2
        )
    assert seen == [0, 1]


@pytest.mark.parametrize("values", [("text", b"bytes"), (b"bytes", "text")])
def test_text_and_bytes_in_one_field_are_refused(values):
    samples = Samples({"i": list(values)}, 2, lambda: ["first", "second"])
    with pytest.raises(SampleError, match="sample 'second': map\\(\\) returned a"):
        map_batch(samples, (lambda s: {"x": s["i"]},), lambda nbytes: np.empty(nbytes, np.uint8))
