"""Sizes, durations and rates as people write and read them."""

from __future__ import annotations

import re
from typing import Final

from stoker.errors import ConfigError

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
TIB: Final = 1024 * GIB

_SIZE = r"\s*(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(i?)[bB]?\s*\Z"  # compiled when it is first needed
_DURATION = r"\s*(\d+(?:\.\d+)?)\s*(ms|s|min|h)\Z"
_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_MINUTE_S = 60
_HOUR_S = 3600


def parse_bytes(text: str | int) -> int:
    """Bytes of a size such as 64MiB (1024-based), 64MB (1000-based), 512 or 1.5GiB.

    Raises ConfigError for anything else, with the accepted forms.
    """
    if not isinstance(text, str):
        return text
    match = re.match(_SIZE, text)
    if match is None or (match[3] and not match[2]):
        raise ConfigError(f"not a size: {text!r}", hint="write it as 512, 64KiB, 64MiB, 1.5GiB or 10GB")
    number, unit, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** _POWER[unit.lower()])


def parse_seconds(text: str) -> float:
    """Seconds of a duration such as 500ms, 30s, 5min or 1h. Raises ConfigError for anything else."""
    match = re.match(_DURATION, text)
    if match is None:
        raise ConfigError(f"not a duration: {text!r}", hint="write it as 500ms, 30s, 5min or 1h")
    return float(match[1]) * _SECONDS[match[2]]


def format_bytes(count: float) -> str:
    """`count` bytes in KiB, MiB, GiB or TiB with one decimal, or B below 1 KiB."""
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(count) >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count:.0f} B"


def format_seconds(seconds: float) -> str:
    """A duration in the unit that suits it: µs, ms, s, min, h."""
    size = abs(seconds)
    if size == 0:
        return "0 s"
    if size < 1e-3:  # noqa: PLR2004  one millisecond
        return f"{seconds * 1e6:.0f} µs"
    if size < 1:
        return f"{seconds * 1e3:.0f} ms" if size >= 0.01 else f"{seconds * 1e3:.1f} ms"  # noqa: PLR2004
    if size < _MINUTE_S:
        return f"{seconds:.1f} s"
    if size < _HOUR_S:
        return f"{seconds / _MINUTE_S:.1f} min"
    return f"{seconds / _HOUR_S:.1f} h"


def format_rate(bytes_per_s: float) -> str:
    """A rate such as 1.9 GiB/s."""
    return f"{format_bytes(bytes_per_s)}/s"


def format_count(count: int, noun: str) -> str:
    """`1 shard`, `1,234 shards`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
