"""`Dataset`: what training wants of a data set, as a frozen value. Nothing is opened or read here."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from stoker.dataset.windows import TokenType, TokenWindows
from stoker.errors import ConfigError
from stoker.store.base import Store

Decoder: TypeAlias = Literal["raw", "text", "json", "npy"]
DECODERS: Final[tuple[Decoder, ...]] = get_args(Decoder)
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
        index: path, URL or store of an index of `source` that does not lie beside it. Only this says where: nothing
            in an index names the place of its objects.
        windows: `source` are files of tokens, cut like this; they have one field, `tokens`, and no index.
    """

    source: str | Path | Store
    field_names: tuple[str, ...] | None = None
    decoder_items: tuple[tuple[str, Decoder], ...] = ()
    mappers: tuple[Mapper, ...] = ()
    index: str | Path | Store | None = None
    windows: TokenWindows | None = None

    def __post_init__(self) -> None:
        given: object = self.source
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
            raise ConfigError(f"a field is named twice: {', '.join(map(repr, twice))}")
        return replace(self, field_names=names)

    def decode(self, decoders: Mapping[str, str]) -> Dataset:
        """How the bytes of fields become values: raw, text, json or npy; adds to what an earlier call said.

        Raises ConfigError for an unknown decoder, or a field that `fields` left out.
        """
        given: object = decoders
        if not isinstance(given, Mapping):
            raise ConfigError(
                f"decode() takes field -> decoder, got {decoders!r}", hint='write .decode({"json": "json"})'
            )
        merged = self.decoders
        for field, decoder in decoders.items():
            if decoder not in DECODERS:
                raise ConfigError(
                    f"unknown decoder {decoder!r} for field {field!r}", hint=f"there are {', '.join(DECODERS)}"
                )
            merged[field] = decoder
        return replace(self, decoder_items=tuple(merged.items()))

    def tokens(self, seq_len: int, dtype: TokenType, overlap: int = 0, header_bytes: int = 0) -> Dataset:
        """`source` are flat files of tokens (`*.bin`), read as windows: `batch["tokens"]` is (n, seq_len + overlap).

        Window i of a file is tokens [i * seq_len, i * seq_len + seq_len + overlap), of `dtype` uint16, uint32, int32 or
        int64, little-endian, after `header_bytes`. With overlap=1 inputs are `[:, :-1]` and targets `[:, 1:]`. Windows
        cross the ends of documents, never those of files; tokens left at the end of a file are in none.
        Raises ConfigError for a value out of range, and together with `fields`, `decode` or an index.
        """
        return replace(self, windows=TokenWindows(seq_len, dtype, overlap, header_bytes))

    def map(self, function: Mapper) -> Dataset:
        """`function(sample: dict) -> dict` for each decoded sample, after those already given."""
        if not callable(function):
            raise ConfigError(f"map() takes a function of one sample, got {function!r}")
        return replace(self, mappers=(*self.mappers, function))


def _place(place: str | Path | Store) -> str:
    """A path or URL as text."""
    return place.url if isinstance(place, Store) else str(place)
