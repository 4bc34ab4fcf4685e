"""Texts are told by their content, and what is not known is unknown."""

from __future__ import annotations

import pytest

from stoker.doctor.finding import FindingId
from stoker.doctor.kinds import Kind, Sample, explain

THING = FindingId("a-thing", "m", "w", "f")


def kind(name, word):
    def compare(a, b, seconds):
        return [THING.info("compared", f"{a.text} {b.text} {seconds}")]

    return Kind(name, lambda t: word in t, lambda t, source: [THING.ok(source, f"{name}:{word}")], compare)


KINDS = [kind("apple", "apple"), kind("pear", "pear"), kind("tree", "oak"), kind("tree", "elm")]


def run(*texts, **options):
    return explain([Sample(text, f"f{n}") for n, text in enumerate(texts)], KINDS, **options)


def test_a_text_of_one_kind_is_explained_by_it():
    assert [f.what for f in run("an apple")] == ["apple:apple"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("apple pear", "text-of-several-kinds"), ("plum", "text-not-recognised"), ("", "text-not-recognised")],
)
def test_a_text_of_several_kinds_or_none_is_unknown_and_quoted(text, expected):
    (found,) = run(text)
    assert (found.id, str(found.severity), found.evidence[0].line) == (expected, "unknown", text)


def test_kinds_of_one_name_each_explain_what_they_see():
    assert [f.what for f in run("oak")] == ["tree:oak"]
    assert [f.what for f in run("oak elm")] == ["tree:oak", "tree:elm"]
    assert [f.id for f in run("ash", name="tree")] == ["text-not-recognised"]


def test_a_kind_asked_for_by_name_is_taken_at_its_word():
    assert [f.what for f in run("plum", name="apple")] == ["apple:apple"]


def test_texts_of_a_kind_in_a_row_are_compared():
    found = run("apple 1", "apple 2", between_s=10.0)
    assert [f.what for f in found if f.subject == "compared"] == ["apple 1 apple 2 10.0"]
    assert [f for f in run("apple 1", "pear", "apple 2") if f.subject == "compared"] == []


def test_of_moments_that_are_compared_each_alone_says_only_what_is_wrong():
    found = run("apple 1", "apple 2", "apple 3")
    assert [f.what for f in found] == ["apple 1 apple 2 None", "apple 2 apple 3 None"]
    other = FindingId("other-thing", "m", "w", "f")

    def compare(a, b, seconds):
        return [THING.unknown("compared", "nothing") if "back" in b.text else THING.info("apple, twice", "more")]

    def alone(text, source):
        return [THING.warn("apple", "told twice"), THING.warn("pear", "wrong"), other.info("apple", "fine")]

    fruit = [Kind("fruit", lambda t: "fruit" in t, alone, compare)]
    said = explain([Sample("fruit", "a"), Sample("fruit", "b")], fruit)
    assert [f.what for f in said] == ["wrong", "wrong", "more"]
    unable = explain([Sample("fruit", "a"), Sample("fruit back", "b")], fruit)
    assert [f.what for f in unable] == 2 * ["told twice", "wrong", "fine"] + ["nothing"]
