"""One verdict a path: what GPUDirect is expected to do, what was measured, and what a run on this node waited for.

Only what is known counts: a part that nobody looked at is named as such, and has no severity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from stoker.doctor import gds, gds_ids, own_ids, own_runs, stall, storage, verdict_ids
from stoker.doctor.check import Check, Target
from stoker.doctor.finding import Evidence, Finding, Severity
from stoker.doctor.gds_route import expect
from stoker.doctor.identity import MOUNTINFO, PathIdentity, identify
from stoker.doctor.node import Missing, Node
from stoker.doctor.own_settings import read_settings
from stoker.doctor.stall_report import explain_stall
from stoker.doctor.stall_signs import Signals
from stoker.doctor.storage_kept import kept_measurements, kept_path
from stoker.doctor.subject import Subject
from stoker.ledger import Cause, LedgerSnapshot, utilisation
from stoker.tier.node import NodeDirectory
from stoker.units import format_rate

_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_DAY_S: Final = 86400


@dataclass(frozen=True)
class Part:
    """One thing that is known of a path, with the lines it rests on and what to do about it ("" for nothing)."""

    severity: Severity
    what: str
    evidence: tuple[Evidence, ...]
    fix: str = ""


def combine(path: str, kind: str, line: Evidence, parts: Sequence[Part], open_ones: Sequence[str]) -> Finding:
    """The verdict: as bad as the worst part, whose fix it carries; without any part a fact. Pure.

    `kind`: what the path is, as `line` shows; `open_ones`: what was not looked at.
    """
    worst = min(parts, key=lambda part: part.severity.rank, default=None)
    severity = worst.severity if worst else Severity.INFO
    said = "; ".join([kind, *(part.what for part in parts)])
    rest = f" (not known: {'; '.join(open_ones)})" if open_ones else ""
    lines = dict.fromkeys([line, *(one for part in parts for one in part.evidence)])
    return verdict_ids.PATH_VERDICT.found(severity, path, said + rest, *lines, fix=worst.fix if worst else "")


def check_verdict(node: Node, target: Target) -> list[Finding]:
    """C23: all that is known of a path in one finding."""
    if not target.path:
        return []
    identity = identify(node, target.path)
    if isinstance(identity, Missing):
        return [verdict_ids.PATH_VERDICT.unknown(target.path, f"what it lies on is not known: {identity.reason}")]
    nvme = read_settings(node).nvme
    home = None if nvme is None else NodeDirectory(nvme)
    looked = {
        "GPUDirect: no GPU is seen": gds_part(node, identity),
        "speed: stoker doctor storage measures it": None if home is None else storage_part(node, identity, home),
        "waits: no run has a ledger here": None if home is None else ledger_part(node, home),
    }
    parts = [part for part in looked.values() if part is not None]
    open_ones = [name for name, part in looked.items() if part is None]
    line = Evidence(identity.mount.line, MOUNTINFO)
    return [combine(target.path, _kind(identity), line, parts, open_ones)]


def _kind(identity: PathIdentity) -> str:
    device = identity.device
    below = f" on {', '.join(dict.fromkeys(leaf.name for leaf in device.leaves()))}" if device else ""
    return f"{identity.mount.fs_type}{below}"


def gds_part(node: Node, identity: PathIdentity) -> Part | None:
    """What GPUDirect will do, predicted: rung P0 of proof. None where no NVIDIA driver is seen."""
    if not gds.has_gpu(node):
        return None
    found = expect(identity, gds.read_driver(node), gds.read_config(node))
    severity = gds.ROUTE_SEVERITY[found.expected]
    line = Evidence(identity.mount.line, MOUNTINFO)
    fix = "" if severity is Severity.OK else gds_ids.PATH_ROUTE.fix
    return Part(severity, f"GPUDirect {found}, predicted (P0)", (line,), fix)


def storage_part(node: Node, identity: PathIdentity, home: NodeDirectory) -> Part | None:
    """What `stoker doctor storage` last measured of the mount. None without a measurement of this file system.

    Through the page cache it is an upper bound, which is a fact and no praise.
    """
    mount = identity.mount
    kept = [m for m in kept_measurements(home.measurements, node) if m["mount"] == mount.point]
    kept = [m for m in kept if m.get("fs_type") in ("", mount.fs_type) and _rate(m) is not None]
    if not kept:
        return None
    newest = max(kept, key=lambda m: _number(m.get("clock_s")) or 0.0)
    rate, limit = _rate(newest), _number(newest.get("link_bytes_per_s"))
    engine = newest.get("read_engine")
    effective = str(engine.get("effective")) if isinstance(engine, dict) else "unknown"
    what = f"read {format_rate(rate or 0.0)} in order{_age(node, newest)}"
    if effective != "direct":
        what += ", through the page cache: an upper bound"
    elif limit:
        what += f", {(rate or 0.0) / limit:.0%} of its link"
    shown = f"sequential_read_bytes_per_s {rate:.0f}, read_engine {effective}, mount {mount.point}"
    severity = Severity.OK if effective == "direct" else Severity.INFO
    fix = "" if severity is Severity.OK else storage.STORAGE_PAGE_CACHE.fix
    return Part(severity, what, (Evidence(shown, str(kept_path(home.measurements, mount.point))),), fix)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None


def _rate(measurement: dict[str, Any]) -> float | None:
    return _number(measurement.get("sequential_read_bytes_per_s"))


def _age(node: Node, measurement: dict[str, Any]) -> str:
    """How long ago it was measured, roughly; nothing where either clock is not told."""
    then_s = _number(measurement.get("clock_s"))
    age_s = None if then_s is None else node.clock_s() - then_s
    if age_s is None or age_s < 0:
        return ""
    for unit_s, name in ((_DAY_S, "days"), (_HOUR_S, "hours"), (_MINUTE_S, "minutes")):
        if age_s >= 2 * unit_s:
            return f" {age_s // unit_s:.0f} {name} ago"
    return " just now"


def ledger_part(node: Node, home: NodeDirectory) -> Part | None:
    """What the run that moved last on this node waited for, by its own account, and which bottleneck that names.

    A ledger does not say which path was read, so the run is named, and this part is of the node's run, not of the path
    alone. None without a run that counted steps.
    """
    folder = str(home.root / "run")
    names = node.listing(folder)
    runs = [own_runs.read_ledgers(node, f"{folder}/{name}")[0] for name in _names(names)[: own_runs.MAX_RUNS]]
    newest = max((run for run in runs if run), key=_last_s, default=None)
    ratio = utilisation(newest) if newest else None
    if not newest or ratio is None:
        return None
    run = newest[0].identity.run
    (waited,) = (f for f in own_runs.judge_ledgers(f"run {run}", newest) if f.id == own_ids.WAITS.name)
    signals = Signals(utilisation_ratio=ratio, decode_wait_ratio=_decode_ratio(newest))
    verdict = stall.judge(signals)
    what = f"run {run!r}, the last on this node, whatever it read: {waited.what}"
    lines = tuple(waited.evidence)
    if verdict.verdict not in (stall.Verdict.NONE, stall.Verdict.UNKNOWN, stall.Verdict.MIXED):
        (named,) = explain_stall(verdict)
        what += f"; bottleneck {verdict.verdict}"
        return Part(_worse(waited.severity, named.severity), what, (*lines, *named.evidence), named.fix)
    return Part(waited.severity, what, lines, waited.fix)


def _names(names: tuple[str, ...] | Missing) -> tuple[str, ...]:
    return () if isinstance(names, Missing) else names


def _worse(one: Severity, other: Severity) -> Severity:
    return min(one, other, key=lambda severity: severity.rank)


def _last_s(run: Sequence[LedgerSnapshot]) -> float:
    """When the last thing in its ledgers happened, in seconds since 1970."""
    return max(s.start.wall_s + (s.totals.last_ns - s.start.perf_ns) / 1e9 for s in run)


def _decode_ratio(run: Sequence[LedgerSnapshot]) -> float | None:
    waits_ns = {cause: sum(s.waits_ns[cause] for s in run) for cause in Cause if cause is not Cause.CHECKPOINT}
    wait_ns = sum(waits_ns.values())
    return (waits_ns[Cause.DECODE] + waits_ns[Cause.MAP]) / wait_ns if wait_ns else None


CHECKS: Final = (Check("C23", "verdict of a path", check_verdict, per_target=True),)

SUBJECT: Final = Subject("verdict", ids=verdict_ids.IDS, checks=CHECKS)
