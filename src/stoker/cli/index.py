"""`stoker index URL`: a manifest for tars, or a tree of files, that exist."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, closing
from typing import Annotated, Any

import typer

from stoker.units import format_bytes, format_count, format_seconds


def index(
    url: Annotated[str, typer.Argument(help="Folder, tar, or several by {000..012} and globs.")],
    out: Annotated[str | None, typer.Option(help="Write the index there; default: beside the data.")] = None,
    include: Annotated[
        list[str] | None, typer.Option(help="Only files whose name (or path, if it has a slash) matches this glob.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="No files whose name (or path, if it has a slash) matches this glob.")
    ] = None,
    *,
    checksums: Annotated[
        bool, typer.Option("--checksums", help="Read every byte once and keep a crc32c of each field.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Index tar archives, or a tree of files, where they lie.

    They are read, never changed or copied. Of tars only the headers are read. Without --checksums objects are held to
    their size and version.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from stoker.dataset.index import IndexOptions
    from stoker.dataset.index import index as write_index
    from stoker.dataset.select import parse_address
    from stoker.store.open import open_store

    address = parse_address(url)
    options = IndexOptions(tuple(include or ()), tuple(exclude or ()), checksums)
    columns = TextColumn("indexing"), BarColumn(), MofNCompleteColumn()
    with ExitStack() as stack:
        source = stack.enter_context(closing(open_store(address.base)))
        place = stack.enter_context(closing(open_store(out))) if out is not None else None
        bar = stack.enter_context(
            Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
        )
        task = bar.add_task("indexing", total=None)

        def tell(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        report = write_index(source, address.pattern, place, options, tell)
    facts = report.to_json()
    typer.echo(json.dumps(facts) if as_json else _describe(facts))


def _describe(facts: dict[str, Any]) -> str:
    objects = format_count(facts["objects"], "archive" if facts["kind"] == "tar" else "file")
    verb = "already there" if facts["already_there"] else f"indexed in {format_seconds(facts['seconds'])}"
    held = "crc32c of each field" if facts["checksums"] else "size and version of each object (--checksums for more)"
    lines = [
        f"{verb}: {format_count(facts['samples'], 'sample')} ({format_bytes(facts['bytes'])}) in {objects}",
        f"index      {facts['index']}",
        f"digest     {facts['digest']}",
        f"fields     {', '.join(facts['fields'])}",
        f"held to    {held}",
    ]
    return "\n".join(lines + [f"left out   {count} {reason}" for reason, count in facts["skipped"].items()])
