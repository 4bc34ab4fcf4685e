"""What a ledger holds and how its bytes lie: the pure half of `stoker.ledger` (docs/reference/ledger-format.md).

Everything is little-endian and at a fixed offset::

    0        header   magic, format, sizes, identity JSON, crc32
    4096     totals   two copies of 2,048 bytes: sequence, 64 numbers, crc32
    8192     saves    the last 256 saves, 64 bytes each, with a sequence number and a crc32 in each
    24576    steps    the last 4,096 steps, 128 bytes each, likewise

A copy or a record counts only if its crc32 fits. The totals are written to the copy that is *not* the newest whole
one, so that whenever the writer dies, or a reader looks, one whole copy is there.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from stoker.errors import ConfigError, FormatError, NewerFormat
from stoker.values import canonical_json

MAGIC: Final = b"STOKLEDG"
FORMAT: Final = 1

_HEADER: Final = struct.Struct("<8sIIQII")  # magic, format, identity bytes, file bytes, crc32 of the identity, zero
_TOTALS: Final = struct.Struct("<Q64qII")  # sequence, cells, crc32, zero
_SAVE: Final = struct.Struct("<QQqqqqqII")  # sequence, step, at, blocked, staged, 2 reserved, crc32, zero
_STEP: Final = struct.Struct("<QQqqqIIq8qII")  # sequence, step, entered, left, compute, epoch, samples, bytes, waits
_CRC: Final = struct.Struct("<II")

TOTALS_OFFSET: Final = 4096
TOTALS_STRIDE: Final = 2048
SAVES_OFFSET: Final = 8192
SAVE_COUNT: Final = 256
STEPS_OFFSET: Final = SAVES_OFFSET + SAVE_COUNT * _SAVE.size
STEP_COUNT: Final = 4096
LEDGER_BYTES: Final = STEPS_OFFSET + STEP_COUNT * _STEP.size
WAIT_CELLS: Final = 8
IDENTITY_MAX_BYTES: Final = TOTALS_OFFSET - _HEADER.size


class Cause(StrEnum):
    """What the training loop waited for. The order is the order of the cells in the file."""

    FETCH = "fetch"
    DECODE = "decode"
    MAP = "map"
    HANDOFF = "handoff"
    CHECKPOINT = "checkpoint"


class Counter(StrEnum):
    """What is counted besides steps. The order is the order of the cells in the file; new ones go last.

    All only grow, but for BYTES_IN_FLIGHT and DRAIN_BACKLOG, which go down again (`add` with a negative amount).
    """

    BYTES_READ = "bytes_read"
    READS = "reads"
    BYTES_IN_FLIGHT = "bytes_in_flight"
    COPIED_BATCHES = "copied_batches"
    CHECKPOINT_BYTES = "checkpoint_bytes"
    CHECKPOINTS_COMMITTED = "checkpoints_committed"
    CHECKPOINTS_FAILED = "checkpoints_failed"
    RESTORES = "restores"
    RESTORE_NS = "restore_ns"
    RESTORED_BYTES = "restored_bytes"
    VERIFIED_BYTES = "verified_bytes"
    DRAINED_STEPS = "drained_steps"
    DRAINED_BYTES = "drained_bytes"
    DRAIN_NS = "drain_ns"
    DRAINS_FAILED = "drains_failed"
    DRAINS_OVERTAKEN = "drains_overtaken"
    DRAIN_BACKLOG = "drain_backlog"
    DEVICE_IDLE_NS = "device_idle_ns"
    PAGEABLE_BATCHES = "pageable_batches"
    SUBSTITUTED_SAMPLES = "substituted_samples"
    MASKED_SAMPLES = "masked_samples"


class LedgerIdentity(NamedTuple):
    """Whose account it is: one rank of `world` in one generation of a run, on `host`."""

    run: str
    rank: int
    world: int
    generation: int
    host: str


class LedgerStart(NamedTuple):
    """The process that wrote it, and when it began: seconds since 1970, and the same moment by `perf_counter_ns`.

    Times in a ledger are `perf_counter_ns` of that host; `wall_s + (t - perf_ns) / 1e9` makes dates of them.
    """

    pid: int
    boot_id: str
    wall_s: float
    perf_ns: int


class StepRecord(NamedTuple):
    """One batch delivered. It was asked for at `entered_ns` and handed over at `left_ns`.

    `compute_before_ns` is what the loop did with the batch before this one, without time blocked in a save, which
    stands in `waits_ns[Cause.CHECKPOINT]`; both are 0 for the first batch of a loop.
    """

    sequence: int
    step: int
    epoch: int
    entered_ns: int
    left_ns: int
    compute_before_ns: int
    sample_count: int
    batch_bytes: int
    waits_ns: Mapping[Cause, int]

    @property
    def wait_ns(self) -> int:
        """Time in `next()` for this batch."""
        return self.left_ns - self.entered_ns


class SaveRecord(NamedTuple):
    """One save: training stood still for `blocked_ns` while `staged_bytes` were copied; it went on at `at_ns`."""

    sequence: int
    step: int
    at_ns: int
    blocked_ns: int
    staged_bytes: int


@dataclass(slots=True)
class Totals:
    """Sums since the ledger began.

    `waits_ns` covers every step, the first included. `first_wait_ns` and `first_compute_ns` are the parts of the first
    step, kept apart because utilisation leaves it out. Times are 0 until there is one; steps are -1.
    """

    steps: int = 0
    samples: int = 0
    batch_bytes: int = 0
    compute_ns: int = 0
    first_step: int = -1
    last_step: int = -1
    first_entered_ns: int = 0
    last_ns: int = 0
    first_wait_ns: int = 0
    first_compute_ns: int = 0
    saves: int = 0
    staged_bytes: int = 0
    blocked_max_ns: int = 0
    closed: int = 0
    waits_ns: dict[Cause, int] = field(default_factory=lambda: dict.fromkeys(Cause, 0))
    counters: dict[Counter, int] = field(default_factory=lambda: dict.fromkeys(Counter, 0))

    @property
    def wait_ns(self) -> int:
        """All waits, saves included."""
        return sum(self.waits_ns.values())


class LedgerSnapshot(NamedTuple):
    """A ledger at one moment. `steps` and `saves` are the last ones, oldest first, and never beyond the totals."""

    identity: LedgerIdentity
    start: LedgerStart
    totals: Totals
    steps: tuple[StepRecord, ...]
    saves: tuple[SaveRecord, ...]

    @property
    def waits_ns(self) -> Mapping[Cause, int]:
        """Nanoseconds waited, by cause."""
        return self.totals.waits_ns

    @property
    def counters(self) -> Mapping[Counter, int]:
        """The counters."""
        return self.totals.counters


# The cells of a copy of the totals: 0-15 numbers, 16-23 waits by cause, 24-63 counters. Unused ones are 0.
_NUMBERS: Final = (
    "steps",
    "samples",
    "batch_bytes",
    "compute_ns",
    "first_step",
    "last_step",
    "first_entered_ns",
    "last_ns",
    "first_wait_ns",
    "first_compute_ns",
    "saves",
    "staged_bytes",
    "blocked_max_ns",
    "closed",
)
# The same bytes, up to the crc32, for whoever writes them a batch: cells that are not used yet are padding.
_CELLS: Final = struct.Struct(
    f"<Q{len(_NUMBERS)}q{8 * (16 - len(_NUMBERS))}x"
    f"{len(Cause)}q{8 * (WAIT_CELLS - len(Cause))}x{len(Counter)}q{8 * (40 - len(Counter))}x"
)
_STEP_CELLS: Final = struct.Struct(f"<QQqqqIIq{len(Cause)}q{8 * (WAIT_CELLS - len(Cause))}x")


def ledger_name(rank: int, generation: int) -> str:
    """The file name of a rank's ledger in one generation: rank-00012.g0003.ledger."""
    return f"rank-{rank:05d}.g{generation:04d}.ledger"


