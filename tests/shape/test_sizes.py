"""A module has one job, a function fits on a screen: both have a cap."""

from __future__ import annotations

MODULE_MAX_LINES = 450
FUNCTION_MAX_LINES = 60


def long_modules(source):
    count = source.text.count("\n")
    return {source.name: f"{count} lines"} if count >= MODULE_MAX_LINES else {}


def long_functions(source):
    found = {}
    for name, function, _ in source.functions():
        count = function.end_lineno - function.lineno + 1
        if count >= FUNCTION_MAX_LINES:
            found[f"{source.name}:{name}"] = f"{count} lines"
    return found


def test_every_module_stays_under_450_lines(sources, judge):
    judge.check("module size", {place: what for s in sources for place, what in long_modules(s).items()})


def test_every_function_stays_under_60_lines(sources, judge):
    judge.check("function size", {place: what for s in sources for place, what in long_functions(s).items()})


def test_a_module_of_450_lines_is_found_and_one_of_449_is_not(module):
    assert long_modules(module("x = 1\n" * 450)) == {"stoker.feed.example": "450 lines"}
    assert long_modules(module("x = 1\n" * 449)) == {}


def test_a_function_of_60_lines_is_found_wherever_it_stands(module):
    body = "\n".join(["        y = 1"] * 59)
    found = long_functions(module(f"class A:\n    def f(self):\n{body}\n"))
    assert found == {"stoker.feed.example:A.f": "60 lines"}
    assert long_functions(module(f"if True:\n    def g():\n{body}\n")) == {"stoker.feed.example:g": "60 lines"}
