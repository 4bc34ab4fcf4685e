"""YAML as Kubernetes objects are written."""

from __future__ import annotations

import json

import pytest

from stoker.doctor.yaml_text import MAX_DEPTH, parse


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: b\nc:\n  d: e # note\n", {"a": "b", "c": {"d": "e"}}),
        ("a:\n- b\n- c\nd: e\n", {"a": ["b", "c"], "d": "e"}),
        ("a:\n  - b: 1\n    c: 2\n  -\n    d: 3\n", {"a": [{"b": "1", "c": "2"}, {"d": "3"}]}),
        ("- - a\n  - b\n- c: {}\n", [["a", "b"], {"c": {}}]),
        ("a: {b: c, d: [e, 'f, g'], h: {}}\n", {"a": {"b": "c", "d": ["e", "f, g"], "h": {}}}),
        ("a: [b,\n  c]\nd: e\n", {"a": ["b", "c"], "d": "e"}),
        ('"a b": "c # d"\ne: http://f#g\n', {"a b": "c # d", "e": "http://f#g"}),
        ("a: |\n  one\n  two\nb: null\n", {"a": "one\ntwo", "b": ""}),
        ("a: {b: c:d, e}\n", {"a": {"b": "c:d", "e": ""}}),
    ],
)
def test_the_forms_that_are_used_are_read(text, expected):
    assert parse(text) == ([expected], [])


def test_documents_are_told_apart_and_json_is_read():
    assert parse("a: b\n---\nc: d\n...\n") == ([{"a": "b"}, {"c": "d"}], [])
    value = {"a": [1, True, None], "b": {"c": "d"}}
    assert parse(json.dumps(value)) == ([{"a": ["1", "true", ""], "b": {"c": "d"}}], [])


@pytest.mark.parametrize(
    "line", ["a: &anchor b", "a: *alias", "a: !tag b", "\ta: b", "no entry", "a: [b, c", "a: {b: [c}", "? a"]
)
def test_what_is_not_understood_is_handed_back(line):
    _, strange = parse(f"x: y\n{line}\n")
    assert strange


def test_depth_is_bounded():
    deep = "".join(" " * n + "a:\n" for n in range(3 * MAX_DEPTH))
    assert parse(deep)[1]
    assert parse("a: " + "[" * 1000)[1]
    parse('{"a":' * 5000)
