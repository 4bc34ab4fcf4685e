"""What a function may take: few things, named and typed, no switches in a row, and never the whole run."""

from __future__ import annotations

import ast

import pytest

MAX_PARAMETERS = 7  # self apart

# Rooms that own a Run or use one as a user would. Everything else lies below and gets values and stores.
ABOVE_RUN = {"run", "cli", "demo", "testing", "__main__"}


def parameters(function):
    """Positional-only, positional and keyword-only parameters, in order."""
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def own_parameters(function, holder):
    """The parameters but for self and cls of a method."""
    found = parameters(function)
    static = any(ast.unparse(d) == "staticmethod" for d in function.decorator_list)
    return found[1:] if isinstance(holder, ast.ClassDef) and not static else found


def is_bool(parameter):
    """Whether the annotation says bool, optional or annotated."""
    if parameter.annotation is None:
        return False
    # In Annotated[bool, ...] what follows the type is data of a library and may hold any name.
    node = parameter.annotation
    if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("Annotated"):
        node = node.slice.elts[0]
    return any(isinstance(n, ast.Name) and n.id == "bool" for n in ast.walk(node)) and not isinstance(
        node, ast.Subscript
    )


def too_many_parameters(source):
    found = {}
    for name, function, holder in source.functions():
        count = len(own_parameters(function, holder))
        if count > MAX_PARAMETERS:
            found[f"{source.name}:{name}"] = f"{count} parameters"
    return found


def switches(source):
    found = {}
    for name, function, _ in source.functions():
        bools = [p.arg for p in parameters(function) if is_bool(p)]
        keyword_only = {p.arg for p in function.args.kwonlyargs}
        if len(bools) > 1:
            found[f"{source.name}:{name}"] = f"{len(bools)} bool parameters: {', '.join(bools)}; an enum says it better"
        elif bools and bools[0] not in keyword_only:
            found[f"{source.name}:{name}"] = f"bool parameter {bools[0]} is not keyword-only"
    return found


def without_annotation(source):
    found = {}
    for name, function, holder in source.functions():
        missing = [p.arg for p in own_parameters(function, holder) if p.annotation is None]
        rest = (function.args.vararg, function.args.kwarg)
        missing += [p.arg for p in rest if p is not None and p.annotation is None]
        if function.returns is None:
            missing.append("return")
        if missing:
            found[f"{source.name}:{name}"] = f"no annotation: {', '.join(missing)}"
    return found


def passed_through(source):
    return {
        f"{source.name}:{name}": f"takes **{function.args.kwarg.arg}: a misspelt name would pass in silence"
        for name, function, _ in source.functions()
        if function.args.kwarg is not None
    }


def takes_a_run(source):
    if source.room in ABOVE_RUN or source.name == "stoker":
        return {}
    found = {}
    for name, function, _ in source.functions():
        for parameter in [*parameters(function), function.args.vararg, function.args.kwarg]:
            if parameter is None or parameter.annotation is None:
                continue
            for node in ast.walk(parameter.annotation):
                text = node.value if isinstance(node, ast.Constant) else ast.unparse(node)
                if isinstance(text, str) and text.rsplit(".", 1)[-1] == "Run":
                    found[f"{source.name}:{name}"] = f"parameter {parameter.arg} is a Run"
    return found


RULES = {
    "parameter count": too_many_parameters,
    "bool parameters": switches,
    "annotations": without_annotation,
    "keyword arguments passed through": passed_through,
    "parameters of type Run below run.py": takes_a_run,
}


@pytest.mark.parametrize("rule", RULES)
def test_every_signature_keeps(rule, sources, judge):
    judge.check(rule, {place: what for s in sources for place, what in RULES[rule](s).items()})


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("parameter count", "def f(a, b, c, d, *, e, f, g, h): ..."),
        ("parameter count", "class A:\n    @staticmethod\n    def f(a, b, c, d, e, f, g, h): ..."),
        ("bool parameters", "def f(a: bool): ..."),
        ("bool parameters", "def f(*, a: bool, b: bool | None = None): ..."),
        ("bool parameters", "def f(a: Annotated[bool, Option('--a')]): ..."),
        ("annotations", "def f(a) -> int: ..."),
        ("annotations", "def f(a: int): ..."),
        ("annotations", "def f(*a) -> int: ..."),
        ("annotations", "class A:\n    def f(self, a) -> None: ..."),
        ("annotations", "def g() -> None:\n    def f(a: int): ..."),
        ("keyword arguments passed through", "def f(**kwargs: Any): ..."),
        ("parameters of type Run below run.py", "def f(run: Run): ..."),
        ("parameters of type Run below run.py", "def f(*, run: 'Run'): ..."),
        ("parameters of type Run below run.py", "def f(run: stoker.run.Run | None): ..."),
    ],
)
def test_a_signature_that_breaks_a_rule_is_found(rule, text, module):
    (place,) = RULES[rule](module(text))
    assert place.startswith("stoker.feed.example:")
    assert place.endswith("f")


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("parameter count", "class A:\n    def f(self, a, b, c, d, e, f, g): ..."),
        ("bool parameters", "def f(*, a: bool = False, b: Callable[[], bool]): ..."),
        ("annotations", "class A:\n    def f(self, a: int) -> None: ..."),
        ("keyword arguments passed through", "def f(*args: int): ..."),
        ("parameters of type Run below run.py", "def f(run: str, other: RunName): ..."),
    ],
)
def test_a_signature_that_keeps_a_rule_is_not_found(rule, text, module):
    assert RULES[rule](module(text)) == {}
