"""`Dataset`: what training wants of a data set, as a frozen value. Nothing is opened or read here."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np

from stoker.dataset.windows import TokenType, TokenWindows, name_type
from stoker.errors import ConfigError
from stoker.store.base import Store
from stoker.values import path_text

Decoder: TypeAlias = Literal["raw", "text", "json", "npy", "image"]
DECODERS: Final[tuple[Decoder, ...]] = get_args(Decoder)
BadPolicy: TypeAlias = Literal["raise", "substitute", "mask"]
BAD_POLICIES: Final[tuple[BadPolicy, ...]] = get_args(BadPolicy)
Mapper: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True, repr=False)
class Dataset:
    """A data set and how its samples are wanted: `Dataset(url).fields("jpg", "json").decode({"json": "json"}).map(f)`.

    Each method returns a new description; the one it is called on stays as it is.

    Attributes:
        source: path or URL of the data set, or of tars (with braces and globs), or an open store (which stays the
            caller's to close).
        field_names: the fields wanted, in this order; None means all that the manifest names.
        decoders: field -> how its bytes become a value; a field that is not named stays `raw`.
        mappers: functions sample -> sample, applied one after the other to each decoded sample.
        seeded: whether global generators are seeded before each sample, where mappers run in processes of stoker's own.
        bad_policy, budget_ratio: what becomes of bad samples, and how many there may be: as `on_bad` says.
        index: path, URL or store of an index of `source` that does not lie beside it. Only this says where: nothing
            in an index names the place of its objects.
        windows: `source` are files of tokens, cut like this; they have one field, `tokens`, and no index.
    """

    source: str | Path | Store
    field_names: tuple[str, ...] | None = None
    decoder_items: tuple[tuple[str, Decoder], ...] = ()
    mappers: tuple[Mapper, ...] = ()
    seeded: bool = True
    bad_policy: BadPolicy = "raise"
    budget_ratio: float = 0.001
    index: str | Path | Store | None = None
    windows: TokenWindows | None = None

    def __post_init__(self) -> None:
        given: object = self.source
        if isinstance(given, os.PathLike) and not isinstance(os.fspath(given), str):
            raise ConfigError(f"not a data set: {given!r}", hint="give its path as text")
        if self.index is not None and not isinstance(self.index, Store):
            path_text("index", self.index)
        if not isinstance(given, str | os.PathLike | Store):
            raise ConfigError(
                f"not a data set: {given!r}",
                hint="give its path or URL, an open store, or a stoker.Dataset to a loader",
            )
        if self.windows is not None and (self.field_names is not None or self.decoder_items or self.index is not None):
            raise ConfigError(
                "tokens() goes without fields(), decode() and index=: files of tokens have one field, 'tokens'",
                hint="for tokens that are a field of samples leave tokens() out",
            )
        if self.field_names is not None:
            extra = sorted({field for field, _ in self.decoder_items} - set(self.field_names))
            if extra:
                raise ConfigError(
                    f"decode() names fields that fields() leaves out: {', '.join(map(repr, extra))}",
                    hint=f"the fields are {', '.join(map(repr, self.field_names))}",
                )

    def __repr__(self) -> str:
        """As it would be written: `Dataset('train').fields('jpg').decode({'jpg': 'raw'}).map(augment)`."""
        index = "" if self.index is None else f", index={_place(self.index)!r}"
        parts = [f"Dataset({_place(self.source)!r}{index})"]
        if self.field_names is not None:
            parts.append(f"fields({', '.join(map(repr, self.field_names))})")
        if self.decoder_items:
            parts.append(f"decode({self.decoders!r})")
        parts += [f"map({getattr(mapper, '__qualname__', type(mapper).__qualname__)})" for mapper in self.mappers]
        if self.bad_policy != "raise":
            parts.append(f"on_bad({self.bad_policy!r}, budget_ratio={self.budget_ratio})")
        return ".".join(parts)

    @property
    def decoders(self) -> dict[str, Decoder]:
        """Field -> decoder, as given to `decode`."""
        return dict(self.decoder_items)

    def fields(self, *names: str) -> Dataset:
        """Only these fields, in this order. Raises ConfigError for none, for one twice, or if `decode` names others."""
        given: tuple[object, ...] = names
        if not names or not all(isinstance(name, str) and name for name in given):
            raise ConfigError(f"fields() takes one name or more, got {names!r}", hint='write .fields("jpg", "json")')
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"a field is named twice: {', '.join(map(repr, twice))}", hint="name each once")
        return replace(self, field_names=names)

    def decode(self, decoders: Mapping[str, str]) -> Dataset:
        """How the bytes of fields become values: raw, text, json, npy or image (JPEG and PNG, to
        uint8[height, width, 3]; needs Pillow, the extra `images`); adds to what an earlier call said.

        Raises ConfigError for an unknown decoder, or a field that `fields` left out.
        """
        given: object = decoders
        if not isinstance(given, Mapping):
            raise ConfigError(
                f"decode() takes field -> decoder, got {decoders!r}", hint='write .decode({"json": "json"})'
            )
        merged = self.decoders
        for field, decoder in decoders.items():
            name: object = field
            if not isinstance(name, str):
                raise ConfigError(f"a field is named by text, not {field!r}", hint='write .decode({"json": "json"})')
            if decoder not in DECODERS:
                raise ConfigError(
                    f"unknown decoder {decoder!r} for field {field!r}", hint=f"there are {', '.join(DECODERS)}"
                )
            merged[field] = decoder
        return replace(self, decoder_items=tuple(merged.items()))

    def tokens(
        self,
        seq_len: int,
        dtype: TokenType | np.dtype[Any] | type[np.integer[Any]],
        overlap: int = 0,
        header_bytes: int = 0,
    ) -> Dataset:
        """`source` are flat files of tokens (`*.bin`), read as windows: `batch["tokens"]` is (n, seq_len + overlap).

        Window i of a file is tokens [i * seq_len, i * seq_len + seq_len + overlap), of `dtype` uint16, uint32, int32 or
        int64 (or numpy's `np.uint16` ...), little-endian, after `header_bytes`. With overlap=1 inputs are `[:, :-1]`
        and targets `[:, 1:]`. Windows cross the ends of documents, never those of files; tokens left at the end of a
        file are in none.
        Raises ConfigError for a value out of range, and together with `fields`, `decode` or an index.
        """
        return replace(self, windows=TokenWindows(seq_len, name_type(dtype), overlap, header_bytes))

    def map(self, function: Mapper, *, seeded: bool = True) -> Dataset:
        """`function(sample: dict) -> dict` for each decoded sample, after those already given.

        It runs in processes of the feeder (`feed.map_workers`), so it must depend on its sample alone. What it draws at
        random comes from `stoker.sample_rng()`; there `random`, NumPy's and PyTorch's global generators are seeded
        for each sample as well, which takes 12 us: `seeded=False`, for any of several functions, does without.
        """
        if not callable(function):
            raise ConfigError(f"map() takes a function of one sample, got {function!r}", hint="write .map(f)")
        return replace(self, mappers=(*self.mappers, function), seeded=self.seeded and seeded)

    def on_bad(self, policy: BadPolicy, budget_ratio: float = 0.001) -> Dataset:
        """What becomes of a sample that is damaged, cannot be decoded, or that a map function raises on.

        "raise" (the default): an error that names it. "substitute": another sample of the data set, chosen by a hash,
        is in its place, under its own key. "mask": `batch.valid` is False for it, and its values are zeros, or empty.
        Ranks stay aligned, and the order of all other samples is as it was. Once more than 10 + `budget_ratio` of the
        samples that a rank has had are bad, TooManyBadSamples is raised. Raises ConfigError for other values.
        """
        if policy not in BAD_POLICIES:
            raise ConfigError(f"unknown policy {policy!r}", hint=f"there are {', '.join(BAD_POLICIES)}")
        given: object = budget_ratio
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= 1:
            raise ConfigError(f"budget_ratio is {budget_ratio!r}", hint="it is a part of all samples, from 0 to 1")
        return replace(self, bad_policy=policy, budget_ratio=float(budget_ratio))


def _place(place: str | Path | Store) -> str:
    """A path or URL as text."""
    return place.url if isinstance(place, Store) else str(place)
