"""`ethtool -S`: pauses and drops of a network card. Names are those of mlx5; other drivers have others.

Source: Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst of the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from stoker.doctor import network_ids as ids
from stoker.doctor.finding import Evidence, Finding
from stoker.doctor.kinds import LINE_UNKNOWN, Sample
from stoker.doctor.texts import whole

PAUSED_RATIO: Final = 0.05
_PAUSE: Final = re.compile(r"(rx|tx)_(?:(prio\d|global)_pause|pause_ctrl_phy)$")
_DURATION: Final = re.compile(r"(rx|tx)_(prio\d|global)_pause_duration$")
_DROP: Final = re.compile(r"rx_discards_phy|tx_discards_phy|rx_out_of_buffer|rx_prio\d_discards|rx_prio\d_cong_discard")
_STORM: Final = re.compile(r"tx_pause_storm_(?:warning|error)_events")
_LINE: Final = re.compile(r"^\s*([\w.\[\]\-]+(?: [\w.\-]+)*):\s*(\S+)\s*$")


def detect(text: str) -> bool:
    """Whether it is the output of ethtool -S."""
    return bool(re.search(r"^NIC statistics:\s*$", text, re.MULTILINE))


def parse(text: str) -> dict[str, int]:
    """Counters by name; what is no number is left out."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        number = whole(match[2]) if match else None
        if match and number is not None:
            found[match[1]] = number
    return found


def pause_durations_us(text: str) -> dict[str, int]:
    """Microseconds of pause by the counter's name, as the driver counts them; empty if it counts none."""
    return {name: value for name, value in parse(text).items() if _DURATION.fullmatch(name)}


def _shown(name: str, value: int) -> str:
    return f"{name}: {value}"


def explain(text: str, source: str) -> list[Finding]:
    """What was counted since the driver began; whether it grows only two outputs tell."""
    counters = parse(text)
    found = [
        LINE_UNKNOWN.unknown("NIC", "a counter is no number", Evidence(line, source))
        for line in text.splitlines()
        if (match := _LINE.match(line)) and _is_known(match[1]) and whole(match[2]) is None
    ]
    if not any(_PAUSE.match(name) for name in counters):
        what = "no counter of pauses that is known: another driver, or cut; congestion is not excluded"
        return [*found, ids.COUNTERS_UNSEEN.unknown("NIC", what, Evidence(f"{len(counters)} counters", source))]
    tail = "since the driver began; only growth counts: give two outputs"
    for side, meaning in (("rx", "the fabric told this host to stop"), ("tx", "this host could not take in what came")):
        paused = [_shown(n, v) for n, v in counters.items() if v and (m := _PAUSE.match(n)) and m[1] == side]
        if paused:
            lines = [Evidence(line, source) for line in paused]
            found.append(ids.NIC_PAUSE.unknown("NIC", f"{meaning} ({', '.join(paused)}) {tail}", *lines))
    dropped = [_shown(n, v) for n, v in counters.items() if v and _DROP.fullmatch(n)]
    if dropped:
        found.append(
            ids.NIC_DROPS.unknown("NIC", f"packets were dropped {tail}", *(Evidence(d, source) for d in dropped))
        )
    if not found:
        found.append(ids.NIC_PAUSE.ok("NIC", "no pauses and no drops since the driver began"))
    return found


def _is_known(name: str) -> bool:
    return any(pattern.fullmatch(name) for pattern in (_PAUSE, _DURATION, _DROP, _STORM))


def compare(before: Sample, after: Sample, seconds: float | None) -> list[Finding]:
    """Pauses and drops that grew."""
    old, new = parse(before.text), parse(after.text)
    if not any(_PAUSE.match(name) for name in new):
        return []
    back = [f"{n}: {old[n]} -> {v}" for n, v in new.items() if _is_known(n) and v < old.get(n, 0)]
    if back:
        what = "counters went back: not of one boot, or not in this order"
        return [ids.COUNTERS_UNSEEN.unknown("NIC", what, *(Evidence(line, after.source) for line in back))]
    grown = {n: v - old[n] for n, v in new.items() if _is_known(n) and n in old and v > old[n]}
    found: list[Finding] = []
    for side, meaning in (("rx", "the fabric tells this host to stop"), ("tx", "this host cannot take in what comes")):
        found += _judge_pauses(side, meaning, grown, seconds, after.source)
    dropped = [f"{n}: +{d}" for n, d in grown.items() if _DROP.fullmatch(n)]
    if dropped:
        found.append(ids.NIC_DROPS.warn("NIC", "packets are dropped", *(Evidence(d, after.source) for d in dropped)))
    storm = [f"{n}: +{d}" for n, d in grown.items() if _STORM.fullmatch(n)]
    if storm:
        what = "it pauses without end (pause storm)"
        found.append(ids.NIC_PAUSE.fail("NIC", what, *(Evidence(s, after.source) for s in storm)))
    return found or [ids.NIC_PAUSE.ok("NIC", "no pauses and no drops between the samples")]


def _judge_pauses(
    side: str, meaning: str, grown: Mapping[str, int], seconds: float | None, source: str
) -> list[Finding]:
    names = [n for n in grown if (m := _PAUSE.match(n)) and m[1] == side]
    spent = {m[2]: grown[n] for n in grown if (m := _DURATION.match(n)) and m[1] == side}
    if not names and not spent:
        return []
    lines = [
        Evidence(f"{n}: +{grown[n]}", source) for n in grown if n in names or (_DURATION.match(n) and n[:2] == side)
    ]
    what = f"{meaning}: pauses grow"
    if spent and seconds:
        share = max(spent.values()) / (seconds * 1e6)
        what += f", {share:.1%} of the time" + (" (5% and more is congestion)" if share >= PAUSED_RATIO else "")
    return [ids.NIC_PAUSE.warn("NIC", what, *lines)]
