"""What the documentation tests look at: the pages, their links, their code blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Page:
    """One Markdown page: its path from the root of the repository, and its text."""

    name: str
    text: str

    def blocks(self, language):
        """The code blocks whose info string begins with `language`: (rest of the info string, text)."""
        found = []
        for info, body in FENCE.findall(self.text):
            first, _, rest = info.strip().partition(" ")
            if first == language:
                found.append((rest.strip(), body))
        return found

    def prose(self):
        """The text without its code blocks and code spans, where brackets and pipes are not Markdown."""
        return re.sub(r"`[^`\n]*`", "", FENCE.sub("", self.text))

    def section(self, heading):
        """The text under a heading, to the next heading of the same or a higher level; '' if there is none."""
        match = re.search(rf"^(#+) {re.escape(heading)}\s*$", self.text, re.MULTILINE)
        if match is None:
            return ""
        rest = self.text[match.end() :]
        stop = re.search(rf"^#{{1,{len(match[1])}}} ", rest, re.MULTILINE)
        return rest[: stop.start()] if stop else rest

    def rows(self, columns):
        """The rows of all tables with that many columns, cells stripped, without the line under the head."""
        found = []
        for line in self.text.split("\n"):
            if not line.startswith("|"):
                continue
            cells = [c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]]
            if len(cells) == columns and not all(re.fullmatch(r":?-+:?", c) for c in cells):
                found.append(cells)
        return found


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def pages():
    paths = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {str(p.relative_to(ROOT)): Page(str(p.relative_to(ROOT)), p.read_text()) for p in paths}


@pytest.fixture
def make_page():
    return lambda text: Page("docs/example.md", text)
