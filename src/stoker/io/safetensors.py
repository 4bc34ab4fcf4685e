"""The safetensors header, written and read here: what a file holds and where, checked before anything is believed.

A file is 8 bytes (little-endian size of the header), the header (a JSON object, padded with spaces), then the tensors'
bytes end to end: no hole, no overlap, nothing after the last. Pure: bytes in, values out. Source of the rules:
the format section of github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from stoker.errors import FormatError
from stoker.io.buffers import ReadBuffer, view
from stoker.units import KIB, format_bytes

SIZE_BYTES: Final = 8
HEADER_MAX_BYTES: Final = 100_000_000  # stock readers refuse more
ALIGN_BYTES: Final = 4 * KIB
DTYPE_BYTES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}

_METADATA: Final = "__metadata__"
_FIELDS: Final = {"dtype", "shape", "data_offsets"}
_DIM_MAX: Final = 2**63 - 1
_NDIM_MAX: Final = 64
_SIZE: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor to be written: its name, its dtype as safetensors calls it ("F32"), its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its elements. Raises FormatError for a dtype the format does not know."""
        return math.prod(self.shape) * dtype_bytes(self.dtype)


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """A tensor in a file: bytes [start, stop) counted from the beginning of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself; `tensors` in the order of their bytes."""

    metadata: Mapping[str, str]
    tensors: Mapping[str, TensorPlace]
    data_start: int


def dtype_bytes(dtype: str) -> int:
    """Bytes an element of `dtype`. Raises FormatError for an unknown one."""
    size = DTYPE_BYTES.get(dtype)
    if size is None:
        raise FormatError(f"no dtype of safetensors that is known here: {dtype!r}")
    return size


def build_header(tensors: Sequence[TensorSpec], metadata: Mapping[str, str]) -> bytes:
    """The first bytes of a file whose tensors lie end to end in the order given: a multiple of 4 KiB.

    Tensors stay aligned for readers that look at them in place if larger dtypes come first. Raises FormatError for a
    name that occurs twice or may not be used, an unknown dtype, or a header above 100 MB.
    """
    entries: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    at = 0
    for tensor in tensors:
        _check_name(tensor.name)
        if tensor.name in entries:
            raise FormatError(f"two tensors of one name: {tensor.name!r}")
        stop = at + tensor.nbytes
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [at, stop]}
        at = stop
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    size = -(-(SIZE_BYTES + len(text)) // ALIGN_BYTES) * ALIGN_BYTES - SIZE_BYTES
    if size > HEADER_MAX_BYTES:
        raise FormatError(
            f"a header of {format_bytes(size)} is too large: readers take up to {format_bytes(HEADER_MAX_BYTES)}",
            hint="spread the tensors over more files",
        )
    return _SIZE.pack(size) + text.ljust(size)


def header_bytes(first: ReadBuffer, file_bytes: int, where: str = "") -> int:
    """Bytes from the start of the file to its first tensor, from the file's first 8 bytes.

    Raises FormatError if they do not fit a file of `file_bytes`; call it before taking memory for the header.
    """
    data = view(first)
    if len(data) < SIZE_BYTES or file_bytes < SIZE_BYTES:
        raise FormatError(f"a file of {file_bytes} bytes is too short for safetensors", where)
    (size,) = _SIZE.unpack(data[:SIZE_BYTES])
    if size > HEADER_MAX_BYTES:
        raise FormatError(f"the header claims {size:,} bytes, more than the {HEADER_MAX_BYTES:,} allowed", where)
    if SIZE_BYTES + size > file_bytes:
        raise FormatError(f"the header claims {size:,} bytes in a file of {file_bytes:,}", where)
    return SIZE_BYTES + int(size)


def parse_header(data: ReadBuffer, file_bytes: int, where: str = "") -> Header:
    """What the header in `data` (the file's first `header_bytes`, or more) says of a file of `file_bytes`.

    Raises FormatError unless every rule holds: a JSON object without double keys, text in the metadata, known dtypes,
    sizes that fit shapes, tensors end to end from the header to the end of the file.
    """
    bytes_ = view(data)
    data_start = header_bytes(bytes_, file_bytes, where)
    if len(bytes_) < data_start:
        raise FormatError(f"only {len(bytes_):,} of the header's {data_start:,} bytes are at hand", where)
    try:
        return _parse(bytes(bytes_[SIZE_BYTES:data_start]), data_start, file_bytes)
    except (ValueError, RecursionError) as error:  # also UnicodeDecodeError, JSONDecodeError and our FormatError
        what = error.what if isinstance(error, FormatError) else f"the header is not JSON: {error}"
        raise FormatError(what, where) from error


def _parse(text: bytes, data_start: int, file_bytes: int) -> Header:
    if text[:1] != b"{":
        raise FormatError("the header does not begin with '{'")
    entries = json.loads(text.decode(), object_pairs_hook=_unique)
    metadata = entries.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise FormatError(f"{_METADATA!r} is not an object of texts")
    places = {name: _place(name, entry, data_start) for name, entry in entries.items()}
    at = data_start
    ordered = dict(sorted(places.items(), key=lambda item: (item[1].start, item[1].stop)))
    for name, place in ordered.items():
        if place.start != at:
            kind = "overlaps the one before it" if place.start < at else "leaves a hole before it"
            raise FormatError(f"tensor {name!r} {kind}: it begins at byte {place.start:,}, not {at:,}")
        at = place.stop
    if at != file_bytes:
        raise FormatError(f"the tensors end at byte {at:,} of a file of {file_bytes:,}")
    return Header(metadata, ordered, data_start)


def _place(name: str, entry: Any, data_start: int) -> TensorPlace:
    _check_name(name)
    if not isinstance(entry, dict) or entry.keys() != _FIELDS:
        raise FormatError(f"tensor {name!r} is not described by exactly {sorted(_FIELDS)}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str):
        raise FormatError(f"tensor {name!r}: dtype is {dtype!r}")
    if not _are_sizes(shape) or len(shape) > _NDIM_MAX:
        raise FormatError(f"tensor {name!r}: shape is {shape!r}")
    if not _are_sizes(offsets) or len(offsets) != 2:  # noqa: PLR2004  begin and end
        raise FormatError(f"tensor {name!r}: data_offsets are {offsets!r}")
    spec = TensorSpec(name, dtype, tuple(shape))
    start, stop = offsets
    if stop - start != spec.nbytes:
        raise FormatError(
            f"tensor {name!r} has {stop - start} bytes where {dtype} of shape {shape} takes {spec.nbytes}"
        )
    return TensorPlace(dtype, spec.shape, data_start + start, data_start + stop)


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n <= _DIM_MAX for n in value)


def _check_name(name: str) -> None:
    if name == _METADATA:
        raise FormatError(f"a tensor may not be named {name!r}")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise FormatError(f"the name of a tensor is not valid Unicode: {name!r}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        (double, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise FormatError(f"the header has two entries of one name: {double!r}")
    return found
