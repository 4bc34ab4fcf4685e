"""What the shape tests look at: every module of the package, parsed once; and the exceptions, each with its reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# rule -> place -> reason. A place is `module` or `module:qualified.name`; a place that no longer breaks its rule is an
# error too, so that this list only holds what is needed.
EXCEPTIONS: dict[str, dict[str, str]] = {
    "pickles": {
        "stoker.feed.functions": "functions of the user, over a private socket to a process that this one has started",
    },
    "durable operations": {
        "stoker.cli.demo:demo": "user code: makes the folder that --dir names; nothing in it must outlive a crash",
        "stoker.demo.prove:demonstrate": "user code: a scratch folder, and a copy of the killed run for the control",
    },
    "parameter count": {
        "stoker.cli.pack:pack": "the signature is the command line: a parameter an option",
        "stoker.run:Run.loader": "one call with named options is the user's view of the design (section 3)",
    },
    "bool parameters": {
        "stoker.cli.doctor:check": "--probe and --json are flags and do not depend on each other",
        "stoker.cli.doctor_gds:gds": "--probe and --json are flags and do not depend on each other",
        "stoker.cli.doctor_storage:storage": "--dry-run and --json are flags and do not depend on each other",
        "stoker.cli.index:index": "--checksums and --json are flags and do not depend on each other",
        "stoker.cli.pack:pack": "--dry-run and --json are flags of the command line and do not depend on each other",
        "stoker.cli.ls:ls": "--all and --json are flags and do not depend on each other",
        "stoker.cli.verify:verify": "--deep and --json are flags and do not depend on each other",
    },
}


@dataclass(frozen=True)
class Source:
    """One module: its dotted name, its text, its syntax tree."""

    name: str
    text: str

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def room(self) -> str:
        """The part of the name under `stoker`: `io` for `stoker.io.atomic`, `run` for `stoker.run`."""
        return (self.name + ".").split(".")[1]

    def line(self, number: int) -> str:
        """Line `number`, counted from 1, or nothing beyond the ends."""
        lines = self.text.split("\n")
        return lines[number - 1] if 0 < number <= len(lines) else ""

    def functions(self) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef, ast.AST]]:
        """Every function with its qualified name and what holds it (module, class or function)."""
        yield from _functions(self.tree, "")

    def classes(self) -> Iterator[tuple[str, ast.ClassDef]]:
        """Every class with its name."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ClassDef):
                yield node.name, node


def _functions(holder: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef, ast.AST]]:
    for node in ast.iter_child_nodes(holder):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node, holder
            yield from _functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")
        elif not isinstance(node, ast.expr):
            # `if`, `try`, `with` and their kin: what they hold belongs to the same holder.
            for name, function, inner in _functions(node, prefix):
                yield name, function, holder if inner is node else inner


def read_sources(package: Path) -> list[Source]:
    """Every module under `package`, by name."""
    found = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found.append(Source(".".join(p for p in parts if p != "__init__"), path.read_text()))
    return found


class Judge:
    """Takes what a rule found, takes out the named exceptions, and fails with the rest."""

    def __init__(self, exceptions: dict[str, dict[str, str]]) -> None:
        self.exceptions = exceptions

    def check(self, rule: str, found: dict[str, str]) -> None:
        """Fail unless the places in `found` (place -> what is wrong) are exactly the exceptions of `rule`."""
        allowed = self.exceptions.get(rule, {})
        wrong = [f"{place}: {what}" for place, what in sorted(found.items()) if place not in allowed]
        stale = [
            f"{place}: no longer an exception, take it off the list" for place in sorted(set(allowed) - set(found))
        ]
        __tracebackhide__ = True
        if wrong or stale:
            pytest.fail(f"{rule}:\n  " + "\n  ".join(wrong + stale), pytrace=False)


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def sources() -> list[Source]:
    found = read_sources(ROOT / "src" / "stoker")
    assert len(found) > 10
    return found


@pytest.fixture
def judge() -> Judge:
    return Judge(EXCEPTIONS)


@pytest.fixture
def module():
    """Make a module out of a text: what each rule is shown to prove that it can fail."""

    def make(text: str, name: str = "stoker.feed.example") -> Source:
        return Source(name, text)

    return make
