"""Findings that say the same of several things, in one: a node with sixteen drives fits one screen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stoker.doctor.finding import Finding


def fold(findings: Iterable[Finding]) -> list[Finding]:
    """Findings equal but for subject and evidence become one, in the place of the first; its subject names all."""
    groups: dict[tuple[str, str, str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.id, finding.severity, finding.what, finding.fix), []).append(finding)
    return [_joined(group) for group in groups.values()]


def _joined(group: list[Finding]) -> Finding:
    subjects = dict.fromkeys(finding.subject for finding in group)
    evidence = dict.fromkeys(line for finding in group for line in finding.evidence)
    return replace(group[0], subject=", ".join(subjects), evidence=tuple(evidence))
