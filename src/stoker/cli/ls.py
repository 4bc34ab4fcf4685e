"""`stoker ls [URL]`: the samples of a data set, or the tiers and what they hold."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stoker.config_values import user_path
from stoker.errors import NotFound
from stoker.io.os_errors import translating
from stoker.tier.holdings import Holdings, holdings
from stoker.tier.node import NodeDirectory, default_nvme
from stoker.units import format_bytes

if TYPE_CHECKING:
    from stoker.dataset.open import OpenDataset

_CHUNK = 4096


def ls(
    url: Annotated[str | None, typer.Argument(help="Path or URL of a data set.")] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="List only the first so many samples.")] = None,
    nvme: Annotated[Path | None, typer.Option(help="The nvme tier; default as for a run.")] = None,
    shared: Annotated[Path | None, typer.Option(help="The shared tier.")] = None,
    index: Annotated[str | None, typer.Option(help="An index that does not lie beside the data.")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """List the samples of a data set: key, and the size of each field. Without URL: the tiers and what they hold."""
    if url is None:
        tiers = find_tiers(nvme, shared)
        typer.echo(
            json.dumps({name: asdict(held) for name, held in tiers.items()}) if as_json else describe_tiers(tiers)
        )
        return
    from stoker.dataset.attach import open_indexed
    from stoker.dataset.describe import Dataset

    with ExitStack() as stack:
        opened = open_indexed(Dataset(url, index=index), stack)
        samples = sample_sizes(opened, limit)
        if as_json:
            rows = [{"key": key, "fields": fields} for key, fields in samples]
            typer.echo(
                json.dumps({"dataset": opened.store.url, "samples": opened.manifest.sample_count, "listed": rows})
            )
        else:
            for key, fields in samples:
                typer.echo(
                    f"{printable(key)}\t{'  '.join(f'{name} {format_bytes(size)}' for name, size in fields.items())}"
                )


def printable(key: str) -> str:
    """A key with what a terminal could take for a command written as escapes, as in a Python string."""
    return "".join(
        c if c.isprintable() and c != "\\" else c.encode("unicode_escape", "surrogatepass").decode() for c in key
    )


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


def find_tiers(nvme: Path | None, shared: Path | None) -> dict[str, Holdings]:
    """What the nvme tier (default: where a run would have it) and the shared tier hold. Makes nothing.

    Raises NotFound for a directory that was named and is not there.
    """
    places = {"nvme": nvme or default_nvme(os.environ, os.geteuid()), "shared": shared}
    found = {}
    for name, named in places.items():
        root = user_path(named) if named is not None else None
        if root is not None and _is_dir(name, root):
            with translating(f"cannot look into the {name} tier", root):
                found[name] = holdings(root, NodeDirectory(root).checkpoints_root if name == "nvme" else root)
        elif root is not None and (name == "shared" or nvme is not None):
            raise NotFound(f"the {name} tier is not there", where=str(root), hint="check the path")
    return found


def _is_dir(name: str, root: Path) -> bool:
    with translating(f"cannot look into the {name} tier", root):
        return root.is_dir()


def describe_tiers(tiers: Mapping[str, Holdings]) -> str:
    """The tiers as a person reads them."""
    lines = []
    for name, held in tiers.items():
        space = f"{format_bytes(held.free_bytes)} free of {format_bytes(held.total_bytes)}"
        lines.append(f"{name}\t{held.root}\t{space}")
        for run in held.runs:
            newest = f", newest {run.newest}" if run.newest else ""
            lines.append(f"  run {run.run}\t{run.step_count} steps, {format_bytes(run.total_bytes)}{newest}")
    return "\n".join(lines) or "no tier holds anything yet"
