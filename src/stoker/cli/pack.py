"""`stoker pack SOURCE DESTINATION`: a folder of files becomes a data set."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stoker.errors import ConfigError
from stoker.units import format_bytes, format_count, format_rate, format_seconds, parse_bytes

if TYPE_CHECKING:
    from stoker.dataset.pack import Progress as TellProgress


def pack(
    source: Annotated[
        Path, typer.Argument(help="Folder of files; a/b.jpg is field jpg of sample a/b.", readable=False)
    ],
    destination: Annotated[str, typer.Argument(help="Path or URL of the data set.")],
    shard_size: Annotated[str, typer.Option(help="A shard is closed before it would pass this size.")] = "64MiB",
    include: Annotated[
        list[str] | None, typer.Option(help="Only files whose name (or path, if it has a slash) matches this glob.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="No files whose name (or path, if it has a slash) matches this glob.")
    ] = None,
    prefix: Annotated[str, typer.Option(help="Put this before all keys.")] = "",
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be written.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Pack a folder of files into tar shards with a manifest.

    The same files give the same bytes. Killed, it goes on where it stopped when it is run again.
    """
    from stoker.dataset.pack import PackOptions, plan_pack
    from stoker.dataset.pack import pack as write_dataset
    from stoker.store.open import open_store

    options = PackOptions(
        shard_bytes=parse_bytes(shard_size), include=tuple(include or ()), exclude=tuple(exclude or ()), prefix=prefix
    )
    if destination.lower().startswith("memory://"):
        raise ConfigError(
            "a data set in memory would be gone when this command ends",
            where=destination,
            hint="give a path or s3://BUCKET/PREFIX; from Python, memory:// works with stoker.writer()",
        )
    if dry_run:
        facts = {"dataset": destination, **plan_pack(source, options).to_json()}
        typer.echo(json.dumps(facts) if as_json else _would_write(facts))
        return
    with closing(open_store(destination)) as store, _progress() as tell:
        report = write_dataset(source, store, options, tell)
    typer.echo(json.dumps(report.to_json()) if as_json else _written(report.to_json()))


@contextmanager
def _progress() -> Iterator[TellProgress]:
    """A progress bar on stderr, if that is a terminal; gone when the work is done."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = TextColumn("packing"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn()
    with Progress(
        *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task("packing", total=None)
        yield lambda done, total, _files: bar.update(task, completed=done, total=total)


def _would_write(facts: dict[str, Any]) -> str:
    return (
        f"would pack {format_count(facts['files'], 'file')} ({format_bytes(facts['bytes'])}) as"
        f" {format_count(facts['samples'], 'sample')} in {format_count(facts['shards'], 'shard')},"
        f" {format_count(facts['blocks'], 'block')}, to {facts['dataset']}\n"
        f"fields: {', '.join(facts['fields'])}"
    )


def _written(facts: dict[str, Any]) -> str:
    shards = format_count(facts["shards"], "shard")
    samples = f"{format_count(facts['samples'], 'sample')} ({format_bytes(facts['bytes'])}) in {shards}"
    if facts["already_there"]:
        head = f"already there: {samples}"
    else:
        rate = format_rate(facts["bytes"] / max(facts["seconds"], 1e-9))
        head = (
            f"packed {format_count(facts['files'], 'file')} as {samples} in {format_seconds(facts['seconds'])} ({rate})"
        )
        if facts["skipped_shards"]:
            head += f"; {format_count(facts['skipped_shards'], 'shard')} left by an earlier run"
    left_out = f"; left out {facts['skipped_files']} that are no regular files" if facts["skipped_files"] else ""
    return f"{head}{left_out}\n{facts['dataset']}  digest {facts['digest']}"
