"""What can go wrong with a request: each fault is a frozen value, and does one thing on the wire.

`after_bytes` counts bytes of the body: the answer's, or or of `Stall` and `Reset` the request's where it has one.
"""

from __future__ import annotations

from dataclasses import dataclass

from stoker.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Answer:
    """The request is answered with an error and not carried out; with `done` it is carried out first.

    An ambiguous outcome is `Answer(500, "InternalError", done=True)`. `retry_after_s`: the header Retry-After.
    """

    status: int = 503
    code: str = "SlowDown"
    retry_after_s: int | None = None
    done: bool = False

    def __post_init__(self) -> None:
        if not 400 <= self.status <= 599:  # noqa: PLR2004  what HTTP calls errors
            raise ConfigError(f"not the status of an error: {self.status}", hint="give 400 to 599")


@dataclass(frozen=True, slots=True)
class Reset:
    """The connection is reset (RST): before the headers of the answer, or after so many bytes of the body.

    A write is not carried out, and not answered, unless `done`.
    """

    after_bytes: int | None = None
    done: bool = False

    def __post_init__(self) -> None:
        _check_count("after_bytes", self.after_bytes)


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection is closed (FIN) after so many bytes of the body, at the latest before the last one.

    The headers are right. An answer without a body is cut in its headers.
    """

    after_bytes: int = 0

    def __post_init__(self) -> None:
        _check_count("after_bytes", self.after_bytes)


@dataclass(frozen=True, slots=True)
class Stall:
    """Nothing moves for `seconds`: before the headers of the answer, or after so many bytes of the body.

    In the body it is at the latest before the last byte; an answer without a body stalls before its headers.
    """

    seconds: float
    after_bytes: int | None = None

    def __post_init__(self) -> None:
        _check_positive("seconds", self.seconds)
        _check_count("after_bytes", self.after_bytes)


@dataclass(frozen=True, slots=True)
class Trickle:
    """The body moves at `bytes_per_s`."""

    bytes_per_s: float

    def __post_init__(self) -> None:
        _check_positive("bytes_per_s", self.bytes_per_s)


@dataclass(frozen=True, slots=True)
class WrongLength:
    """Content-Length says `by` bytes more than the body has, or fewer if it is negative; then the connection closes.

    The answer to a HEAD is wrong in the same way; its connection stays.
    """

    by: int

    def __post_init__(self) -> None:
        if not self.by:
            raise ConfigError("a length that is wrong by 0 bytes is right", hint="give by, negative or positive")


@dataclass(frozen=True, slots=True)
class WrongRange:
    """Content-Range of a 206 says bytes that lie `shift` further on; the body is what was asked for."""

    shift: int = 1


@dataclass(frozen=True, slots=True)
class ShortRange:
    """A range is answered with its first half (at least a byte), and headers that say so truthfully."""


@dataclass(frozen=True, slots=True)
class IgnoreRange:
    """A range is answered with the whole object, status 200."""


@dataclass(frozen=True, slots=True)
class IgnoreCondition:
    """If-Match and If-None-Match are not looked at: what weak gateways do."""


@dataclass(frozen=True, slots=True)
class WrongETag:
    """The header ETag of a GET or HEAD is `etag`."""

    etag: str = '"00000000000000000000000000000000"'


@dataclass(frozen=True, slots=True)
class WrongClock:
    """The header Date is `ahead_s` seconds ahead of the clock, or behind it if that is negative."""

    ahead_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class Changed:
    """Somebody replaces the object just before the request: same size, every byte inverted, another ETag."""


@dataclass(frozen=True, slots=True)
class Flip:
    """One bit of one byte is flipped: of the request's body, or of the answer's if the request has none.

    It is byte `at` (modulo the body's length), else one by the seed.
    """

    at: int | None = None

    def __post_init__(self) -> None:
        _check_count("at", self.at)


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """Status 200, and the XML of an error as the body; the request is not carried out."""

    code: str = "InternalError"


Fault = (
    Answer
    | Reset
    | Cut
    | Stall
    | Trickle
    | WrongLength
    | WrongRange
    | ShortRange
    | IgnoreRange
    | IgnoreCondition
    | WrongETag
    | WrongClock
    | Changed
    | Flip
    | ErrorBody
)


def _check_count(name: str, value: int | None) -> None:
    if value is not None and value < 0:
        raise ConfigError(f"{name} {value} must be 0 or more")


def _check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise ConfigError(f"{name} {value} must be more than 0")
