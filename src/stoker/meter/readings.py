"""Metrics read from ledgers: the numbers that `stoker.metrics` names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from stoker.ledger import Counter, Totals
from stoker.metrics import METRICS

_NS: Final = 1e9
_COUNTERS: Final = {counter.value: counter for counter in Counter}


def read_metrics(ledgers: Iterable[Totals]) -> dict[str, float]:
    """Every metric, by its name with its label, as `stoker_wait_seconds_total{cause="fetch"}`; in its base unit.

    Over several ledgers counters are summed; of a gauge the largest counts.
    """
    readings: dict[str, float] = {}
    for totals in ledgers:
        for metric in METRICS:
            source = metric.source
            if metric.label:
                parts = {f'{metric.name}{{{metric.label}="{k}"}}': v for k, v in getattr(totals, source).items()}
            elif source in _COUNTERS:
                parts = {metric.name: totals.counters[_COUNTERS[source]]}
            else:
                parts = {metric.name: getattr(totals, source)}
            for name, number in parts.items():
                value = number / _NS if source.endswith("_ns") else number
                before = readings.get(name, 0)
                readings[name] = max(before, value) if metric.kind == "gauge" else before + value
    return readings
