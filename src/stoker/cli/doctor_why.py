"""`stoker doctor --why`: what starves the GPUs. Here the node's signals and the ledgers of runs come together."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stoker.cli.doctor_show import end_with, private_names

if TYPE_CHECKING:
    from stoker.doctor.moments import Window
    from stoker.doctor.node import Node
    from stoker.ledger import LedgerSnapshot
    from stoker.meter.attribute import Account

_RUNS_MAX = 16
_log = logging.getLogger("stoker.doctor")
_said: set[str] = set()  # it looks twice


def why(
    path: Annotated[str | None, typer.Argument(help="What the training reads; none: all devices count.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Between the two samples: 10, or what a folder says.")] = None,
    captured: Annotated[
        Path | None, typer.Option("--from", help="Two captures, t0/ and t1/, or samples NAME-t0 and NAME-t1.")
    ] = None,
    capture: Annotated[Path | None, typer.Option(help="Also write both captures there, redacted.")] = None,
    run: Annotated[str | None, typer.Option(help="The run whose ledger counts; else one that moves meanwhile.")] = None,
    nvme: Annotated[Path | None, typer.Option(help="The node's directory, as in stoker.open(nvme=DIR).")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Say what starves the GPUs.

    Throughput, network, metadata, CPU staging, several, or nothing. Looks twice. The ledger of a run of stoker counts
    before what GPUs, devices and links show.
    """
    from stoker.doctor.diagnose import read_when
    from stoker.doctor.moments import folder_window
    from stoker.doctor.node import LiveNode
    from stoker.doctor.signals import measure
    from stoker.doctor.stall import judge
    from stoker.doctor.stall_report import explain_stall, stall_json
    from stoker.errors import ConfigError

    if seconds is not None and not 0 < seconds <= 3600:  # noqa: PLR2004 - an hour is no stall any more
        raise ConfigError(f"--seconds {seconds:g} is out of range", hint="give more than 0 and at most 3600")
    if captured is not None and capture is not None:
        raise ConfigError("--capture and --from are both given", hint="a capture is made of this node only")
    folder = _NodeFolder(run, nvme, live=captured is None)
    if captured is not None:
        window = folder_window(captured, path or "", seconds)
    else:
        window = _look(_absolute(path), 10.0 if seconds is None else seconds, capture, folder.ceilings())
    read_s = LiveNode().clock_s() if captured is None else read_when(captured / "t1")
    signals = measure(window.before, window.after, window.facts)
    account = folder.account()
    if account is not None:
        signals = replace(signals, utilisation_ratio=account.utilisation, decode_wait_ratio=account.decode_ratio)
    found = judge(signals)
    more = {"attribution": stall_json(found, signals, window.facts.window_s)}
    end_with(explain_stall(found), [path] if path else [], more, read_s=read_s, as_json=as_json)


def _absolute(path: str | None) -> str:
    return os.path.abspath(path) if path else ""  # noqa: PTH100 - not resolved: that could wait for a dead mount


def _look(path: str, seconds: float, capture: Path | None, ceilings: Mapping[str, float]) -> Window:
    from stoker.doctor.capture import RecordingNode
    from stoker.doctor.moments import live_window
    from stoker.doctor.node import LiveNode
    from stoker.doctor.redact import Redactor

    kept: list[RecordingNode] = []

    def node() -> Node:
        if capture is None:
            return LiveNode()
        kept.append(RecordingNode(LiveNode()))
        return kept[-1]

    typer.echo(f"looking for {seconds:g} s", err=True)
    window = live_window(node, path, lambda: time.sleep(seconds), ceilings)
    if capture is not None:
        redactor = Redactor(private_names())
        for name, one in zip(("t0", "t1"), kept, strict=True):
            one.write(capture / name, redactor, [path] if path else [])
        typer.echo(f"both are in {capture}; look through them before you give them away", err=True)
    return window


class _NodeFolder:
    """The node's directory: ledgers of a run, or of all, read once before the window and once after; measurements.

    `live`: whether what moves meanwhile may be found by itself; of a folder only a named run counts.
    """

    def __init__(self, run: str | None, nvme: Path | None, *, live: bool) -> None:
        from stoker.config import load_config
        from stoker.tier.node import NodeDirectory, check_run_name, default_nvme

        self._run = check_run_name(run) if run is not None else None
        self._live = live
        config = load_config(os.environ, Path(), {"tiers.nvme.path": nvme}, uid=os.geteuid())
        self._node = NodeDirectory(config.tiers.nvme.path or default_nvme(os.environ, os.geteuid()))
        self._shared = config.tiers.shared.path
        self._before = self._read() if live else {}

    def account(self) -> Account | None:
        """What the run gained; of a named one that stands still, all of its last generation. Raises NotFound."""
        from stoker.errors import NotFound
        from stoker.meter.attribute import account, by_generation

        after = self._read()
        gained = [a for name, found in after.items() if (a := account(self._before.get(name, ()), found)) is not None]
        if self._run is not None:
            snapshots = after[self._run]
            if not snapshots:
                raise NotFound(f"no ledger of run {self._run!r}", str(self._node.run(self._run)), "check --run, --nvme")
            return gained[0] if gained else account((), list(by_generation(snapshots).values())[-1])
        return max(gained, key=lambda a: a.compute_ns + a.wait_ns, default=None)

    def ceilings(self) -> dict[str, float]:
        """What `stoker doctor storage` measured before: mount point -> bytes/s."""
        from stoker.doctor.storage_kept import kept_ceilings

        return kept_ceilings(self._node.measurements)

    def _read(self) -> dict[str, list[LedgerSnapshot]]:
        from stoker.meter.find import find_snapshots

        if self._run is not None:
            homes = [self._node.checkpoints(self._run)]
            homes += [self._shared / self._run] if self._shared is not None else []
            places = [self._node.run(self._run), *(home / "ledger" for home in homes)]
            return {self._run: find_snapshots(*places)}
        if not self._live:
            return {}
        found = {}
        for run in _recent_runs(self._node.root / "run"):
            with _closed_is_said():
                found[run.name] = find_snapshots(run)
        return found


def _recent_runs(folder: Path) -> list[Path]:
    from stoker.io.os_errors import translating

    found: list[Path] = []
    with (
        _closed_is_said(),
        translating("cannot look for runs", folder),
        suppress(FileNotFoundError, NotADirectoryError),
    ):
        found = sorted(folder.iterdir(), key=lambda p: p.stat().st_mtime)[-_RUNS_MAX:]
    return found


@contextmanager
def _closed_is_said() -> Iterator[None]:
    """Go on without what this user may not read: nobody named it, and the node itself is looked at."""
    from stoker.errors import AccessDenied

    try:
        yield
    except AccessDenied as error:
        if str(error) not in _said:
            _said.add(str(error))
            _log.warning("a run that trains here now may be missed: %s", error)
