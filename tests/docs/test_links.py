"""Every link leads somewhere, and every page can be reached."""

from __future__ import annotations

import os
import re
from pathlib import PurePosixPath

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def slug(heading):
    """The anchor that GitHub gives a heading."""
    kept = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.replace("`", "")).strip().lower())
    return kept.replace(" ", "-")


def anchors(page):
    """The anchors of a page; a heading that comes twice gets a number."""
    found = set()
    text = re.sub(r"^```.*?^```", "", page.text, flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#+ (.+?)\s*$", text, re.MULTILINE):
        name, number = slug(heading), 0
        while (name if not number else f"{name}-{number}") in found:
            number += 1
        found.add(name if not number else f"{name}-{number}")
    return found


def links(page):
    """(path from the root, anchor) of every relative link of a page."""
    folder = PurePosixPath(page.name).parent
    for target in LINK.findall(page.prose()):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        yield (os.path.normpath(folder / path) if path else page.name), anchor


def broken(page, pages, root):
    wrong = []
    for path, anchor in links(page):
        if path.startswith("..") or not (root / path).exists():
            wrong.append(f"{page.name}: {path} is not there")
        elif anchor and (path not in pages or anchor not in anchors(pages[path])):
            wrong.append(f"{page.name}: {path} has no heading for #{anchor}")
    return wrong


def test_every_relative_link_leads_to_a_file_and_heading(pages, root):
    assert [problem for page in pages.values() for problem in broken(page, pages, root)] == []


def test_every_page_is_reached_from_the_readme(pages):
    reached, waiting = set(), ["README.md"]
    while waiting:
        name = waiting.pop()
        if name in reached or name not in pages:
            continue
        reached.add(name)
        waiting += [path for path, _ in links(pages[name])]
    assert sorted(set(pages) - reached) == []


def test_a_broken_link_or_anchor_is_found(make_page, pages, root):
    page = make_page("[a](gone.md) [b](glossary.md#no-such-word) `[c](code.md)` [d](glossary.md#places)")
    assert broken(page, pages, root) == [
        "docs/example.md: docs/gone.md is not there",
        "docs/example.md: docs/glossary.md has no heading for #no-such-word",
    ]
