"""`stoker show URL`: the facts of one data set, also of files of tokens."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from stoker.errors import ConfigError
from stoker.units import format_bytes, format_count

if TYPE_CHECKING:
    from stoker.dataset.open import OpenDataset
    from stoker.dataset.tokens import OpenTokens
    from stoker.dataset.windows import TokenType

_VERSION: Final = "its size and version (etag, or modification time)"


def show(
    url: Annotated[str, typer.Argument(help="Path or URL of a data set.")],
    index: Annotated[str | None, typer.Option(help="An index that does not lie beside the data.")] = None,
    tokens: Annotated[str | None, typer.Option(help="Flat files of tokens of this type, such as uint16.")] = None,
    seq_len: Annotated[int, typer.Option(help="With --tokens: from one window to the next.")] = 2048,
    overlap: Annotated[int, typer.Option(help="With --tokens: what a window holds of the next one.")] = 0,
    header_bytes: Annotated[int, typer.Option(help="With --tokens: bytes that each file begins with.")] = 0,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Show the facts of a data set.

    Counts, digest, fields, and the checksum that its bytes are held to.
    """
    from stoker.dataset.attach import open_indexed
    from stoker.dataset.describe import Dataset
    from stoker.dataset.tokens import open_tokens
    from stoker.dataset.windows import TokenWindows

    with ExitStack() as stack:
        if tokens is None:
            facts = dataset_facts(open_indexed(Dataset(url, index=index), stack))
            text = _describe(facts)
        elif index is not None:
            raise ConfigError("--index does not go with --tokens", hint="files of tokens have no index")
        else:
            cut = TokenWindows(seq_len, cast("TokenType", tokens), overlap, header_bytes)
            facts = token_facts(open_tokens(url, cut, stack))
            text = _describe_tokens(facts)
    typer.echo(json.dumps(facts) if as_json else text)


def token_facts(opened: OpenTokens) -> dict[str, Any]:
    """What `show --json` prints of files of tokens; from their names, sizes and versions alone."""
    facts, cut = opened.manifest, opened.windows
    return {
        "kind": "tokens",
        "dataset": opened.store.url,
        "digest": facts.digest,
        "dtype": cut.dtype,
        "seq_len": cut.seq_len,
        "overlap": cut.overlap,
        "header_bytes": cut.header_bytes,
        "samples": facts.sample_count,
        "shards": facts.object_count,
        "short_files": facts.short_count,
        "tokens": facts.token_count,
        "dropped_tokens": facts.dropped_count,
        "blocks": len(opened.blocks),
        "block_bytes": facts.block_bytes,
        "checksum": f"none of the windows: each file is held to {_VERSION}",
    }


def _describe_tokens(facts: dict[str, Any]) -> str:
    header = f", after a header of {facts['header_bytes']} bytes" if facts["header_bytes"] else ""
    length = facts["seq_len"] + facts["overlap"]
    return "\n".join(
        [
            f"tokens     {facts['dataset']}",
            f"digest     {facts['digest']}",
            f"samples    {facts['samples']} windows of {length} {facts['dtype']} tokens, one every {facts['seq_len']}",
            f"stored     {facts['shards']} files, {facts['tokens']} tokens{header}",
            f"left out   {facts['dropped_tokens']} tokens at the ends of files; {facts['short_files']} short files",
            f"blocks     {facts['blocks']} of up to {format_bytes(facts['block_bytes'])}",
            f"checksum   {facts['checksum']}",
        ]
    )


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
    return f"none of the fields: each {what} is held to {_VERSION}"


def _describe(facts: dict[str, Any]) -> str:
    stored = f"{format_count(facts['shards'], 'shard')}, {format_bytes(facts['stored_bytes'])}"
    lines = [
        f"data set   {facts['dataset']}",
        f"digest     {facts['digest']}",
        f"samples    {facts['samples']:,}, {format_bytes(facts['bytes'])}",
        f"stored     {stored}; {format_count(facts['blocks'], 'block')} of up to {format_bytes(facts['block_bytes'])}",
        f"checksum   {facts['checksum']}",
    ]
    for field in facts["fields"]:
        sizes = f"{format_bytes(field['bytes'])}, the largest {format_bytes(field['max_bytes'])}"
        lines.append(f"field      {field['name']}: in {format_count(field['samples'], 'sample')}, {sizes}")
    return "\n".join(lines)
