"""What trainer and feeder say to each other, as bytes: a few small messages, none of them larger for larger samples.

The trainer says where it goes on (`Seek`), that it waits (`Wait`) and which loans have died (`Release`). The feeder
pushes a `Made` or `Erred` for each step from there on, unasked. `number` is that of a seek: what was pushed before it
is passed over. Values lie in the arena; no message holds a Python object a sample.
"""

from __future__ import annotations

import builtins
import logging
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from stoker import errors
from stoker.errors import InternalError, SampleError, StokerError, text_of
from stoker.feed.batch import BYTES, OBJECTS, BadSample, Deferred, Field, InReply, InSlot, Named, WireBatch, key_field
from stoker.feed.decode import DECODERS, Rows
from stoker.values import StageTimes

if TYPE_CHECKING:
    from stoker.dataset.readable import Namer

NOWHERE: Final = -1  # the offset of a batch that lies in memory of its own


class Seek(msgspec.Struct, array_like=True, tag=True):
    """Go on at `step`, which the trainer waits for since `since_ns`. Only the loans in `kept` are still alive. Those in
    `dead` were taken, and may have been written to; what is in neither was never taken.
    """

    number: int
    step: int
    since_ns: int
    kept: list[int]
    dead: list[int]


class Wait(msgspec.Struct, array_like=True, tag=True):
    """The trainer waits for `step` since then."""

    number: int
    step: int
    since_ns: int


class Release(msgspec.Struct, array_like=True, tag=True):
    """These loans have died."""

    loans: list[int]


class MadeField(msgspec.Struct, array_like=True):
    """A field: an array of `shape` at `offset`; or bytes at `offset` that `row_offsets` divides and `decoder` decodes;
    or, where `kinds` is there, strings and bytes in `blob`: of each row a letter says which.
    """

    name: bytes
    dtype: str
    offset: int
    shape: tuple[int, ...] | None
    row_offsets: bytes
    decoder: str
    kinds: bytes
    blob: bytes
    row_shapes: bytes = b""


class Made(msgspec.Struct, array_like=True, tag=True):
    """A batch: `loan` is to be released when its memory is not used any more: `memory_bytes` from `offset` of an arena
    of `arena_bytes` on, or a file that comes with the message. `keys` are UTF-8 that `key_offsets` divide; where these
    are empty, int64 numbers of samples, whose keys follow from them.
    """

    number: int
    loan: int
    step: int
    epoch: int
    offset: int
    memory_bytes: int
    arena_bytes: int
    nbytes: int
    times: tuple[int, int, int, int]
    valid: bytes
    keys: bytes
    key_offsets: bytes
    fields: list[MadeField]
    bad: list[BadSample]


class Told(msgspec.Struct, array_like=True):
    """An error: the name of its class, what it says, and where it came from."""

    kind: str
    what: str
    where: str
    hint: str
    trace: str


class Erred(msgspec.Struct, array_like=True, tag=True):
    """Why there is no batch for `step`; nothing is pushed after it until the next seek."""

    number: int
    step: int
    error: Told


class Failed(msgspec.Struct, array_like=True, tag=True):
    """The feeder could not start, and has ended."""

    error: Told


class Said(msgspec.Struct, array_like=True, tag=True):
    """A record of a log."""

    logger: str
    level: int
    text: str


FromTrainer: TypeAlias = Seek | Wait | Release
FromFeeder: TypeAlias = Made | Erred | Failed | Said

encode: Final[Callable[[Any], bytes]] = msgspec.msgpack.Encoder().encode
decode_from_trainer: Final = msgspec.msgpack.Decoder(FromTrainer).decode
decode_from_feeder: Final = msgspec.msgpack.Decoder(FromFeeder).decode


# Text. Half a surrogate pair stands for a byte of a file name that is no UTF-8; a message cannot hold it.


def to_bytes(text: str) -> bytes:
    """Text as bytes that a message can hold, whatever it is."""
    return text.encode("utf-8", "surrogatepass")


def to_text(data: bytes) -> str:
    """The text that a message holds as bytes."""
    return data.decode("utf-8", "surrogatepass")


def spell(text: str) -> str:
    """The text, with an escape where it cannot be said in UTF-8: for people to read."""
    return text.encode("utf-8", "backslashreplace").decode()


# Fields.


Encoded: TypeAlias = tuple[int, NDArray[np.int64], str]  # start, row offsets, decoder: where the bytes of a field lie


def tell_field(field: Field, encoded: Encoded | None) -> MadeField:
    """A field as a message. `encoded` says of one whose values are Python objects where the bytes of them lie, what
    divides these, and what decodes them: only that travels. Without it its values are strings or bytes.
    """
    if isinstance(field.place, InSlot):
        rows = b"" if field.row_offsets is None else field.row_offsets.tobytes()
        shapes = b"" if field.row_shapes is None else field.row_shapes.tobytes()
        name, place = to_bytes(field.name), field.place
        return MadeField(name, field.dtype, place.offset, field.shape, rows, "", b"", b"", shapes)
    if encoded is not None:
        offset, row_offsets, decoder = encoded
        return MadeField(to_bytes(field.name), OBJECTS, offset, None, row_offsets.tobytes(), decoder, b"", b"")
    assert isinstance(field.place, InReply)
    return tell_values(field.name, field.place.values)


_KINDS: Final[dict[type, bytes]] = {str: b"s", bytes: b"b", bytearray: b"a", memoryview: b"v"}


