"""Reading texts that people paste: sections, flattened trees, numbers. Nothing here raises."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_SECTION: Final = re.compile(r"^==> (.+?) <==\s*$")
_WHOLE: Final = re.compile(r"[+-]?\d{1,40}")
_REAL: Final = re.compile(r"[+-]?(?:\d+(?:[.,]\d*)?|[.,]\d+)(?:[eE][+-]?\d{1,3})?")


def sections(text: str) -> dict[str, str]:
    """The parts of a text as `tail` prints several files: `==> name <==`, then its lines. Without heads: {"": text}.

    Lines before the first head are under "" if there are any but blank ones. A name that comes twice: the later counts.
    """
    found: dict[str, list[str]] = {"": []}
    current = ""
    for line in text.splitlines():
        match = _SECTION.match(line)
        if match:
            current = match[1]
            found[current] = []
        else:
            found[current].append(line)
    if len(found) > 1 and not any(line.strip() for line in found[""]):
        del found[""]
    return {name: "\n".join(lines) + ("\n" if lines else "") for name, lines in found.items()}


def tree(text: str) -> dict[str, str]:
    """A flattened folder: `path TAB value` a line -> absolute path -> value. Other lines are passed over."""
    found = {}
    for line in text.splitlines():
        path, tab, value = line.partition("\t")
        if tab and path.strip() and " " not in path.strip():
            found["/" + path.strip().lstrip("/")] = value.strip()
    return found


def whole(text: str | None) -> int | None:
    """A whole number, or None if the text is none. Underscores, hex and non-ASCII digits are none."""
    if text is None or not text.isascii() or not _WHOLE.fullmatch(text.strip()):
        return None
    return int(text)


def real(text: str | None) -> float | None:
    """A decimal number, or None; a comma is taken for the point, as some locales print it."""
    if text is None or not text.isascii() or not _REAL.fullmatch(text.strip()):
        return None
    number = float(text.replace(",", "."))
    return number if abs(number) != float("inf") else None


def fields(text: str) -> dict[str, str]:
    """`key=value` words of a text; a value ends at a blank, the later of a key that comes twice counts."""
    return {match[1]: match[2] for match in re.finditer(r"([^\s=]+)=(\S*)", text)}


def line_with(text: str, needle: str) -> str:
    """The first line that holds `needle`, or ""."""
    return next((line for line in text.splitlines() if needle in line), "")


def table(text: str, separator: str = ":") -> Mapping[str, str]:
    """`key : value` a line -> key -> value; the first of a key that comes twice counts."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, mark, value = line.partition(separator)
        if mark and key.strip():
            found.setdefault(key.strip(), value.strip())
    return found
