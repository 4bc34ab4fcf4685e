"""`stoker verify URL`: is a data set, or are the checkpoints of a run, what they were?"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from stoker.errors import IntegrityError, NotFound
from stoker.units import format_bytes, format_count

if TYPE_CHECKING:
    from stoker.dataset.verify import Progress as Tell
    from stoker.store.base import Store

RUN_NAME: Final = "run.json"
STEP_NAME: Final = "MANIFEST.json"
DATASET_NAME: Final = "manifest.json"


def verify(
    url: Annotated[str, typer.Argument(help="A data set, the folder of a run, or one of its steps.")],
    index: Annotated[str | None, typer.Option(help="An index that does not lie beside the data.")] = None,
    *,
    deep: Annotated[bool, typer.Option("--deep", help="Read every byte and compare every checksum.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Verify a data set, or the checkpoints of a run.

    Manifests, tables, sizes and versions; with --deep every byte. Goes on after a fault and lists all of them. Exit
    code 4 if there is any.
    """
    from stoker.dataset.select import parse_address

    with _progress() as tell:
        steps = None if index is not None or parse_address(url).pattern else _verify_checkpoints(url, tell, deep=deep)
        facts = steps or _verify_dataset(url, index, tell, deep=deep)
    facts["deep"] = deep
    typer.echo(json.dumps(facts) if as_json else _describe(facts))
    if facts["faults"]:
        raise typer.Exit(IntegrityError.exit_code)


def _verify_dataset(url: str, index: str | None, tell: Tell, *, deep: bool) -> dict[str, Any]:
    from stoker.dataset.select import parse_address
    from stoker.dataset.verify import verify_dataset
    from stoker.store.open import open_store

    with ExitStack() as stack:
        data = stack.enter_context(closing(open_store(parse_address(url).base)))
        tables = stack.enter_context(closing(open_store(index))) if index is not None else data
        found = verify_dataset(tables, data, deep=deep, progress=tell)
    return {"kind": "dataset", "url": data.url} | asdict(found)


def _verify_checkpoints(url: str, tell: Tell, *, deep: bool) -> dict[str, Any] | None:
    """Verify the step, or all steps of the run, at `url`; None if there is neither, but perhaps a data set."""
    from stoker.checkpoint.layout import StepId
    from stoker.checkpoint.verify import verify_run, verify_step
    from stoker.store.open import open_store

    place = url if "://" in url else str(Path(url).resolve())
    with closing(open_store(place)) as found:
        if _holds(found, DATASET_NAME) or (not (is_step := _holds(found, STEP_NAME)) and not _holds(found, RUN_NAME)):
            return None
    above, _, name = place.rstrip("/").rpartition("/")
    step = StepId.parse(name)
    if is_step and step is None:
        raise NotFound(f"{name!r} is not the name of a committed step", above, "give the run's folder")
    with closing(open_store((above or "/") if is_step else place)) as home:
        if is_step and step is not None:
            steps = [verify_step(home, step, deep=deep, progress=tell)]
        else:
            steps = list(verify_run(home, deep=deep, progress=tell))
    return {
        "kind": "checkpoint",
        "url": place,
        "steps": [one.name for one in steps],
        "files": sum(one.files for one in steps),
        "read_bytes": sum(one.read_bytes for one in steps),
        "faults": [asdict(fault) for one in steps for fault in one.faults],
    }


def _holds(store: Store, name: str) -> bool:
    from stoker.values import Key

    try:
        store.stat(Key(name))
    except NotFound:
        return False
    return True


@contextmanager
def _progress() -> Iterator[Tell]:
    """A progress bar on stderr, if that is a terminal; gone when the work is done."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = TextColumn("verifying"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("verifying", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _describe(facts: dict[str, Any]) -> str:
    dataset = facts["kind"] == "dataset"
    what = format_count(facts["objects"], "object") if dataset else format_count(len(facts["steps"]), "step")
    depth = (
        f"{format_bytes(facts['read_bytes'])} read" if facts["deep"] else "sizes, versions and tables; not their bytes"
    )
    lines = [f"{facts['url']}: {what}, {depth}"]
    if facts.get("unchecked_bytes"):
        lines.append(f"{format_bytes(facts['unchecked_bytes'])} have no checksum: held to the version of their object")
    lines += [f"FAULT  {fault['error']}: {fault['what']}\n       {fault['where']}" for fault in facts["faults"]]
    return "\n".join([*lines, format_count(len(facts["faults"]), "fault") if facts["faults"] else "no fault"])
