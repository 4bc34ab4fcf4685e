"""Every exception stoker raises: what failed, where, and a hint.

::

    StokerError                           exit 1
      ConfigError          ValueError     exit 2   a value or a combination that cannot work
        LayoutError                                ranks, nodes and batch do not fit together
      StoreError                          exit 6
        NotFound           FileNotFoundError
        AlreadyExists      FileExistsError
        AccessDenied       PermissionError exit 7
        Unavailable        ConnectionError         retryable
        TimedOut           TimeoutError            retryable
        Throttled          ConnectionError         retryable
        PreconditionFailed
      IntegrityError                      exit 4   bytes are not what they were
        DigestMismatch, Truncated
        FormatError        ValueError              not the format it claims to be
        NewerFormat                                a format version this release does not know
      CapacityError        OSError        exit 5   disk full, quota, budget
      DatasetError                        exit 9
        EmptyDataset, SampleError, SourceChanged, TooManyBadSamples
        UnknownField       KeyError
      CheckpointError                     exit 10
        CheckpointMissing, SaveFailed, Fenced, RunBusy
      ChildDied                           exit 11  a process of stoker's own ended again and again
      UnsupportedError                    exit 8   the platform or an extra is missing
      ClosedError                         exit 1   used after close()
      InternalError                       exit 70  a bug in stoker

Each pickles (errors cross processes) and prints as at most three lines.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar


class StokerError(Exception):
    """Base of all errors: `what` failed with its numbers, `where` it was, and a `hint` that helps.

    Lower case, no trailing period, values in quotes. `exit_code` is what the command line returns;
    `retryable` says whether the same call may succeed later. `sample_row` is the row of a batch whose sample it is
    about, and `is_bad_sample` whether that one alone is at fault, as long as that batch is being made. `is_given_up`
    says that the call was repeated as often as that is allowed, to whoever would repeat it.
    """

    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False
    sample_row: int | None = None
    is_bad_sample: bool = False
    is_given_up: bool = False

    def __init__(self, what: str, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.hint:
            lines.append(f"  hint:  {self.hint}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[type[StokerError], tuple[str, str, str]]:
        return type(self), (self.what, self.where, self.hint)


class ConfigError(StokerError, ValueError):
    """A value, or a combination of values, that cannot work."""

    exit_code = 2


class LayoutError(ConfigError):
    """Ranks, nodes and batch do not fit together, or the environment contradicts itself."""


class StoreError(StokerError):
    """A store could not do what it was asked."""

    exit_code = 6


class NotFound(StoreError, FileNotFoundError):
    """Nothing is stored under the key."""


class AlreadyExists(StoreError, FileExistsError):
    """Something is stored there already, and nothing is overwritten."""


class AccessDenied(StoreError, PermissionError):
    """The store refuses: rights, read-only mounts, credentials."""

    exit_code = 7


class Unavailable(StoreError, ConnectionError):
    """The store did not answer as it should; the same call may succeed later."""

    retryable = True


class TimedOut(StoreError, TimeoutError):
    """A wait reached its deadline; the text says what it waited for."""

    retryable = True


class Throttled(StoreError, ConnectionError):
    """The store asks for fewer requests; it did not do what was asked."""

    retryable = True


class PreconditionFailed(StoreError):
    """The object is not the version it was asked to be: it changed, or is being changed."""


class IntegrityError(StokerError):
    """Bytes are not what they were when they were stored."""

    exit_code = 4


class DigestMismatch(IntegrityError):
    """A checksum does not match."""


class Truncated(IntegrityError):
    """Fewer bytes than recorded."""


class FormatError(IntegrityError, ValueError):
    """Not the format it claims to be."""


class NewerFormat(FormatError):
    """A format version that this release does not know; a newer stoker reads it."""


class CapacityError(StokerError, OSError):
    """Disk full, quota reached, or a budget too small: both numbers are in the text."""

    exit_code = 5

    def __init__(self, what: str, where: str = "", hint: str = "") -> None:
        super().__init__(what, where, hint)
        self.errno = errno.ENOSPC


class DatasetError(StokerError):
    """A data set cannot be made or read as asked."""

    exit_code = 9


class EmptyDataset(DatasetError, ValueError):
    """No sample, or fewer than one global batch."""


class SampleError(DatasetError):
    """One sample cannot be decoded, mapped or batched; the text names its key."""


class TooManyBadSamples(DatasetError):
    """More samples are bad than `on_bad` allows; the text names the first."""


class SourceChanged(DatasetError):
    """The source of a pack is not what it was when the pack began."""


class UnknownField(DatasetError, KeyError):
    """No field has that name; the text names those that there are."""


class CheckpointError(StokerError):
    """A checkpoint cannot be saved or restored."""

    exit_code = 10


class CheckpointMissing(CheckpointError, LookupError):
    """Steps were committed in this run, but none can be restored."""


class SaveFailed(CheckpointError):
    """A save was given up; the text names the rank or the file."""


class Fenced(CheckpointError):
    """A newer generation of the run exists: this one must not write any more."""


class RunBusy(CheckpointError):
    """Another process on this host holds the run's lock."""


class ChildDied(StokerError):
    """A process that works for this one ended again and again; the text says how, and its last words."""

    exit_code = 11


class UnsupportedError(StokerError):
    """The platform cannot do it, or an extra is not installed."""

    exit_code = 8


class ClosedError(StokerError):
    """Used after close()."""


class InternalError(StokerError):
    """A bug in stoker: please report it."""

    exit_code = 70


def text_of(error: BaseException) -> str:
    """What an error says, or that it cannot say it: of one that user code made, `__str__` may fail in itself."""
    try:
        return str(error)
    except BaseException as failure:  # noqa: BLE001  user code, also here: what is told of the error must not be lost
        return f"<its message cannot be had: {type(failure).__name__}>"


def brief(error: BaseException) -> str:
    """Type and text of an error that is not of stoker, for the sentence of one that is."""
    return f"{type(error).__name__}: {text_of(error)}"


@contextmanager
def naming(where: str, kind: type[StokerError] = StokerError) -> Iterator[None]:
    """Say `where` in errors of this kind that leave the block without a place: pure functions do not know it."""
    try:
        yield
    except kind as error:
        error.where = error.where or where
        raise
