"""Reading YAML as Kubernetes objects are written: mappings, lists, flow style, quotes, block text, several documents.

What is not of that (anchors, tags, keys that are no text) is handed back as lines that were not understood, never
guessed at. All values are texts, lists and dicts: nothing here needs a number. JSON is read too. Nothing raises.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, TypeAlias

Value: TypeAlias = "str | list[Value] | dict[str, Value]"

MAX_DEPTH: Final = 40
_MAX_FLOW_LINES: Final = 500
_MAX_KEY_LINE: Final = 4096
_END: Final = re.compile(r"^(?:---(?:[ \t].*)?|\.\.\.[ \t]*)\r?$", re.MULTILINE)


def parse(text: str) -> tuple[list[Value], list[str]]:
    """The documents of a text, and the lines that are not understood."""
    if text.lstrip().startswith("{"):
        try:
            return [_plain(json.loads(text), 0)], []
        except (ValueError, RecursionError):
            return [], [text.lstrip().partition("\n")[0]]
    documents: list[Value] = []
    strange: list[str] = []
    for part in _END.split(text):
        reader = _Reader(part)
        found = reader.document()
        if found:
            documents.append(found)
        strange += reader.strange
    return documents, strange


def _plain(value: Any, depth: int) -> Value:
    if depth > MAX_DEPTH:
        return ""
    if isinstance(value, dict):
        return {str(key): _plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each, depth + 1) for each in value]
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


class _Reader:
    """The lines of one document, from the top."""

    def __init__(self, text: str) -> None:
        self.strange: list[str] = []
        self._lines: list[tuple[int, str, str]] = []
        self._at = 0
        for raw in text.splitlines():
            content = _without_comment(raw)
            if content.lstrip(" ").startswith("\t"):
                self.strange.append(raw)
            elif content.strip():
                self._lines.append((len(content) - len(content.lstrip(" ")), content.strip(), raw))

    def document(self) -> Value:
        """The whole document; what is left over is not understood."""
        found: Value = ""
        if self._lines:
            found = self._block(self._lines[0][0], 0)
        self.strange += [raw for _, _, raw in self._lines[self._at :]]
        return found

    def _block(self, indent: int, depth: int) -> Value:
        """What begins at the current line, which has this indent."""
        if depth > MAX_DEPTH:
            return self._skip(indent)
        text = self._lines[self._at][1]
        if text == "-" or text.startswith("- "):
            return self._sequence(indent, depth)
        if text[0] in "[{":
            self._at += 1
            return self._value(text, indent, depth)
        return self._mapping(indent, depth)

    def _skip(self, indent: int) -> str:
        while self._at < len(self._lines) and self._lines[self._at][0] >= indent:
            self.strange.append(self._lines[self._at][2])
            self._at += 1
        return ""

    def _sequence(self, indent: int, depth: int) -> list[Value]:
        found: list[Value] = []
        while self._at < len(self._lines):
            here, text, raw = self._lines[self._at]
            if here != indent or not (text == "-" or text.startswith("- ")):
                break
            rest = text[1:].lstrip()
            inner = indent + len(text) - len(rest)
            if not rest:
                self._at += 1
                found.append(self._below(indent, depth))
            elif rest.startswith("- ") or (rest[0] not in "[{\"'" and _key(rest)):
                self._lines[self._at] = (inner, rest, raw)
                found.append(self._block(inner, depth + 1))
            else:
                self._at += 1
                found.append(self._value(rest, indent, depth))
        return found

    def _mapping(self, indent: int, depth: int) -> dict[str, Value]:
        found: dict[str, Value] = {}
        while self._at < len(self._lines):
            here, text, raw = self._lines[self._at]
            if here < indent or text.startswith("- "):
                break
            split = _key(text)
            self._at += 1
            if here > indent or split is None:
                self.strange.append(raw)
                continue
            name, rest = split
            found[name] = self._value(rest, indent, depth) if rest else self._below(indent, depth, same=True)
        return found

    def _below(self, indent: int, depth: int, *, same: bool = False) -> Value:
        """What lies below a key or dash of this indent; a list may lie at the indent of its key."""
        if self._at >= len(self._lines):
            return ""
        here, text, _ = self._lines[self._at]
        if here > indent or (same and here == indent and (text == "-" or text.startswith("- "))):
            return self._block(here, depth + 1)
        return ""

    def _value(self, text: str, indent: int, depth: int) -> Value:
        if text[0] in "|>":
            parts = []
            while self._at < len(self._lines) and self._lines[self._at][0] > indent:
                parts.append(self._lines[self._at][2].strip())
                self._at += 1
            return "\n".join(parts)
        if text[0] in "&*!":
            self.strange.append(text)
            return ""
        if text[0] in "[{":
            for _ in range(_MAX_FLOW_LINES):
                if _balance(text) <= 0 or self._at >= len(self._lines):
                    break
                text += " " + self._lines[self._at][1]
                self._at += 1
            flow = _Flow(text)
            found = flow.value(depth)
            if flow.broken or flow.rest():
                self.strange.append(text)
            return found
        return _scalar(text)


def _without_comment(line: str) -> str:
    quote = ""
    for at, char in enumerate(line):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'" and (at == 0 or line[at - 1] in " [{,:"):
            quote = char
        elif char == "#" and (at == 0 or line[at - 1] in " \t"):
            return line[:at].rstrip()
    return line.rstrip()


def _key(text: str) -> tuple[str, str] | None:
    """(key, what follows it), or None if the line is no entry of a mapping."""
    if len(text) > _MAX_KEY_LINE:
        return None
    match = re.match(r"(\"[^\"]*\"|'[^']*'|[^\s\[\]{},&*!|>%@`\"'#][^\n]*?)\s*:(?:\s+(.*)|)$", text)
    if match is None:
        return None
    return _scalar(match[1]), (match[2] or "").strip()


def _scalar(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return "" if text in ("null", "~") else text


def _balance(text: str) -> int:
    return sum(text.count(c) for c in "[{") - sum(text.count(c) for c in "]}")


class _Flow:
    """A value in flow style: {a: b, c: [d]}."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self.broken = text, 0, False

    def rest(self) -> str:
        """What was not read."""
        return self._text[self._at :].strip()

    def value(self, depth: int) -> Value:
        """The value at this place."""
        self._blanks()
        if depth > MAX_DEPTH:
            self.broken, self._at = True, len(self._text)
            return ""
        first = self._text[self._at : self._at + 1]
        if first == "[":
            return self._list(depth)
        return self._dict(depth) if first == "{" else self._word(",]}")

    def _blanks(self) -> None:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1

    def _ends(self, close: str) -> bool:
        """Whether a list or dict ends here; passes over what ends it, or the comma before the next."""
        self._blanks()
        here = self._text[self._at : self._at + 1]
        if here == ",":
            self._at += 1
            self._blanks()
            here = self._text[self._at : self._at + 1]
        if here == close:
            self._at += 1
            return True
        if not here or here in "]},":
            self.broken, self._at = True, len(self._text)
            return True
        return False

    def _list(self, depth: int) -> list[Value]:
        self._at += 1
        found: list[Value] = []
        while not self._ends("]"):
            found.append(self.value(depth + 1))
        return found

    def _dict(self, depth: int) -> dict[str, Value]:
        self._at += 1
        found: dict[str, Value] = {}
        while not self._ends("}"):
            name = self._word(":,]}")
            self._blanks()
            if self._text[self._at : self._at + 1] == ":":
                self._at += 1
                found[name] = self.value(depth + 1)
            else:
                found[name] = ""
        return found

    def _word(self, stops: str) -> str:
        """A scalar; a colon ends a key only before a blank."""
        self._blanks()
        quote = self._text[self._at : self._at + 1]
        if quote and quote in "\"'":
            end = self._text.find(quote, self._at + 1)
            if end >= 0:
                word = self._text[self._at + 1 : end]
                self._at = end + 1
                return word
        start = self._at
        while self._at < len(self._text):
            char, after = self._text[self._at], self._text[self._at + 1 : self._at + 2]
            if char in stops and (char != ":" or not after or after.isspace()):
                break
            self._at += 1
        return _scalar(self._text[start : self._at])
