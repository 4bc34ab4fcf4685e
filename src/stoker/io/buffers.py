"""What may be read from and written into: anything with a flat buffer of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, cast

if TYPE_CHECKING:  # a trainer starts its feeder before it loads numpy
    import numpy as np
    from numpy.typing import NDArray

ReadBuffer: TypeAlias = "bytes | bytearray | memoryview | NDArray[np.uint8]"
WriteBuffer: TypeAlias = "bytearray | memoryview | NDArray[np.uint8]"


def view(data: ReadBuffer) -> memoryview:
    """A flat view of the bytes of `data`, without a copy. Raises TypeError if they are not contiguous."""
    flat = memoryview(cast("bytes", data))
    return flat if flat.format == "B" and flat.ndim == 1 and flat.c_contiguous else flat.cast("B")
