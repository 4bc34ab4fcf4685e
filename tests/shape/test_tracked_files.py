"""What is committed works on any machine, and holds nothing that waits to be written."""

from __future__ import annotations

import re
import subprocess

import pytest

# With a letter in brackets here and there, so that this file does not find itself.
UNFINISHED = re.compile(
    r"\b(?:TOD[O]|FIXM[E]|HAC[K]|XX[X])\b|\bplaceholde[r]|NotImplementedErro[r]"
    r"|\bnot implemented ye[t]\b|\bsimplified versio[n]\b",
    re.IGNORECASE,
)
# Folders that name a machine or a person; system folders that any Linux has are fine.
MACHINE_PATH = re.compile(r"/(?:wor[k]|far[m]|roo[t]|hom[e]|User[s])/[A-Za-z0-9._]\S*")


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
    code = {n: t for n, t in code.items() if "/samples/" not in n}  # the words of other programs
    assert lines_with(UNFINISHED, code) == []


def test_no_file_names_a_folder_of_one_machine(tracked):
    assert lines_with(MACHINE_PATH, tracked) == []


@pytest.mark.parametrize("text", ["# TO~DO: x", "raise NotImplemented~Error", "a place~holder", "x = 1  # XX~X"])
def test_unfinished_text_would_be_found(text):
    assert len(lines_with(UNFINISHED, {"a": text.replace("~", "")})) == 1


def test_a_folder_of_one_machine_would_be_found():
    text = "see /ho~me/someone/x".replace("~", "")
    assert lines_with(MACHINE_PATH, {"b": f"first\n{text}"}) == [f"b:2: {text.removeprefix('see ')}"]


def test_no_file_is_named_vaguely(tracked):
    vague = re.compile(r"(?:^|/)(?:test_)?(?:utils?|helpers?|common|misc|managers?)(?:\.py)?(?:/|$)")
    assert [name for name in tracked if vague.search(name)] == []


def test_generated_folders_are_not_tracked(tracked):
    generated = re.compile(r"(?:^|/)(?:\.venv|__pycache__|\.pytest_cache|\.mypy_cache|\.ruff_cache|[^/]*\.egg-info)/")
    assert [name for name in tracked if generated.search(name)] == []
