"""The verdict on a stall as findings and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from stoker.doctor.finding import Evidence, Finding, FindingId, Severity
from stoker.doctor.stall import Attribution, Gate, Seen, Verdict
from stoker.doctor.stall_signs import Bottleneck, Signals
from stoker.doctor.subject import Subject

STALL_NONE = FindingId(
    "stall-none",
    meaning="The GPUs do not wait for data: the job is bound by its computation.",
    why="Faster storage would not make it faster, however busy the storage looks.",
    fix="none is needed",
)
STALL_THROUGHPUT = FindingId(
    "stall-throughput",
    meaning="GPUs wait for data, and the storage delivers all it can.",
    why="The device or the mount is at its ceiling; more readers only wait longer.",
    fix="read less or from more: a cache on local NVMe, more devices, smaller encodings; "
    "confirm: read the same data again from the page cache, the stall should be gone",
)
STALL_NETWORK = FindingId(
    "stall-network",
    meaning="GPUs wait for data, and the network on the way is full, loses packets or is slow.",
    why="The storage behind it may be idle. A link shared with the all-reduce slows both.",
    fix="separate storage from the compute network, use RDMA or more connections (nconnect), look at drops and pause "
    "frames; confirm: read from the page cache or a local disk, the stall should be gone",
)
STALL_METADATA = FindingId(
    "stall-metadata",
    meaning="GPUs wait for data, and most of the time goes to opening and looking up files, not to reading.",
    why="Many small files cost a round trip or more each, whatever the bandwidth.",
    fix="pack the files into shards (stoker pack); confirm: train on packed data, the stall should be gone",
)
STALL_CPU_STAGING = FindingId(
    "stall-cpu-staging",
    meaning="GPUs wait for data, and CPUs are what holds it up: copying, decoding, or too little CPU time.",
    why="Storage and network are not at their limits. GPUDirect that fell back to compatible mode looks like this.",
    fix="raise the CPU limit or the number of workers, decode less or on the GPU, see why GPUDirect is not used "
    "(stoker doctor gds PATH); confirm: compare strict and compatible mode, or train on data that is decoded already",
)
STALL_MIXED = FindingId(
    "stall-mixed",
    meaning="GPUs wait for data, and no one bottleneck stands out.",
    why="Several signs are present, or too few; naming one would be a guess.",
    fix="take a longer window while it stalls; confirm one after the other: read from the page cache (throughput and "
    "network vanish), train on packed data (metadata vanishes), raise the queue depth 16 times",
)
STALL_UNKNOWN = FindingId(
    "stall-unknown",
    meaning="Whether GPUs wait for data, or what holds it up, could not be seen.",
    why="Signals are missing; a verdict would be a guess.",
    fix="train with stoker (its ledger knows every wait, see --run), or make DCGM's profiling fields visible",
)
IDS: Final = (
    *(STALL_NONE, STALL_THROUGHPUT, STALL_NETWORK, STALL_METADATA, STALL_CPU_STAGING, STALL_MIXED, STALL_UNKNOWN),
)
SUBJECT: Final = Subject("stall", ids=IDS)

_ID_OF: Final = {
    Verdict.NONE: STALL_NONE,
    Verdict.THROUGHPUT: STALL_THROUGHPUT,
    Verdict.NETWORK: STALL_NETWORK,
    Verdict.METADATA: STALL_METADATA,
    Verdict.CPU_STAGING: STALL_CPU_STAGING,
    Verdict.MIXED: STALL_MIXED,
    Verdict.UNKNOWN: STALL_UNKNOWN,
}


def explain_stall(found: Attribution) -> list[Finding]:
    """One finding: the verdict with its scores, the signs that carry it as evidence, and what is not excluded."""
    kind = _ID_OF[found.verdict]
    severity = {Verdict.NONE: Severity.OK, Verdict.UNKNOWN: Severity.UNKNOWN}.get(
        found.verdict, Severity.FAIL if found.severe else Severity.WARN
    )
    evidence = [Evidence(found.gate_shows, "gate")]
    if found.gate is not Gate.BUSY:
        leading = [b for b, score in found.ranked() if score > 0]
        signs = sorted(
            (s for s in found.seen if s.present and s.bottleneck in leading), key=lambda s: leading.index(s.bottleneck)
        )
        evidence += [Evidence(sign.shows, f"{sign.bottleneck}: {sign.name}") for sign in signs]
        evidence += [Evidence(sign.shows, f"against {sign.bottleneck}: {sign.name}") for sign in found.against]
    return [kind.found(severity, "stall", _what(found), *evidence)]


def _what(found: Attribution) -> str:
    if found.gate is Gate.BUSY:
        return "none: the GPUs are busy"
    scores = ", ".join(f"{b} {score:.2f}" for b, score in found.ranked())
    name = {Verdict.UNKNOWN: "not known", Verdict.MIXED: "mixed"}.get(found.verdict, found.verdict.value)
    open_ones = dict.fromkeys(
        s.bottleneck for s in found.seen if s.present is None and s.bottleneck.value != found.verdict.value
    )
    rest = "" if found.firm or not open_ones else f"; not all signs of {', '.join(open_ones)} could be seen"
    return f"{name} ({scores}){rest}"


def stall_json(found: Attribution, signals: Signals, window_s: float | None) -> dict[str, Any]:
    """A verdict with all that led to it, as JSON values.

    {"verdict", "gate", "scores": {bottleneck: 0..1}, "firm", "window_s", "signals": {name: number or null},
    "signs": [{"name", "bottleneck", "present": bool or null, "shows"}], "against": [same], "confirm": str}.
    """
    return {
        "verdict": str(found.verdict),
        "gate": str(found.gate),
        "scores": {str(b): found.scores[b] for b in Bottleneck},
        "firm": found.firm,
        "window_s": window_s,
        "signals": asdict(signals),
        "signs": [_sign_json(sign) for sign in found.seen],
        "against": [_sign_json(sign) for sign in found.against],
        "confirm": _ID_OF[found.verdict].fix,
    }


def _sign_json(sign: Seen) -> dict[str, Any]:
    return {"name": sign.name, "bottleneck": str(sign.bottleneck), "present": sign.present, "shows": sign.shows}
