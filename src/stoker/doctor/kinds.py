"""Kinds of evidence: texts that `stoker doctor explain` understands, told apart by what is in them.

A kind never sees a file name. Several subjects may declare a kind of the same name (`sysfs-tree`: one for NVMe, one for
RDMA ports); each explains what its own `detect` sees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stoker.doctor.finding import Evidence, Finding, FindingId

TEXT_UNKNOWN = FindingId(
    "text-not-recognised",
    meaning="The text given to `explain` is of no kind that stoker knows.",
    why="Nothing can be concluded from it; a guess would be worse.",
    fix="name the KIND, or check that the file holds the whole output of one command",
)
TEXT_AMBIGUOUS = FindingId(
    "text-of-several-kinds",
    meaning="The text given to `explain auto` looks like several kinds.",
    why="Each kind would read it in its own way.",
    fix="name the KIND instead of auto",
)
LINE_UNKNOWN = FindingId(
    "line-not-understood",
    meaning="A line of a known kind has a form that stoker does not know.",
    why="A new version of a tool may say something that matters; it is not guessed at.",
    fix="read the line yourself, and report it with the version of the tool",
)
IDS = (TEXT_UNKNOWN, TEXT_AMBIGUOUS, LINE_UNKNOWN)


@dataclass(frozen=True)
class Sample:
    """A text and where it is from, for evidence."""

    text: str
    source: str


@dataclass(frozen=True)
class Kind:
    """One kind of evidence.

    Attributes:
        name: What the user calls it, as in `explain gdscheck FILE`.
        detect: Whether a text is of this kind, from the text alone; cheap, never raises.
        explain: Findings of one text: (text, source); never raises, whatever the text.
        compare: Findings of two texts, earlier and later, and the seconds between them if known; for counters.
    """

    name: str
    detect: Callable[[str], bool]
    explain: Callable[[str, str], list[Finding]]
    compare: Callable[[Sample, Sample, float | None], list[Finding]] | None = None


def detect(text: str, kinds: Sequence[Kind]) -> tuple[str, ...]:
    """Names of the kinds that the text may be of, in the order of `kinds`."""
    return tuple(dict.fromkeys(kind.name for kind in kinds if kind.detect(text)))


def explain(
    samples: Sequence[Sample], kinds: Sequence[Kind], *, name: str = "auto", between_s: float | None = None
) -> list[Finding]:
    """What the texts say. `name` is a kind's, or `auto`: by content.

    Texts of the same kind that follow each other are compared too where the kind can: (first, second), (second, third).
    `between_s` is the time between two of them, if known.
    """
    findings: list[Finding] = []
    before: Sample | None = None
    before_name = ""
    for sample in samples:
        names = detect(sample.text, kinds) if name == "auto" else (name,)
        if len(names) != 1:
            findings.append(_undecided(sample, names))
            before = None
            continue
        chosen = _readers(sample, kinds, names[0])
        for kind in chosen:
            findings += kind.explain(sample.text, sample.source)
            if before is not None and before_name == names[0] and kind.compare and kind.detect(before.text):
                findings += kind.compare(before, sample, between_s)
        if not chosen:
            findings.append(_undecided(sample, ()))
        before, before_name = sample, names[0]
    return findings


def _readers(sample: Sample, kinds: Sequence[Kind], name: str) -> list[Kind]:
    """The kinds of that name whose content the text has; a name that only one kind has is taken at its word."""
    named = [kind for kind in kinds if kind.name == name]
    return named if len(named) == 1 else [kind for kind in named if kind.detect(sample.text)]


def _undecided(sample: Sample, names: Sequence[str]) -> Finding:
    first = next((line for line in sample.text.splitlines() if line.strip()), "")
    line = Evidence(first, sample.source)
    if names:
        return TEXT_AMBIGUOUS.unknown(sample.source, f"looks like {', '.join(names)}", line)
    return TEXT_UNKNOWN.unknown(sample.source, "no kind of evidence that is known" if first else "is empty", line)
