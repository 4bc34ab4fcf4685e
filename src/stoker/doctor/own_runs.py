"""What runs left on this node: steps that did not get on, and their accounts of waits."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from stoker.doctor import own_ids as ids
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.node import Missing, Node
from stoker.errors import StokerError
from stoker.ledger import Cause, Counter, LedgerSnapshot, parse_ledger, utilisation

if TYPE_CHECKING:
    from stoker.checkpoint.layout import StepId

MAX_RUNS: Final = 50
MAX_LEDGERS: Final = 24  # each takes some 10 ms
_MAX_FILES: Final = 4096
_GOOD_UTILISATION: Final = 0.90
_LEDGER: Final = re.compile(r"rank-(\d{1,9})\.g(\d{1,9})\.ledger")


def runs_in(node: Node, folder: str) -> list[str]:
    """The folders of runs in a place for checkpoints, by their run.json."""
    names = node.listing(folder)
    there = () if isinstance(names, Missing) else names[:MAX_RUNS]
    if not there:
        return []
    from stoker.checkpoint.layout import RUN_KEY  # noqa: PLC0415  numpy comes with it: 0.1 s where no run is

    return [f"{folder}/{name}" for name in there if node.readable(f"{folder}/{name}/{RUN_KEY}")]


def steps_in(names: Sequence[str], suffix: str = "") -> list[StepId]:
    """The steps whose directory has this suffix, oldest first."""
    from stoker.checkpoint.layout import StepId  # noqa: PLC0415  as above

    found = [StepId.parse(name.removesuffix(suffix)) for name in names if name.endswith(suffix)]
    return sorted(step for step in found if step is not None)


def newest_step_bytes(node: Node, run: str) -> int:
    """How much the newest step of a run takes; 0 if there is none. One stat a file, up to some thousand."""
    names = node.listing(run)
    steps = [] if isinstance(names, Missing) else steps_in(names)
    files = node.listing(f"{run}/{steps[-1].name}") if steps else ()
    sizes = (
        [node.stat(f"{run}/{steps[-1].name}/{name}") for name in files[:_MAX_FILES]] if isinstance(files, tuple) else []
    )
    return sum(state.size_bytes for state in sizes if not isinstance(state, Missing))


def judge_run(node: Node, run: str, *, alone: bool) -> list[Finding]:
    """Steps of a run that were given up, are not finished, or did not reach the far tier. `alone`: no other tier."""
    names = node.listing(run)
    if isinstance(names, Missing):
        return []
    found: list[Finding] = []
    committed = steps_in(names)
    for step in steps_in(names, ".undrained"):
        if step in committed:
            line = _note(node, f"{run}/{step.undrained}")
            what = f"step {step.step} is committed here, but did not reach the far tier"
            if step == committed[-1]:
                found.append(ids.STRANDED.warn(run, what, line))
            else:
                found.append(ids.STRANDED.info(run, f"{what}; a newer step is here", line))
    given_up = steps_in(names, ".aborted")
    for step in given_up:
        line = _note(node, f"{run}/{step.aborted}")
        found.append(ids.UNFINISHED.warn(run, f"the save of step {step.step} was given up", line))
    for step in steps_in(names, ".partial"):
        if step not in given_up and step not in committed:
            what = f"the save of step {step.step} is not finished: it is at work, or was killed"
            found.append(ids.UNFINISHED.info(run, what, Evidence(step.partial, run)))
    if alone and committed:
        what = f"its newest step, {committed[-1].step}, lies on this node alone"
        found.append(ids.ONE_PLACE.info(run, what, Evidence(committed[-1].name, run)))
    return found


def judge_far(node: Node, run: str, far_url: str) -> list[Finding]:
    """Whether the newest committed step is in the far tier: seen in a folder, not asked of a server.

    A process that was killed leaves no note that a step did not get there.
    """
    listed = node.listing(run)
    names = () if isinstance(listed, Missing) else listed
    committed = steps_in(names)
    if not committed or committed[-1].undrained in names:
        return []
    step, place = committed[-1], f"{far_url.rstrip('/')}/{posixpath.basename(run)}/{committed[-1].name}"
    if not place.startswith("file://"):
        what = f"whether its newest step, {step.step}, reached {far_url} was not looked at"
        return [ids.STRANDED.info(run, what, Evidence(step.name, run))]
    from stoker.checkpoint.layout import MANIFEST_NAME  # noqa: PLC0415  as above

    manifest = f"{place.removeprefix('file://')}/{MANIFEST_NAME}"
    if node.readable(manifest):
        return [
            ids.STRANDED.ok(run, f"its newest step, {step.step}, is in the far tier too", Evidence(step.name, place))
        ]
    what = f"its newest step, {step.step}, is not in the far tier: it is on its way if the run is at work"
    return [ids.STRANDED.warn(run, what, Evidence("no such file", manifest))]


def _note(node: Node, folder: str) -> Evidence:
    """The reason that a rank noted; the first that can be read."""
    from stoker.checkpoint.layout import receipt_name  # noqa: PLC0415  as above

    names = node.listing(folder)
    for name in (receipt_name(0), *(names if isinstance(names, tuple) else ())):
        text = node.read(f"{folder}/{name}", 1 << 16)
        try:
            value = json.loads(text) if isinstance(text, str) else None
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and isinstance(value.get("reason"), str):
            return Evidence(value["reason"], f"{folder}/{name}")
    return Evidence("no reason is noted", folder)


# ---- ledgers


def read_ledgers(node: Node, folder: str) -> tuple[list[LedgerSnapshot], list[Finding]]:
    """The ledgers of the newest generation in a run's folder, and those that cannot be read."""
    names = node.listing(folder)
    matches = [m for name in (names if isinstance(names, tuple) else ()) if (m := _LEDGER.fullmatch(name))]
    newest = max((int(match[2]) for match in matches), default=0)
    snapshots: list[LedgerSnapshot] = []
    found: list[Finding] = []
    for match in [m for m in matches if int(m[2]) == newest][:MAX_LEDGERS]:
        path = f"{folder}/{match[0]}"
        image = node.read_bytes(path)
        if isinstance(image, Missing):
            if "capture" not in image.reason:
                found.append(ids.LEDGER.unknown(path, "cannot be read", Evidence(image.reason, path)))
            continue
        try:
            snapshots.append(parse_ledger(image, path))
        except StokerError as error:
            found.append(ids.LEDGER.unknown(path, "cannot be read", Evidence(error.what, path)))
    return snapshots, found


