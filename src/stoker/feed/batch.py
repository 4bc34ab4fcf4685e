"""A batch: what a feeder replies, and what the training loop sees of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError, InternalError, UnknownField
from stoker.io.buffers import view
from stoker.values import StageTimes

if TYPE_CHECKING:
    from stoker.dataset.readable import Namer  # which loads more than processes that only map need

BYTES: Final = "|u1"  # the type of a field that is bytes, sample after sample
OBJECTS: Final = "|O"  # of one whose values are Python objects; they travel in the reply


class InSlot(msgspec.Struct, frozen=True):
    """The values lie in the batch's memory, from `offset` on."""

    offset: int


class InReply(msgspec.Struct, frozen=True, eq=False):
    """The values come with the reply itself: a list of Python objects, or bytes."""

    values: Any


class Deferred(msgspec.Struct, frozen=True, eq=False):
    """The values are made when they are first looked at, by `read(memory)`."""

    read: Callable[[NDArray[np.uint8]], Any]


class Named(msgspec.Struct, frozen=True, eq=False):
    """Keys that `namer` makes of the numbers of samples, when they are first looked at."""

    namer: Namer
    samples: NDArray[np.int64]

    def __reduce__(self) -> tuple[type[InReply], tuple[list[str]]]:
        """What is pickled are the keys: the other end may not have the data set."""
        return InReply, (self.namer(self.samples),)


Place: TypeAlias = InSlot | InReply | Deferred | Named


class Field(msgspec.Struct, frozen=True, eq=False):
    """One field of a batch of n samples, and where it lies.

    `dtype` is numpy's name of the type. Either `shape` says that it is one array, its first dimension n; or
    `row_offsets` int64[n + 1], from 0, where the bytes of each sample begin and end, with `row_shapes` int64[n, 3]
    those of arrays; or, with neither, it is a list.
    """

    name: str
    dtype: str
    place: Place
    shape: tuple[int, ...] | None = None
    row_offsets: NDArray[np.int64] | None = None
    row_shapes: NDArray[np.int64] | None = None


class Jagged(NamedTuple):
    """The bytes of one field of n samples, end to end: sample i is `values[offsets[i] : offsets[i + 1]]`.

    The layout that PyTorch calls jagged. `values` uint8[offsets[n]] is writable and lies where the batch lies;
    `offsets` int64[n + 1] begins with 0.
    """

    values: NDArray[np.uint8]
    offsets: NDArray[np.int64]


def key_field(known: tuple[bytes, NDArray[np.int64]] | None, namer: Namer | None, samples: NDArray[np.int64]) -> Field:
    """Keys of a batch: `known` are their UTF-8 end to end and int64[n + 1] offsets; else `namer` names `samples`."""
    if known is not None:
        return Field("sample_keys", BYTES, InReply(known[0]), row_offsets=known[1])
    if namer is None:
        raise InternalError("a batch came without its keys")
    return Field("sample_keys", OBJECTS, Named(namer, samples))


class BadSample(NamedTuple):
    """A bad sample that is not in its batch: its row, its key, what was wrong, and whether its row is masked."""

    row: int
    key: str
    what: str
    masked: bool


class WireBatch(msgspec.Struct, frozen=True, eq=False):
    """What a feeder replies to `request(step)`.

    `memory` uint8 is where it lies: a loan of a slot of the arena, which returns when the last view of it dies, also
    if the reply never reaches anybody; or ordinary memory if no slot was free. `valid` bool[n] is False for the pads of
    an evaluation and what is masked. `nbytes` are the bytes of all values; `bad` are those that others stand for.
    """

    step: int
    epoch: int
    memory: NDArray[np.uint8]
    valid: NDArray[np.bool_]
    fields: tuple[Field, ...]
    sample_keys: Field
    timing: StageTimes
    nbytes: int
    bad: tuple[BadSample, ...] = ()


