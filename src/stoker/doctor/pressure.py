"""Pressure stall information (PSI): how long tasks waited for CPU, memory and block I/O.

Source: Documentation/accounting/psi.rst. `some`: at least one task waited; `full`: all did. Percent of the last 10, 60
and 300 s. cpu full exists since 5.13 and is 0 for the whole system.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from stoker.doctor import host_ids as ids
from stoker.doctor.finding import Evidence, Finding, FindingId
from stoker.doctor.kinds import LINE_UNKNOWN
from stoker.doctor.texts import fields, real, sections

IO_FULL_PERCENT: Final = 20.0
CPU_SOME_PERCENT: Final = 40.0
MEMORY_FULL_PERCENT: Final = 10.0
_LINE: Final = re.compile(r"^(some|full) (?=.*avg10=)")
_RESOURCE: Final = re.compile(r"(?:^|/)(io|cpu|memory|irq)(?:\.pressure)?$")


@dataclass(frozen=True)
class Pressure:
    """One line: of a resource ("" if the text does not say which), `some` or `full`, percent of the last 10 s."""

    resource: str
    word: str
    avg10_percent: float
    line: str
    name: str


def detect(text: str) -> bool:
    """Whether it is /proc/pressure/*, and not all of a cgroup."""
    lines = [line for part in sections(text).values() for line in part.splitlines() if line.strip()]
    return bool(lines) and all(_LINE.match(line) for line in lines)


def parse(text: str) -> tuple[list[Pressure], list[str]]:
    """The lines that are understood, and those that look like pressure but are not."""
    found: list[Pressure] = []
    strange: list[str] = []
    for name, part in sections(text).items():
        match = _RESOURCE.search(name)
        for line in part.splitlines():
            if not line.startswith(("some ", "full ")):
                continue
            percent = real(fields(line).get("avg10"))
            if percent is None or not 0 <= percent <= 100:  # noqa: PLR2004 - percent
                strange.append(line)
            else:
                found.append(Pressure(match[1] if match else "", line[:4], percent, line, name))
    return found, strange


def explain(text: str, source: str) -> list[Finding]:
    """What tasks wait for, of what the text has."""
    found, strange = parse(text)
    said = judge(found, source)
    said += [LINE_UNKNOWN.unknown("pressure", "a line is not understood", Evidence(line, source)) for line in strange]
    if any(not one.resource for one in found):
        what = "of which resource it is, the text does not say: keep the names of the files (tail /proc/pressure/*)"
        said.append(LINE_UNKNOWN.unknown("pressure", what, Evidence(found[0].line, source)))
    return said


def judge(found: list[Pressure], source: str, subject: str = "pressure") -> list[Finding]:
    """By the thresholds of each resource; the ones that are quiet are said with the one that is not."""
    rules: tuple[tuple[str, str, float, FindingId, str], ...] = (
        ("io", "full", IO_FULL_PERCENT, ids.PRESSURE_IO, "tasks wait for storage"),
        ("cpu", "some", CPU_SOME_PERCENT, ids.PRESSURE_CPU, "tasks wait for a CPU"),
        ("memory", "full", MEMORY_FULL_PERCENT, ids.PRESSURE_MEMORY, "tasks wait for memory"),
    )
    by_name = {(one.resource, one.word): one for one in found}
    seen = {rule[0]: by_name[rule[0], rule[1]] for rule in rules if (rule[0], rule[1]) in by_name}
    high = {rule[0] for rule in rules if rule[0] in seen and seen[rule[0]].avg10_percent >= rule[2]}
    quiet = [resource for resource in seen if resource not in high]
    said: list[Finding] = []
    for resource, word, _, known, meaning in rules:
        if resource not in high:
            continue
        one = seen[resource]
        what = f"{meaning}: {resource} {word} {one.avg10_percent:g}% of the last 10 s"
        if resource == "io" and "cpu" in quiet:
            what += "; CPU is quiet, so it is throughput or metadata, not copying by the CPU"
        if resource == "cpu" and "io" in quiet:
            what += "; I/O is quiet, so copying or decoding by the CPU may starve the GPUs"
        said.append(known.warn(subject, what, Evidence(one.line, _source(one, source))))
    if seen and not high:
        shown = ", ".join(f"{resource} {one.word} {one.avg10_percent:g}%" for resource, one in seen.items())
        lines = [Evidence(one.line, _source(one, source)) for one in seen.values()]
        said.append(
            ids.PRESSURE_LOW.ok(subject, f"low: {shown}; waits for network file systems need not count", *lines)
        )
    return said


def _source(one: Pressure, source: str) -> str:
    return f"{source} {one.name}" if one.name else source
