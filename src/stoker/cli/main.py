"""The command line: parse, call, map errors to exit codes. One file a verb beside this one."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import sys
from contextlib import suppress
from typing import Annotated

import typer

from stoker._version import VERSION
from stoker.cli.cat import cat
from stoker.cli.config import config
from stoker.cli.demo import demo
from stoker.cli.doctor import doctor
from stoker.cli.head import head
from stoker.cli.index import index
from stoker.cli.ls import ls
from stoker.cli.pack import pack
from stoker.cli.report import report
from stoker.cli.show import show
from stoker.cli.verify import verify
from stoker.errors import CapacityError, StokerError
from stoker.io.limits import within_limits

app = typer.Typer(
    name="stoker",
    help="The storage runtime that keeps GPUs fed.",
    epilog="Example: stoker pack photos photos-train, then stoker show photos-train. From Python: help(stoker).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """The storage runtime that keeps GPUs fed."""
    if version:
        typer.echo(f"stoker {VERSION}")
    elif context.invoked_subcommand is None:
        context.fail("no verb is given; stoker --help lists them")


app.command(name="pack", epilog="Example: stoker pack photos s3://bucket/train --include '*.jpg'")(pack)
app.command(name="index", epilog="Example: stoker index 'tars/train-{000000..000012}.tar'")(index)
app.command(name="ls", epilog="Example: stoker ls photos-train --limit 5")(ls)
app.command(name="show", epilog="Example: stoker show photos-train")(show)
app.command(name="cat", epilog="Example: stoker cat photos-train cat/001 --field jpg > 001.jpg")(cat)
app.command(name="head", epilog="Example: stoker head photos-train -n 5")(head)
app.command(name="verify", epilog="Example: stoker verify photos-train --deep")(verify)
app.command(name="report", epilog="Example: stoker report run-42")(report)
app.command(name="demo", epilog="Example: stoker demo --dir kept")(demo)
app.add_typer(config)
app.add_typer(doctor)


def _error_json(error: StokerError) -> str:
    return json.dumps(
        {
            "error": type(error).__name__,
            "what": error.what,
            "where": error.where,
            "hint": error.hint,
            "exit_code": error.exit_code,
            "retryable": error.retryable,
        }
    )


def _forget_stdout() -> None:
    """What is still to be written goes nowhere: the interpreter would try again when it ends, and complain."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def _write_all_text() -> None:
    """What a terminal or a pipe has no characters for is written as escapes, as in a Python string."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _go_on_in_utf_8() -> None:
    """Names in data sets are UTF-8, and so are those of files that become samples. Where Python was told to read names
    and arguments otherwise, begin again as it was called, in its UTF-8 mode; returns only if that is not possible.
    """
    if sys.getfilesystemencoding() == "utf-8" or os.environ.get("PYTHONUTF8") == "1" or not sys.executable:
        return
    with suppress(OSError):
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "PYTHONUTF8": "1"})  # noqa: S606  our own command line


def run(arguments: list[str]) -> int:
    """Run the command line with `arguments`; returns the exit code. Errors go to stderr, results to stdout.

    With `--json` an error is one JSON object on stderr, so that stdout holds a result or nothing. A wrong command
    line ends with 2, Ctrl-C with 130. A reader that closes stdout, as head does, ends it with 1 and no word; a stdout
    that cannot be written to is an error.
    """
    _write_all_text()
    try:
        try:
            with within_limits("cannot go on"):
                app(args=arguments, prog_name="stoker")
        finally:
            if sys.stdout is not None:  # it was closed before we began
                sys.stdout.flush()
    except StokerError as error:
        text = _error_json(error) if "--json" in arguments else f"stoker: {error}"
        typer.echo(text, err=True)
        return error.exit_code
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except BrokenPipeError:
        _forget_stdout()
        return 1
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF):
            raise
        _forget_stdout()
        typer.echo(f"stoker: cannot write the result to stdout: {(error.strerror or str(error)).lower()}", err=True)
        return CapacityError.exit_code if error.errno in (errno.ENOSPC, errno.EDQUOT) else 1
    return 0


def main() -> None:
    """Entry point of the `stoker` command."""
    _go_on_in_utf_8()
    logging.basicConfig(format="stoker: %(levelname)s: %(message)s")  # warnings of the rooms, on stderr
    sys.exit(run(sys.argv[1:]))
