"""Whether the time goes into data or metadata."""

from __future__ import annotations

import pytest

from stoker.doctor.operation_mix import OperationMix, judge_mix


@pytest.mark.parametrize(
    ("mix", "severity"),
    [
        (OperationMix(100, 50, 900.0, 100.0), "ok"),
        (OperationMix(100, 200, 100.0, 100.0), "warn"),
        (OperationMix(0, 200, 0.0, 100.0), "warn"),
        (OperationMix(100, 199, 100.0, 900.0), "info"),
        (OperationMix(100, 900, 900.0, 100.0), "info"),
        (OperationMix(100, 900, 0.0, 0.0), "info"),
        (OperationMix(100, 10, 0.0, 0.0), "ok"),
    ],
)
def test_metadata_is_blamed_only_for_many_operations_that_take_most_of_the_time(mix, severity):
    (found,) = judge_mix("/m", mix, [])
    assert str(found.severity) == severity


def test_nothing_done_is_nothing_said():
    assert judge_mix("/m", OperationMix(0, 0, 0.0, 0.0), []) == []
