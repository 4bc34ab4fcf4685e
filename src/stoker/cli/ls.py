"""`stoker ls [URL]`: the samples of a data set, or the tiers and what they hold."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from stoker.config_values import user_path
from stoker.errors import ConfigError, NotFound
from stoker.io.os_errors import translating
from stoker.units import format_bytes, format_count

if TYPE_CHECKING:
    from stoker.dataset.open import OpenDataset
    from stoker.tier.holdings import Holdings

SHOWN_SAMPLES: Final = 100  # to a person; a program that asks for JSON gets all
_CHUNK: Final = 4096


def ls(
    url: Annotated[str | None, typer.Argument(help="Path or URL of a data set.")] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=0, help=f"List the first so many samples; default: {SHOWN_SAMPLES}, all with --json."),
    ] = None,
    nvme: Annotated[Path | None, typer.Option(help="The nvme tier; default as for a run.")] = None,
    shared: Annotated[Path | None, typer.Option(help="The shared tier.")] = None,
    index: Annotated[str | None, typer.Option(help="An index that does not lie beside the data.")] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="List all samples.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """List the samples of a data set; without URL: the tiers.

    For each sample its key, and the size of each field; of the tiers what they hold.
    """
    if everything and limit is not None:
        raise ConfigError("--all and --limit exclude each other", hint="give one of them")
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
        count = opened.manifest.sample_count
        shown = count if everything or (limit is None and as_json) else SHOWN_SAMPLES if limit is None else limit
        samples = sample_sizes(opened, shown)
        if as_json:
            rows = [{"key": key, "fields": fields} for key, fields in samples]
            facts = {"dataset": opened.store.url, "samples": count, "complete": len(rows) == count, "listed": rows}
            typer.echo(json.dumps(facts))
            return
        for key, fields in samples:
            sizes = "  ".join(f"{name} {format_bytes(size)}" for name, size in fields.items())
            typer.echo(f"{printable(key)}\t{sizes}")
        if limit is None and shown < count:
            typer.echo(f"... the first {shown} of {count} samples; --all lists all, --limit N the first N", err=True)


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
    from stoker.tier.holdings import holdings
    from stoker.tier.node import NodeDirectory, default_nvme

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
            lines.append(
                f"  run {run.run}\t{format_count(run.step_count, 'step')}, {format_bytes(run.total_bytes)}{newest}"
            )
    return "\n".join(lines) or "no tier holds anything yet"
