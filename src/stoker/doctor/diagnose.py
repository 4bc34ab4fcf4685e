"""What the command line calls: a node looked at, a capture or a folder of samples read, texts explained."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from stoker.doctor.capture import CapturedNode
from stoker.doctor.check import Target, run_checks
from stoker.doctor.finding import Finding
from stoker.doctor.kinds import Sample, explain
from stoker.doctor.node import LiveNode, Missing, Node
from stoker.doctor.registry import CHECKS, KINDS
from stoker.doctor.signals import facts_of_meta
from stoker.errors import AccessDenied, FormatError, NotFound
from stoker.io.os_errors import translating

# What is given as a file may be a long log, of which all counts.
_FILE_LIMIT_BYTES: Final = 64 << 20
_MOMENT: Final = re.compile(r"^(.*)-t(\d+)(\.\w+)?$")


def diagnose(node: Node, targets: Sequence[Target]) -> list[Finding]:
    """Findings of all checks. Ends in about 2 s, whatever hangs."""
    return run_checks(CHECKS, node, targets)


def explain_files(paths: Sequence[Path], name: str = "auto", between_s: float | None = None) -> list[Finding]:
    """Findings of given files, by the kind `name` or by their content.

    Raises:
        NotFound, AccessDenied, FormatError: a file is not there, may not be read, or is none.
    """
    return explain([Sample(sample_text(path), str(path)) for path in paths], KINDS, name=name, between_s=between_s)


def diagnose_folder(directory: Path, targets: Sequence[Target]) -> list[Finding]:
    """Findings of a capture (a folder with `root/`), else of a folder of samples, each by its content.

    Of a folder of samples `NAME-t0` and `NAME-t1` are two moments of one thing; the seconds between them are `window_s`
    of its `meta.json`, if it has one.

    Raises:
        NotFound: it is no folder, or there is nothing in it.
        AccessDenied: it, or a file in it, is closed to this user.
    """
    with looking_into(directory):
        is_capture = (directory / "root").is_dir() or (directory / "capture.json").is_file()
    if is_capture:
        node = CapturedNode(directory)
        return diagnose(node, targets or [Target(text) for text in node.targets])
    findings: list[Finding] = []
    for series in sample_series(directory):
        between_s = _window_s(directory) if len(series) == len(("t0", "t1")) else None
        findings += explain([Sample(sample_text(path), path.name) for path in series], KINDS, between_s=between_s)
    return findings


def read_when(directory: Path) -> float | None:
    """When a capture was made, in seconds since 1970; None for a folder of samples, of which it is not known."""
    with looking_into(directory):
        is_capture = (directory / "capture.json").is_file()
    return CapturedNode(directory).clock_s() if is_capture else None


def _window_s(directory: Path) -> float | None:
    """Seconds between the two moments of a folder of samples, as its meta.json says."""
    text = LiveNode().read(str((directory / "meta.json").absolute()))
    window_s = facts_of_meta(text, []).window_s if isinstance(text, str) else None
    return window_s if window_s is not None and window_s > 0 else None


def sample_series(directory: Path) -> list[list[Path]]:
    """The samples in a folder; those that are moments of one thing together, by time. meta.json is about the others.

    Raises:
        NotFound: it is no folder, or there is nothing in it.
        AccessDenied: it is closed to this user.
    """
    with looking_into(directory):
        files = sorted(p for p in directory.iterdir() if p.is_file()) if directory.is_dir() else []
    series: dict[str, list[tuple[int, Path]]] = {}
    for path in files:
        match = _MOMENT.match(path.name)
        key = match[1] + (match[3] or "") if match else path.name
        if path.name != "meta.json":
            series.setdefault(key, []).append((int(match[2]) if match else 0, path))
    if not series:
        raise NotFound("no capture and no samples", where=str(directory), hint="give a folder made by --capture")
    return [[path for _, path in sorted(found)] for found in series.values()]


def looking_into(directory: Path) -> AbstractContextManager[None]:
    """What the kernel refuses meanwhile is an error that names the folder."""
    return translating("cannot look into the folder", directory)


def sample_text(path: Path) -> str:
    """The text of a sample.

    Raises:
        NotFound, AccessDenied, FormatError: it is not there, may not be read, or is none.
    """
    found = LiveNode().read(str(path.absolute()), _FILE_LIMIT_BYTES)
    if isinstance(found, Missing):
        if found.reason == "no such file":
            raise NotFound("no such file", where=str(path))
        if found.denied:
            raise AccessDenied("the file may not be read", where=str(path))
        raise FormatError(f"the file cannot be read: {found.reason}", where=str(path))
    return found
