"""`stoker doctor`: what is wrong with this node's storage, and what captured outputs say. More verbs lie beside."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from stoker.cli.doctor_gds import gds
from stoker.cli.doctor_show import end_with, private_names
from stoker.cli.doctor_storage import storage
from stoker.cli.doctor_why import why

if TYPE_CHECKING:
    from stoker.doctor.check import Target
    from stoker.doctor.finding import Finding

_DEFAULT = "check"
_WHY = "--why"


class _DefaultGroup(TyperGroup):
    """`stoker doctor PATH` is `stoker doctor check PATH`, and `stoker doctor --why` is `stoker doctor why`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        first = args[0] if args else ""
        if first not in self.commands and first not in ("--help", "-h"):
            named = args[: args.index("--")] if "--" in args else args
            if _WHY in named:
                at = args.index(_WHY)
                args = ["why", *args[:at], *args[at + 1 :]]
            else:
                args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)


doctor = typer.Typer(
    name="doctor",
    cls=_DefaultGroup,
    help="""Say what is wrong with this node's storage.

    `stoker doctor PATH` is `stoker doctor check PATH`.""",
    epilog="Example: stoker doctor /mnt/data",
    rich_markup_mode=None,
)


@doctor.command(name="check", epilog="Example: stoker doctor check /mnt/data --json")
def check(
    targets: Annotated[
        list[str] | None, typer.Argument(help="Paths, or URLs of object stores; none: the node.")
    ] = None,
    capture: Annotated[Path | None, typer.Option(help="Also write what was read there, redacted.")] = None,
    captured: Annotated[
        Path | None, typer.Option("--from", help="Look at a capture, or a folder of samples, not at this node.")
    ] = None,
    *,
    probe: Annotated[bool, typer.Option("--probe", help="Also try a conditional write to given buckets.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Look at the node and what lies under the given paths.

    Says what is wrong, the evidence and the fix, in about two seconds; an object store may take ten more. Only reads,
    without --probe, and needs no rights. Ends with 0 if all is well, 1 on a warning, 2 on a failure, 3 if it could not
    look.
    """
    from stoker.doctor.capture import RecordingNode
    from stoker.doctor.check import Target
    from stoker.doctor.diagnose import diagnose, diagnose_folder, read_when
    from stoker.doctor.node import LiveNode
    from stoker.doctor.redact import Redactor
    from stoker.errors import ConfigError

    # Not resolved: that could wait for a dead mount. The checks do it, with a deadline.
    asked = [Target(text if "://" in text else os.path.abspath(text)) for text in targets or []]  # noqa: PTH100
    if captured is not None:
        if capture is not None:
            raise ConfigError("--capture and --from are both given", hint="a capture is made of this node only")
        given = [Target(text) for text in targets or []]
        end_with(diagnose_folder(captured, given), [t.text for t in given], read_s=read_when(captured), as_json=as_json)
    begun_s = LiveNode().clock_s()
    if capture is None:
        found = diagnose(LiveNode(), asked) + _stores(asked, probe=probe)
        end_with(found, [t.text for t in asked], read_s=begun_s, as_json=as_json)
    node = RecordingNode(LiveNode())
    found = diagnose(node, asked)
    count = node.write(capture, Redactor(private_names()), [t.text for t in asked])
    typer.echo(f"{count} files are in {capture}; look through them before you give them away", err=True)
    found += _stores(asked, probe=probe)
    end_with(found, [t.text for t in asked], read_s=begun_s, as_json=as_json)


def _stores(targets: list[Target], *, probe: bool) -> list[Finding]:
    """Findings of the targets that are URLs; without one the clients of object stores are not loaded."""
    from stoker.doctor.node import LiveNode

    if not any(target.url for target in targets):
        return []
    from stoker.doctor.object_store import diagnose_stores

    return diagnose_stores(LiveNode(), targets, probe=probe)


@doctor.command(name="explain", epilog="Example: stoker doctor explain gdscheck.txt cufile.log")
def explain(
    what: Annotated[list[str], typer.Argument(help="KIND or auto, if wanted, then files.", metavar="[KIND] FILES")],
    seconds: Annotated[float | None, typer.Option(help="Time between two samples of the same counters.")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Say what outputs of other tools mean, wherever they come from.

    gdscheck -p, cufile.log, mountinfo, and more. What a file is is told from its content. Files of the same counters
    that follow each other are compared.
    """
    from stoker.doctor.diagnose import explain_files
    from stoker.doctor.registry import KIND_NAMES
    from stoker.errors import ConfigError

    known = what[0] == "auto" or what[0] in KIND_NAMES
    name, files = (what[0], what[1:]) if known else ("auto", what)
    if not files:
        raise ConfigError(f"no file is given to explain as {name!r}", hint=f"kinds are {', '.join(KIND_NAMES)}")
    end_with(explain_files([Path(file) for file in files], name, seconds), files, read_s=None, as_json=as_json)


doctor.command(name="why", epilog="Example: stoker doctor why /mnt/data --seconds 30")(why)
doctor.command(name="storage", epilog="Example: stoker doctor storage /mnt/data")(storage)
doctor.command(name="gds", epilog="Example: stoker doctor gds /mnt/data --probe")(gds)
