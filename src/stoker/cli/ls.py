"""`stoker ls URL`: the samples of a data set."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from stoker.errors import ConfigError
from stoker.units import format_bytes

if TYPE_CHECKING:
    from stoker.dataset.open import OpenDataset

_CHUNK = 4096


def ls(
    url: Annotated[str | None, typer.Argument(help="Path or URL of a data set.")] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="List only the first so many samples.")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """List the samples of a data set: key, and the size of each field."""
    if url is None:
        _list_tiers()
        return
    from stoker.dataset.open import open_dataset
    from stoker.store.open import open_store

    with closing(open_store(url)) as store:
        opened = open_dataset(store)
        samples = sample_sizes(opened, limit)
        if as_json:
            rows = [{"key": key, "fields": fields} for key, fields in samples]
            typer.echo(json.dumps({"dataset": store.url, "samples": opened.manifest.sample_count, "listed": rows}))
        else:
            for key, fields in samples:
                typer.echo(f"{key}\t{'  '.join(f'{name} {format_bytes(size)}' for name, size in fields.items())}")


def sample_sizes(opened: OpenDataset, limit: int | None) -> Iterator[tuple[str, dict[str, int]]]:
    """Key and field sizes of the samples in manifest order, at most `limit`; reads one table of offsets at a time."""
    import numpy as np

    names = opened.manifest.field_names
    count = opened.manifest.sample_count if limit is None else min(limit, opened.manifest.sample_count)
    for start in range(0, count, _CHUNK):
        chunk = np.arange(start, min(start + _CHUNK, count))
        places = opened.extents(chunk, names)
        for key, offsets, sizes in zip(opened.keys(chunk), places.offset, places.size, strict=True):
            present = zip(names, offsets.tolist(), sizes.tolist(), strict=True)
            yield key, {name: size for name, offset, size in present if offset >= 0}


def _list_tiers() -> None:
    raise ConfigError("ls needs the URL of a data set", hint="stoker ls URL")
