"""JSON that people paste: any text gives a value, and looking into a value never raises."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from stoker.doctor.texts import real


def value_of(text: str) -> Any:
    """The JSON value of a text, or None if it is none (or `null`)."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects in a list; nothing if it is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def word(values: dict[str, Any], *keys: str) -> str:
    """The text or number under the first of `keys` that has one, blanks around it gone; else ""."""
    for key in keys:
        found = values.get(key)
        if isinstance(found, str | int | float) and not isinstance(found, bool) and str(found).strip():
            return str(found).strip()
    return ""


def number(values: dict[str, Any], key: str) -> float | None:
    """The number under a key, also where it is printed as a text; else None."""
    return real(word(values, key))


def with_key(value: Any, key: str) -> Iterator[dict[str, Any]]:
    """All objects within a value that have `key`, outer ones first."""
    waiting = [value]
    while waiting:
        item = waiting.pop(0)
        if isinstance(item, dict):
            if key in item:
                yield item
            waiting += list(item.values())
        elif isinstance(item, list):
            waiting += item


def line_of(text: str, *needles: str) -> str:
    """The first line that holds all `needles`; if there is none, as in JSON without line breaks, the first needle."""
    found = next((line for line in text.splitlines() if all(n in line for n in needles)), "")
    return found if 0 < len(found) <= 400 else " ".join(needles)  # noqa: PLR2004 - longer ones show nothing
