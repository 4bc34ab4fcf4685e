"""`stoker doctor storage`: a bounded measurement of a path, kept on the node."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stoker.cli.doctor_show import end_with

if TYPE_CHECKING:
    from stoker.doctor.storage import Place


def storage(
    path: Annotated[Path, typer.Argument(help="A directory on the storage to be measured.")],
    nvme: Annotated[Path | None, typer.Option(help="The node's directory, where the result is kept.")] = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Measure what a path can do.

    Reads in order and at random, writes with fsync, metadata; at most 20 s and 2 GiB. Past the page cache where the
    file system allows; writes only into a directory that it removes.
    """
    from stoker.config import load_config
    from stoker.doctor.storage import judge, plan_for, to_json
    from stoker.doctor.storage_kept import keep
    from stoker.doctor.storage_measure import run_bounded
    from stoker.errors import NotFound
    from stoker.io.os_errors import translating
    from stoker.tier.node import NodeDirectory, default_nvme

    directory = path.absolute()
    with translating("cannot measure", directory):
        if not directory.is_dir():
            raise NotFound("no such directory", str(directory), "give a directory on the storage to be measured")
        space = os.statvfs(directory)
    plan = plan_for(space.f_bavail * space.f_frsize, str(directory))
    if dry_run:
        text = (
            f"would write {plan.file_bytes:,} bytes in {directory}, read and remove them, in {plan.limit_s:g} s at most"
        )
        told = {"path": str(directory), "file_bytes": plan.file_bytes, "limit_s": plan.limit_s}
        typer.echo(json.dumps(told) if as_json else text)
        return
    config = load_config(os.environ, Path(), {"tiers.nvme.path": nvme}, uid=os.geteuid())
    node = NodeDirectory.open(config.tiers.nvme.path or default_nvme(os.environ, os.geteuid()))
    typer.echo(f"measuring for up to {plan.limit_s:g} s", err=True)
    found = run_bounded(directory, plan)
    place, clock_s = _place(str(directory))
    measurement = to_json(found, place, clock_s)
    kept = keep(node.measurements, measurement)
    typer.echo(f"kept in {kept}", err=True)
    end_with(judge(found, place), [str(path)], {"measurement": measurement}, read_s=clock_s, as_json=as_json)


def _place(path: str) -> tuple[Place, float]:
    from stoker.doctor.identity import identify
    from stoker.doctor.node import LiveNode, Missing
    from stoker.doctor.storage import Place, link_limit

    node = LiveNode()
    identity = identify(node, path)
    if isinstance(identity, Missing):
        return Place(path, path, "", "", None), node.clock_s()
    device = identity.device.name if identity.device else ""
    mount = identity.mount
    return Place(path, mount.point, mount.fs_type, device, link_limit(node, identity)), node.clock_s()
