"""What holds for every kind of evidence, whichever subject brought it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.doctor.finding import Finding
from stoker.doctor.kinds import Sample, detect, explain
from stoker.doctor.registry import FINDING_IDS, KINDS, SUBJECTS

from .conftest import SAMPLES

FILES = sorted(str(p.relative_to(SAMPLES)) for p in SAMPLES.rglob("*") if p.is_file() and p.name != "INDEX.md")


def run_all(text):
    """Every kind on a text, as if the user had named it, and twice as two moments of one thing."""
    found = []
    for kind in KINDS:
        kind.detect(text)
        found += kind.explain(text, "given")
        if kind.compare:
            found += kind.compare(Sample(text, "a"), Sample(text, "b"), 10.0)
    assert all(isinstance(f, Finding) and f.id in FINDING_IDS for f in found)
    return found


@pytest.mark.parametrize("name", FILES)
def test_no_sample_looks_like_two_kinds(name):
    assert len(detect((SAMPLES / name).read_text(), KINDS)) <= 1


@pytest.mark.parametrize("name", FILES)
def test_a_sample_that_is_spoiled_never_breaks_a_kind(name):
    text = (SAMPLES / name).read_text()
    chance = random.Random(name)
    lines = text.splitlines(keepends=True)
    for _ in range(3):
        run_all(text[: chance.randrange(len(text) + 1)])
        run_all(text[chance.randrange(len(text) + 1) :])
        run_all("".join(chance.sample(lines, len(lines))))
        noise = "".join(chr(chance.randrange(0x20, 0x250)) if chance.random() < 0.02 else c for c in text)
        run_all(noise)
    run_all(text.replace(".", ","))
    run_all(text.replace("\n", "\r\n"))
    run_all(text.upper())


@given(st.one_of(st.text(max_size=300), st.binary(max_size=300).map(lambda b: b.decode("utf-8", "replace"))))
@settings(max_examples=100, deadline=None)
def test_any_text_is_answered(text):
    run_all(text)
    assert explain([Sample(text, "given")], KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_kind_that_is_given_another_text_concludes_nothing_good(kind):
    for text in ("", "hello\nworld\n"):
        assert [f for f in kind.explain(text, "given") if str(f.severity) == "ok"] == []


def test_every_subject_brings_something_and_is_named_once():
    names = [subject.name for subject in SUBJECTS]
    assert len(set(names)) == len(names)
    assert all(subject.ids for subject in SUBJECTS)
