"""On which line of a TOML text each key stands. `tomllib` reads the values but does not tell."""

from __future__ import annotations

import re
import tomllib
from typing import Final

_PART: Final = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_DOTTED: Final = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_BLANK: Final = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_HEADER: Final = re.compile(rf"\[\[?[ \t]*({_DOTTED})[ \t]*\]\]?")
_KEY: Final = re.compile(rf"({_DOTTED})[ \t]*=")
_PARTS: Final = re.compile(_PART)
# Strings come before what may stand inside them; three quotes before one, and up to two more may end such a string.
_TOKEN: Final = re.compile(
    r"""(?P<text>\"{3}(?:\\.|[^\\])*?\"{3,5}|'{3}.*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|\#[^\n]*)"""
    r"""|(?P<open>[\[{])|(?P<close>[\]}])|(?P<end>\n)|(?P<other>[^"'\#\[\]{}\n]+)""",
    re.DOTALL,
)


def key_lines(text: str) -> dict[tuple[str, ...], int]:
    """The line, counted from 1, of every table header and key of a valid TOML text, by its path of names.

    Keys inside inline tables stand on the line of the key that holds the table, and are not listed.
    """
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    at = line = 0
    while True:
        start = _skip(_BLANK, text, at)
        line += text.count("\n", at, start)
        at = start
        header, key = _HEADER.match(text, at), _KEY.match(text, at)
        if header:
            table = _names(header[1])
            lines.setdefault(table, line + 1)
            at = header.end()
        elif key:
            lines.setdefault((*table, *_names(key[1])), line + 1)
            at = _end_of_value(text, key.end())
            line += text.count("\n", key.end(), at)
        else:
            return lines


def _skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _names(dotted: str) -> tuple[str, ...]:
    """The names of a dotted key, quotes and escapes taken off."""
    return tuple(_unquote(part) for part in _PARTS.findall(dotted))


def _unquote(part: str) -> str:
    return str(next(iter(tomllib.loads(f"{part} = 0")))) if part[0] in "\"'" else part


def _end_of_value(text: str, at: int) -> int:
    """Where the value that begins at `at` ends: at a line end outside of strings, arrays and tables."""
    depth = 0
    while match := _TOKEN.match(text, at):
        if match.lastgroup == "end" and depth == 0:
            return at
        depth += {"open": 1, "close": -1}.get(match.lastgroup or "", 0)
        at = match.end()
    return len(text)
