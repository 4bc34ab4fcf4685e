"""The words of the design, each explained once."""

from __future__ import annotations

import re


def words(text):
    """Words in bold; two in one bold, as in `feeder / writer`, are two words."""
    return [word.strip() for bold in re.findall(r"\*\*(.+?)\*\*", text) for word in bold.split("/")]


def test_the_glossary_explains_every_word_of_the_design(pages):
    wanted = words(
        pages["docs/design.md"].section("1. Words (one word, one meaning; [glossary.md](glossary.md) repeats them)")
    )
    assert len(wanted) > 20
    explained = words(pages["docs/glossary.md"].text)
    assert sorted(set(wanted) - set(explained)) == []


def test_no_word_is_explained_twice(pages):
    explained = words(pages["docs/glossary.md"].text)
    assert sorted({w for w in explained if explained.count(w) > 1}) == []


def test_words_in_italics_have_an_entry(pages):
    text = pages["docs/glossary.md"].text
    pointed_at = {w.lower() for w in re.findall(r"(?<!\*)\*([A-Za-z ]+)\*(?!\*)", text)}
    explained = set(words(text))
    assert sorted(w for w in pointed_at if w not in explained and w.removesuffix("s") not in explained) == []