def pack_header(identity: LedgerIdentity, start: LedgerStart) -> bytes:
    """The first bytes of a ledger. Raises ConfigError if the identity is too long."""
    text = canonical_json({**identity._asdict(), **start._asdict()})
    if len(text) > IDENTITY_MAX_BYTES:
        raise ConfigError(f"a ledger's identity takes {len(text)} bytes, {IDENTITY_MAX_BYTES} fit: {identity.run!r}")
    return _HEADER.pack(MAGIC, FORMAT, len(text), LEDGER_BYTES, zlib.crc32(text), 0) + text


def pack_totals(sequence: int, totals: Totals) -> tuple[int, bytes]:
    """Where the copy with this sequence number goes, and its bytes."""
    t = totals
    cells = _CELLS.pack(
        sequence,
        t.steps,
        t.samples,
        t.batch_bytes,
        t.compute_ns,
        t.first_step,
        t.last_step,
        t.first_entered_ns,
        t.last_ns,
        t.first_wait_ns,
        t.first_compute_ns,
        t.saves,
        t.staged_bytes,
        t.blocked_max_ns,
        t.closed,
        *t.waits_ns.values(),
        *t.counters.values(),
    )
    return TOTALS_OFFSET + (sequence & 1) * TOTALS_STRIDE, seal(cells)


def pack_save(record: SaveRecord) -> tuple[int, bytes]:
    """Where the record of a save goes, and its bytes."""
    body = _SAVE.pack(record.sequence, record.step, record.at_ns, record.blocked_ns, record.staged_bytes, 0, 0, 0, 0)
    return SAVES_OFFSET + (record.sequence - 1) % SAVE_COUNT * _SAVE.size, seal(body[:-8])


