"""What the doctor says: a finding with its evidence, its fix and a stable id.

A finding is made from its `FindingId`, so that an id which is not declared cannot be used::

    NFS_ONE_TCP = FindingId("nfs-one-tcp-connection", meaning="...", why="...", fix="...")
    NFS_ONE_TCP.warn("/mnt/data", "one TCP connection carries all reads", Evidence(line, "/proc/self/mountinfo"))

JSON of a finding (schema version 1; keys are never removed or renamed within a version, new ones may come)::

    {"id": str, "severity": "fail" | "warn" | "unknown" | "info" | "ok", "subject": str, "what": str,
     "evidence": [{"line": str, "source": str}, ...], "fix": str, "reference": str}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

SCHEMA_VERSION: Final = 1
LINE_MAX_CHARACTERS: Final = 240
_ID: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")
_REFERENCE: Final = "docs/reference/findings.md"


class Severity(StrEnum):
    """How bad it is, worst first: that is the order findings are shown in.

    `unknown` stands for what could not be seen or understood; it is worse than `info`, for it may hide anything.
    """

    FAIL = "fail"
    WARN = "warn"
    UNKNOWN = "unknown"
    INFO = "info"
    OK = "ok"

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return list(Severity).index(self)


@dataclass(frozen=True)
class Evidence:
    """One line as it was read, and where: a path, a command line, or the name of a given file."""

    line: str
    source: str

    def __post_init__(self) -> None:
        """Control characters would reach the terminal, and endless lines the report: both are cut."""
        object.__setattr__(self, "line", shown_line(self.line))


def shown_line(text: str) -> str:
    """One line of at most `LINE_MAX_CHARACTERS` printable characters; runs of blanks become one."""
    line = "".join(c if c.isprintable() else " " for c in text)
    line = " ".join(line.split())
    return line if len(line) <= LINE_MAX_CHARACTERS else line[: LINE_MAX_CHARACTERS - 4] + " ..."


@dataclass(frozen=True)
class Finding:
    """One thing that was found. `subject` is what it is about: a path, a device, a process, `node`."""

    id: str
    severity: Severity
    subject: str
    what: str
    evidence: tuple[Evidence, ...] = ()
    fix: str = ""
    reference: str = ""

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON values; see the top of this module."""
        return {
            "id": self.id,
            "severity": str(self.severity),
            "subject": self.subject,
            "what": self.what,
            "evidence": [{"line": e.line, "source": e.source} for e in self.evidence],
            "fix": self.fix,
            "reference": self.reference,
        }

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Finding:
        """The finding that `to_json` wrote."""
        evidence = tuple(Evidence(e["line"], e["source"]) for e in values["evidence"])
        names = ("id", "subject", "what", "fix", "reference")
        texts = {name: str(values[name]) for name in names}
        return Finding(severity=Severity(values["severity"]), evidence=evidence, **texts)


@dataclass(frozen=True)
class FindingId:
    """A kind of finding: stable kebab-case name, what it means, why it matters, what to do.

    `docs/reference/findings.md` is made of these. `fix` is the general one; a finding may carry a more exact command.
    `reference` names a public source; without one a finding refers to its place on that page.
    """

    name: str
    meaning: str
    why: str
    fix: str
    reference: str = ""

    def __post_init__(self) -> None:
        """Names are part of the interface: they keep one form."""
        if not _ID.fullmatch(self.name):
            raise ValueError(f"{self.name!r}: a finding id is lower case words joined by hyphens")

    def found(
        self, severity: Severity, subject: str, what: str, *evidence: Evidence, fix: str | None = None
    ) -> Finding:
        """A finding of this kind; without `fix` it carries the general one, but for `ok`, which needs none."""
        if fix is None:
            fix = "" if severity is Severity.OK else self.fix
        return Finding(self.name, severity, subject, what, evidence, fix, self.reference or f"{_REFERENCE}#{self.name}")

    def fail(self, subject: str, what: str, *evidence: Evidence, fix: str | None = None) -> Finding:
        """It does not work, or not as asked."""
        return self.found(Severity.FAIL, subject, what, *evidence, fix=fix)

    def warn(self, subject: str, what: str, *evidence: Evidence, fix: str | None = None) -> Finding:
        """It works worse than it could, or is about to fail."""
        return self.found(Severity.WARN, subject, what, *evidence, fix=fix)

    def unknown(self, subject: str, what: str, *evidence: Evidence, fix: str | None = None) -> Finding:
        """It could not be seen or understood."""
        return self.found(Severity.UNKNOWN, subject, what, *evidence, fix=fix)

    def info(self, subject: str, what: str, *evidence: Evidence, fix: str | None = None) -> Finding:
        """A fact to know, neither good nor bad."""
        return self.found(Severity.INFO, subject, what, *evidence, fix=fix)

    def ok(self, subject: str, what: str, *evidence: Evidence, fix: str | None = None) -> Finding:
        """It was looked at and is as it should be."""
        return self.found(Severity.OK, subject, what, *evidence, fix=fix)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Without exact doubles, the worst first; within a severity in the order they were found."""
    return sorted(dict.fromkeys(findings), key=lambda f: f.severity.rank)


def exit_code(findings: Iterable[Finding]) -> int:
    """2 if anything failed, else 1 on a warning, else 3 if things stayed unknown and nothing is ok, else 0."""
    seen = {f.severity for f in findings}
    if Severity.FAIL in seen:
        return 2
    if Severity.WARN in seen:
        return 1
    return 3 if Severity.UNKNOWN in seen and Severity.OK not in seen else 0
