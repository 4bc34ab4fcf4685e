"""Every number stoker publishes about itself, in one table: name, unit, and what high and low mean.

docs/reference/metrics.md is made from it by `as_markdown`. Nothing else defines a metric.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["counter", "gauge"]
Stability = Literal["stable", "experimental"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One published number of one rank. Names follow OpenMetrics: base units, counters end in `_total`.

    `source` is the number in the ledger it is read from (nanoseconds there are seconds here); `label` distinguishes
    its parts, if it has any.
    """

    name: str
    kind: Kind
    unit: str
    source: str
    help: str
    high: str
    low: str
    label: str = ""
    stability: Stability = "stable"


METRICS: Final = (
    Metric(
        name="stoker_steps_total",
        kind="counter",
        unit="steps",
        source="steps",
        help="Batches handed to the training loop.",
        high="Training moves on.",
        low="A rate of 0 on every rank: training stands still.",
    ),
    Metric(
        name="stoker_samples_total",
        kind="counter",
        unit="samples",
        source="samples",
        help="Samples in these batches, this rank's share.",
        high="Training moves on.",
        low="Fewer than other ranks: this rank started later.",
    ),
    Metric(
        name="stoker_batch_bytes_total",
        kind="counter",
        unit="bytes",
        source="batch_bytes",
        help="Bytes of these batches as handed over, after decoding and map.",
        high="Far above the bytes read: decoding unpacks a lot; memory and copies to the device may cost more.",
        low="Far below the bytes read: fields are read and then dropped; ask for fewer fields.",
    ),
    Metric(
        name="stoker_compute_seconds_total",
        kind="counter",
        unit="seconds",
        source="compute_ns",
        help="Time between a batch being handed over and the next being asked for, without saves.",
        high="The loop is busy: storage keeps up.",
        low="The loop mostly waits: look at the waits by cause.",
    ),
    Metric(
        name="stoker_wait_seconds_total",
        kind="counter",
        unit="seconds",
        source="waits_ns",
        help="Time the training loop stood still on the host: in next() for a batch, or in save() (`checkpoint`).",
        high="The stage named by the label holds training up.",
        low="The stage keeps up, or is hidden behind compute.",
        label="cause",
    ),
    Metric(
        name="stoker_first_batch_seconds",
        kind="gauge",
        unit="seconds",
        source="first_wait_ns",
        help="Wait for the first batch after a start.",
        high="Starts and restarts are slow: far or slow storage, or a large batch.",
        low="Prefetch had the first batch ready when training asked for it.",
    ),
    Metric(
        name="stoker_read_bytes_total",
        kind="counter",
        unit="bytes",
        source="bytes_read",
        help="Bytes read from the data set's store.",
        high="Above the size of the samples delivered: data is read more than once, or blocks that ranks share.",
        low="A low rate while `fetch` waits grow: storage is slow.",
    ),
    Metric(
        name="stoker_reads_total",
        kind="counter",
        unit="reads",
        source="reads",
        help="Read requests to the data set's store.",
        high="Many for few bytes: each request pays the latency of the store; raise feed.gather_bytes.",
        low="Few for many bytes: requests are large; few for many samples: they come from blocks in memory.",
    ),
    Metric(
        name="stoker_prefetch_bytes",
        kind="gauge",
        unit="bytes",
        source="bytes_in_flight",
        help="Bytes of batches being made or lying ready, ahead of training.",
        high="Near the prefetch budget: storage is ahead of training.",
        low="Near 0 while `fetch` waits grow: storage cannot get ahead; near 0 without waits: the budget is small.",
    ),
    Metric(
        name="stoker_copied_batches_total",
        kind="counter",
        unit="batches",
        source="copied_batches",
        help="Batches copied into ordinary memory because every slot of the arena was still lent.",
        high="Training holds on to batches: raise the prefetch budget, or let them go.",
        low="0 is right: batches are handed over without a copy.",
    ),
    Metric(
        name="stoker_substituted_samples_total",
        kind="counter",
        unit="samples",
        source="substituted_samples",
        help="Bad samples for which another one stood in its batch, as on_bad says.",
        high="Data are damaged, or the map function fails on them; the log names the first.",
        low="0 is right, and what there is unless on_bad was called.",
    ),
    Metric(
        name="stoker_masked_samples_total",
        kind="counter",
        unit="samples",
        source="masked_samples",
        help="Bad samples whose rows were masked in their batch, as on_bad says.",
        high="Data are damaged, or the map function fails on them; the log names the first.",
        low="0 is right, and what there is unless on_bad was called.",
    ),
    Metric(
        name="stoker_saves_total",
        kind="counter",
        unit="saves",
        source="saves",
        help="Snapshots taken for a checkpoint.",
        high="Saves come often: each costs its blocked time.",
        low="Much work is lost when a process dies.",
    ),
    Metric(
        name="stoker_checkpoint_staged_bytes_total",
        kind="counter",
        unit="bytes",
        source="staged_bytes",
        help="Bytes copied into snapshots while training stood still.",
        high="Large snapshots, or many.",
        low="Small snapshots, or few.",
    ),
    Metric(
        name="stoker_checkpoint_blocked_max_seconds",
        kind="gauge",
        unit="seconds",
        source="blocked_max_ns",
        help="Longest time one save stopped training.",
        high="A save waited for the one before it, or memory is slow: save less often, or to faster storage.",
        low="Only the copy into memory stops training.",
    ),
    Metric(
        name="stoker_checkpoint_bytes_total",
        kind="counter",
        unit="bytes",
        source="checkpoint_bytes",
        help="Bytes written to checkpoints.",
        high="Large checkpoints, or many.",
        low="Below the staged bytes: saves are still being written, or failed.",
    ),
    Metric(
        name="stoker_checkpoints_committed_total",
        kind="counter",
        unit="checkpoints",
        source="checkpoints_committed",
        help="Checkpoints that became complete.",
        high="Each is a step to restart from.",
        low="Below the number of saves: some are under way, or failed.",
    ),
    Metric(
        name="stoker_checkpoints_failed_total",
        kind="counter",
        unit="checkpoints",
        source="checkpoints_failed",
        help="Checkpoints that were given up.",
        high="Storage refuses or is full, or a rank died: the log names it.",
        low="0 is right.",
    ),
    Metric(
        name="stoker_restores_total",
        kind="counter",
        unit="restores",
        source="restores",
        help="Checkpoints restored from.",
        high="1 in a generation that resumed.",
        low="0 in a generation that began anew.",
    ),
    Metric(
        name="stoker_restore_seconds_total",
        kind="counter",
        unit="seconds",
        source="restore_ns",
        help="Time restoring took, checksums included.",
        high="Restarts are slow: far or slow storage.",
        low="Restarts are cheap.",
    ),
    Metric(
        name="stoker_restored_bytes_total",
        kind="counter",
        unit="bytes",
        source="restored_bytes",
        help="Bytes read from checkpoints to restore.",
        high="Above this rank's own state: several ranks read the same bytes.",
        low="0 in a generation that began anew.",
    ),
    Metric(
        name="stoker_verified_bytes_total",
        kind="counter",
        unit="bytes",
        source="verified_bytes",
        help="Bytes of checkpoints checked against their digests.",
        high="As many as were restored, or more: whole 4 MiB chunks are checked.",
        low="Never below the restored bytes.",
    ),
    Metric(
        name="stoker_drained_steps_total",
        kind="counter",
        unit="steps",
        source="drained_steps",
        help="Saved steps that reached the far tier.",
        high="Each can be restored from when the near tier is gone.",
        low="Below the committed checkpoints: some are on their way, were overtaken, or failed.",
    ),
    Metric(
        name="stoker_drained_bytes_total",
        kind="counter",
        unit="bytes",
        source="drained_bytes",
        help="Bytes of these steps that were copied, without what an earlier try had left there.",
        high="Large checkpoints, or many.",
        low="Below the bytes of checkpoints: not every step is drained.",
    ),
    Metric(
        name="stoker_drain_seconds_total",
        kind="counter",
        unit="seconds",
        source="drain_ns",
        help="Time drains took behind training, the pauses of their pace included; also of those that failed.",
        high="Near the time between saves: the far tier is as slow as steps come, and some will be overtaken.",
        low="The far tier has room for more frequent saves.",
    ),
    Metric(
        name="stoker_drains_failed_total",
        kind="counter",
        unit="drains",
        source="drains_failed",
        help="Drains that were given up; the step stays on its near tier.",
        high="The far tier refuses, is full or unreachable: the next save names it.",
        low="0 is right.",
    ),
    Metric(
        name="stoker_drains_overtaken_total",
        kind="counter",
        unit="drains",
        source="drains_overtaken",
        help="Saved steps that were not drained, as a newer one was ready before their turn.",
        high="Steps are saved faster than the far tier takes them: save less often, or choose a faster one.",
        low="0: every step is drained.",
    ),
    Metric(
        name="stoker_drain_backlog_steps",
        kind="gauge",
        unit="steps",
        source="drain_backlog",
        help="Saved steps on their way to the far tier, or waiting for their turn.",
        high="Above 1: drains are slower than saves; what lies between is lost with the node.",
        low="0: all that is saved and was not overtaken is far away too.",
    ),
    Metric(
        name="stoker_device_idle_seconds_total",
        kind="counter",
        unit="seconds",
        source="device_idle_ns",
        help="Time the device had done its work and had no batch yet, by its own clock; 0 without device=.",
        high="The device waits for batches, or for the loop to ask for them: look at the waits by cause.",
        low="Batches are on the device before it has done its work.",
    ),
    Metric(
        name="stoker_pageable_batches_total",
        kind="counter",
        unit="batches",
        source="pageable_batches",
        help="Batches copied to the device out of memory that could not be pinned.",
        high="Copies are slow and hold up the host: the log says what CUDA refused.",
        low="0 is right.",
    ),
)


def as_markdown() -> str:
    """The table as the page docs/reference/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "Every number stoker publishes about itself, one set a rank. This page is made from `stoker/metrics.py`.",
        "Counters only grow while a process lives; gauges go up and down. All times are host time, what the training",
        "loop stood still, but for the idle time of the device (see [waits](../concepts/waits.md)).",
    ]
    for metric in METRICS:
        label = f", by `{metric.label}`" if metric.label else ""
        lines += [
            "",
            f"## {metric.name}",
            "",
            f"{metric.kind}, {metric.unit}{label}; {metric.stability}. {metric.help}",
            "",
            f"- High: {metric.high}",
            f"- Low: {metric.low}",
        ]
    return "\n".join(lines) + "\n"
