"""`Position`: where a run stands in its order. A value of under 1 KiB, the same on every rank."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import pairwise
from reprlib import repr as brief
from typing import Any, Final, Protocol, Self

from stoker.dataset.recipe import ORDER_VERSION, Recipe, is_digest
from stoker.dataset.windows import tell_apart
from stoker.errors import ConfigError, FormatError, NewerFormat
from stoker.values import json_digest

POSITION_FORMAT: Final = 1

_STEP_MAX: Final = 2**63 - 1


class Identified(Protocol):
    """What a position is checked against: an order."""

    @property
    def manifest_digest(self) -> str:
        """Digest of the data set's manifest."""

    @property
    def recipe(self) -> Recipe:
        """The recipe of the order."""


@dataclass(frozen=True, slots=True)
class Segment:
    """From `first_step` on, steps are those of this manifest and recipe (both digests).

    `fields` are the recipe's fields, kept so that a mismatch can be told in words; the digest alone decides.
    """

    manifest: str
    recipe: str
    first_step: int
    fields: Mapping[str, Any] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Position:
    """The steps before `next_step` are done. Made by `Order.position(after=step)`."""

    segments: tuple[Segment, ...]
    next_step: int

    def to_json(self) -> dict[str, Any]:
        """The position as JSON values: docs/reference/order.md, "Position"."""
        return {
            "format": POSITION_FORMAT,
            "order": ORDER_VERSION,
            "segments": [
                {"manifest": one.manifest, "recipe": one.recipe, "first_step": one.first_step}
                | ({} if one.fields is None else {"fields": dict(one.fields)})
                for one in self.segments
            ],
            "next_step": self.next_step,
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read back what `to_json` gave.

        Raises NewerFormat for a format or order version above ours, FormatError for anything else that is not a
        position: wrong types, missing or unknown names, steps that do not fit together, fields of another digest.
        """
        names = _mapping(value, "position")
        _version(names, "format", POSITION_FORMAT)
        _version(names, "order", ORDER_VERSION)
        _names(names, "position", required={"format", "order", "segments", "next_step"})
        listed = names["segments"]
        if not isinstance(listed, list) or not listed:
            raise FormatError("not a position: 'segments' is not a list of at least one")
        segments = tuple(_segment(one) for one in listed)
        next_step = _step(names, "next_step")
        firsts = [one.first_step for one in segments]
        if firsts[0] != 0 or any(b <= a for a, b in pairwise(firsts)) or firsts[-1] > next_step:
            raise FormatError(
                f"not a position: segments begin at steps {brief(firsts)} and the next step is {next_step}"
            )
        return cls(segments, next_step)

    def check(self, order: Identified) -> None:
        """Make sure that the position counts steps of `order`.

        Raises ConfigError naming every field that differs, with both values; NewerFormat for a position of several
        segments, which this release never writes.
        """
        if len(self.segments) > 1:
            raise NewerFormat(
                f"the position has {len(self.segments)} segments, and this release knows one",
                hint="resume with the stoker that saved it, or a newer one",
            )
        (saved,) = self.segments
        differing = [] if saved.recipe == order.recipe.digest else _differing(saved, order.recipe)
        if saved.manifest != order.manifest_digest:
            whole = f"manifest was {saved.manifest!r}, is {order.manifest_digest!r}"
            differing[:0] = tell_apart(saved.manifest, order.manifest_digest) or [whole]
        if differing:
            raise ConfigError(
                f"the position is of another order: {'; '.join(differing)}",
                hint="resume with the data set and values of the saved run, or start a run under another name",
            )


def _differing(saved: Segment, recipe: Recipe) -> list[str]:
    now = recipe.to_json()
    was = saved.fields or {}
    told = [
        f"{name} was {was.get(name, 'unset')!r}, is {now.get(name, 'unset')!r}"
        for name in sorted(was.keys() | now.keys())
        if was.get(name, "unset") != now.get(name, "unset")
    ]
    return told if was else [f"recipe digest was {saved.recipe!r}, is {recipe.digest!r}"]


def _segment(value: Any) -> Segment:
    names = _mapping(value, "segment")
    _names(names, "segment", required={"manifest", "recipe", "first_step"}, optional={"fields"})
    fields = None
    if "fields" in names:
        fields = _mapping(names["fields"], "recipe")
        if _json_digest(fields) != names["recipe"]:
            raise FormatError("not a position: the recipe's fields do not have the recipe's digest")
    return Segment(_digest(names, "manifest"), _digest(names, "recipe"), _step(names, "first_step"), fields)


def _json_digest(fields: dict[str, Any]) -> str:
    try:
        return json_digest(fields)
    except ValueError as error:  # NaN, or text that is no Unicode: no canonical JSON holds them
        raise FormatError(f"not a position: the recipe's fields have no digest: {error}") from error


def _mapping(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise FormatError(f"not a position: its {what} is not an object but a {type(value).__name__}")
    return value


def _names(
    value: Mapping[str, Any], what: str, *, required: AbstractSet[str], optional: AbstractSet[str] = frozenset()
) -> None:
    missing, unknown = sorted(required - value.keys()), sorted(value.keys() - required - optional)
    if missing or unknown:
        raise FormatError(f"not a position: its {what} lacks {brief(missing)} and has unknown {brief(unknown)}")


def _version(value: Mapping[str, Any], name: str, known: int) -> None:
    version = value.get(name)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise FormatError(f"not a position: {name!r} is {brief(version)}")
    if version > known:
        raise NewerFormat(
            f"the position has {name} version {version}, and this release knows up to {known}",
            hint="resume with a newer stoker",
        )


def _step(value: Mapping[str, Any], name: str) -> int:
    step = value[name]
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step <= _STEP_MAX:
        raise FormatError(f"not a position: {name!r} is {brief(step)}, not a step")
    return step


def _digest(value: Mapping[str, Any], name: str) -> str:
    digest = value[name]
    if not isinstance(digest, str) or not is_digest(digest):
        raise FormatError(f"not a position: {name!r} is {brief(digest)}, not a digest")
    return digest
