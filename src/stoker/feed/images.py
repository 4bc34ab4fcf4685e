"""JPEG and PNG by Pillow, which lets go of the interpreter lock while it decodes. What they hold is never trusted."""

from __future__ import annotations

import importlib.util
import io
import os
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import UnsupportedError

PIXELS_MAX: Final = 1 << 26  # 64 Mi: 192 MiB of RGB, and a third more while it is decoded
_FORMATS: Final = ("JPEG", "PNG")
_PLAIN_MODES: Final = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"})
_NEEDS: Final = "the decoder 'image' needs Pillow, which is not installed"


class NotAnImage(Exception):
    """Why bytes are no image that is decoded: the end of a sentence that names them."""


def check_pillow() -> None:
    """Raise UnsupportedError if Pillow is not there."""
    if importlib.util.find_spec("PIL") is None:
        raise UnsupportedError(_NEEDS, hint="pip install 'stoker[images]'")


def keep_memory(image_count: int) -> None:
    """Let Pillow keep the memory of so many images, up to 16 MiB each, for those that are decoded next.

    Without it each image is decoded into pages that the kernel has just zeroed: 500 us for 256 x 256 pixels, not 270
    (Pillow 13, medians). PILLOW_BLOCKS_MAX in the environment stands.
    """
    from PIL import Image  # noqa: PLC0415  an extra, and only where there are images

    core: Any = vars(Image)["core"]  # documented there ("block allocator"), but not exported for mypy
    if "PILLOW_BLOCKS_MAX" not in os.environ and core.get_blocks_max() < image_count:
        core.set_blocks_max(image_count)


def image_shape(data: memoryview) -> tuple[int, int, int]:
    """(height, width, 3) by the header alone, about 20 us. Raises NotAnImage."""
    from PIL import Image  # noqa: PLC0415  an extra, and only where there are images

    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            width, height = image.size
            mode = image.mode
    except Exception as error:  # boundary: a dozen types come out of Pillow for bytes that are damaged or made to harm
        raise NotAnImage("is no JPEG or PNG") from error
    if width * height > PIXELS_MAX:
        raise NotAnImage(f"is an image of {width} x {height} pixels; {PIXELS_MAX} is the most that is decoded")
    if mode not in _PLAIN_MODES:
        raise NotAnImage(f"is an image of mode {mode!r}; 8 bits a channel are decoded")
    return height, width, 3


def read_image(data: memoryview, target: NDArray[np.uint8]) -> None:
    """Decode into `target`, uint8[height, width, 3], as RGB: transparency is dropped, and nothing is turned (EXIF).

    Raises NotAnImage.
    """
    from PIL import Image  # noqa: PLC0415  an extra, and only where there are images

    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            image.load()
            # To convert to the mode that it has would copy it.
            target[...] = np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
    except Exception as error:  # boundary: a dozen types come out of Pillow for bytes that are damaged or made to harm
        raise NotAnImage(f"cannot be decoded: {error}") from error
