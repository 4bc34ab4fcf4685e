"""`stoker head URL`: the first samples, shown shortly."""

from __future__ import annotations

import io
import json
from contextlib import ExitStack
from typing import Annotated, Final

import typer

from stoker.units import format_bytes

_SHOWN_CHARACTERS: Final = 60
_SHOWN_BYTES: Final = 12
_TEXT_BYTES: Final = 4096
_ARRAY_MAGIC: Final = b"\x93NUMPY"


def head(
    url: Annotated[str, typer.Argument(help="Path or URL of a data set.")],
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="How many samples.")] = 3,
    index: Annotated[str | None, typer.Option(help="An index that does not lie beside the data.")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Show the first samples of a data set.

    Of each field its size, and what it begins with. The bytes are checked.
    """
    import numpy as np

    from stoker.dataset.attach import open_indexed
    from stoker.dataset.describe import Dataset
    from stoker.dataset.sample import read_sample

    with ExitStack() as stack:
        opened = open_indexed(Dataset(url, index=index), stack)
        numbers = np.arange(min(count, opened.manifest.sample_count))
        keys = opened.keys(numbers)
        samples = [read_sample(opened, number) for number in numbers.tolist()]
    shown = [{name: (len(data), preview(data)) for name, data in fields.items()} for fields in samples]
    if as_json:
        rows = [
            {"key": key, "fields": {name: {"bytes": size, "shows": text} for name, (size, text) in fields.items()}}
            for key, fields in zip(keys, shown, strict=True)
        ]
        typer.echo(json.dumps({"dataset": opened.store.url, "samples": rows}))
        return
    for key, fields in zip(keys, shown, strict=True):
        typer.echo(key)
        for name, (size, text) in fields.items():
            typer.echo(f"  {name:<10} {format_bytes(size):>10}  {text}")


def preview(data: bytes) -> str:
    """What a field holds, in a few words: the start of a text, the shape of an array, else its first bytes in hex."""
    if data.startswith(_ARRAY_MAGIC):
        shape = _array(data)
        if shape:
            return shape
    start = data[:_TEXT_BYTES]
    try:
        text = start.decode()
    except UnicodeDecodeError as error:
        if len(data) <= _TEXT_BYTES or error.start < _TEXT_BYTES - 4:
            return data[:_SHOWN_BYTES].hex(" ") + (" ..." if len(data) > _SHOWN_BYTES else "")
        text = start[: error.start].decode()
    line = " ".join(text.split())
    if not line.isprintable():
        return data[:_SHOWN_BYTES].hex(" ") + (" ..." if len(data) > _SHOWN_BYTES else "")
    return line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + " ..."


def _array(data: bytes) -> str:
    """Type and shape of an array in .npy, or nothing if it is none. Its values are not looked at."""
    from numpy.lib import format as npy

    stream = io.BytesIO(data[: 64 * 1024])
    try:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(stream)
    except ValueError:
        return ""
    return f"{dtype} array of shape {tuple(shape)}"
