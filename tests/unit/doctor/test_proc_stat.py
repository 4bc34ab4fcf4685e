"""CPU time in forms that no sample has."""

from __future__ import annotations

import pytest

from stoker.doctor import proc_stat
from stoker.doctor.kinds import Sample

ZERO = "cpu  0 0 0 0 0 0 0 0 0 0\n"


@pytest.mark.parametrize(
    ("ticks", "severity", "words"),
    [
        ("10 0 5 80 5 0 0 0", "ok", "busy 15%: 10% user, 5% system, 5% waiting for I/O"),
        ("70 0 15 15 0 0 0 0", "warn", "much user time is decoding"),
        ("40 0 20 10 0 10 20 0", "warn", "50% system"),
        ("20 0 10 50 0 0 0 20", "warn", "20% was taken by other machines"),
    ],
)
def test_busy_cpus_are_told_by_what_they_do(ticks, severity, words):
    (found,) = proc_stat.compare(Sample(ZERO, "a"), Sample(f"cpu  {ticks} 0 0\n", "b"), None)
    assert str(found.severity) == severity
    assert words in found.what


@pytest.mark.parametrize("after", [ZERO, "cpu  x\n", ""])
def test_samples_that_do_not_fit_are_unknown(after):
    (found,) = proc_stat.compare(Sample(ZERO, "a"), Sample(after, "b"), None)
    assert found.id == "host-counters-unusable"


def test_the_columns_of_an_old_kernel_are_enough():
    assert proc_stat.parse("cpu  1 2 3 4\n") == {"user": 1, "nice": 2, "system": 3, "idle": 4}
    assert proc_stat.busy_ratio({}) == 0
