"""`stoker demo`: the main job in half a minute, with proof."""

from __future__ import annotations

import json
import tempfile
import uuid
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from stoker.config_values import user_path
from stoker.errors import ConfigError, UnsupportedError
from stoker.io.os_errors import translating
from stoker.units import format_bytes, format_count, format_seconds

LEAST_STEPS = 35  # with a save every 20 steps and the kill at 5/7, there must be one save to resume from


def demo(
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Keep the data there; default: a temporary directory.")
    ] = None,
    steps: Annotated[int, typer.Option(help=f"Training steps, at least {LEAST_STEPS}.")] = 70,
    far: Annotated[
        str | None, typer.Option("--object", help="URL of an object tier; the killed run then loses its directory.")
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Pack, train, kill, resume, and prove that nothing changed.

    Real files are packed, a small model is trained on them, the run is killed and resumed. Exit code 1 if anything
    does not hold.
    """
    from stoker.demo.prove import demonstrate
    from stoker.io.atomic import make_dirs

    if find_spec("torch") is None:
        raise UnsupportedError(
            "the demo trains with PyTorch, which is not installed", hint="make demo, or pip install torch"
        )
    if steps < LEAST_STEPS:
        raise ConfigError(f"{steps} steps are too few to kill and resume", hint=f"use --steps {LEAST_STEPS} or more")
    with ExitStack() as stack:
        wanted = user_path(directory) if directory is not None else Path(tempfile.gettempdir())
        with translating("cannot keep the data of the demo", wanted, hint="choose another directory with --dir"):
            place = wanted
            if directory is None:
                place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stoker-demo-")))
            make_dirs(place)
        unused = f"{far.rstrip('/')}/stoker-demo-{uuid.uuid4().hex[:12]}" if far else ""
        facts = demonstrate(place.resolve(), steps, lambda text: typer.echo(f"... {text}", err=True), unused)
    facts["object"] = unused or None
    failures = failed_claims(facts)
    facts["holds"] = not failures
    typer.echo(json.dumps(facts) if as_json else describe(facts))
    for failure in failures:
        typer.echo(f"stoker: DOES NOT HOLD: {failure}", err=True)
    if failures:
        raise typer.Exit(1)


def failed_claims(facts: dict[str, Any]) -> list[str]:
    """What the demo claims and the facts deny; empty when everything holds."""
    training, wait, checkpoint = facts["training"], facts["wait"], facts["checkpoint"]
    slow_by_cause = wait["slow_store_by_cause"]
    claims = {
        "the resumed run sees the same batches": training["batches_identical"],
        "the bytes of the batches are those of the source files": training["batches_are_the_source_files"],
        "the resumed run ends with the same weights, bit for bit": training["weights_identical"],
        "a run resumed without the saved RNG differs, so the comparison can fail": training["control_differs"],
        "the run was killed after the step it resumed from": training["resumed_from_step"]
        <= training["killed_at_step"],
        "the loss falls": training["loss_last"] < training["loss_first"],
        "the report of the slow store names fetch": max(slow_by_cause, key=slow_by_cause.get) == "fetch",
        "prefetch hides the slow store": wait["ratio_slow_store"] < wait["ratio_slow_store_no_prefetch"],
        "the checkpoint was verified when it was restored": checkpoint["verified"],
        "it came from the object tier where there is one, else from its directory": checkpoint["restored_from"]
        == ("object" if facts["object"] else "nvme"),
    }
    return [claim for claim, holds in claims.items() if not holds]


def describe(facts: dict[str, Any]) -> str:
    """The facts as a person reads them."""
    dataset, training, wait, checkpoint = (facts[name] for name in ("dataset", "training", "wait", "checkpoint"))
    yes = {True: "yes", False: "NO"}
    rows = {
        "data set": f"{format_count(dataset['samples'], 'sample')}, {format_bytes(dataset['bytes'])} in "
        f"{format_count(dataset['shards'], 'shard')}, "
        f"digest {dataset['digest'][:12]}",
        "training": f"{training['steps']} steps; loss every tenth step: "
        + "  ".join(f"{loss:.2f}" for loss in [*training["losses"][::10], training["loss_last"]]),
        "killed at": f"step {training['killed_at_step']} (SIGKILL); resumed from step {training['resumed_from_step']}",
        "identical": f"batches {yes[training['batches_identical']]}, their bytes those of the source files "
        f"{yes[training['batches_are_the_source_files']]}, weights {yes[training['weights_identical']]}, "
        f"bit for bit; the control without the saved RNG differs: {yes[training['control_differs']]}",
        "waited": f"{wait['ratio']:.1%} of the time for storage; accelerator utilisation {wait['utilisation']:.1%}",
        "  by cause": ", ".join(f"{cause} {format_seconds(s)}" for cause, s in wait["by_cause"].items()),
        "slow store": f"waited {wait['ratio_slow_store_no_prefetch']:.1%} without prefetch, "
        f"{wait['ratio_slow_store']:.1%} with it",
        "read": format_bytes(facts["bytes_read"]),
        "checkpoints": f"{checkpoint['count']} saved, {format_bytes(checkpoint['bytes'])}; training stood still "
        f"{format_seconds(checkpoint['blocked_s_median'])} each; "
        f"verified when restored, from {checkpoint['restored_from']}: {yes[bool(checkpoint['verified'])]}",
    }
    return "\n".join(f"{name:<12}  {text}" for name, text in rows.items())
