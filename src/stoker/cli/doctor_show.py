"""How the verbs of `stoker doctor` show what they found, and end."""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import typer

if TYPE_CHECKING:
    from stoker.doctor.finding import Finding


def end_with(
    findings: Sequence[Finding],
    targets: Sequence[str],
    more: Mapping[str, Any] | None = None,
    *,
    read_s: float | None,
    as_json: bool,
) -> NoReturn:
    """Print, and end with the exit code of the findings.

    `more`: further keys of the JSON. `read_s`: when the evidence was read, None if that is not known.
    """
    from stoker.doctor.finding import exit_code
    from stoker.doctor.text import describe, to_json

    typer.echo(json.dumps(to_json(findings, targets, read_s) | dict(more or {})) if as_json else describe(findings))
    raise typer.Exit(exit_code(findings))


def private_names() -> list[str]:
    """What a capture must not tell besides what the redactor finds by itself: this host and this user."""
    return [socket.gethostname(), _user()]


def _user() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        return ""
    return "" if name == "root" else name
