"""The page of findings lists every id of the doctor, with its meaning and fix, as the source has them."""

from __future__ import annotations

import re

from stoker.doctor.registry import FINDING_IDS, SUBJECTS, as_markdown, checks_as_markdown

PAGE = "docs/reference/findings.md"


def written(text, name):
    _, _, rest = text.partition(f"<!-- generated: findings {name} -->\n")
    return rest.partition("\n<!-- end -->")[0]


def test_every_subject_has_its_findings_on_the_page_as_the_source_has_them(pages):
    stale = [s for s in SUBJECTS if written(pages[PAGE].text, s.name) != as_markdown(s)]
    blocks = [f"<!-- generated: findings {s.name} -->\n{as_markdown(s)}\n<!-- end -->" for s in stale]
    assert not stale, f"put into {PAGE}:\n" + "\n\n".join(blocks)


def test_what_each_check_looks_at_and_leaves_out_is_on_the_page_as_the_source_has_it(pages):
    _, _, rest = pages[PAGE].text.partition("<!-- generated: checks -->\n")
    assert rest.partition("\n<!-- end -->")[0] == checks_as_markdown()


def test_the_page_names_no_subject_that_is_not_there(pages):
    named = re.findall(r"<!-- generated: findings (\S+) -->", pages[PAGE].text)
    assert sorted(named) == sorted(s.name for s in SUBJECTS)


def test_an_id_is_declared_once(pages):
    names = [known.name for s in SUBJECTS for known in s.ids]
    assert sorted(names) == sorted(FINDING_IDS)
    assert re.findall(r"^### (\S+)$", pages[PAGE].text, re.MULTILINE) != []
