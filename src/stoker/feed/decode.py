"""Decoding: the bytes of one field of a batch become its value. Nothing here runs code from the data."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from stoker.errors import SampleError
from stoker.feed.batch import BYTES, OBJECTS, Field, InReply, InSlot
from stoker.feed.images import NotAnImage, image_shape, read_image
from stoker.io.buffers import view

if TYPE_CHECKING:
    from stoker.feed.plan import BatchPlan  # which loads Arrow; processes that only map need not

_NPY_MAGIC: Final = b"\x93NUMPY"
_NPY_HEADER_MAX_BYTES: Final = 10_000  # numpy's own limit on what it parses of an untrusted file
_ARRAY_MAX_DIMENSIONS: Final = 32  # of numpy 1; numpy 2 has 64
_ARRAY_MAX_BYTES: Final = (1 << 63) - 1
_SHAPE_MAX_CHARACTERS: Final = 80
_NPY_KINDS: Final = "?bBhHiIlLqQefdgFDGSUMm"  # all plain types; no objects, no structures


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The bytes of one field of n samples, end to end in `data` (uint8, writable): sample i at offsets[i:i + 2].

    `keys` gives the keys of the samples, for messages.
    """

    field: str
    data: NDArray[np.uint8]
    offsets: list[int]
    keys: Callable[[], list[str]]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def views(self) -> list[memoryview]:
        """The bytes of each sample."""
        data = view(self.data)
        return [data[start:stop] for start, stop in pairwise(self.offsets)]

    def view(self, row: int) -> memoryview:
        """The bytes of one sample."""
        return view(self.data)[self.offsets[row] : self.offsets[row + 1]]

    def error(self, row: int, what: str, hint: str = "") -> SampleError:
        """The error of one sample, whichever others there are."""
        error = self.unlike(row, what, hint)
        error.is_bad_sample = True
        return error

    def unlike(self, row: int, what: str, hint: str) -> SampleError:
        """The error of a sample that is unlike the first of its batch: which one is wrong nobody knows."""
        error = SampleError(f"field {self.field!r} of sample {self.keys()[row]!r} {what}", hint=hint)
        error.sample_row = row
        return error


@dataclass(frozen=True, slots=True)
class Packed:
    """A decoder's word that `Rows.data` now begins with one array, C-contiguous, of this type and shape."""

    dtype: str
    shape: tuple[int, ...]


Decoder: TypeAlias = Callable[[Rows], list[Any] | Packed]


def decode_text(rows: Rows) -> list[Any]:
    """UTF-8: a list of str."""
    values = []
    for row, data in enumerate(rows.views()):
        try:
            values.append(str(data, "utf-8"))
        except UnicodeDecodeError as error:
            raise rows.error(row, f"is not UTF-8: {error.reason} at byte {error.start}") from error
    return values


def decode_json(rows: Rows) -> list[Any]:
    """JSON: a list of objects."""
    decoder = msgspec.json.Decoder()
    values = []
    for row, data in enumerate(rows.views()):
        try:
            values.append(decoder.decode(data))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise rows.error(row, f"is not JSON: {error}") from error
    return values


def decode_npy(rows: Rows) -> Packed:
    """NumPy's .npy: one array of n rows. The data of all rows are moved together in place, over their headers.

    Raises SampleError, naming the sample, for another type or shape than the first one's, Python objects,
    structures, and what is not a whole .npy.
    """
    first: _NpyHeader | None = None
    prefix = memoryview(b"")
    end = 0
    for row, data in enumerate(rows.views()):
        start = rows.offsets[row]
        if first is None or data[: len(prefix)] != prefix:
            header = _parse_npy(rows, row, data)
            if first is None:
                first, prefix = header, memoryview(bytes(data[: header.nbytes]))
            if (header.dtype, header.shape) != (first.dtype, first.shape):
                raise rows.unlike(
                    row, f"is {header.dtype}{list(header.shape)}", f"the first is {first.dtype}{list(first.shape)}"
                )
        else:
            header = first
        size = math.prod(header.shape) * header.dtype.itemsize
        if len(data) - header.nbytes != size:
            raise rows.error(row, f"has {len(data) - header.nbytes} bytes of data, its header says {size}")
        source = rows.data[start + header.nbytes : start + len(data)]
        if header.fortran and len(header.shape) > 1:
            values = np.ndarray(header.shape, header.dtype, buffer=source.tobytes(), order="F")
            source = np.frombuffer(values.tobytes(), np.uint8)
        rows.data[end : end + size] = source
        end += size
    if first is None:
        return Packed(BYTES, (0,))
    return Packed(first.dtype.str, (len(rows), *first.shape))


@dataclass(frozen=True, slots=True)
class _NpyHeader:
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    nbytes: int


