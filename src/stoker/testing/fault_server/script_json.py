"""A script as JSON, for a server in another process.

::

    {"latency_s": 0.02, "seed": 7, "rules": [
      {"operation": "GetObject", "key": "*.tar", "when": {"kind": "First", "count": 3},
       "fault": {"kind": "Answer", "status": 503, "code": "SlowDown"}}]}

Names and defaults are those of the classes; `kind` is the name of the class.
"""

from __future__ import annotations

from dataclasses import MISSING, asdict, fields
from typing import Any, Final, TypeVar, cast, get_args, get_type_hints

from stoker.errors import ConfigError
from stoker.testing.fault_server.faults import Fault
from stoker.testing.fault_server.script import Rule, Script, When

_FAULTS: Final = {kind.__name__: kind for kind in get_args(Fault)}
_WHENS: Final = {kind.__name__: kind for kind in get_args(When)}

T = TypeVar("T")


def script_from_json(value: Any) -> Script:
    """The script that parsed JSON describes. Raises ConfigError naming what is unknown, missing or of a wrong type."""
    values = _members(value, "the script")
    rules = values.get("rules", [])
    if not isinstance(rules, list):
        raise ConfigError("the rules of a script are a list", "the script")
    made = tuple(_rule(rule, f"rule {number}") for number, rule in enumerate(rules, 1))
    return _make(Script, {**values, "rules": made}, "the script")


def script_to_json(script: Script) -> Any:
    """The JSON of a script: `script_from_json(script_to_json(s)) == s`."""
    rules = []
    for rule in script.rules:
        named = {"fault": _tagged(rule.fault), "when": _tagged(rule.when)}
        rules.append(named | {name: getattr(rule, name) for name in ("method", "operation", "key")})
    simple = {field.name: getattr(script, field.name) for field in fields(script) if field.name != "rules"}
    return {"rules": rules} | simple


def _rule(value: Any, where: str) -> Rule:
    values = _members(value, where)
    if "fault" in values:
        values["fault"] = _one_of(_FAULTS, values["fault"], f"the fault of {where}")
    if "when" in values:
        values["when"] = _one_of(_WHENS, values["when"], f"the when of {where}")
    return _make(Rule, values, where)


def _one_of(kinds: dict[str, Any], value: Any, where: str) -> Any:
    values = _members(value, where)
    kind = values.pop("kind", None)
    if kind not in kinds:
        raise ConfigError(f"unknown kind {kind!r}", where, f"known are {', '.join(kinds)}")
    return _make(kinds[kind], values, where)


def _members(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"not a JSON object: {value!r}", where)
    return dict(value)


def _make(kind: type[T], values: dict[str, Any], where: str) -> T:
    hints, known = get_type_hints(kind), {field.name: field for field in fields(cast("Any", kind))}
    for name, value in values.items():
        if name not in known:
            raise ConfigError(f"unknown name {name!r}", where, f"known are {', '.join(known) or 'none'}")
        if isinstance(value, int | float | str | bool | list | dict | None) and not _suits(value, hints[name]):
            raise ConfigError(f"{name} is {value!r}, which is of a wrong type", where)
    missing = [name for name, field in known.items() if field.default is MISSING and name not in values]
    if missing:
        raise ConfigError(f"no {missing[0]!r}", where)
    return kind(**values)


def _suits(value: Any, hint: Any) -> bool:
    """Whether a JSON value is of a type that the hint allows; a whole number is a float too, a bool no number."""
    allowed = get_args(hint) or (hint,)
    return type(value) in allowed or (type(value) is int and float in allowed)


def _tagged(value: Any) -> dict[str, Any]:
    return {"kind": type(value).__name__} | asdict(value)
