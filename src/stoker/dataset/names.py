"""What names mean: a path in a shard is a sample's key and a field, the way WebDataset reads it. Pure."""

from __future__ import annotations

import re
from typing import Final

from stoker.errors import ConfigError

FIELD_LIMIT: Final = 256  # more "fields" than this are names with dots in them, not a schema
PATH_MAX_BYTES: Final = 4096
_SHOWN_MAX_CHARACTERS: Final = 100

# webdataset drops members that match this (its `skip_meta`) without a word; so does everything built on it.
_META = re.compile(r"__[^/]*__($|/)")


def split_path(path: str) -> tuple[str, str]:
    """Key and field of a path: up to the first dot of the base name, and the rest in lower case.

    `a/b.seg.PNG` is field `seg.png` of sample `a/b`. Either is empty where there is none: no extension, or a base
    name that begins with a dot.
    """
    folder, slash, base = path.rpartition("/")
    stem, _, extension = base.partition(".")
    if not stem:
        return "", extension.lower()
    return folder + slash + stem, extension.lower()


def is_meta(path: str) -> bool:
    """Whether WebDataset readers would skip this path silently: its first component is `__x__`."""
    return _META.match(path) is not None


def is_reserved_field(field: str) -> bool:
    """Whether WebDataset readers use this name themselves (`__key__`, `__url__` and their like)."""
    return field.startswith("__") and field.endswith("__")


def check_prefix(prefix: str) -> str:
    """`prefix` without a trailing slash. Raises ConfigError unless it is empty or a plain relative path."""
    prefix = prefix.rstrip("/") if prefix != "/" else prefix
    problem = _path_problem(prefix) if prefix else ""
    if not problem and is_meta(prefix + "/"):
        problem = "WebDataset readers skip everything under a first component like __x__"
    if problem:
        raise ConfigError(f"not a prefix: {prefix!r}: {problem}", hint="give a plain relative path such as train")
    return prefix


def check_sample_name(key: str, field: str) -> str:
    """The path of a field of a sample: `key.field`.

    Raises ConfigError where reading the path back, here or by WebDataset, would not give this key and this field.
    """
    for what, name in (("key", key), ("field", field)):
        given: object = name
        if not isinstance(given, str):
            raise ConfigError(
                f"the {what} of a sample is {given!r}", hint="it must be text, such as 'cat/001' and 'jpg'"
            )
    path = f"{key}.{field}"
    if problem := _path_problem(path):
        shown = path if len(path) <= _SHOWN_MAX_CHARACTERS else f"{path[:_SHOWN_MAX_CHARACTERS]}..."
        raise ConfigError(f"not a sample name: {shown!r}: {problem}", hint="as in key 'cat/001' and field 'jpg'")
    if is_meta(path):
        raise ConfigError(
            f"not a sample key: {key!r}: WebDataset readers skip a first component like __x__",
            hint="put a plain component before it, such as data/",
        )
    if is_reserved_field(field):
        raise ConfigError(f"not a field name: {field!r}: WebDataset readers use such names themselves")
    if not key or not field or split_path(path) != (key, field):
        raise ConfigError(
            f"not a sample name: key {key!r} with field {field!r}",
            hint="a key has no dot after its last slash; a field is lower case and has no slash",
        )
    return path


def _path_problem(path: str) -> str:
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if len(encoded) > PATH_MAX_BYTES:
        return f"it is longer than {PATH_MAX_BYTES} bytes"
    if b"\0" in encoded:
        return "it holds a NUL"
    if any(part in ("", ".", "..") for part in path.split("/")):
        return "a part between slashes is empty, '.' or '..'"
    return ""