def tell_values(name: str, values: Sequence[Any]) -> MadeField:
    """A field of strings and bytes, as a message: its values travel in it."""
    kinds = b"".join(next(mark for kind, mark in _KINDS.items() if isinstance(value, kind)) for value in values)
    rows = [to_bytes(value) if isinstance(value, str) else bytes(value) for value in values]
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), out=offsets[1:])
    return MadeField(to_bytes(name), OBJECTS, 0, None, offsets.tobytes(), "", kinds, b"".join(rows))


def tell_fields(fields: Sequence[Field], encoded: Sequence[Encoded]) -> list[MadeField]:
    """The fields of a batch as messages; `encoded` says of each where its bytes lie, or is empty: they have none."""
    return [tell_field(field, encoded[index] if encoded else None) for index, field in enumerate(fields)]


def hear_values(told: MadeField) -> list[Any]:
    """What `tell_values` told."""
    return _hear_values(told.kinds, told.blob, np.frombuffer(told.row_offsets, np.int64))


def hear_field(told: MadeField) -> Field:
    """The field of a message. Nothing is decoded or divided before it is looked at."""
    if told.shape is not None:
        return Field(to_text(told.name), told.dtype, InSlot(told.offset), shape=told.shape)
    offsets, name = np.frombuffer(told.row_offsets, np.int64), to_text(told.name)
    if told.kinds or (told.dtype == OBJECTS and not told.decoder):
        return Field(name, OBJECTS, Deferred(partial(_hear_values, told.kinds, told.blob, offsets)))
    if told.decoder:
        return Field(name, OBJECTS, Deferred(partial(_decode, told, name, offsets)))
    shapes = np.frombuffer(told.row_shapes, np.int64).reshape(-1, 3) if told.row_shapes else None
    return Field(name, BYTES, InSlot(told.offset), row_offsets=offsets, row_shapes=shapes)


def _hear_values(
    kinds: bytes, blob: bytes, offsets: NDArray[np.int64], _memory: NDArray[np.uint8] | None = None
) -> list[Any]:
    values: list[Any] = []
    for kind, (start, stop) in zip(kinds.decode(), pairwise(offsets.tolist()), strict=True):
        row = blob[start:stop]
        match kind:
            case "s":
                values.append(to_text(row))
            case "a":
                values.append(bytearray(row))
            case "v":
                values.append(memoryview(bytearray(row)))
            case _:
                values.append(row)
    return values


def _decode(told: MadeField, name: str, offsets: NDArray[np.int64], memory: NDArray[np.uint8]) -> Any:
    """What the feeder has decoded before, to see that it can be."""
    decoder = DECODERS[told.decoder]
    if decoder is None:
        raise InternalError(f"field {name!r} needs no decoder")
    data = memory[told.offset : told.offset + int(offsets[-1])]
    return decoder(Rows(name, data, offsets.tolist(), lambda: [f"row {row}" for row in range(len(offsets) - 1)]))


def tell_keys(field: Field) -> tuple[bytes, bytes]:
    """`keys` and `key_offsets` of a message."""
    if isinstance(field.place, Named):
        return field.place.samples.tobytes(), b""
    assert isinstance(field.place, InReply)
    assert field.row_offsets is not None
    return field.place.values, field.row_offsets.tobytes()


def hear_batch(made: Made, memory: NDArray[np.uint8], namer: Namer | None = None) -> WireBatch:
    """The batch of a message, whose loan is `memory`. `namer` makes keys where only numbers of samples came."""
    known = (made.keys, np.frombuffer(made.key_offsets, np.int64)) if made.key_offsets else None
    samples = np.frombuffer(b"" if known else made.keys, np.int64)
    return WireBatch(
        step=made.step,
        epoch=made.epoch,
        memory=memory,
        valid=np.frombuffer(made.valid, np.bool_),
        fields=tuple(map(hear_field, made.fields)),
        sample_keys=key_field(known, namer, samples),
        timing=StageTimes(*made.times),
        nbytes=made.nbytes,
        bad=tuple(made.bad),
    )


# Logs.


def say(said: Said) -> None:
    """Log what another process logged, as if it had been said here."""
    logger = logging.getLogger(said.logger)
    if logger.isEnabledFor(said.level):
        logger.handle(logger.makeRecord(said.logger, said.level, "feeder", 0, said.text, (), None))


# Errors.


class FeederTraceback(Exception):
    """Where an error came from, in the process that met it: what that process would have printed."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


def tell_error(error: BaseException) -> Told:
    """An error as a message."""
    trace = "".join(traceback.format_exception(error))
    said = (error.what, error.where, error.hint) if isinstance(error, StokerError) else (text_of(error), "", "")
    return Told(*map(spell, (type(error).__name__, *said, trace)))


def hear_error(told: Told) -> BaseException:
    """The error of a message: of its own class if that is one of stoker's or of Python's, with its origin as cause."""
    kind = getattr(errors, told.kind, None)
    builtin = getattr(builtins, told.kind, None)
    error: BaseException
    if isinstance(kind, type) and issubclass(kind, StokerError):
        error = kind(told.what, told.where, told.hint)
    elif isinstance(builtin, type) and issubclass(builtin, Exception) and not issubclass(builtin, UnicodeError):
        error = builtin(told.what)
    else:
        error = InternalError(f"the feeder failed: {told.kind}: {told.what}")
    # A stoker error says all there is to say, but for what user code raised, and for bugs.
    if not isinstance(error, StokerError) or isinstance(error, SampleError | InternalError):
        error.__cause__ = FeederTraceback(told.trace.rstrip())
    return error
