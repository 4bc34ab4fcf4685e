"""Metrics read from ledgers."""

from __future__ import annotations

import pytest

from stoker.ledger import Cause
from stoker.meter.readings import read_metrics
from stoker.metrics import METRICS


def test_every_metric_is_read_with_its_labels(script):
    readings = read_metrics([script().read().totals])
    plain = {m.name for m in METRICS if not m.label}
    waits = {f'stoker_wait_seconds_total{{cause="{cause}"}}' for cause in Cause}
    assert set(readings) == plain | waits
    assert set(readings.values()) == {0}


def test_nanoseconds_become_seconds_counters_are_summed_and_of_gauges_the_largest_counts(script):
    one = script(rank=0).step(0, fetch=500).compute(250).step(1).add(bytes_read=7, bytes_in_flight=30)
    two = script(rank=1).step(0, fetch=1500).compute(250).step(1).add(bytes_read=5, bytes_in_flight=20)
    readings = read_metrics([one.read().totals, two.read().totals])
    assert readings['stoker_wait_seconds_total{cause="fetch"}'] == pytest.approx(2.0)
    assert readings["stoker_compute_seconds_total"] == pytest.approx(0.5)
    assert readings["stoker_first_batch_seconds"] == pytest.approx(1.5)
    assert readings["stoker_read_bytes_total"] == 12
    assert readings["stoker_prefetch_bytes"] == 30
    assert readings["stoker_steps_total"] == 4
