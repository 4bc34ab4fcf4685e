"""Kinds of evidence: texts that `stoker doctor explain` understands, told apart by what is in them.

A kind never sees a file name. Several subjects may declare a kind of the same name (`sysfs-tree`: one for NVMe, one for
RDMA ports); each explains what its own `detect` sees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stoker.doctor.finding import Evidence, Finding, FindingId, Severity

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
    Then what each says alone is left out, but for what is wrong or unknown and not in the comparison. `between_s`:
    seconds between two of them, if known.
    """
    said: list[_Said] = []
    before: dict[Kind, _Said] = {}
    for sample in samples:
        names = detect(sample.text, kinds) if name == "auto" else (name,)
        chosen = _readers(sample, kinds, names[0]) if len(names) == 1 else []
        if not chosen:
            said.append(_Said(sample, [_undecided(sample, names if len(names) > 1 else ())]))
        now = {kind: _Said(sample, kind.explain(sample.text, sample.source)) for kind in chosen}
        for kind, one in now.items():
            if kind in before:
                one.follow(before[kind], kind, between_s)
        said += now.values()
        before = now
    return [finding for one in said for finding in (*one.alone, *one.compared)]


@dataclass
class _Said:
    """What a kind says of a text alone, and of it and the one before it."""

    sample: Sample
    alone: list[Finding]
    compared: list[Finding] = field(default_factory=list)

    def follow(self, before: _Said, kind: Kind, between_s: float | None) -> None:
        """Compare with an earlier moment, and leave out what either said alone and two say better."""
        if kind.compare is None or not kind.detect(before.sample.text):
            return
        self.compared = kind.compare(before.sample, self.sample, between_s)
        if any(finding.severity is not Severity.UNKNOWN for finding in self.compared):
            for one in (before, self):
                one.alone = [f for f in one.alone if not self._is_better_than(f)]

    def _is_better_than(self, alone: Finding) -> bool:
        of_it = (f for f in self.compared if f.id == alone.id and f.subject.startswith(alone.subject))
        return alone.severity in (Severity.INFO, Severity.OK) or any(of_it)


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
