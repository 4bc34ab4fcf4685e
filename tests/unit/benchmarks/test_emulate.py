from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

PATH = Path(__file__).parents[3] / "benchmarks" / "emulate.py"


@pytest.fixture(scope="module")
def emulate():
    """The module, which is part of no package."""
    spec = importlib.util.spec_from_file_location("benchmarks_emulate", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_utilisation_is_the_time_asked_for_over_the_time_it_took(emulate):
    assert emulate.utilisation(steps=10, step_s=0.5, wall_s=5.0) == 1.0
    assert emulate.utilisation(steps=10, step_s=0.5, wall_s=10.0) == 0.5
    assert emulate.utilisation(steps=0, step_s=0.5, wall_s=0.0) == 0.0


def test_what_the_harness_itself_costs_cancels(emulate):
    step_s, harness_s, loader_s = 0.004, 0.001, 0.0005
    null = emulate.utilisation(100, step_s, 100 * (step_s + harness_s))
    loader = emulate.utilisation(100, step_s, 100 * (step_s + harness_s + loader_s))
    assert emulate.relative(null, null) == 1.0
    assert emulate.relative(loader, null) == pytest.approx(0.005 / 0.0055)
    assert emulate.relative(0.5, 0.0) == 0.0


def test_the_grid_doubles_every_four_places(emulate):
    assert emulate.demand(0) == 1.0
    assert emulate.demand(44) == 2048.0
    assert emulate.demand(45) / emulate.demand(44) == pytest.approx(1.19, abs=0.01)


@given(st.integers(0, 80), st.floats(0.93, 1.07))
def test_a_rate_finds_its_nearest_place(emulate, place, factor):
    assert emulate.place_of(emulate.demand(place) * factor) == place


def test_rates_below_the_grid_find_its_first_place(emulate):
    assert emulate.place_of(0.1) == 0


@given(st.integers(0, 60), st.integers(0, 60), st.integers(-5, 65), st.integers(-5, 65))
def test_the_knee_is_found_from_any_guess(emulate, one, other, knee, guess):
    lowest, highest = min(one, other), max(one, other)
    asked = []

    def measure(place):
        asked.append(place)
        return 1.0 if place <= knee else 0.5

    found = emulate.find_knee(measure, lowest, highest, guess)
    assert found.place == (None if knee < lowest else min(knee, highest))
    assert found.open_ended == (knee >= highest)
    assert found.points == len(asked) == len(set(asked)) <= 11
    assert all(lowest <= place <= highest for place in asked)


def test_a_value_of_exactly_the_bar_holds(emulate):
    values = {0: 0.9, 1: 0.8999}
    assert emulate.find_knee(values.__getitem__, 0, 1, 1).place == 0


def test_the_copy_engine_copies_every_piece_and_counts(emulate):
    copier = emulate.Copier(6)
    copier.submit([b"abc", memoryview(b"def")])
    copier.wait()
    assert bytes(copier._buffer) == b"abcdef"
    assert copier.copied_bytes == 6
    copier.close()


def test_a_batch_of_another_size_is_an_error_of_the_loop(emulate):
    copier = emulate.Copier(6)
    copier.submit([b"abc"])
    with pytest.raises(RuntimeError, match="3 bytes, not 6"):
        copier.wait()
    copier.close()


def test_a_run_takes_at_least_and_at_most_the_steps_it_is_given(emulate):
    copier = emulate.Copier(1)
    batches = iter([[b"x"]] * 100)
    assert emulate.run(batches, copier, 0.0, 0.0, (3, 9)).steps == 3
    stretch = emulate.run(batches, copier, 0.001, 60.0, (1, 5))
    assert stretch.steps == 5
    assert stretch.wall_s >= 0.005
    copier.close()
