"""What the scripts share: their options, children of their own, tables, and where results go."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
QUIET_LOAD = 1.5  # above it a machine does other work that counts

Json = dict[str, Any]


def options(about: str | None) -> argparse.ArgumentParser:
    """The options that every script has."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke test: its numbers mean nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(tempfile.gettempdir(), f"stoker-bench-{os.geteuid()}"),
        metavar="FOLDER",
        help="where the data sets are made, about 3 GB, and kept",
    )
    return parser


def save(path: Path | None, document: Json) -> None:
    """Write what was measured, if it is wanted."""
    if path is not None:
        path.write_text(json.dumps(document, indent=1) + "\n")


def say(line: str) -> None:
    """Progress."""
    print(line, file=sys.stderr, flush=True)


def end(process: subprocess.Popen[str]) -> None:
    """End a child and the workers it started: they are a session of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def ask(command: Sequence[str], timeout_s: float) -> Json | str:
    """The JSON object in the last line that a child prints, or why there is none."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        out, err = "", f"not done after {timeout_s:.0f} s"
    finally:
        end(process)
    if process.returncode != 0 or not out:
        lines = [line for line in err.splitlines() if line.strip()] or [f"exit code {process.returncode}"]
        return lines[-1].strip()
    found: Json = json.loads(out.splitlines()[-1])
    return found


def warning(load: float) -> str:
    """What must be said of numbers that were measured at this load average; empty on a quiet machine."""
    if load <= QUIET_LOAD:
        return ""
    return f"WARNING: the load average was {load:.1f} at the start, above {QUIET_LOAD}: do not quote these numbers"


def middle(values: Sequence[float]) -> float:
    return statistics.median(values)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table; the first row is its head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)
