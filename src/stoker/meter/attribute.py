"""Sums over ledgers: utilisation, waits, repeated work. Pure functions of snapshots; ns in, ns or ratios out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from stoker.ledger import Cause, Counter, LedgerSnapshot, StepRecord, utilisation


@dataclass(frozen=True, slots=True)
class Account:
    """What ranks computed and waited, summed, without saves and first steps; `waits_ns`, by cause, has the first."""

    compute_ns: int
    wait_ns: int
    waits_ns: Mapping[Cause, int]

    @property
    def utilisation(self) -> float | None:
        """Compute / (compute + wait), 0..1; None if nothing was counted."""
        running_ns = self.compute_ns + self.wait_ns
        return self.compute_ns / running_ns if running_ns else None

    @property
    def decode_ratio(self) -> float | None:
        """The part of the waits that was for decoding and mapping samples; None without waits."""
        wait_ns = sum(self.waits_ns.values())
        return (self.waits_ns[Cause.DECODE] + self.waits_ns[Cause.MAP]) / wait_ns if wait_ns else None


def account(before: Iterable[LedgerSnapshot], after: Iterable[LedgerSnapshot]) -> Account | None:
    """What the ledgers gained between two readings; None if none did. With nothing before: all but first steps."""
    earlier = {(s.identity.generation, s.identity.rank): s.totals for s in distinct(before)}
    compute_ns = wait_ns = 0
    waits_ns: dict[Cause, int] = {cause: 0 for cause in Cause if cause is not Cause.CHECKPOINT}
    moved = False
    for snapshot in distinct(after):
        now = snapshot.totals
        then = earlier.get((snapshot.identity.generation, snapshot.identity.rank))
        if now.steps <= (then.steps if then else 0):
            continue
        moved = True
        compute_ns += now.compute_ns - (then.compute_ns if then and then.steps else now.first_compute_ns)
        if not (then and then.steps):
            wait_ns -= now.first_wait_ns
        for cause in waits_ns:
            gained_ns = now.waits_ns[cause] - (then.waits_ns[cause] if then else 0)
            waits_ns[cause] += gained_ns
            wait_ns += gained_ns
    return Account(compute_ns, max(0, wait_ns), waits_ns) if moved else None


def mean_utilisation(snapshots: Iterable[LedgerSnapshot]) -> float | None:
    """The mean of the ranks' utilisation; None if no rank has counted steps."""
    ranks = by_rank(snapshots).values()
    values = [value for value in map(utilisation, ranks) if value is not None]
    return sum(values) / len(values) if values else None


def by_rank(snapshots: Iterable[LedgerSnapshot]) -> dict[int, list[LedgerSnapshot]]:
    """The ledgers of each rank, ranks in order, generations in order."""
    return _grouped(snapshots, lambda s: s.identity.rank)


def by_generation(snapshots: Iterable[LedgerSnapshot]) -> dict[int, list[LedgerSnapshot]]:
    """The ledgers of each generation, generations in order, ranks in order."""
    return _grouped(snapshots, lambda s: s.identity.generation)


def _grouped(
    snapshots: Iterable[LedgerSnapshot], key: Callable[[LedgerSnapshot], int]
) -> dict[int, list[LedgerSnapshot]]:
    groups = defaultdict(list)
    for snapshot in sorted(snapshots, key=lambda s: (s.identity.generation, s.identity.rank)):
        groups[key(snapshot)].append(snapshot)
    return dict(sorted(groups.items()))


def waits(snapshots: Iterable[LedgerSnapshot]) -> dict[Cause, int]:
    """Nanoseconds waited by cause, summed."""
    sums = dict.fromkeys(Cause, 0)
    for snapshot in snapshots:
        for cause, wait_ns in snapshot.waits_ns.items():
            sums[cause] += wait_ns
    return sums


def counted(snapshots: Iterable[LedgerSnapshot], counter: Counter) -> int:
    """A counter, summed."""
    return sum(snapshot.counters[counter] for snapshot in snapshots)


def counted_once(snapshots: Iterable[LedgerSnapshot], counter: Counter) -> int:
    """A counter of things that all ranks do together: the largest of a generation's ranks, summed over generations."""
    groups = by_generation(snapshots).values()
    return sum(max(s.counters[counter] for s in group) for group in groups)


def wall_ns(snapshot: LedgerSnapshot) -> int:
    """From the start of a ledger to the last thing in it."""
    return max(0, snapshot.totals.last_ns - snapshot.start.perf_ns)


def startup_ns(snapshot: LedgerSnapshot) -> int:
    """From the start of a ledger until training asked for its first batch, without the time of a restore."""
    if not snapshot.totals.steps:
        return 0
    before_ns = snapshot.totals.first_entered_ns - snapshot.start.perf_ns
    return max(0, before_ns - snapshot.counters[Counter.RESTORE_NS])


def repeated_steps(ranges: Sequence[tuple[int, int]]) -> int:
    """Steps trained more than once: `ranges` are the (first, last) step of each generation, in order.

    A generation that resumes at 40 after one that reached step 49 repeats 10.
    """
    repeated, reached = 0, -1
    for first, last in ranges:
        repeated += max(0, min(last, reached) - first + 1)
        reached = max(reached, last)
    return repeated


def longest_waits(snapshots: Iterable[LedgerSnapshot], count: int) -> list[tuple[LedgerSnapshot, StepRecord]]:
    """The steps whose batch was waited for longest, of those still in the ledgers; longest first."""
    found = [(snapshot, record) for snapshot in snapshots for record in snapshot.steps if record.wait_ns > 0]
    found.sort(key=lambda pair: (-pair[1].wait_ns, pair[0].identity.generation, pair[1].step, pair[0].identity.rank))
    return found[:count]


def main_cause(waits_ns: Mapping[Cause, int]) -> Cause | None:
    """The cause of most of a wait; None if nothing waited."""
    cause = max(waits_ns, key=lambda c: waits_ns[c])
    return cause if waits_ns[cause] else None


def quantile(values: Sequence[int], share: float) -> int:
    """The smallest value that at least `share` (0..1) of the values do not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else 0


def distinct(snapshots: Iterable[LedgerSnapshot]) -> list[LedgerSnapshot]:
    """One ledger a rank and generation: where there are copies, the one that knows most."""
    best: dict[tuple[int, int], LedgerSnapshot] = {}
    for snapshot in snapshots:
        key = (snapshot.identity.generation, snapshot.identity.rank)
        if key not in best or _knowledge(snapshot) > _knowledge(best[key]):
            best[key] = snapshot
    return [best[key] for key in sorted(best)]


def _knowledge(snapshot: LedgerSnapshot) -> tuple[int, int, int]:
    return snapshot.totals.steps, snapshot.totals.closed, snapshot.totals.last_ns
