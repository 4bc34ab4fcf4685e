"""What starves the GPUs: a verdict from signals, by fixed rules. Pure: no file, no clock.

First the gate: without a sign that GPUs wait, storage may be as busy as it likes. Then each bottleneck is scored: the
weights of its signs that are present, less 0.3 for each thing that contradicts it, kept in 0..1. A bottleneck is named
if it has 0.6 and leads by 0.2. Thresholds are heuristics but for accelerator utilisation (0.90: MLPerf Storage).

A signal that is missing adds nothing, and says that what it would show is not excluded: a verdict is `firm` only if no
value of the missing signals could change it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from stoker.doctor.stall_signs import CONTRADICTIONS, SEVERE, SIGNS, Bottleneck, Sign, Signals

UTILISATION_MIN_RATIO: Final = 0.90
SM_ACTIVE_MIN_RATIO: Final = 0.6
_PRIMARY: Final = 60
_LEAD: Final = 20
_WORTH_NAMING: Final = 30
_CONTRADICTED: Final = 30
_WHOLE: Final = 100


class Verdict(StrEnum):
    """Why GPUs wait: nothing to do with storage, one bottleneck, several, or it could not be seen."""

    NONE = "none"
    THROUGHPUT = "throughput"
    NETWORK = "network"
    METADATA = "metadata"
    CPU_STAGING = "cpu-staging"
    MIXED = "mixed"
    UNKNOWN = "unknown"


class Gate(StrEnum):
    """Whether GPUs wait for data."""

    STARVED = "starved"
    BUSY = "busy"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Seen:
    """One sign and what it says: present, absent, or None where its signal is missing."""

    name: str
    bottleneck: Bottleneck
    present: bool | None
    shows: str


@dataclass(frozen=True, slots=True)
class Attribution:
    """A verdict and how it came about.

    Attributes:
        scores: Bottleneck -> 0..1.
        seen: Every sign, in the order of the rules.
        against: Contradictions that are present.
        firm: Whether no value of the missing signals could make it another verdict.
        severe: Whether the main bottleneck is past its limit, not only near it.
    """

    verdict: Verdict
    gate: Gate
    gate_shows: str
    scores: Mapping[Bottleneck, float]
    seen: tuple[Seen, ...]
    against: tuple[Seen, ...]
    firm: bool
    severe: bool

    def ranked(self) -> list[tuple[Bottleneck, float]]:
        """Bottlenecks, the highest score first; equal ones in the order of the rules."""
        return sorted(self.scores.items(), key=lambda pair: -pair[1])

    def missing(self) -> list[str]:
        """Names of the signs that could not be looked at."""
        return [sign.name for sign in self.seen if sign.present is None]


def judge(signals: Signals) -> Attribution:
    """The verdict on the signals of one window."""
    gate, gate_shows = _gate(signals)
    seen = tuple(_look(sign, signals) for sign in SIGNS)
    against = tuple(_look(sign, signals) for sign in CONTRADICTIONS)
    score = {b: _score(b, signals, bool, bool) for b in Bottleneck}
    verdict = _verdict(gate, score)
    primary = next((b for b in Bottleneck if b.value == verdict.value), None)
    return Attribution(
        verdict=verdict,
        gate=gate,
        gate_shows=gate_shows,
        scores={b: points / _WHOLE for b, points in score.items()},
        seen=seen,
        against=tuple(s for s in against if s.present),
        firm=signals.utilisation_ratio is not None
        and (gate is Gate.BUSY or (primary is not None and _is_firm(primary, signals))),
        severe=primary is not None and SEVERE[primary](signals) is True,
    )


def _gate(signals: Signals) -> tuple[Gate, str]:
    """The account of the training loop first, then the GPU's own: what it says of too little is certain."""
    utilisation = signals.utilisation_ratio
    if utilisation is not None:
        shows = f"the training loop computed {utilisation:.0%} of its time, by its ledger"
        return (Gate.BUSY if utilisation >= UTILISATION_MIN_RATIO else Gate.STARVED), shows
    active, busy = signals.sm_active_ratio, signals.gpu_busy_ratio
    if active is not None:
        shows = f"SMs were active {active:.0%} of the time; no ledger says why"
        return (Gate.BUSY if active >= SM_ACTIVE_MIN_RATIO else Gate.STARVED), shows
    if busy is not None and busy < SM_ACTIVE_MIN_RATIO:
        return Gate.STARVED, f"any kernel at all ran {busy:.0%} of the time; no ledger says why"
    if busy is not None:
        return Gate.UNKNOWN, f"a kernel ran {busy:.0%} of the time, which may be one that waits"
    return Gate.UNKNOWN, "no ledger of a run and no GPU counters: whether GPUs wait is not known"


def _look(sign: Sign, signals: Signals) -> Seen:
    present = sign.test(signals)
    return Seen(sign.name, sign.bottleneck, present, sign.shows(signals) if present is not None else "not seen")


def _score(
    bottleneck: Bottleneck,
    signals: Signals,
    counts: Callable[[bool | None], bool],
    contradicts: Callable[[bool | None], bool],
) -> int:
    points = sum(s.weight for s in SIGNS if s.bottleneck is bottleneck and counts(s.test(signals)))
    less = sum(_CONTRADICTED for s in CONTRADICTIONS if s.bottleneck is bottleneck and contradicts(s.test(signals)))
    return max(0, min(_WHOLE, points) - less)


def _verdict(gate: Gate, score: Mapping[Bottleneck, int]) -> Verdict:
    if gate is not Gate.STARVED:
        return Verdict.NONE if gate is Gate.BUSY else Verdict.UNKNOWN
    (first, most), (_, next_most), *_ = sorted(score.items(), key=lambda pair: -pair[1])
    if most >= _PRIMARY and most - next_most >= _LEAD:
        return Verdict(first.value)
    return Verdict.MIXED if most >= _WORTH_NAMING else Verdict.UNKNOWN


def _is_firm(primary: Bottleneck, signals: Signals) -> bool:
    """Whether it leads with all its missing contradictions present, and all that others lack present for them."""
    least = _score(primary, signals, lambda present: present is True, lambda present: present is not False)
    most = max(
        _score(b, signals, lambda present: present is not False, lambda present: present is True)
        for b in Bottleneck
        if b is not primary
    )
    return least >= _PRIMARY and least - most >= _LEAD
