"""The value of a field, as its writer gives it, becomes the bytes that are stored."""

from __future__ import annotations

import io
from typing import Any, Final

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from stoker.errors import ConfigError
from stoker.io.buffers import ReadBuffer, view

_ARRAY_FIELD: Final = "npy"
_HINT: Final = (
    "encode it first, as text.encode() or json.dumps(value).encode(); an array goes into a field npy or *.npy"
)


def as_bytes(value: ReadBuffer | NDArray[Any], field: str, what: str) -> memoryview:
    """The bytes of a value, without a copy if it is bytes; an array in a field `npy` or `*.npy` in NumPy's format.

    Bytes are what a buffer of single bytes holds, in a row: also a uint8 array of one dimension, as image encoders
    return it. Raises ConfigError for anything else, naming it `what`: the bytes of an array say neither type nor shape.
    """
    if isinstance(value, np.ndarray) and field.rpartition(".")[2] == _ARRAY_FIELD:
        return _as_npy(value, what)
    try:
        flat = view(value)
        items = value.data if isinstance(value, np.ndarray) else memoryview(value)
    except (TypeError, ValueError, BufferError) as error:
        row = "" if isinstance(error, TypeError) and not isinstance(value, np.ndarray) else " that lie in a row"
        raise ConfigError(f"{what} is a {type(value).__name__}, not bytes{row}", hint=_HINT) from error
    if items.itemsize > 1 or items.ndim > 1:
        kind = str(value.dtype) if isinstance(value, np.ndarray) else f"format {items.format!r}"
        shape = "x".join(map(str, items.shape or ()))
        raise ConfigError(
            f"{what} is an array of {kind} and shape {shape}, not bytes: stored, they would say neither type nor shape",
            hint="name the field 'npy' or '*.npy' to keep both, or give value.tobytes()",
        )
    return flat


def _as_npy(array: NDArray[Any], what: str) -> memoryview:
    """A .npy file, version 1.0 where it can be."""
    stream = io.BytesIO()
    try:
        npy.write_array(stream, array, allow_pickle=False)
    except ValueError as error:
        raise ConfigError(f"{what} is an array of {array.dtype}, which .npy cannot hold without pickle") from error
    return stream.getbuffer()
