"""What one setting may hold: its kind, its unit, its range."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from stoker.errors import ConfigError
from stoker.units import format_bytes, format_seconds, parse_bytes, parse_seconds

Kind: TypeAlias = Literal["path", "url", "text", "bytes", "duration", "count", "number", "flag"]


EXPECTED: Final[Mapping[Kind, str]] = {
    "path": 'a path, as "/mnt/fast/stoker"',
    "url": 'a URL, as "s3://bucket/prefix" or "https://host"',
    "text": "a text in quotes",
    "bytes": 'a size, as "64MiB" or a number of bytes',
    "duration": 'a duration, as "30s", "5min" or a number of seconds',
    "count": "a whole number",
    "number": "a number",
    "flag": "true or false",
}
_FLAGS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class Rule(NamedTuple):
    """What a key may hold: its kind, the least value or the choices, its variable in the environment, its meaning."""

    kind: Kind
    variable: str
    meaning: str
    least: float | None = None
    choices: tuple[str, ...] = ()


def from_text(kind: Kind, text: str) -> Any:
    """What a variable says, as the file would say it; the text itself if it does not say that kind of thing."""
    if kind == "flag":
        return _FLAGS.get(text.lower(), text)
    if kind in ("bytes", "count", "number", "duration"):
        for number in (int, float):
            try:
                return number(text)
            except ValueError:
                continue
    return text


def take(name: str, rule: Rule, value: Any, where: str, base: Path) -> Any:
    """The value of key `name`, of its type and in its range. Relative paths start at `base`. Raises ConfigError."""
    if rule.kind == "url" and isinstance(value, str) and re.match(r"[^:/]+://[^/]*@", value):
        raise ConfigError(
            f"{name} holds a user name or password", where, "give credentials through the usual AWS environment"
        )
    try:
        found = _convert(rule.kind, value, base)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error.what}", where, error.hint) from None
    except OverflowError:
        raise ConfigError(f"{name} is a number beyond all measure", where) from None
    if found is None:
        raise ConfigError(f"{name} is {_brief(value)}, not {EXPECTED[rule.kind]}", where)
    if rule.choices and found not in rule.choices:
        raise ConfigError(f"{name} is {value!r}", where, f"it must be one of {', '.join(rule.choices)}")
    if rule.least is not None and found < rule.least:
        raise ConfigError(f"{name} is {_brief(value)}", where, f"it must be {rule.least:g} or more")
    return found


def _convert(kind: Kind, value: Any, base: Path) -> Any:
    """`value` as the type of its kind, or None if it is something else. Raises ConfigError for a bad unit."""
    if kind == "flag":
        return value if isinstance(value, bool) else None
    if isinstance(value, bool):
        return None
    if kind in ("path", "url", "text"):
        if not isinstance(value, str) or not value or "\0" in value:
            return None
        return base / user_path(value) if kind == "path" else value
    if isinstance(value, str):
        return {"bytes": parse_bytes, "duration": parse_seconds}[kind](value) if kind in ("bytes", "duration") else None
    if kind in ("bytes", "count"):
        return value if isinstance(value, int) else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def user_path(path: str | os.PathLike[str]) -> Path:
    """`path` as people write it: a leading `~` is the home directory. Raises ConfigError if nobody has that home."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"no home directory for {os.fspath(path)!r}", hint="write the path in full") from error


def _brief(value: Any) -> str:
    return f"a {type(value).__name__}" if isinstance(value, dict | list) else repr(value)


def shown(value: Any, rule: Rule) -> str:
    """A value of such a key as people write it; `-` for none."""
    if value is None:
        return "-"
    if rule.kind == "bytes":
        return format_bytes(value)
    if rule.kind == "duration":
        return format_seconds(value)
    return str(value).lower() if rule.kind == "flag" else str(value)
