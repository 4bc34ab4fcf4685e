"""A report as people read it: at most 25 lines, a unit at every number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stoker.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from stoker.meter.report import RankPart, Report

_LABEL_COLUMNS: Final = 15
_SHOWN_LONGEST: Final = 3
_NOTE: Final = (
    "Waits are host time: the training loop stood still in next() or save(). What the device idled is not in it."
)


def as_text(report: Report) -> str:
    """The text of a report."""
    lines = [_title(report), *(f"  {label:<{_LABEL_COLUMNS}}{text}" for label, text in _rows(report)), _NOTE]
    return "\n".join(lines)


def _title(report: Report) -> str:
    who = format_count(report.world, "rank")
    if report.ranks != report.world:
        who = f"{report.ranks} of {who} at hand"
    name = f"run {report.run}" if report.run else "a run without a name"
    starts = format_count(len(report.generations), "start")
    hosts = format_count(len(report.hosts), "host")
    return f"{name}: {who} on {hosts}, {starts}, {format_seconds(report.wall_s)} by the clock"


def _rows(report: Report) -> list[tuple[str, str]]:
    over = " over all ranks" if report.world > 1 else ""
    rows = [
        ("trained", _trained(report)),
        ("read", _read(report)),
        ("compute", format_seconds(report.compute_s) + over),
        ("host wait", _wait(report, over)),
    ]
    for cause, seconds in report.wait_s_by_cause.items():
        share = seconds / report.wait_s if report.wait_s else 0.0
        rows.append((f"  {cause}", f"{format_seconds(seconds):>8} {share:7.1%}"))
    rows.append(("utilisation", _utilisation(report)))
    rows.append(("GPU-hours", _gpu_hours(report)))
    rows.append(("first batch", _first_batch(report)))
    if report.checkpoint.count:
        rows.append(("checkpoints", _checkpoints(report)))
    if any((report.drain.steps, report.drain.failed, report.drain.overtaken, report.drain.backlog)):
        rows.append(("drains", _drains(report)))
    if report.restore.count:
        rows.append(("restores", _restores(report)))
    if report.slowest_rank:
        rows.append(("slowest rank", _slowest(report.slowest_rank, report)))
    if report.longest_waits:
        rows.append(("longest waits", _longest(report)))
    return rows


def _trained(report: Report) -> str:
    text = f"{format_count(report.steps, 'step')}, {format_count(report.samples, 'sample')}"
    repeated, bad = report.steps_repeated, (report.substituted_samples, report.masked_samples)
    if any(bad):
        text += f"; bad ones: {bad[0]:,} substituted, {bad[1]:,} masked"
    return f"{text}; {format_count(repeated, 'step')} trained again after a restart" if repeated else text


def _read(report: Report) -> str:
    text = f"{format_bytes(report.bytes_read)} in {format_count(report.reads, 'read')}"
    copied = report.copied_batches
    return f"{text}; {copied:,} batches copied, as no slot was free" if copied else text


def _wait(report: Report, over: str) -> str:
    step = report.step_wait_s
    return (
        f"{format_seconds(report.wait_s)}{over}, {report.wait_ratio:.1%} of wait and compute; "
        f"a step {format_seconds(step.median)} (median), {format_seconds(step.p99)} (p99)"
    )


def _utilisation(report: Report) -> str:
    if report.accelerator_utilisation is None:
        return "not known: no step after the first"
    mean = f", mean of {report.ranks} ranks" if report.ranks > 1 else ""
    return f"{report.accelerator_utilisation:.1%} (DLIO: without each start's first step and saves{mean})"


def _gpu_hours(report: Report) -> str:
    text = f"{_number(report.gpu_hours_waited)} waited of {_number(report.gpu_hours)}"
    if report.money_waited is None:
        return text
    return f"{text}, cost {_number(report.money_waited)} at {report.gpu_hour_price:g} a GPU-hour"


def _first_batch(report: Report) -> str:
    started = [g for g in report.generations if g.steps]
    if not started:
        return "none yet"
    slowest = max(started, key=lambda g: g.first_batch_s)
    which = f" (start {slowest.generation}, the slowest)" if len(started) > 1 else ""
    return (
        f"waited {format_seconds(slowest.first_batch_s)}, "
        f"{format_seconds(slowest.startup_s)} of start-up before it was asked for{which}"
    )


def _checkpoints(report: Report) -> str:
    saves = report.checkpoint
    failed = f", {saves.failed:,} failed" if saves.failed else ""
    return (
        f"{format_count(saves.count, 'save')}, {saves.committed:,} committed{failed}, {format_bytes(saves.bytes)}; "
        f"blocked {format_seconds(saves.blocked_s_median)} (median), {format_seconds(saves.blocked_s_max)} (longest)"
    )


def _drains(report: Report) -> str:
    drain = report.drain
    text = f"{format_count(drain.steps, 'step')} reached the far tier, {format_bytes(drain.bytes)} in "
    text += format_seconds(drain.seconds)
    others = ((drain.backlog, "on the way"), (drain.overtaken, "overtaken"), (drain.failed, "failed"))
    return ", ".join([text, *(f"{number:,} {what}" for number, what in others if number)])


def _restores(report: Report) -> str:
    restore = report.restore
    return (
        f"{restore.count:,} in {format_seconds(restore.seconds)}, {format_bytes(restore.bytes)} read, "
        f"{format_bytes(restore.verified_bytes)} checked against digests"
    )


def _slowest(part: RankPart, report: Report) -> str:
    start = f" in start {part.generation}" if len(report.generations) > 1 else ""
    return f"{part.rank} of {report.world}{start}: {format_seconds(part.wait_s)}, most for {part.cause}"


def _longest(report: Report) -> str:
    shown = report.longest_waits[:_SHOWN_LONGEST]
    return ", ".join(
        f"step {p.step}{f' rank {p.rank}' if report.world > 1 else ''}: {format_seconds(p.wait_s)} ({p.cause})"
        for p in shown
    )


def _number(value: float) -> str:
    """Two decimals, or two significant digits below 0.1."""
    return f"{value:,.2f}" if value >= 0.1 or value == 0 else f"{value:.2g}"  # noqa: PLR2004  see above
