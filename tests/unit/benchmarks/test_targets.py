from __future__ import annotations

import pytest


def result(place, tree_cpu_s=0.05, trainer_us=100.0, *, search=False):
    return {
        "knee": {"place": place, "open_ended": False, "lowest": 28},
        "samples_per_s": 1000.0,
        "tree_cpu_s": tree_cpu_s,
        "trainer_us_a_batch": trainer_us,
        "search": search,
    }


def documents():
    case = {
        "stoker": [result(56, 0.05, 100)],
        "floor w=1": [result(40, 0.1, 1000)],
        "litdata w=2": [result(44, 0.04, 400)],
    }
    return {
        "loader": {"found": {"100KB local": case}},
        "start": {
            "medians": {
                "import numpy": {"process_s": 0.1},
                "stoker": {"process_s": 0.25, "from_open_s": 0.2},
                "stoker at half": {"process_s": 0.3, "from_open_s": 0.4},
            }
        },
        "ticker": {
            "medians": {
                "stoker": {"p50_s": 0.0001, "p99_s": 0.0025},
                "busy process": {"p50_s": 0.0001, "p99_s": 0.002},
            }
        },
        "memory": {"found": {"2KB": {"stoker": {"pss_bytes": {"2": 100 << 20, "5": 103 << 20}}}}},
        "tokens": {
            "shapes": [
                {"seq_len": 1024, "batch": 64, "ratios": {"stack": [0.5, 0.8, 0.9], "take": [0.1, 0.1, 0.1]}},
                {"seq_len": 2048, "batch": 64, "ratios": {"stack": [1.0, 1.1, 1.2], "take": [0.2, 0.2, 0.2]}},
            ]
        },
    }


def test_each_target_is_held_to_what_was_measured(benchmark_module):
    targets = benchmark_module("targets")
    rows = targets.rows(documents())
    found = {each["what"]: (each["value"], each["met"]) for each in rows}
    assert found["knee, 100 KB, local"] == (8.0, True)
    assert found["CPU of the trainer a sample, 100KB local"] == (0.25, False)
    assert found["CPU of the trainer a batch, 100KB local"] == (100, True)
    assert found["CPU of the tree a sample, 100KB local"] == (1.25, False)
    floors = [(each["value"], each["met"]) for each in rows if each["what"] == "the same beside the floor"]
    assert floors[:2] == [(0.1, None), (0.5, None)]
    assert found["token windows"] == (0.8, True)
    assert found["first batch, whole process"] == (2.5, True)
    assert found["resume at 50%"] == (2.0, False)
    assert found["memory after epoch 5"] == (3.0, True)
    assert found["ticker of 1 ms, p50"] == (0.0, True)
    assert found["ticker of 1 ms, p99"] == (pytest.approx(0.5), False)


def test_what_was_not_measured_is_neither_met_nor_missed(benchmark_module):
    targets = benchmark_module("targets")
    found = targets.rows({})
    assert {(each["value"], each["met"]) for each in found} == {(None, None)}
    assert "MISSED" not in targets.table(found)
    assert "MISSED" in targets.table(targets.rows(documents()))


def test_a_peer_that_meets_no_demand_leaves_a_lower_bound(benchmark_module):
    targets = benchmark_module("targets")
    case = {"stoker": [result(48)], "floor w=1": [result(None)]}
    measured = targets.knee("100KB local", "stoker", floor=True)({"loader": {"found": {"100KB local": case}}})
    assert measured.value == pytest.approx(2**5)
    assert "at least" in measured.words


def test_the_search_for_the_best_setting_is_quoted_only_where_nothing_else_is(benchmark_module):
    tables = benchmark_module("tables")
    rounds = [result(60, search=True), result(44), result(40)]
    assert tables.knee_place(rounds) == 42
    assert tables.middle(rounds[:1], "knee") == 2.0**15
    results = {"floor w=1": rounds, "floor w=2": [result(64, search=True)]}
    assert tables.best_setting(results, "floor") == 1


@pytest.mark.parametrize(("load", "quotable"), [(0.3, True), (1.5, True), (1.6, False)])
def test_a_busy_machine_is_said(benchmark_module, load, quotable):
    assert (benchmark_module("script").warning(load) == "") == quotable


def test_pss_is_found_among_the_lines_of_its_kin(benchmark_module):
    memory = benchmark_module("memory")
    assert memory.parse_pss("5000-6000 [rollup]\nRss: 90 kB\nPss:   42 kB\nPss_Dirty: 7 kB\n") == 42 << 10
    assert memory.parse_pss("") == 0


def test_a_quantile_is_one_of_the_values(benchmark_module):
    ticker = benchmark_module("ticker")
    values = [float(value) for value in range(100)]
    assert (ticker.quantile(values, 0.5), ticker.quantile(values, 0.99), ticker.quantile([7.0], 0.99)) == (50, 99, 7)


def test_a_child_that_fails_gives_its_last_words(benchmark_module):
    import sys

    script = benchmark_module("script")
    assert script.ask([sys.executable, "-S", "-c", "print('x'); print('{\"a\": 1}')"], 30) == {"a": 1}
    assert "no such" in script.ask([sys.executable, "-S", "-c", "raise SystemExit('no such thing')"], 30)
    assert "not done" in script.ask([sys.executable, "-S", "-c", "import time; time.sleep(60)"], 0.05)
