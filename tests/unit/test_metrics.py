"""The one table of metrics: complete, consistent, and what the reference page says."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from stoker.ledger import Counter, Totals
from stoker.metrics import METRICS, as_markdown

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"

# Numbers of the ledger that are no metric: positions and times from which others are made.
NOT_PUBLISHED = {"first_step", "last_step", "first_entered_ns", "last_ns", "first_compute_ns", "closed"}


def test_every_number_and_counter_of_the_ledger_is_one_metric():
    numbers = {f.name for f in fields(Totals)} - {"counters"}
    expected = sorted((numbers - NOT_PUBLISHED) | {c.value for c in Counter})
    assert sorted(m.source for m in METRICS) == expected


def test_names_are_unique_and_say_unit_and_kind():
    names = [m.name for m in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"stoker_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        if metric.unit in ("seconds", "bytes"):
            assert metric.unit in metric.name
        assert metric.source.endswith("_ns") == (metric.unit == "seconds"), metric.name


def test_every_metric_says_what_high_and_low_mean():
    for metric in METRICS:
        for text in (metric.help, metric.high, metric.low):
            assert text.endswith("."), metric.name
            assert len(text) > 10


def test_the_reference_page_is_the_table():
    assert PAGE.read_text() == as_markdown(), "write as_markdown() to the page"
