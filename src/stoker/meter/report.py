"""The report of a run: how long training waited, for what, and what that cost. Pure: ledgers in, numbers and text out.

All waits are host time: what the training loop stood still in `next()` and `save()`. A loop that launches work for a
device and goes on may wait on the host while the device still computes; what the device idled is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

from stoker.errors import ConfigError, NotFound
from stoker.ledger import Cause, Counter, LedgerSnapshot
from stoker.meter import attribute
from stoker.meter.readings import read_metrics
from stoker.meter.text import as_text
from stoker.units import format_count, format_seconds

FORMAT: Final = 1
COUNTED: Final = "host wait of the training loop in next() and save(), not device idle"
_NS: Final = 1e9
_HOUR_NS: Final = 3600e9
_LONGEST_COUNT: Final = 5


@dataclass(frozen=True, slots=True)
class GenerationPart:
    """One start of the run. Steps are -1 if none was delivered; times are the largest of its ranks.

    `closed`: every rank whose ledger is at hand ended in order, so none was killed or is still running.
    """

    generation: int
    ranks: int
    steps: int
    first_step: int
    last_step: int
    wall_s: float
    startup_s: float
    first_batch_s: float
    closed: bool


@dataclass(frozen=True, slots=True)
class StepWaitPart:
    """Wait a step, over the last 4,096 steps of each ledger."""

    median: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class CheckpointPart:
    """Saves. `count`, `committed` and `failed` are steps, bytes are summed over ranks.

    `blocked_s_median` is of the last 256 saves of each ledger, `blocked_s_max` of all. `verified`: what was restored
    had been checked against its digests; None if nothing was.
    """

    count: int
    committed: int
    failed: int
    bytes: int
    staged_bytes: int
    blocked_s_median: float
    blocked_s_max: float
    verified: bool | None


@dataclass(frozen=True, slots=True)
class DrainPart:
    """Steps that went on to the far tier, behind training; summed over ranks and generations.

    `backlog` is of the newest generation: steps on their way or waiting, when its ledgers were last written.
    """

    steps: int
    failed: int
    overtaken: int
    backlog: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RestorePart:
    """Restores. `count` is generations, `seconds` the slowest rank of each, bytes are summed over ranks."""

    count: int
    seconds: float
    bytes: int
    verified_bytes: int


@dataclass(frozen=True, slots=True)
class RankPart:
    """What one rank waited in one generation, and for what most."""

    rank: int
    generation: int
    wait_s: float
    cause: str | None


@dataclass(frozen=True, slots=True)
class StepPart:
    """One step that waited long, and for what most."""

    rank: int
    generation: int
    step: int
    wait_s: float
    cause: str | None


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """What a run did and waited. Seconds of compute and wait, samples and bytes are summed over ranks and generations.

    `wait_ratio` = wait / (wait + compute). `accelerator_utilisation` is DLIO's, 0..1, None without counted steps.
    `gpu_hours` counts one device a rank from each start to its end; `gpu_hours_waited` is the part that waited, and
    `money_waited` what it cost. `steps_repeated` were trained again after a restart.
    """

    run: str
    world: int
    ranks: int
    hosts: tuple[str, ...]
    generations: tuple[GenerationPart, ...]
    steps: int
    steps_repeated: int
    samples: int
    batch_bytes: int
    bytes_read: int
    reads: int
    copied_batches: int
    substituted_samples: int
    masked_samples: int
    wall_s: float
    compute_s: float
    wait_s: float
    wait_s_by_cause: Mapping[str, float]
    wait_ratio: float
    step_wait_s: StepWaitPart
    accelerator_utilisation: float | None
    gpu_hours: float
    gpu_hours_waited: float
    gpu_hour_price: float | None
    money_waited: float | None
    checkpoint: CheckpointPart
    drain: DrainPart
    restore: RestorePart
    slowest_rank: RankPart | None
    longest_waits: tuple[StepPart, ...]
    metrics: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """The report as JSON (docs/reference/report.md); fields are added in later releases, never changed."""
        return {"format": FORMAT, "counted": COUNTED, **asdict(self)}

    def __str__(self) -> str:
        return as_text(self)

    def __repr__(self) -> str:
        waited = f"{format_seconds(self.wait_s)} waited, {self.wait_ratio:.1%} of wait and compute"
        name = f"run {self.run!r}" if self.run else "a run without a name"
        return f"<Report of {name}: {format_count(self.steps, 'step')}, {waited}; print() shows it>"


def build_report(snapshots: Iterable[LedgerSnapshot], *, gpu_hour_price: float | None = None) -> Report:
    """The report over the ledgers of one run, any number of ranks and generations, copies counted once.

    Raises NotFound for no ledger, ConfigError for ledgers of several runs or a price that is not one.
    """
    ledgers = attribute.distinct(snapshots)
    _check(ledgers, gpu_hour_price)
    generations = tuple(_generation(n, group) for n, group in attribute.by_generation(ledgers).items())
    newest = [s for s in ledgers if s.identity.generation == generations[-1].generation]
    waits_ns = attribute.waits(ledgers)
    wait_ns = sum(waits_ns.values())
    compute_ns = sum(s.totals.compute_ns for s in ledgers)
    step_waits_ns = [record.wait_ns for s in ledgers for record in s.steps]
    gpu_hours_waited = wait_ns / _HOUR_NS
    trained = [(g.first_step, g.last_step) for g in generations if g.steps]
    return Report(
        run=newest[0].identity.run,
        world=newest[0].identity.world,
        ranks=len(newest),
        hosts=tuple(sorted({s.identity.host for s in newest})),
        generations=generations,
        steps=sum(g.steps for g in generations),
        steps_repeated=attribute.repeated_steps(trained),
        samples=sum(s.totals.samples for s in ledgers),
        batch_bytes=sum(s.totals.batch_bytes for s in ledgers),
        bytes_read=attribute.counted(ledgers, Counter.BYTES_READ),
        reads=attribute.counted(ledgers, Counter.READS),
        copied_batches=attribute.counted(ledgers, Counter.COPIED_BATCHES),
        substituted_samples=attribute.counted(ledgers, Counter.SUBSTITUTED_SAMPLES),
        masked_samples=attribute.counted(ledgers, Counter.MASKED_SAMPLES),
        wall_s=sum(g.wall_s for g in generations),
        compute_s=compute_ns / _NS,
        wait_s=wait_ns / _NS,
        wait_s_by_cause={cause.value: part / _NS for cause, part in waits_ns.items()},
        wait_ratio=wait_ns / (wait_ns + compute_ns) if wait_ns else 0.0,
        step_wait_s=StepWaitPart(
            median=median(step_waits_ns) / _NS if step_waits_ns else 0.0,
            p99=attribute.quantile(step_waits_ns, 0.99) / _NS,
            max=max(step_waits_ns, default=0) / _NS,
        ),
        accelerator_utilisation=attribute.mean_utilisation(ledgers),
        gpu_hours=sum(map(attribute.wall_ns, ledgers)) / _HOUR_NS,
        gpu_hours_waited=gpu_hours_waited,
        gpu_hour_price=gpu_hour_price,
        money_waited=None if gpu_hour_price is None else gpu_hours_waited * gpu_hour_price,
        checkpoint=_checkpoint(ledgers),
        drain=_drain(ledgers, newest),
        restore=_restore(ledgers),
        slowest_rank=_slowest(newest),
        longest_waits=tuple(
            StepPart(s.identity.rank, s.identity.generation, r.step, r.wait_ns / _NS, _in_next(r.waits_ns))
            for s, r in attribute.longest_waits(ledgers, _LONGEST_COUNT)
        ),
        metrics=read_metrics(s.totals for s in ledgers),
    )


def _check(ledgers: list[LedgerSnapshot], gpu_hour_price: float | None) -> None:
    if not ledgers:
        raise NotFound("no ledger to report on")
    runs = sorted({s.identity.run for s in ledgers})
    if len(runs) > 1:
        raise ConfigError(f"ledgers of {len(runs)} runs in one report: {', '.join(map(repr, runs))}")
    price: object = gpu_hour_price
    if price is not None and not (isinstance(price, int | float) and 0 <= price < float("inf")):
        raise ConfigError(f"not a price of a GPU-hour: {price!r}", hint="a number, 0 or more")


def _generation(number: int, group: list[LedgerSnapshot]) -> GenerationPart:
    trained = [s for s in group if s.totals.steps]
    return GenerationPart(
        generation=number,
        ranks=len(group),
        steps=max(s.totals.steps for s in group),
        first_step=min((s.totals.first_step for s in trained), default=-1),
        last_step=max((s.totals.last_step for s in trained), default=-1),
        wall_s=max(map(attribute.wall_ns, group)) / _NS,
        startup_s=max(map(attribute.startup_ns, group)) / _NS,
        first_batch_s=max(s.totals.first_wait_ns for s in group) / _NS,
        closed=all(s.totals.closed for s in group),
    )


def _checkpoint(ledgers: list[LedgerSnapshot]) -> CheckpointPart:
    groups = attribute.by_generation(ledgers).values()
    blocked_ns = [save.blocked_ns for s in ledgers for save in s.saves]
    verified = attribute.counted(ledgers, Counter.VERIFIED_BYTES)
    return CheckpointPart(
        count=sum(max(s.totals.saves for s in group) for group in groups),
        committed=attribute.counted_once(ledgers, Counter.CHECKPOINTS_COMMITTED),
        failed=attribute.counted_once(ledgers, Counter.CHECKPOINTS_FAILED),
        bytes=attribute.counted(ledgers, Counter.CHECKPOINT_BYTES),
        staged_bytes=sum(s.totals.staged_bytes for s in ledgers),
        blocked_s_median=median(blocked_ns) / _NS if blocked_ns else 0.0,
        blocked_s_max=max(s.totals.blocked_max_ns for s in ledgers) / _NS,
        verified=verified > 0 and verified >= attribute.counted(ledgers, Counter.RESTORED_BYTES)
        if attribute.counted(ledgers, Counter.RESTORES)
        else None,
    )


def _drain(ledgers: list[LedgerSnapshot], newest: list[LedgerSnapshot]) -> DrainPart:
    return DrainPart(
        steps=attribute.counted(ledgers, Counter.DRAINED_STEPS),
        failed=attribute.counted(ledgers, Counter.DRAINS_FAILED),
        overtaken=attribute.counted(ledgers, Counter.DRAINS_OVERTAKEN),
        backlog=attribute.counted(newest, Counter.DRAIN_BACKLOG),
        bytes=attribute.counted(ledgers, Counter.DRAINED_BYTES),
        seconds=attribute.counted(ledgers, Counter.DRAIN_NS) / _NS,
    )


def _restore(ledgers: list[LedgerSnapshot]) -> RestorePart:
    return RestorePart(
        count=attribute.counted_once(ledgers, Counter.RESTORES),
        seconds=attribute.counted_once(ledgers, Counter.RESTORE_NS) / _NS,
        bytes=attribute.counted(ledgers, Counter.RESTORED_BYTES),
        verified_bytes=attribute.counted(ledgers, Counter.VERIFIED_BYTES),
    )


def _slowest(ledgers: list[LedgerSnapshot]) -> RankPart | None:
    """The rank that waited longest; None where there is only one, or none waited.

    Of one generation: another may have had other ranks, and each rank another share of the time.
    """
    slowest = max(ledgers, key=lambda s: sum(attribute.waits([s]).values()))
    waits = attribute.waits([slowest])
    wait_ns = sum(waits.values())
    if len(ledgers) == 1 or not wait_ns:
        return None
    return RankPart(slowest.identity.rank, slowest.identity.generation, wait_ns / _NS, attribute.main_cause(waits))


def _in_next(waits_ns: Mapping[Cause, int]) -> str | None:
    return attribute.main_cause({c: ns for c, ns in waits_ns.items() if c is not Cause.CHECKPOINT})
