"""Each promise of the design is on the page of semantics, with tests that exist, or says that it is not kept yet."""

from __future__ import annotations

import ast
import re

PAGE = "docs/semantics.md"
NODE = re.compile(r"`(tests/[\w/]+\.py)((?:::\w+)+)`")


def ids_in(text):
    """Node ids of a test module, without its path: `::test_x`, `::TestY` (a whole suite), `::TestY::test_x`."""
    found = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            found.add(f"::{node.name}")
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            found.add(f"::{node.name}")
            found |= {f"::{node.name}::{f.name}" for f in node.body if isinstance(f, ast.FunctionDef)}
    return found


def absent(text, root):
    """Node ids named in `text` whose file or test is not there."""
    wrong = []
    for file, test in NODE.findall(text):
        path = root / file
        if not path.is_file() or test not in ids_in(path.read_text()):
            wrong.append(file + test)
    return wrong


def promises(page):
    """Number -> text of the sections `## 3. ...`."""
    headings = re.findall(r"^## (\d+)\. (.+?)\s*$", page.text, re.MULTILINE)
    return {int(number): page.section(f"{number}. {title}") for number, title in headings}


def test_every_promise_of_the_design_is_on_the_page(pages):
    heading = next(
        h for h in re.findall(r"^## (.+)$", pages["docs/design.md"].text, re.MULTILINE) if h.startswith("2. Promises")
    )
    wanted = [int(n) for n in re.findall(r"^(\d+)\. ", pages["docs/design.md"].section(heading), re.MULTILINE)]
    assert wanted == list(range(1, 11))
    assert sorted(promises(pages[PAGE])) == wanted


def test_every_test_named_on_the_page_exists(pages, root):
    assert len(NODE.findall(pages[PAGE].text)) > 20
    assert absent(pages[PAGE].text, root) == []


def test_a_promise_names_its_tests_or_says_not_yet(pages):
    silent = [n for n, text in promises(pages[PAGE]).items() if not NODE.search(text) and "not yet" not in text.lower()]
    assert silent == []


def test_every_row_of_the_page_names_a_test(pages):
    rows = [row for row in pages[PAGE].rows(2) if row[0] != "holds now"]
    assert len(rows) > 20
    assert [row[0] for row in rows if not NODE.search(row[1])] == []


def test_what_this_version_does_not_have_is_said_plainly(pages):
    unkept = "\n".join(line for line in pages[PAGE].text.split("\n") if line.startswith(("Not yet", "- ")))
    missing = [
        word for word in ("object", "`ckpt import`", "GPUDirect", "`tidy`", "child process") if word not in unkept
    ]
    assert missing == []


def test_a_test_that_does_not_exist_is_found(root):
    here = "tests/docs/test_semantics.py"
    text = f"`{here}::test_nowhere` `tests/none.py::test_x` `{here}::test_a_test_that_does_not_exist_is_found`"
    assert absent(text, root) == [f"{here}::test_nowhere", "tests/none.py::test_x"]
