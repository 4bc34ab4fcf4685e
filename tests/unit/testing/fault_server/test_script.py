"""Rules count what is shown to them, in order, and chance comes from the seed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import ConfigError
from stoker.testing.fault_server import (
    Always,
    Answer,
    Chance,
    Cut,
    Every,
    First,
    Flip,
    Nth,
    Reset,
    Rule,
    Script,
    Stall,
    Trickle,
    WrongLength,
    script_from_json,
    script_to_json,
)
from stoker.testing.fault_server.script import Chooser

ONE, TWO = Answer(500, "InternalError"), Answer(503)


def met(script, count, operation="GetObject", key="key"):
    chooser = Chooser(script)
    return [chooser.choose("GET", operation, key).fault for _ in range(count)]


@pytest.mark.parametrize(
    ("when", "turns"),
    [
        (Always(), {1, 2, 3, 4, 5, 6}),
        (First(2), {1, 2}),
        (Nth(3), {3}),
        (Every(2), {2, 4, 6}),
        (Chance(0.0), set()),
        (Chance(1.0), {1, 2, 3, 4, 5, 6}),
    ],
)
def test_a_rule_takes_the_turns_that_it_says(when, turns):
    found = met(Script((Rule(ONE, when),)), 6)
    assert {number for number, fault in enumerate(found, 1) if fault} == turns


def test_rules_are_asked_in_order_and_count_only_what_is_left_to_them():
    script = Script((Rule(ONE, First(2)), Rule(TWO, First(1)), Rule(Reset(), Nth(2))))
    assert met(script, 5) == [ONE, ONE, TWO, None, Reset()]


def test_a_rule_counts_only_requests_that_fit():
    script = Script((Rule(ONE, Nth(2), method="G*", operation="GetObject", key="a/*.tar"),))
    chooser = Chooser(script)
    asked = [
        ("GET", "GetObject", "a/1.tar"),
        ("HEAD", "GetObject", "a/1.tar"),
        ("GET", "HeadObject", "a/1.tar"),
        ("GET", "GetObject", "A/1.tar"),
        ("GET", "GetObject", "a/b/2.tar"),
    ]
    assert [chooser.choose(*request).fault for request in asked] == [None, None, None, None, ONE]


def test_chance_is_the_same_for_a_seed_whatever_other_rules_meet():
    alone = met(Script((Rule(Reset(), key="other"), Rule(ONE, Chance(0.5))), seed=7), 200)
    crowded = Chooser(Script((Rule(Reset(), key="other"), Rule(ONE, Chance(0.5))), seed=7))
    found = []
    for _ in range(200):
        crowded.choose("GET", "GetObject", "other")
        found.append(crowded.choose("GET", "GetObject", "key").fault)
    assert alone == found
    assert met(Script((Rule(Reset(), key="other"), Rule(ONE, Chance(0.5))), seed=8), 200) != alone
    assert 70 < sum(fault is not None for fault in alone) < 130


def test_the_fraction_that_places_a_fault_is_of_the_seed():
    def fractions(seed):
        chooser = Chooser(Script((Rule(Flip()),), seed=seed))
        return [chooser.choose("GET", "GetObject", "key").fraction for _ in range(5)]

    assert fractions(1) == fractions(1) != fractions(2)
    assert len(set(fractions(1))) == 5
    assert all(0 <= fraction < 1 for fraction in fractions(1))


WHENS = st.one_of(
    st.just(Always()),
    st.builds(First, st.integers(1, 99)),
    st.builds(Every, st.integers(1, 99)),
    st.builds(Chance, st.floats(0, 1)),
)
FAULTS = st.one_of(
    st.builds(Answer, st.integers(400, 599), st.text(max_size=5), st.none() | st.integers(0, 9), st.booleans()),
    st.builds(Reset, st.none() | st.integers(0, 9)),
    st.builds(Stall, st.floats(0.1, 9), st.none() | st.integers(0, 9)),
    st.builds(Trickle, st.floats(1, 9)),
    st.builds(WrongLength, st.integers(1, 9)),
)
RULES = st.builds(Rule, FAULTS, WHENS, st.text(max_size=3), st.text(max_size=3), st.text(max_size=3))


@given(st.lists(RULES, max_size=3), st.floats(0, 9), st.none() | st.floats(1, 9), st.integers(-9, 9))
def test_a_script_survives_json(rules, latency_s, rate, seed):
    script = Script(tuple(rules), latency_s, rate, None, seed)
    assert script_from_json(json.loads(json.dumps(script_to_json(script)))) == script


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([], "not a JSON object"),
        ({"rules": {}}, "are a list"),
        ({"latency": 1}, "unknown name 'latency'"),
        ({"latency_s": "1"}, "wrong type"),
        ({"seed": True}, "wrong type"),
        ({"rules": [1]}, "not a JSON object"),
        ({"rules": [{}]}, "no 'fault'"),
        ({"rules": [{"fault": {"kind": "Boom"}}]}, "unknown kind 'Boom'"),
        ({"rules": [{"fault": {"kind": "Stall"}}]}, "no 'seconds'"),
        ({"rules": [{"fault": {"kind": "Reset", "after": 1}}]}, "unknown name 'after'"),
        ({"rules": [{"fault": {"kind": "Cut", "after_bytes": None}}]}, "wrong type"),
        ({"rules": [{"fault": {"kind": "Cut"}, "when": {"kind": "First", "count": 0}}]}, "must be 1 or more"),
        ({"rules": [{"fault": {"kind": "Cut"}, "key": 1}]}, "wrong type"),
    ],
)
def test_a_script_that_is_wrong_is_an_error_that_says_so(value, says):
    with pytest.raises(ConfigError, match=says):
        script_from_json(value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: First(0),
        lambda: Every(0),
        lambda: Nth(0),
        lambda: Chance(1.5),
        lambda: Answer(200),
        lambda: Reset(-1),
        lambda: Cut(-1),
        lambda: Flip(-1),
        lambda: Stall(0),
        lambda: Trickle(0),
        lambda: WrongLength(0),
        lambda: Script(latency_s=-1),
        lambda: Script(bytes_per_s=0),
        lambda: Script(total_bytes_per_s=0),
    ],
)
def test_values_that_cannot_work_are_refused(make):
    with pytest.raises(ConfigError):
        make()
