"""Findings as text: the worst first, what is fine in one line a subject, so that a healthy node fits one screen."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from stoker.doctor.finding import SCHEMA_VERSION, Finding, Severity, exit_code, worst_first
from stoker.doctor.fold import fold

_SHOWN_EVIDENCE = 3
_SHOWN_OK = 8


def to_json(findings: Sequence[Finding], targets: Sequence[str] = (), read_s: float | None = None) -> dict[str, Any]:
    """{"version": 1, "targets": [str], "read_at": str or null, "exit_code": 0..3, "counts": {severity: int},
    "findings": [see finding.py]}.

    `read_s`: when the evidence was read, in seconds since 1970; None is not known. `read_at` is that in UTC, ISO 8601.
    """
    ordered = worst_first(findings)
    return {
        "version": SCHEMA_VERSION,
        "targets": list(targets),
        "read_at": moment(read_s),
        "exit_code": exit_code(ordered),
        "counts": {str(s): sum(f.severity is s for f in ordered) for s in Severity},
        "findings": [f.to_json() for f in ordered],
    }


def moment(seconds: float | None) -> str | None:
    """Seconds since 1970 as `2026-01-31T09:00:00Z`; None for what is none, as a damaged capture may have it."""
    if seconds is None or not seconds > 0:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return None


def describe(findings: Sequence[Finding]) -> str:
    """Text without a last newline: what is wrong or unknown with evidence and fix, the rest a line each.

    What is said of several things alike is said once; of much that is in order only the subjects are named.
    """
    ordered = worst_first(findings)
    lines: list[str] = []
    said = fold(ordered)
    fine = [finding for finding in said if finding.severity is Severity.OK]
    for finding in said:
        if finding.severity is not Severity.OK or len(fine) <= _SHOWN_OK:
            lines += _described(finding)
    if len(fine) > _SHOWN_OK:
        lines.append(f"{Severity.OK:<7} {', '.join(dict.fromkeys(f.subject for f in fine))}; details with --json")
    counts = [f"{n} {s}" for s in Severity if (n := sum(f.severity is s for f in ordered))]
    return "\n".join([*lines, ", ".join(counts) or "nothing was found"])


def _described(finding: Finding) -> list[str]:
    head = f"{finding.severity:<7} {finding.subject}: {finding.what}"
    if finding.severity in (Severity.OK, Severity.INFO):
        return [head]
    lines = [f"{head}  [{finding.id}]"]
    lines += [f"          {e.source}: {e.line}" for e in finding.evidence[:_SHOWN_EVIDENCE] if e.line]
    if len(finding.evidence) > _SHOWN_EVIDENCE:
        lines.append(f"          and {len(finding.evidence) - _SHOWN_EVIDENCE} more lines, with --json")
    if finding.fix:
        lines.append(f"          fix: {finding.fix}")
    return lines
