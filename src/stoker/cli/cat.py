"""`stoker cat URL KEY`: the bytes of one field of one sample."""

from __future__ import annotations

import base64
import json
import sys
from contextlib import ExitStack
from typing import Annotated

import typer

from stoker.errors import ConfigError


def cat(
    url: Annotated[str, typer.Argument(help="Path or URL of a data set.")],
    key: Annotated[str, typer.Argument(help="Key of the sample, as `stoker ls` prints it.")],
    field: Annotated[str | None, typer.Option(help="The field; not needed if the sample has one only.")] = None,
    index: Annotated[str | None, typer.Option(help="An index that does not lie beside the data.")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, bytes in base64.")] = False,
) -> None:
    """Print the bytes of one field of one sample.

    They are checked before the first of them is printed.
    """
    from stoker.dataset.attach import open_indexed
    from stoker.dataset.describe import Dataset
    from stoker.dataset.sample import find_sample, read_sample

    with ExitStack() as stack:
        opened = open_indexed(Dataset(url, index=index), stack)
        sample = find_sample(opened, key)
        fields = read_sample(opened, sample)
    if field is None and len(fields) == 1:
        field = next(iter(fields))
    if field is None or field not in fields:
        what = f"sample {key!r} has no field {field!r}" if field else f"sample {key!r} has {len(fields)} fields"
        raise ConfigError(what, url, f"--field is one of {', '.join(fields)}")
    data = fields[field]
    if as_json:
        facts = {"dataset": url, "key": key, "sample": sample, "field": field, "bytes": len(data)}
        typer.echo(json.dumps(facts | {"base64": base64.b64encode(data).decode()}))
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
