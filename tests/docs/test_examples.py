"""What the README and the guides show is run: their commands and their Python, from top to bottom, in an empty folder.

A block that begins with ```python NAME or ```text NAME is saved as that file, for a later command. `make` lines must
name a target; other lines of shell are not understood and fail, so that nothing is shown that nobody runs.

One kind is not run: ```python not run: LIBRARY VERSION, where the library is not among the requirements of the tests.
It must compile, and the page must say below it that it is not run and which version it was written for.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
NOT_RUN = "not run: "
SAMPLE_COUNT = 300
# How a program of the pages is started here.
MODULES = {"python": (), "stoker": ("-m", "stoker"), "torchrun": ("-m", "torch.distributed.run")}
# What a page shows that shows no report.
SHOWN = {
    "without-stoker": "the same, bit for bit",
    "doctor": "6.80 GB/s",
    "read-gdscheck": "[gds-no-backend]",
}

# What the pages call yours, for blocks that train so: a model, its optimizer, and one step of training.
YOURS = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
def train_step(batch):
    optimizer.zero_grad()
    rows = torch.tensor([[float(b) for b in bytes(picture[:4])] for picture in batch["jpg"]])
    model(rows).square().mean().backward()
    optimizer.step()
"""


# A rank that has come to its end is let go before its interpreter ends: gloo aborts there now and then, whoever uses it
# (tests/dist/test_checkpoint_ranks.py says how). What was registered first is called last.
END_OF_RANKS = """
import atexit, os, sys

def end():
    if "torch.distributed" in sys.modules and not hasattr(sys, "last_type"):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

if "LOCAL_RANK" in os.environ:
    atexit.register(end)
"""


def make_photos(folder):
    """300 pairs of a small picture and its label, in three folders."""
    for number in range(SAMPLE_COUNT):
        stem = folder / ("cat", "dog", "owl")[number % 3] / f"{number:03d}"
        stem.parent.mkdir(parents=True, exist_ok=True)
        stem.with_suffix(".jpg").write_bytes(bytes((number * 7 + i) % 251 for i in range(64 + number % 40)))
        stem.with_suffix(".json").write_text(f'{{"label": {number % 3}}}')


def make_tars(photos, folder):
    """The same in three tar archives, a folder of photos each."""
    folder.mkdir()
    for number, kind in enumerate(sorted(photos.iterdir())):
        with tarfile.open(folder / f"train-{number:06d}.tar", "w", format=tarfile.GNU_FORMAT) as tar:
            for path in sorted(kind.iterdir()):
                tar.add(path, str(path.relative_to(photos)))


def commands(text):
    """The command lines of a shell block, without comments and prompts."""
    for line in text.split("\n"):
        command = line.removeprefix("$ ").split("  #")[0].strip()
        if command and not command.startswith("#"):
            yield command


def targets():
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


class Terminal:
    """An empty folder, with photos and tars in it, and what the page's commands do there."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = {**os.environ, "STOKER_NVME": str(folder / "nvme"), "COLUMNS": "120", "NO_COLOR": "1"}
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(END_OF_RANKS)
        path = os.pathsep.join(filter(None, [str(folder / "site"), os.environ.get("PYTHONPATH", "")]))
        self.environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID"):
            self.environment.pop(name, None)
        make_photos(folder / "photos")
        make_tars(folder / "photos", folder / "tars")

    def run(self, *arguments):
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        ends_as_it_finds = arguments[:3] == ("-m", "stoker", "doctor") and done.stdout and done.returncode <= 3
        assert done.returncode == 0 or ends_as_it_finds, f"{' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def command(self, line):
        program, *arguments = shlex.split(line)
        if program == "make":
            assert [a for a in arguments if "=" not in a and a not in targets()] == [], line
            return ""
        if program in MODULES:
            return self.run(*MODULES[program], *arguments)
        pytest.fail(f"nobody runs this line: {line}")

    def block(self, info, text):
        language, _, name = info.strip().partition(" ")
        if language == "sh":
            return "".join(self.command(line) for line in commands(text))
        if language == "text" and name:
            (self.folder / name).write_text(text)
        if language != "python":
            return ""
        if name.startswith(NOT_RUN):
            compile(text, name, "exec")
            return ""
        if name:
            (self.folder / name).write_text(text)
            return ""
        return self.run("-c", YOURS + text if "train_step" in text else text)


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.stem.lower())
def test_the_page_runs_from_top_to_bottom(path, tmp_path):
    terminal = Terminal(tmp_path)
    shown = "".join(terminal.block(info, text) for info, text in FENCE.findall(path.read_text()))
    assert SHOWN.get(path.stem, "utilisation") in shown


def silent_about(text):
    """Blocks that are not run, and whose library is installed, unversioned, or not spoken of in the text below them."""
    wrong = []
    for match in FENCE.finditer(text):
        _, _, name = match[1].strip().partition(" ")
        if name.startswith(NOT_RUN):
            library, _, version = name.removeprefix(NOT_RUN).partition(" ")
            below = " ".join(text[match.end() :].split())
            told = "not run by the tests" in below and f"{library} {version}" in below
            installed = importlib.util.find_spec(library.lower()) is not None
            if installed or not told or not re.fullmatch(r"\d+\.\d+", version):
                wrong.append(name)
    return wrong


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.stem.lower())
def test_what_is_not_run_says_so_and_names_the_version_it_was_written_for(path):
    assert silent_about(path.read_text()) == []


def test_a_block_that_is_not_run_without_a_reason_is_found(tmp_path):
    def page(name, below):
        return f"```python {NOT_RUN}{name}\nx = 1\n```\n{below}\n"

    told = "The block is not run by the tests. It was written for Nowhere 2.6."
    assert silent_about(page("Nowhere 2.6", told)) == []
    assert silent_about(page("Nowhere 2.6", "Nothing.")) == ["not run: Nowhere 2.6"]
    assert silent_about(page("Nowhere 2.7", told)) == ["not run: Nowhere 2.7"]
    assert silent_about(page("Nowhere", told)) == ["not run: Nowhere"]
    assert silent_about(page("Torch 2.6", told.replace("Nowhere", "Torch"))) == ["not run: Torch 2.6"]
    with pytest.raises(SyntaxError):
        Terminal(tmp_path).block(f"python {NOT_RUN}Nowhere 2.6", "x = (\n")


def test_the_first_40_lines_of_the_readme_hold_the_example_and_both_commands():
    head = "\n".join((ROOT / "README.md").read_text().split("\n")[:40])
    for wanted in ("make demo", "make test", "import stoker", "stoker.open(", "save_if_due", "run.report()"):
        assert wanted in head


def test_the_demo_and_the_tests_are_targets():
    assert targets() == {"setup", "demo", "test", "test-lab", "soak", "lint", "bench"}


def test_a_page_that_fails_is_found(tmp_path):
    terminal = Terminal(tmp_path)
    with pytest.raises(AssertionError, match="no-such-verb"):
        terminal.block("sh", "stoker no-such-verb\n")
    with pytest.raises(AssertionError, match="make no-such-target"):
        terminal.block("sh", "make no-such-target\n")
    with pytest.raises(AssertionError, match="KeyError"):
        terminal.block("python", "raise KeyError\n")
    with pytest.raises(pytest.fail.Exception, match="curl"):
        terminal.block("sh", "curl example.org  # a comment\n")