def pack_step(record: tuple[int, ...], waits: Sequence[int]) -> tuple[int, bytes]:
    """Where the record of a step goes, and its bytes.

    `record` is (sequence, step, entered, left, compute before, epoch, samples, bytes); `waits` one number a cause.
    """
    return STEPS_OFFSET + (record[0] - 1) % STEP_COUNT * _STEP.size, seal(_STEP_CELLS.pack(*record, *waits))


def seal(cells: bytes) -> bytes:
    """`cells`, and the 8 bytes that hold their crc32."""
    return cells + _CRC.pack(zlib.crc32(cells), 0)


def _whole(body: bytes | memoryview) -> bool:
    return _CRC.unpack(body[-8:]) == (zlib.crc32(body[:-8]), 0)


def parse(image: bytes | memoryview, where: str) -> LedgerSnapshot | None:
    """The ledger whose bytes are `image`; None if its writer is just changing both copies of the totals.

    Raises FormatError for anything that is not a ledger, NewerFormat for one of a later release. About 10 ms.
    """
    identity, start = _parse_header(image, where)
    totals = _parse_totals(image)
    if totals is None:
        return None
    return LedgerSnapshot(identity, start, totals, _parse_steps(image, totals.steps), _parse_saves(image, totals.saves))


def _parse_header(image: bytes | memoryview, where: str) -> tuple[LedgerIdentity, LedgerStart]:
    if len(image) < _HEADER.size or bytes(image[:8]) != MAGIC:
        raise FormatError("not a ledger, or one whose process died while it was made", where)
    _, version, identity_bytes, file_bytes, crc, _ = _HEADER.unpack_from(image)
    if version > FORMAT:
        raise NewerFormat(f"ledger format {version} is newer than {FORMAT}", where, "read it with a newer stoker")
    if len(image) != LEDGER_BYTES or file_bytes != LEDGER_BYTES or version != FORMAT:
        raise FormatError(f"a ledger of {len(image)} bytes says {file_bytes}, format 1 has {LEDGER_BYTES}", where)
    text = bytes(image[_HEADER.size : _HEADER.size + min(identity_bytes, IDENTITY_MAX_BYTES)])
    if zlib.crc32(text) != crc:
        raise FormatError("a ledger's identity does not fit its checksum", where)
    try:
        return _parse_identity(json.loads(text))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise FormatError(f"a ledger's identity cannot be read: {error}", where) from error


def _parse_identity(facts: Mapping[str, Any]) -> tuple[LedgerIdentity, LedgerStart]:
    identity = LedgerIdentity(
        run=str(facts["run"]),
        rank=int(facts["rank"]),
        world=int(facts["world"]),
        generation=int(facts["generation"]),
        host=str(facts["host"]),
    )
    start = LedgerStart(
        pid=int(facts["pid"]),
        boot_id=str(facts["boot_id"]),
        wall_s=float(facts["wall_s"]),
        perf_ns=int(facts["perf_ns"]),
    )
    return identity, start


def _parse_totals(image: bytes | memoryview) -> Totals | None:
    best: tuple[int, ...] = ()
    for copy in (0, 1):
        offset = TOTALS_OFFSET + copy * TOTALS_STRIDE
        body = image[offset : offset + _TOTALS.size]
        if _whole(body):
            best = max(best, _TOTALS.unpack(body))
    if not best:
        return None
    cells = best[1:]
    numbers: dict[str, Any] = dict(zip(_NUMBERS, cells, strict=False))
    return Totals(
        **numbers,
        waits_ns=dict(zip(Cause, cells[16:], strict=False)),
        counters=dict(zip(Counter, cells[24:], strict=False)),
    )


def _parse_steps(image: bytes | memoryview, count: int) -> tuple[StepRecord, ...]:
    records = []
    for sequence in range(max(1, count - STEP_COUNT + 1), count + 1):
        offset = STEPS_OFFSET + (sequence - 1) % STEP_COUNT * _STEP.size
        body = image[offset : offset + _STEP.size]
        if not _whole(body):
            continue
        found, step, entered, left, compute, epoch, samples, size, *waits, _, _ = _STEP.unpack(body)
        if found == sequence:
            by_cause = dict(zip(Cause, waits, strict=False))
            records.append(StepRecord(found, step, epoch, entered, left, compute, samples, size, by_cause))
    return tuple(records)


def _parse_saves(image: bytes | memoryview, count: int) -> tuple[SaveRecord, ...]:
    records = []
    for sequence in range(max(1, count - SAVE_COUNT + 1), count + 1):
        offset = SAVES_OFFSET + (sequence - 1) % SAVE_COUNT * _SAVE.size
        body = image[offset : offset + _SAVE.size]
        if _whole(body):
            record = SaveRecord(*_SAVE.unpack(body)[:5])
            if record.sequence == sequence:
                records.append(record)
    return tuple(records)