class Batch(Mapping[str, Any]):
    """One rank's share of a global batch: a mapping of field -> value for n samples.

    A value is a list of n memoryviews (raw), str (text) or objects (json), or one writable numpy array of n rows (npy,
    what a map returns, and images of one size; of several sizes they are a list of arrays). Memoryviews and arrays lie
    in the loader's arena and are yours as long as you hold them: their memory is used again only when the batch and all
    of them are gone. A field that is not there raises UnknownField, a KeyError that names those that are.

    Attributes:
        step: counts from 0 over the whole run.
        epoch: counts from 0.
        valid: bool[n]; False for the samples that only pad the last batch of an evaluation, and for bad ones that
            `on_bad("mask")` has masked: their values are zeros, or empty.
    """

    __slots__ = (
        "__weakref__",
        "_fields",
        "_key_field",
        "_keys",
        "_masked",
        "_memory",
        "_values",
        "epoch",
        "step",
        "valid",
    )

    def __init__(self, wire: WireBatch) -> None:
        self.step = wire.step
        self.epoch = wire.epoch
        self.valid = wire.valid
        self._fields = {field.name: field for field in wire.fields}
        self._key_field = wire.sample_keys
        self._masked = [each.row for each in wire.bad if each.masked] if wire.bad else ()
        self._memory = wire.memory
        self._values: dict[str, Any] = {}
        self._keys: list[str] | None = None

    @property
    def sample_keys(self) -> list[str]:
        """The key of each sample; decoded when first asked for."""
        if self._keys is None:
            self._keys = read_keys(self._key_field)
        return self._keys

    @property
    def key_field(self) -> Field:
        """The keys as they came, for `read_keys`; it refers to no memory of the arena."""
        return self._key_field

    def __getitem__(self, name: str) -> Any:
        values = self._values
        if name not in values:
            field = self._fields.get(name)
            if field is None:
                raise unknown_field(name, self._fields, f"batch of step {self.step}")
            value = read_field(field, self._memory)
            if self._masked and isinstance(value, list):
                value = [_empty(one) if row in self._masked else one for row, one in enumerate(value)]
            values[name] = value
        return values[name]

    def jagged(self, name: str) -> Jagged:
        """A raw field as one array, for a consumer that takes a batch whole: one copy to a device, no object a sample.

        The same memory as that of the n views that `batch[name]` gives, and lent as they are. Raises UnknownField;
        ConfigError for a field that is decoded, which is one array already or has no bytes here.
        """
        field = self._fields.get(name)
        if field is None:
            raise unknown_field(name, self._fields, f"batch of step {self.step}")
        offsets = field.row_offsets
        if field.dtype != BYTES or offsets is None or field.row_shapes is not None or type(field.place) is not InSlot:
            raise ConfigError(
                f"field {name!r} is no raw bytes: it has no jagged form",
                f"batch of step {self.step}",
                f"batch[{name!r}] has its decoded values; leave it out of decode(...) to have its bytes",
            )
        start = field.place.offset
        return Jagged(self._memory[start : start + int(offsets[-1])], offsets)

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    __eq__ = object.__eq__  # as a mapping it would compare arrays, which have no truth value
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        names = ", ".join(map(repr, self._fields))
        count = len(self.valid)
        pads = count - int(self.valid.sum())
        real = f"{count} samples" if not pads else f"{count} samples, {pads} of them padding,"
        return f"<Batch of step {self.step}, epoch {self.epoch}: {real} with {names}>"


def blank(fields: Iterable[Field], memory: NDArray[np.uint8], rows: list[int]) -> None:
    """Zero the values of masked rows where they lie. Encoded ones stay: they are passed over when looked at."""
    for field in fields if rows else ():
        if not isinstance(field.place, InSlot):
            continue
        value = read_field(field, memory)
        for row in rows:
            if not isinstance(value, list):
                value[row] = np.zeros((), value.dtype)
            elif isinstance(value[row], memoryview):
                value[row][:] = bytes(len(value[row]))
            else:
                value[row].fill(0)


def _empty(value: Any) -> Any:
    """What stands for a masked value in a list; bytes are zeros already where they lie."""
    if isinstance(value, str | bytes | bytearray):
        return type(value)()
    return value if isinstance(value, memoryview | np.ndarray) else None


def unknown_field(name: object, names: Iterable[str], where: str) -> UnknownField:
    """The error for a field that is not among `names`, with those that are."""
    import difflib  # noqa: PLC0415  only for an error

    near = difflib.get_close_matches(name, names, n=1) if isinstance(name, str) else []
    guess = f"did you mean {near[0]!r}? " if near else ""
    return UnknownField(f"there is no field {name!r}", where, f"{guess}it has {', '.join(map(repr, names)) or 'none'}")


def read_keys(field: Field) -> list[str]:
    """The key of each sample. Raises InternalError if the field holds none."""
    place, offsets = field.place, field.row_offsets
    if isinstance(place, Named):
        return place.namer(place.samples)
    if isinstance(place, InReply) and isinstance(place.values, list):
        return place.values
    if offsets is None or not isinstance(place, InReply):
        raise InternalError("a batch came without its keys")
    blob = bytes(place.values)
    return [blob[start:stop].decode() for start, stop in pairwise(offsets.tolist())]


def read_field(field: Field, memory: NDArray[np.uint8]) -> Any:
    """The value of a field whose slot is `memory`: views of it, no copies."""
    if isinstance(field.place, InReply):
        return field.place.values
    if isinstance(field.place, Deferred):
        return field.place.read(memory)
    if isinstance(field.place, Named):
        return field.place.namer(field.place.samples)
    start = field.place.offset
    if field.shape is not None:
        return np.ndarray(field.shape, np.dtype(field.dtype), buffer=memory, offset=start)
    if field.row_offsets is None:
        raise InternalError(f"field {field.name!r} has neither a shape nor offsets")
    if field.row_shapes is not None:
        offsets = (start + field.row_offsets[:-1]).tolist()
        shapes = map(tuple, field.row_shapes.tolist())
        dtype = np.dtype(field.dtype)
        return [np.ndarray(shape, dtype, buffer=memory, offset=at) for shape, at in zip(shapes, offsets, strict=True)]
    rows = view(memory)[start:]
    return [rows[begin:end] for begin, end in pairwise(field.row_offsets.tolist())]
