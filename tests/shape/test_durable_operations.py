"""What outlives the process is made in one module, and every place to die between two such steps has one name."""

from __future__ import annotations

import ast
import re

import pytest

HOME = "stoker.io.atomic"

# Calls that make, move or remove something on a file system, by the module they come from.
MODULE_CALLS = {
    "os": {
        *("fsync", "fdatasync", "sync", "rename", "renames", "replace", "link", "symlink", "unlink", "remove"),
        *("rmdir", "removedirs", "mkdir", "makedirs", "mkfifo", "mknod"),
    },
    "shutil": {"move", "rmtree", "copy", "copy2", "copyfile", "copytree"},
    "tempfile": {"mkdtemp", "mkstemp", "NamedTemporaryFile", "TemporaryDirectory", "TemporaryFile"},
}
# The same as methods of a Path. `replace` and `rename` are told from those of str by their one argument.
PATH_METHODS = {"unlink", "rmdir", "mkdir", "touch", "hardlink_to", "symlink_to", "write_text", "write_bytes"}
PATH_MOVES = {"rename", "replace"}


def durable_operations(source):
    if source.name == HOME:
        return {}
    names = _imported(source.tree)
    found = {}
    for place, node in _calls(source):
        operation = _operation(node, names)
        if operation:
            found[place] = f"line {node.lineno}: {operation} belongs into {HOME}"
    return found


def _imported(tree):
    """Local name -> (module, name in it or None) for what comes from the modules above."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {a.asname or a.name: (a.name, None) for a in node.names if a.name in MODULE_CALLS}
        elif isinstance(node, ast.ImportFrom) and node.module in MODULE_CALLS:
            names |= {a.asname or a.name: (node.module, a.name) for a in node.names}
    return names


def _calls(source):
    """Every call with the innermost function that holds it."""
    seen = set()
    # Inner functions come after their outer ones, so from the end each call meets its innermost function first.
    for name, function, _ in reversed(list(source.functions())):
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and (node.lineno, node.col_offset) not in seen:
                seen.add((node.lineno, node.col_offset))
                yield f"{source.name}:{name}", node
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and (node.lineno, node.col_offset) not in seen:
            yield source.name, node


def _operation(node, names):
    if isinstance(node.func, ast.Name):
        module, name = names.get(node.func.id, (None, None))
        return f"{module}.{name}" if module and name in MODULE_CALLS[module] else ""
    if not isinstance(node.func, ast.Attribute):
        return ""
    name = node.func.attr
    if isinstance(node.func.value, ast.Name):
        module, member = names.get(node.func.value.id, (None, None))
        if module and member is None:
            return f"{module}.{name}" if name in MODULE_CALLS[module] else ""
    if name in PATH_METHODS or (name in PATH_MOVES and len(node.args) == 1 and not node.keywords):
        return f".{name}()"
    return ""


def crash_points(source):
    """(name or None where it is no literal, place) of every `crash.point(...)`."""
    if source.name == "stoker.crash":
        return []
    bare = {
        a.asname or a.name
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ImportFrom) and node.module == "stoker.crash"
        for a in node.names
        if a.name == "point"
    }
    found = []
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called in bare or called.endswith("crash.point"):
            argument = node.args[0] if node.args else None
            literal = argument.value if isinstance(argument, ast.Constant) else None
            found.append((literal, f"{source.name}:{node.lineno}"))
    return found


def unclear_points(points):
    wrong, seen = {}, {}
    for name, place in points:
        if not isinstance(name, str):
            wrong[place] = "the name of a crash point is a literal, so that the suite finds it in the source"
        elif not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", name):
            wrong[place] = f"{name!r}: a crash point is named room-what, in lower case"
        elif name in seen:
            wrong[place] = f"{name!r} is at {seen[name]} too"
        else:
            seen[name] = place
    return wrong


def test_only_one_module_makes_moves_and_removes_files(sources, judge):
    judge.check("durable operations", {p: what for s in sources for p, what in durable_operations(s).items()})


def test_every_crash_point_is_a_literal_and_unique(sources, judge):
    judge.check("crash points", unclear_points([point for s in sources for point in crash_points(s)]))


def test_the_package_has_crash_points(sources):
    assert any(crash_points(s) for s in sources)


@pytest.mark.parametrize(
    "text",
    [
        "import os\ndef f(): os.fsync(1)",
        "import os as o\ndef f(): o.rename(a, b)",
        "from os import replace\ndef f(): replace(a, b)",
        "from os import unlink as u\ndef f(): u(a)",
        "import shutil\ndef f(): shutil.rmtree(a)",
        "def f(): path.rename(other)",
        "def f(): (root / 'x').mkdir(parents=True)",
        "class A:\n    def f(self): self.path.unlink()",
        "def f(): path.write_text('x')",
    ],
)
def test_a_durable_operation_elsewhere_is_found(text, module):
    (place,) = durable_operations(module(text))
    assert place.endswith("f")
    assert durable_operations(module(text, name=HOME)) == {}


@pytest.mark.parametrize(
    "text",
    [
        "import os\ndef f(): os.path.join(a, b); os.stat(a)",
        "def f(): text.replace('a', 'b')",
        "from dataclasses import replace\ndef f(): replace(value, x=1)",
        "def f(): when.replace(tzinfo=None)",
        "def f(): items.remove(x)",
    ],
)
def test_what_only_looks_like_one_is_not_found(text, module):
    assert durable_operations(module(text)) == {}


def test_a_crash_point_that_is_doubled_computed_or_badly_named_is_found(module):
    text = 'crash.point("a-b")\ncrash.point("a-b")\ncrash.point(name)\ncrash.point("AB")\npoint("c-d")'
    points = crash_points(module(f"from stoker.crash import point\n{text}"))
    assert len(points) == 5
    assert {place.split(":")[1] for place in unclear_points(points)} == {"3", "4", "5"}
