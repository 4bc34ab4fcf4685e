"""`stoker doctor gds`: whether a path can go directly to a GPU, and with --probe whether it does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from stoker.cli.doctor_show import end_with


def gds(
    path: Annotated[str, typer.Argument(help="A file, or a directory that holds one of at least 4 KiB.")],
    *,
    probe: Annotated[bool, typer.Option("--probe", help="Also read up to 64 MiB of the file into a GPU.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Say whether reads of a path go directly to a GPU.

    Predicted by rules, or with --probe counted. The probe only reads, in a child with 20 s, without
    compatible mode; it reports the rung of proof, P0 to P3. Without a GPU nothing is loaded and the answer is unknown.
    """
    from stoker.doctor.gds_probe import Observation, Stage, cannot_probe, choose_file, diagnose_gds, run_child
    from stoker.doctor.node import LiveNode

    node = LiveNode()
    where = os.path.abspath(path)  # noqa: PTH100 - not resolved: that could wait for a dead mount
    seen = None
    if probe:
        why_not = cannot_probe(node)
        file = None if why_not else choose_file(Path(where))
        if why_not or file is None:
            seen = Observation(Stage.NOT_STARTED, why_not or "there is no file of at least 4 KiB to read")
        else:
            typer.echo(f"reading {file}", err=True)
            seen = run_child(file)
    found, more = diagnose_gds(node, where, seen)
    end_with(found, [path], {"gds": more}, read_s=node.clock_s(), as_json=as_json)
