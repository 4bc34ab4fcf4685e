"""`stoker show URL`: the facts of one data set."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stoker.units import format_bytes

if TYPE_CHECKING:
    from stoker.dataset.open import OpenDataset


def show(
    url: Annotated[str, typer.Argument(help="Path or URL of a data set.")],
    index: Annotated[str | None, typer.Option(help="An index that does not lie beside the data.")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Show the facts of a data set: counts, digest, fields, and which checksum its bytes are held to."""
    from stoker.dataset.attach import open_indexed
    from stoker.dataset.describe import Dataset

    with ExitStack() as stack:
        facts = dataset_facts(open_indexed(Dataset(url, index=index), stack))
    typer.echo(json.dumps(facts) if as_json else _describe(facts))


def dataset_facts(opened: OpenDataset) -> dict[str, Any]:
    """What `show --json` prints of a data set; from the manifest and the tables of objects and blocks alone."""
    manifest = opened.manifest
    return {
        "kind": "dataset",
        "dataset": opened.store.url,
        "digest": manifest.digest,
        "parent": manifest.parent,
        "order_version": manifest.order_version,
        "samples": manifest.sample_count,
        "shards": manifest.object_count,
        "blocks": manifest.block_count,
        "block_bytes": manifest.block_bytes,
        "bytes": manifest.total_bytes,
        "stored_bytes": int(opened.objects.size_bytes.sum()),
        "fields": [
            {
                "name": field.name,
                "samples": field.sample_count,
                "bytes": field.total_bytes,
                "max_bytes": field.max_bytes,
            }
            for field in manifest.fields
        ],
        "checksum": f"{_held_to(opened)}; sha256 of each table",
    }


def _held_to(opened: OpenDataset) -> str:
    """What the bytes of the samples are compared with when they are read: the first checksum that exists."""
    versions = [opened.objects.version(number) for number in range(len(opened.objects))]
    if all(version.checksums for version in versions):
        when = "indexed" if any(version.files for version in versions) else "written or indexed"
        return f"crc32c of each field, made when the data set was {when}"
    what = "file" if any(version.files for version in versions) else "object"
    return f"none of the fields: each {what} is held to its size and version (etag, or modification time)"


def _describe(facts: dict[str, Any]) -> str:
    stored = f"{facts['shards']} shards, {format_bytes(facts['stored_bytes'])}"
    lines = [
        f"data set   {facts['dataset']}",
        f"digest     {facts['digest']}",
        f"samples    {facts['samples']}, {format_bytes(facts['bytes'])}",
        f"stored     {stored}; {facts['blocks']} blocks of up to {format_bytes(facts['block_bytes'])}",
        f"checksum   {facts['checksum']}",
    ]
    for field in facts["fields"]:
        sizes = f"{format_bytes(field['bytes'])}, the largest {format_bytes(field['max_bytes'])}"
        lines.append(f"field      {field['name']}: in {field['samples']} samples, {sizes}")
    return "\n".join(lines)