def _parse_npy(rows: Rows, row: int, data: memoryview) -> _NpyHeader:
    """The header of a .npy, read without numpy's own reader, which can unpickle."""
    width = 2 if bytes(data[6:7]) == b"\x01" else 4
    start = 8 + width
    length = int.from_bytes(data[8:start], "little")
    known = bytes(data[:7]) in {_NPY_MAGIC + version for version in (b"\x01", b"\x02", b"\x03")}
    if not known or len(data) < start + length:
        raise rows.error(row, "is not a .npy file")
    if length > _NPY_HEADER_MAX_BYTES:
        raise rows.error(row, f"has a .npy header of {length} bytes; {_NPY_HEADER_MAX_BYTES} is the most that is read")
    try:
        header = ast.literal_eval(str(data[start : start + length], "utf-8").strip())
        descr, fortran, shape = header["descr"], header["fortran_order"], header["shape"]
        dtype = np.dtype(descr if isinstance(descr, str) else "V")
        shape = tuple(operator.index(size) for size in shape)
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError, OverflowError) as error:
        raise rows.error(row, "has a .npy header that makes no sense") from error
    if dtype.char not in _NPY_KINDS:
        raise rows.error(
            row, f"holds {descr!r} values", "only plain numbers, times and strings are read, never objects"
        )
    if any(size < 0 for size in shape) or len(shape) >= _ARRAY_MAX_DIMENSIONS or dtype.itemsize == 0:
        raise rows.error(row, f"has the shape {_brief(shape)} of {dtype}", "a batch adds one dimension, to 32 at most")
    if math.prod(size for size in shape if size) * dtype.itemsize * len(rows) > _ARRAY_MAX_BYTES:
        raise rows.error(row, f"has the shape {_brief(shape)} of {dtype}: no array is that large")
    return _NpyHeader(dtype, shape, bool(fortran), start + length)


def _brief(shape: tuple[int, ...]) -> str:
    text = str(shape) if len(shape) <= 4 else f"({', '.join(map(str, shape[:4]))}, ...)"  # noqa: PLR2004
    return text if len(text) <= _SHAPE_MAX_CHARACTERS else f"{text[:_SHAPE_MAX_CHARACTERS]}..."


def decode_images(rows: Rows) -> list[Any]:
    """JPEG and PNG: a list of uint8[height, width, 3]. A feeder decodes them where they will lie (feed/pictures.py)."""
    values = [np.empty(image_shape_of(rows, row), np.uint8) for row in range(len(rows))]
    for row, value in enumerate(values):
        decode_image(rows, row, value)
    return values


def image_shape_of(rows: Rows, row: int) -> tuple[int, int, int]:
    """The shape of an image, by its header. Raises SampleError."""
    try:
        return image_shape(rows.view(row))
    except NotAnImage as error:
        raise rows.error(row, str(error)) from error


def decode_image(rows: Rows, row: int, target: NDArray[np.uint8]) -> None:
    """Decode one image into its place. Raises SampleError."""
    try:
        read_image(rows.view(row), target)
    except NotAnImage as error:
        raise rows.error(row, str(error)) from error


@dataclass(frozen=True, slots=True)
class AsRows:
    """Equally many bytes of every sample: one array of n rows of `dtype`, where they lie. Costs nothing."""

    dtype: str

    def shape(self, row_offsets: NDArray[np.int64]) -> tuple[int, int]:
        """The shape of the array."""
        return len(row_offsets) - 1, int(row_offsets[1]) // np.dtype(self.dtype).itemsize

    def __call__(self, rows: Rows) -> Packed:
        """What the array is. Every sample must have as many bytes as the first."""
        return Packed(self.dtype, self.shape(np.array(rows.offsets)))


# The one table of decoders. Raw bytes need none: the slot holds them as they are.
DECODERS: Final[Mapping[str, Decoder | None]] = MappingProxyType(
    {"raw": None, "text": decode_text, "json": decode_json, "npy": decode_npy, "image": decode_images}
)


def find_decoder(name: str, table: Mapping[str, Decoder | None]) -> Decoder | None:
    """The decoder that a FeedSpec names: of the table, or rows of one of numpy's types."""
    return table[name] if name in table else AsRows(name)


def decode_batch(
    plan: BatchPlan, memory: NDArray[np.uint8], decoders: tuple[Decoder | None, ...]
) -> tuple[tuple[Field, ...], int]:
    """The fields of a batch whose bytes lie in `memory`, one decoder each, and the bytes of their values."""
    fields = []
    nbytes = 0
    columns = zip(plan.fields, plan.field_starts, plan.row_offsets, decoders, strict=True)
    for name, start, row_offsets, decoder in columns:
        total = int(row_offsets[-1])
        if decoder is None:
            fields.append(Field(name, BYTES, InSlot(start), row_offsets=row_offsets))
            nbytes += total
            continue
        if isinstance(decoder, AsRows):
            fields.append(Field(name, decoder.dtype, InSlot(start), shape=decoder.shape(row_offsets)))
            nbytes += total
            continue
        rows = Rows(name, memory[start : start + total], row_offsets.tolist(), lambda: plan.keys)
        value = decoder(rows)
        if isinstance(value, Packed):
            fields.append(Field(name, value.dtype, InSlot(start), shape=value.shape))
            nbytes += math.prod(value.shape) * np.dtype(value.dtype).itemsize
        else:
            fields.append(Field(name, OBJECTS, InReply(value)))
            nbytes += total
    return tuple(fields), nbytes
