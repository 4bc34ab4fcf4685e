"""Habits that a reader can rely on in every module."""

from __future__ import annotations

import ast
import re

import pytest

VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "managers"}
BROAD = {"Exception", "BaseException"}
BOUNDARY = re.compile(r"\b(?:boundary|thread|process|user code)\b")
PICKLING = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
SHOWS_RESULTS = {"cli", "demo"}


def broad_excepts(source):
    """Handlers of everything, that do not raise it on, without a comment beside them that says where they stand."""
    found = {}
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        broad = any(kind is None or ast.unparse(kind).rsplit(".", 1)[-1] in BROAD for kind in kinds)
        passes_on = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
        if not broad or passes_on:
            continue
        near = [source.line(number).partition("#")[2] for number in range(node.lineno - 1, node.lineno + 2)]
        if not any(BOUNDARY.search(comment) for comment in near):
            found[f"{source.name}:{node.lineno}"] = "a broad except needs a comment saying which boundary it is"
    return found


def prints(source):
    if source.room in SHOWS_RESULTS:
        return {}
    return {
        f"{source.name}:{node.lineno}": "library code logs and returns, it does not print"
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "sys.stdout.write", "sys.stderr.write")
    }


def vague_names(source):
    vague = VAGUE.intersection(source.name.split("."))
    found = {source.name: f"{', '.join(sorted(vague))} says nothing"} if vague else {}
    for name, node in source.classes():
        if re.search(r"(Manager|Helper|Helpers|Util|Utils)\Z", name):
            found[f"{source.name}:{node.name}"] = "the name says nothing"
    return found


def undocumented(source):
    if any(part.startswith("_") and part != "__main__" for part in source.name.split(".")):
        return {}
    found = {} if ast.get_docstring(source.tree) else {source.name: "no docstring"}
    _undocumented(source.tree, source.name + ":", found)
    return found


def _undocumented(holder, prefix, found):
    for node in ast.iter_child_nodes(holder):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name.startswith(("_", "test_")):  # the name of a test is its documentation
                continue
            marks = [ast.unparse(d) for d in getattr(node, "decorator_list", [])]
            told_elsewhere = any(m.rsplit(".", 1)[-1] in ("overload", "override", "setter") for m in marks)
            # The tests of the shipped suites are sentences: their names say it.
            if not ast.get_docstring(node) and not told_elsewhere and not node.name.startswith("test_"):
                found[prefix + node.name] = "no docstring"
            if isinstance(node, ast.ClassDef):
                _undocumented(node, f"{prefix}{node.name}.", found)
        elif isinstance(node, ast.If | ast.Try):
            _undocumented(node, prefix, found)


def pickles(source):
    """What writes or reads pickles: a file of which may run any code. Errors may define how they are pickled."""
    found = {}
    for node in ast.walk(source.tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Call):
            names = [ast.unparse(node.func)]
            names += ["np.load"] * any(
                k.arg == "allow_pickle" and ast.unparse(k.value) != "False" for k in node.keywords
            )
        bad = [
            n
            for n in names
            if n.split(".")[0] in PICKLING or n in ("torch.load", "torch.save", "np.load", "numpy.load")
        ]
        if bad:
            found[source.name] = f"{bad[0]} pickles"
    return found


RULES = {
    "broad excepts": broad_excepts,
    "prints": prints,
    "names": vague_names,
    "docstrings": undocumented,
}


def test_nothing_is_pickled(sources, judge):
    judge.check("pickles", {place: what for s in sources for place, what in pickles(s).items()})


@pytest.mark.parametrize(
    "text", ["import pickle", "from cloudpickle import dumps", "torch.load(path)", "np.lib.load(f, allow_pickle=True)"]
)
def test_what_pickles_is_found(text, module):
    assert len(pickles(module(text))) == 1
    assert pickles(module("np.save(f, x, allow_pickle=False)")) == {}


@pytest.mark.parametrize("rule", RULES)
def test_every_module_keeps(rule, sources, judge):
    judge.check(rule, {place: what for s in sources for place, what in RULES[rule](s).items()})


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("broad excepts", "try:\n    f()\nexcept Exception:\n    pass\n"),
        ("broad excepts", "try:\n    f()\nexcept:\n    pass\n"),
        ("broad excepts", "try:\n    f()\nexcept (KeyError, BaseException) as error:\n    log(error)\n"),
        ("broad excepts", "try:\n    f()\nexcept Exception:  # noqa: BLE001  whatever it is\n    pass\n"),
        ("broad excepts", "try:\n    f()\nexcept builtins.Exception:  # any error\n    raise KeyError from None\n"),
        ("prints", "print(1)"),
        ("prints", "sys.stderr.write('x')"),
        ("names", "class CacheManager: ..."),
        ("docstrings", '"""Text."""\ndef f(): ...'),
        ("docstrings", '"""Text."""\nclass A: ...'),
        ("docstrings", '"""Text."""\nclass A:\n    """Text."""\n    def f(self): ...'),
        ("docstrings", "x = 1"),
    ],
)
def test_a_module_that_breaks_a_rule_is_found(rule, text, module):
    assert len(RULES[rule](module(text))) == 1


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (
            "broad excepts",
            "try:\n    f()\nexcept Exception as e:  # the thread's boundary: kept for wait()\n    keep(e)\n",
        ),
        ("broad excepts", "try:\n    f()\nexcept Exception:\n    # The process boundary.\n    stop()\n"),
        ("broad excepts", "try:\n    f()\nexcept BaseException:\n    tidy()\n    raise\n"),
        ("broad excepts", "try:\n    f()\nexcept OSError:\n    pass\n"),
        ("prints", "log.info('x')"),
        ("docstrings", '"""Text."""\nclass A:\n    """Text."""\n    @override\n    def f(self): ...'),
        ("docstrings", '"""Text."""\nclass Suite:\n    """Text."""\n    def test_it_works(self): ...'),
        ("docstrings", '"""Text."""\ndef _f(): ...\nclass _A:\n    def f(self): ...'),
    ],
)
def test_a_module_that_keeps_a_rule_is_not_found(rule, text, module):
    assert RULES[rule](module(text)) == {}


def test_a_module_with_a_vague_name_is_found(module):
    assert vague_names(module("", name="stoker.io.utils")) == {"stoker.io.utils": "utils says nothing"}
