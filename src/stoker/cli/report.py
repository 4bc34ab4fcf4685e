"""`stoker report RUN`: what a run waited for."""

from __future__ import annotations

import os
from json import dumps
from pathlib import Path
from typing import Annotated, Final

import typer

SHOWN_RUNS: Final = 5


def report(
    run: Annotated[str, typer.Argument(help="Name of the run; it may still be running.")],
    nvme: Annotated[Path | None, typer.Option(help="The node's directory, as in stoker.open(nvme=DIR).")] = None,
    shared: Annotated[Path | None, typer.Option(help="The shared directory, as in stoker.open(shared=DIR).")] = None,
    far: Annotated[
        str | None, typer.Option("--object", help="URL of the far store, as in stoker.open(object=URL).")
    ] = None,
    gpu_hour_price: Annotated[float | None, typer.Option(help="What one GPU costs an hour, in your currency.")] = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say how long training waited, for what, and what that cost.

    Reads the ledgers of the run on this node, in its home and in its far store. All waits are host time, not
    device idle.
    """
    from stoker.checkpoint.tiers import open_far
    from stoker.config import load_config
    from stoker.errors import ConfigError, NotFound
    from stoker.meter.find import find_far_snapshots, find_snapshots
    from stoker.meter.report import build_report
    from stoker.tier.node import NodeDirectory, check_run_name, default_nvme

    if "/" in run:
        raise ConfigError(
            f"the name of a run is wanted, not a path: {run!r}",
            hint="give the name alone; the folder that its folder lies in goes into --shared, or --nvme for the node's",
        )
    check_run_name(run)
    given = {
        "tiers.nvme.path": nvme,
        "tiers.shared.path": shared,
        "tiers.object.url": far,
        "report.gpu_hour_price": gpu_hour_price,
    }
    config = load_config(os.environ, Path(), given, uid=os.geteuid())
    node = NodeDirectory(config.tiers.nvme.path or default_nvme(os.environ, os.geteuid()))
    shared = config.tiers.shared.path
    homes = [node.checkpoints(run), *([shared / run] if shared is not None else [])]
    places = [node.run(run), *(home / "ledger" for home in homes)]
    snapshots = find_snapshots(*places)
    snapshots += find_far_snapshots(open_far(config.tiers.object, run), snapshots)
    if not snapshots:
        raise NotFound(
            f"no ledger of run {run!r}",
            where=", ".join(map(str, (*places, *filter(None, [config.tiers.object.url])))),
            hint=f"{_others(node.root / 'run', shared)}; give --nvme, --shared and --object as the run was opened with",
        )
    result = build_report(snapshots, gpu_hour_price=config.report.gpu_hour_price)
    typer.echo(dumps(result.to_json()) if json else str(result))


def _others(*roots: Path | None) -> str:
    """Which runs left ledgers in these places."""
    found = {path.parent.name for root in roots if root for path in root.glob("*/rank-*.ledger")}
    found |= {path.parent.parent.name for root in roots if root for path in root.glob("*/ledger/rank-*.ledger")}
    names = sorted(found)
    if not names:
        return "no run has left a ledger there"
    return f"there are {', '.join(map(repr, names[:SHOWN_RUNS]))}{', ...' if len(names) > SHOWN_RUNS else ''}"
