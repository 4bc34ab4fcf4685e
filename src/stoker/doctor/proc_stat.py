"""/proc/stat: how busy the CPUs were, and in what. Source: proc(5); ticks of USER_HZ, of which only shares are used."""

from __future__ import annotations

import re
from typing import Final

from stoker.doctor import host_ids as ids
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.kinds import LINE_UNKNOWN, Sample
from stoker.doctor.texts import whole

COLUMNS: Final = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
BUSY_RATIO: Final = 0.80
SYSTEM_RATIO: Final = 0.40
STEAL_RATIO: Final = 0.10


def detect(text: str) -> bool:
    """Whether it is /proc/stat."""
    return bool(re.search(r"^cpu  +\d+( \d+){3,}", text, re.MULTILINE))


def parse(text: str) -> dict[str, int]:
    """Ticks of all CPUs together by column; empty if the line is not understood. Old kernels have fewer columns."""
    words = _line(text).split()[1:]
    numbers = [whole(word) for word in words]
    if len(numbers) < len(COLUMNS) // 2 or None in numbers:
        return {}
    return {name: number for name, number in zip(COLUMNS, numbers, strict=False) if number is not None}


def _line(text: str) -> str:
    return next((line for line in text.splitlines() if line.startswith("cpu ")), "")


def explain(text: str, source: str) -> list[Finding]:
    """Ticks since the boot say nothing of now."""
    line = Evidence(_line(text), source)
    ticks = parse(text)
    if not ticks:
        return [LINE_UNKNOWN.unknown("CPU", "the line of all CPUs is not understood", line)]
    total = sum(ticks.values())
    share = f"busy {busy_ratio(ticks):.0%} since the boot; " if total else ""
    return [ids.CPU_BUSY.info("CPU", f"{share}for now, take two samples", line)]


def busy_ratio(ticks: dict[str, int]) -> float:
    """Share of the time that was neither idle nor waiting for I/O, 0..1; 0 of no time."""
    total = sum(ticks.values())
    return 1 - (ticks.get("idle", 0) + ticks.get("iowait", 0)) / total if total else 0.0


def compare(before: Sample, after: Sample, _seconds: float | None) -> list[Finding]:
    """How busy, and with what."""
    old, new = parse(before.text), parse(after.text)
    line = Evidence(_line(after.text), after.source)
    delta = {name: value - old[name] for name, value in new.items() if name in old}
    total = sum(delta.values())
    if not delta or min(delta.values()) < 0 or total == 0:
        what = "the two samples are not of one boot, not in this order, or of one moment"
        return [ids.SAMPLES_DIFFER.unknown("CPU", what, line)]
    busy, system = busy_ratio(delta), (delta["system"] + delta.get("irq", 0) + delta.get("softirq", 0)) / total
    shares = (
        f"{delta['user'] / total:.0%} user, {system:.0%} system, {delta.get('iowait', 0) / total:.0%} waiting for I/O"
    )
    what = f"busy {busy:.0%}: {shares}"
    if delta.get("steal", 0) / total >= STEAL_RATIO:
        return [ids.CPU_BUSY.warn("CPU", f"{what}; {delta['steal'] / total:.0%} was taken by other machines", line)]
    if busy < BUSY_RATIO:
        return [ids.CPU_BUSY.ok("CPU", what, line)]
    if system >= SYSTEM_RATIO:
        return [ids.CPU_BUSY.warn("CPU", f"{what}; so much system time is copying by the CPU", line)]
    return [ids.CPU_BUSY.warn("CPU", f"{what}; much user time is decoding, or training itself", line)]
