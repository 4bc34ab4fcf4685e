"""The page of the command line shows every verb with its arguments and options, as the command line itself has them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys

import pytest
from typer.main import get_command

PAGE = "docs/reference/cli.md"


@pytest.fixture(scope="module")
def verbs():
    from stoker.cli.main import app

    return dict(commands(get_command(app), ""))


def commands(group, prefix):
    """Every verb of a group and of the groups in it, by its words: `pack`, `config show`."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def cell(text):
    return " ".join(str(text).split()).replace("|", "\\|")


def table(command):
    """Arguments and options of a verb with their defaults and help, in the order of the command line."""
    lines = ["| argument or option | default | meaning |", "|---|---|---|"]
    for parameter in command.params:
        name = parameter.name.upper() if parameter.param_type_name == "argument" else ", ".join(parameter.opts)
        default = "required" if parameter.required else ""
        if not parameter.required and parameter.default not in (None, False, "", ()):
            default = f"`{parameter.default}`"
        lines.append(f"| `{name}` | {default} | {cell(parameter.help or '')} |")
    return "\n".join(lines)


def written(text, name):
    """The generated table of a verb as it stands on the page."""
    _, _, rest = text.partition(f"<!-- generated: stoker {name} -->\n")
    return rest.partition("\n<!-- end -->")[0]


def test_every_verb_has_its_section_and_no_other_has(pages, verbs):
    sections = re.findall(r"^## stoker (\w+(?: \w+)*)$", pages[PAGE].text, re.MULTILINE)
    assert sorted(sections) == sorted(verbs)


def test_the_table_of_every_verb_is_that_of_the_command_line(pages, verbs):
    stale = [name for name, command in verbs.items() if written(pages[PAGE].text, name) != table(command)]
    assert not stale, "\n\n".join(f"put this under `stoker {n}` in {PAGE}:\n{table(verbs[n])}" for n in stale)


def test_every_verb_says_what_it_does_and_can_print_json(verbs):
    for name, command in verbs.items():
        assert command.help, name
        assert "--json" in [option for p in command.params for option in p.opts], name
        assert [p.name for p in command.params if not p.help] == [], name


def test_the_help_of_the_installed_command_names_every_verb(verbs):
    done = subprocess.run([sys.executable, "-m", "stoker", "--help"], capture_output=True, text=True, check=True)
    assert [name for name in verbs if not re.search(rf"\b{name.split()[0]}\b", done.stdout)] == []


HELP = """
import contextlib, io, json, sys
from stoker.cli.main import run

def help_of(words):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert run([*words, "--help"]) == 0
    return said.getvalue()

json.dump([help_of(words) for words in json.load(sys.stdin)], sys.stdout)
"""


def helps_at_80_columns(commands):
    """The help of each; in one process, since the width is asked for when a process starts."""
    done = subprocess.run(
        [sys.executable, "-c", HELP],
        env={**os.environ, "COLUMNS": "80", "TERMINAL_WIDTH": "80"},
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_no_help_text_is_cut_at_80_columns_and_each_has_an_example(verbs):
    commands = [[], *(name.split()[:1] for name in verbs), *(name.split() for name in verbs)]
    for words, text in zip(commands, helps_at_80_columns(commands), strict=True):
        body = re.sub(r"^ +\w+\.\.\.(?= +<list)", "", text.partition("\n")[2], flags=re.MULTILINE)  # "may be repeated"
        assert "..." not in body, text
        assert max(map(len, text.splitlines())) <= 80
        assert f"Usage: {' '.join(['stoker', *words])} " in text
        assert "Example: stoker " in text, text


def test_every_example_of_the_help_is_a_line_that_the_command_line_understands(verbs):
    for name, command in verbs.items():
        line = command.epilog.removeprefix("Example: ").split(" > ")[0]
        program, *words = shlex.split(line)
        assert (program, words[: len(name.split())]) == ("stoker", name.split())
        command.make_context(name, words[len(name.split()) :]).close()


@pytest.mark.parametrize("arguments", [["no-such-verb"], ["pack"], ["show", "--no-such-option", "x"]])
def test_a_usage_error_is_exit_code_2_and_no_traceback(arguments):
    done = subprocess.run([sys.executable, "-m", "stoker", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
