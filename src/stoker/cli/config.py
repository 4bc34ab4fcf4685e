"""`stoker config show`: every setting, and where its value comes from."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

config = typer.Typer(
    name="config",
    help="Settings, and where they come from.",
    epilog="Example: stoker config show",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@config.command(name="show", epilog="Example: stoker config show")
def show(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Show every setting: its value, and where that comes from.

    From the default, a line of stoker.toml, or a variable of the environment.
    """
    facts = config_facts()
    typer.echo(json.dumps(facts) if as_json else _describe(facts))


def config_facts() -> dict[str, Any]:
    """What `config show --json` prints: the file that was read, if any, and the settings of this process."""
    from stoker.config import load_config
    from stoker.tier.node import default_nvme

    found = load_config(os.environ, Path(), uid=os.geteuid())
    rows = [{**setting.to_json(), "text": str(setting)} for setting in found.settings()]
    for row in rows:
        if row["name"] == "tiers.nvme.path" and row["value"] is None:
            row["value"] = row["text"] = str(default_nvme(os.environ, os.geteuid()))
    return {"file": str(found.file) if found.file is not None else None, "settings": rows}


def _describe(facts: dict[str, Any]) -> str:
    rows = facts["settings"]
    names, values = (max(len(row[column]) for row in rows) for column in ("name", "text"))
    lines = [f"{row['name']:<{names}}  {row['text']:<{values}}  {row['source']}" for row in rows]
    return "\n".join([f"file  {facts['file'] or 'none'}", *lines])
