"""Write the generated blocks of the reference pages anew from the source; the tests beside this hold the pages to it.

Run as `python tests/docs/write_pages.py` from the root. A name that has no block yet gets a section at the end.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import test_cli_page
import test_python_page
from typer.main import get_command

from stoker.cli.main import app
from stoker.doctor.registry import SUBJECTS, as_markdown, checks_as_markdown

REFERENCE = Path("docs/reference")


def write_blocks(page: str, blocks: dict[str, tuple[str, str]]) -> None:
    """`blocks` maps the name of a block to its heading and its text."""
    path = REFERENCE / page
    text = path.read_text()
    for name, (heading, body) in blocks.items():
        begin, end = f"<!-- generated: {name} -->\n", "\n<!-- end -->"
        head, found, rest = text.partition(begin)
        if found:
            text = head + begin + body + end + rest.partition(end[1:])[2]
        else:
            text = f"{text.rstrip()}\n\n{heading}\n\n{begin}{body}{end}\n"
    stale = [name for name in re.findall(r"<!-- generated: (.*?) -->", text) if name not in blocks]
    if stale:
        sys.stderr.write(f"{path}: no source for {', '.join(stale)}\n")
    path.write_text(text)


def main() -> None:
    verbs = test_cli_page.commands(get_command(app), "")
    write_blocks("cli.md", {f"stoker {n}": (f"## stoker {n}", test_cli_page.table(c)) for n, c in verbs})
    names = test_python_page.paths()
    write_blocks("python.md", {n: (f"### `{n}`", test_python_page.entry(n)) for n in names})
    subjects = {f"findings {s.name}": (f"## {s.name}", as_markdown(s)) for s in SUBJECTS}
    write_blocks("findings.md", {"checks": ("## Checks", checks_as_markdown()), **subjects})


if __name__ == "__main__":
    main()