def judge_ledgers(run: str, snapshots: Sequence[LedgerSnapshot]) -> list[Finding]:
    """What the newest start of a run says of itself."""
    found: list[Finding] = []
    if not snapshots:
        return found
    counted = {counter: sum(s.counters[counter] for s in snapshots) for counter in Counter}
    source = f"ledgers of generation {snapshots[0].identity.generation}"
    failed, copied = counted[Counter.CHECKPOINTS_FAILED], counted[Counter.COPIED_BATCHES]
    if failed:
        line = Evidence(
            f"checkpoints_failed {failed}, checkpoints_committed {counted[Counter.CHECKPOINTS_COMMITTED]}", source
        )
        found.append(ids.SAVES_FAILED.warn(run, f"{failed} saves failed", line))
    if copied:
        line = Evidence(f"copied_batches {copied}", source)
        found.append(ids.FALLBACK.warn(run, f"{copied} batches were copied: all prefetch memory was lent", line))
    share = utilisation(snapshots)
    if share is not None:
        waits = {cause: sum(s.waits_ns[cause] for s in snapshots) for cause in Cause if cause is not Cause.CHECKPOINT}
        most = max(waits, key=lambda cause: waits[cause])
        line = Evidence(", ".join(f"{cause} {waits[cause] / 1e9:.3g} s" for cause in waits), source)
        if share < _GOOD_UTILISATION:
            found.append(ids.WAITS.warn(run, f"utilisation {share:.0%}; it waited most for {most}", line))
        else:
            found.append(ids.WAITS.ok(run, f"utilisation {share:.0%}", line))
    return found
