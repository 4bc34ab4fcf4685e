"""The page of errors lists every class, with its exit code, as the source has them."""

from __future__ import annotations

import inspect

import pytest

from stoker import errors

PAGE = "docs/reference/errors.md"


def classes():
    """Every error class, each after its parent, in the order of the source."""
    found = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, errors.StokerError)]
    line = {c: inspect.getsourcelines(c)[1] for c in found}
    return sorted(found, key=line.__getitem__)


def builtin_of(error):
    """The builtin that `except` of ordinary code catches it by, if there is one."""
    for base in error.__mro__[1:]:
        if base.__module__ == "builtins" and base not in (Exception, BaseException, object):
            return base.__name__
    return ""


def table():
    lines = ["| error | is a | also a | exit code | retryable | when |", "|---|---|---|---|---|---|"]
    for error in classes():
        parent = next((b.__name__ for b in error.__bases__ if issubclass(b, errors.StokerError)), "Exception")
        builtin = f"`{builtin_of(error)}`" if builtin_of(error) else ""
        when = (inspect.getdoc(error) or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
        retry = "yes" if error.retryable else ""
        lines.append(f"| `{error.__name__}` | `{parent}` | {builtin} | {error.exit_code} | {retry} | {when} |")
    return "\n".join(lines)


def test_the_table_of_errors_is_that_of_the_source(pages):
    _, begin, rest = pages[PAGE].text.partition("<!-- generated: errors -->\n")
    listed, end, _ = rest.partition("\n<!-- end -->")
    assert begin
    assert end
    assert listed == table(), f"put this table into {PAGE}:\n{table()}"


def test_the_table_of_exit_codes_has_every_code_once(pages):
    codes = [int(row[0]) for row in pages[PAGE].rows(2) if row[0].isdigit()]
    assert codes == sorted(set(codes))
    assert {c.exit_code for c in classes()} <= set(codes)


def test_each_exit_code_of_the_table_is_used(pages):
    codes = {int(row[0]) for row in pages[PAGE].rows(2) if row[0].isdigit()}
    assert codes == {c.exit_code for c in classes()} | {0, 130}


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (errors.AccessDenied("no"), 7)])
def test_the_command_line_ends_with_the_code_of_the_table(error, code, monkeypatch, capfd):
    from stoker.cli import main

    def refuse(_url):
        raise error

    monkeypatch.setattr("stoker.dataset.attach.open_store", refuse)
    assert main.run(["show", "somewhere"]) == code
    assert capfd.readouterr().out == ""
