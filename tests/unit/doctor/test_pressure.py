"""Pressure in forms that no sample has."""

from __future__ import annotations

import pytest

from stoker.doctor import pressure


def text(name, some, full):
    lines = [f"{word} avg10={value} avg60=0.00 avg300=0.00 total=5" for word, value in (("some", some), ("full", full))]
    return f"==> {name} <==\n" + "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("name", "some", "full", "expected"),
    [
        ("io", 90, 19.99, ("pressure-low", "ok")),
        ("io.pressure", 90, 20, ("pressure-io", "warn")),
        ("/proc/pressure/cpu", 40, 0, ("pressure-cpu", "warn")),
        ("cpu", 39.9, 39.9, ("pressure-low", "ok")),
        ("memory", 50, 10, ("pressure-memory", "warn")),
    ],
)
def test_thresholds_are_those_of_each_resource(name, some, full, expected, said):
    assert said(pressure.explain(text(name, some, full), "given")) == {expected}


def test_several_resources_are_said_together(said):
    found = pressure.explain(text("io", 50, 50) + text("cpu", 50, 0), "given")
    assert said(found) == {("pressure-io", "warn"), ("pressure-cpu", "warn")}
    assert all("quiet" not in f.what for f in found)


def test_a_text_that_does_not_say_of_which_resource_it_is_is_unknown(said):
    found = pressure.explain(text("io", 50, 50).partition("\n")[2], "given")
    assert said(found) == {("line-not-understood", "unknown")}


@pytest.mark.parametrize("value", ["400.0", "much", ""])
def test_a_number_that_cannot_be_is_quoted(value):
    found = pressure.explain(text("io", 1, value), "given")
    assert found[-1].id == "line-not-understood"
    assert found[-1].evidence[0].line.startswith(f"full avg10={value}")
