"""Which objects a URL names: a folder, one tar, or several by braces and globs over one store."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import translate
from itertools import product
from pathlib import Path
from typing import Final

from stoker.dataset.manifest import check_there
from stoker.errors import ConfigError, DatasetError, EmptyDataset, NotFound
from stoker.io.os_errors import translating
from stoker.store.base import Store
from stoker.values import ObjectInfo

BRACES_MAX_COUNT: Final = 1_000_000
TAR_SUFFIX: Final = ".tar"

_SPECIAL = re.compile(r"[{*?\[]")
_GLOB = re.compile(r"[*?\[]")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)\Z")
_DIGITS_MAX = 18
_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Address:
    """A place (path or URL of a store), and the pattern that the keys in it match; empty for all of them."""

    base: str
    pattern: str


def parse_address(url: str | os.PathLike[str], suffix: str = TAR_SUFFIX) -> Address:
    """Split a URL before the first component with `{`, `*`, `?` or `[` in it, or before the name of an object: what
    ends with `suffix`.

    A folder that exists is taken by its name, whatever is in it. Only `*`, `**`, `?`, `[..]`, `{a,b}` and `{00..12}`
    are special; `*` stays within one component.
    """
    text = os.fspath(url)
    if "://" not in text and _is_dir(Path(text)):
        return Address(text, "")
    start = text.find("://") + 3 if "://" in text else 0
    special = _SPECIAL.search(text, start)
    if special is None and not text.endswith(suffix):
        return Address(text, "")
    cut = text.rfind("/", start, special.start() if special else len(text))
    if cut < start:
        if start:
            raise ConfigError("a pattern cannot stand for the name of a store", text, "put a '/' before it")
        return Address(".", text)
    return Address(text[:cut] or "/", text[cut + 1 :])


def _is_dir(path: Path) -> bool:
    with translating("cannot look into the folder", path):
        return path.is_dir()


def find_objects(store: Store, pattern: str) -> list[ObjectInfo]:
    """The objects in `store` that match, sorted by key; all of them for an empty pattern.

    Costs one listing of what the patterns have in common. Raises NotFound for names that braces spell out and that
    are not there, with their number; EmptyDataset if nothing matches; ConfigError; StoreError.
    """
    if not pattern:
        return sorted(store.list(), key=lambda info: info.key)
    names = list(expand_braces(pattern))
    globs = [name for name in names if _GLOB.search(name)]
    plain = {name for name in names if not _GLOB.search(name)}
    listed = store.list(_common([_GLOB.split(name)[0] for name in names]))
    matches = [(re.compile(translate(glob)), None if "**" in glob else glob.count("/")) for glob in globs]
    found = {
        info.key: info
        for info in listed
        if info.key in plain
        or any(slashes in (None, info.key.count("/")) and regex.match(info.key) for regex, slashes in matches)
    }
    missing = sorted(plain - found.keys())
    if missing:
        check_there(store)
        what = f"{len(missing)} of {len(plain)} objects are not there: {_some(missing)}"
        hint = "check the range in the braces" if len(names) > 1 else "check the name"
        raise NotFound(what if len(names) > 1 else f"no such object: {_some(missing)}", store.url, hint)
    if not found:
        check_there(store)
        raise EmptyDataset(f"nothing matches {pattern!r}", store.url)
    return [found[key] for key in sorted(found)]


def expand_braces(pattern: str) -> Iterator[str]:
    """The names that `{a,b}` and `{000..012}` spell out; zeros at the front are kept.

    Raises ConfigError for braces that are neither, or more than a million names.
    """
    choices: list[Sequence[str]] = []
    at, count = 0, 1
    for match in _BRACES.finditer(pattern):
        inside = _choices(match[1], pattern)
        choices += [(pattern[at : match.start()],), inside]
        at, count = match.end(), count * len(inside)
        if count > BRACES_MAX_COUNT:
            raise ConfigError(f"the braces stand for more than {BRACES_MAX_COUNT:,} names", pattern)
    choices.append((pattern[at:],))
    if any("{" in part or "}" in part for part in (pattern[at:], *(c[0] for c in choices[::2]))):
        raise ConfigError("braces that are not closed, or stand inside each other", pattern)
    return map("".join, product(*choices))


def is_tar(infos: Sequence[ObjectInfo], where: str) -> bool:
    """Whether the objects are tars, and not files of samples. Raises DatasetError if some are and others are not."""
    others = [info.key for info in infos if not info.key.endswith(TAR_SUFFIX)]
    if others and len(others) < len(infos):
        what = f"{len(infos) - len(others)} tar archives stand beside {len(others)} other files: {_some(others)}"
        raise DatasetError(what, where, f"name the archives: {where.rstrip('/')}/*.tar (or **/*.tar, in folders)")
    return not others


def _choices(inside: str, pattern: str) -> Sequence[str]:
    numbers = _RANGE.match(inside)
    if numbers is None:
        if "," not in inside:
            raise ConfigError(f"not a list or range in braces: {inside!r}", pattern, "write {a,b} or {000..012}")
        return inside.split(",")
    first, last = numbers.groups()
    if max(len(first), len(last)) > _DIGITS_MAX or abs(int(last) - int(first)) >= BRACES_MAX_COUNT:
        raise ConfigError(f"the braces stand for more than {BRACES_MAX_COUNT:,} names", pattern)
    step = 1 if int(first) <= int(last) else -1
    width = len(first) if first.startswith("0") or last.startswith("0") else 0
    return [str(number).zfill(width) for number in range(int(first), int(last) + step, step)]


def _common(names: Sequence[str]) -> str:
    """What all names begin with, by characters: listings take any prefix."""
    first, last = min(names), max(names)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:same]


def _some(names: Sequence[str]) -> str:
    return ", ".join(repr(str(name)) for name in names[:_EXAMPLES]) + (", ..." if len(names) > _EXAMPLES else "")
