"""Versions of modules: what `state_dict()` says of them in `_metadata`, so that they can read older states.

`torch.save` keeps it, as an attribute of the dict. Here it is JSON beside the state, and goes back on the dict.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.checkpoint.plain import decode, encode
from stoker.checkpoint.state import Json
from stoker.errors import FormatError


def versions_of(state: Any, path: str) -> dict[str, Any] | None:
    """The `_metadata` of a state dict by the paths of its modules; None if it has none. `path` names it in errors."""
    found = getattr(state, "_metadata", None) if isinstance(state, dict) else None
    if not isinstance(found, Mapping):
        return None
    return {str(name): encode(dict(about), f"{path}, version of {name!r}", _no_tensor) for name, about in found.items()}


def with_versions(state: Mapping[str, Any], versions: Mapping[str, Json]) -> dict[str, Any]:
    """A state dict with these `_metadata`, as modules take it."""
    made: OrderedDict[str, Any] = OrderedDict(state)
    found = OrderedDict((name, decode(about, _no_name)) for name, about in versions.items())
    vars(made)["_metadata"] = found  # where torch has it
    return made


def find_versions(value: Any, path: str) -> list[Json]:
    """[[where, versions], ...] of all state dicts inside a value that can be encoded, the value itself included."""
    found: list[Json] = []

    def walk(part: Any, at: tuple[str | int, ...]) -> None:
        versions = versions_of(part, ".".join((path, *map(str, at))))
        if versions is not None:
            found.append([list(at), versions])
        if isinstance(part, dict):
            for key, item in part.items():
                if type(key) is str:
                    walk(item, (*at, key))
        elif isinstance(part, list | tuple):
            for number, item in enumerate(part):
                walk(item, (*at, number))

    walk(value, ())
    return found


def put_versions(value: Any, found: Sequence[Json]) -> Any:
    """The decoded value with what `find_versions` found in it. Raises FormatError if that is of another value."""
    try:
        for at, versions in found:
            value = _replace(value, at, versions)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise FormatError(f"versions of modules that are not those of the state: {error!r}") from error
    return value


def _replace(value: Any, at: Sequence[Any], versions: Mapping[str, Json]) -> Any:
    if not at:
        return with_versions(value, versions)
    items: Any = list(value) if isinstance(value, tuple) else value
    items[at[0]] = _replace(items[at[0]], at[1:], versions)
    return tuple(items) if isinstance(value, tuple) else items


def _no_tensor(_value: Any, _path: str) -> None:
    return None


def _no_name(name: str) -> Any:
    raise FormatError(f"not versions of modules: they refer to tensor {name!r}")
