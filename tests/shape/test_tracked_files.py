"""What is committed works on any machine, and holds nothing that waits to be written."""

from __future__ import annotations

import re
import subprocess

import pytest

# Written in pieces, so that this file does not find itself.
UNFINISHED = re.compile(
    r"\b(?:TO"
    r"DO|FIX"
    r"ME|HA"
    r"CK|XX"
    r"X)\b|\bplace"
    r"holder|NotImplemented"
    r"Error|\bnot implemented yet\b|\bsimplified version\b",
    re.IGNORECASE,
)
# Folders that name a machine or a person; system folders that any Linux has are fine.
MACHINE_PATH = re.compile(r"/(?:wor" r"k|far" r"m|roo" r"t|hom" r"e|User" r"s)/[A-Za-z0-9._]\S*")


@pytest.fixture(scope="session")
def tracked(root):
    """Text files under version control (or, from an archive of the sources, all text files): relative path -> text."""
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], capture_output=True, check=False)
    names = [n for n in listed.stdout.decode().split("\0") if n] if listed.returncode == 0 else []
    if not names:
        kept = ("src", "tests", "docs", ".ci")
        names = [str(p.relative_to(root)) for folder in kept for p in sorted((root / folder).rglob("*")) if p.is_file()]
        names = [n for n in names if "__pycache__" not in n and ".egg-info" not in n]
        names += [p.name for p in sorted(root.iterdir()) if p.is_file()]
    found = {}
    for name in names:
        path = root / name
        if not path.is_file() or path.is_symlink():
            continue
        try:
            found[name] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # golden files of binary formats
    assert "pyproject.toml" in found
    return found


def lines_with(pattern, files):
    return [
        f"{name}:{number}: {match[0]}"
        for name, text in files.items()
        for number, line in enumerate(text.split("\n"), 1)
        for match in [pattern.search(line)]
        if match
    ]


def test_nothing_is_left_to_be_written(tracked):
    code = {n: t for n, t in tracked.items() if n.startswith(("src/", "tests/", ".ci/")) or n == "Makefile"}
    assert lines_with(UNFINISHED, code) == []


def test_no_file_names_a_folder_of_one_machine(tracked):
    assert lines_with(MACHINE_PATH, tracked) == []


def test_what_is_looked_for_would_be_found():
    words = ["# TODO: x", "raise NotImplementedError", "a placeholder", "x = 1  # XXX"]
    assert lines_with(UNFINISHED, {"a": "\n".join(words)}) == [
        f"a:{i}: {UNFINISHED.search(w)[0]}" for i, w in enumerate(words, 1)
    ]
    assert lines_with(MACHINE_PATH, {"b": "see /home/someone/x"}) == ["b:1: /home/someone/x"]


def test_no_file_is_named_vaguely(tracked):
    vague = re.compile(r"(?:^|/)(?:test_)?(?:utils?|helpers?|common|misc|managers?)(?:\.py)?(?:/|$)")
    assert [name for name in tracked if vague.search(name)] == []


def test_generated_folders_are_not_tracked(tracked):
    generated = re.compile(r"(?:^|/)(?:\.venv|__pycache__|\.pytest_cache|\.mypy_cache|\.ruff_cache|[^/]*\.egg-info)/")
    assert [name for name in tracked if generated.search(name)] == []
