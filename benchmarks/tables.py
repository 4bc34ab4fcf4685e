"""The tables, from what was measured. Pure: no clock, no files."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from emulate import demand
from peers import PEERS
from script import markdown

Results = dict[str, list[dict[str, Any]]]  # label -> one result a round

OWN = ("stoker", "stoker-little")  # not peers; with one setting each

COLUMNS = (
    ("samples_per_s", "samples/s", "{:,.0f}"),
    ("first_batch_s", "first batch s", "{:.2f}"),
    ("tree_cpu_s", "CPU-s/1,000", "{:.3f}"),
    ("trainer_us_a_batch", "in trainer us/batch", "{:,.0f}"),
    ("copy_cpu_s", "its copy", "{:.3f}"),
    ("reads", "reads/1,000", "{:,.0f}"),
    ("system_calls", "sys. calls/1,000", "{:,.0f}"),
    ("kernel_copies", "kernel copies", "{:.2f}"),
    ("requests_per_gib", "requests/GiB", "{:,.0f}"),
)
RATIOS = (
    ("knee", "knee", True),
    ("samples_per_s", "samples/s flat out", True),
    ("tree_cpu_s", "CPU of the tree a sample", False),
    ("trainer_us_a_batch", "CPU in the trainer a sample", False),
    ("first_batch_s", "first batch", False),
    ("requests_per_gib", "requests a GiB", False),
)


def label(name: str, workers: int) -> str:
    """How a peer with a setting is called."""
    return name if name in OWN else f"{name} w={workers}"


def settings(results: Results, name: str) -> dict[int, list[dict[str, Any]]]:
    """What was measured of a peer, by its number of workers."""
    found = {}
    for text, rounds in results.items():
        peer, _, workers = text.partition(" w=")
        if peer == name:
            found[int(workers or 0)] = rounds
    return found


def best_setting(results: Results, name: str) -> int | None:
    """The number of workers with the highest knee, and of those the highest rate. None if nothing was measured.

    Once settings were chosen for further rounds, they stand: one lucky measurement of another does not count more.
    """
    found = settings(results, name)
    if not found:
        return None

    def merit(workers: int) -> tuple[float, ...]:
        rounds = found[workers]
        return len(rounds), knee_place(rounds), middle(rounds, "samples_per_s") or 0.0

    return max(found, key=merit)


def quoted(rounds: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """The rounds that are quoted: all but the shorter one that only sought the best setting, if there are any."""
    return [result for result in rounds if not result.get("search")] or rounds


def middle(rounds: Sequence[dict[str, Any]], name: str) -> float | None:
    """The median of one number over the rounds that have it; those of the search only where there is no other."""
    rounds = quoted(rounds)
    if not rounds:
        return None
    if name == "knee":
        place = knee_place(rounds)
        return demand(place) if place > 0 else None
    values = [result[name] for result in rounds if result.get(name) is not None]
    return statistics.median(values) if values else None


def knee_place(rounds: Sequence[dict[str, Any]]) -> float:
    """The median place of the knee; 0 below the grid."""
    return statistics.median([result["knee"]["place"] or 0 for result in quoted(rounds)])


def knee_text(rounds: Sequence[dict[str, Any]]) -> str:
    """The knee in samples a second, with the least and the most of the rounds."""
    rounds = quoted(rounds)
    places = sorted(result["knee"]["place"] or 0 for result in rounds)
    middle_place = knee_place(rounds)
    if not middle_place:
        return "below the grid"
    text = (
        "at least " if all(result["knee"]["open_ended"] for result in rounds) else ""
    ) + f"{demand(middle_place):,.0f}"
    if len(places) > 1 and places[0] != places[-1]:
        text += f" ({demand(places[0]) if places[0] else 0:,.0f}-{demand(places[-1]):,.0f})"
    return text


def one_line(result: dict[str, Any]) -> str:
    """A measurement in a few words, for whoever watches."""
    return f"knee {knee_text([result])}, {result['samples_per_s']:,.0f} samples/s"


def case_table(results: Results) -> str:
    """The best setting of every peer."""
    rows = [["loader, best setting", "knee samples/s", *(head for _, head, _ in COLUMNS)]]
    for name in PEERS:
        workers = best_setting(results, name)
        if workers is None:
            continue
        text = label(name, workers)
        rounds = results[text]
        cells = [(middle(rounds, key), form) for key, _, form in COLUMNS]
        rows.append([text, knee_text(rounds), *("-" if v is None else form.format(v) for v, form in cells)])
    return markdown(rows)


def settings_table(found: dict[str, Results]) -> str:
    """Knee and rate of every setting, from the first measurement of each: a peer's is the short one of the search."""
    rows = [["loader", *(f"{title}: knee, samples/s" for title in found)]]
    for text in dict.fromkeys(text for results in found.values() for text in results):
        cells = []
        for results in found.values():
            first = results.get(text, [])[:1]
            cells.append(f"{knee_text(first)}, {first[0]['samples_per_s']:,.0f}" if first else "-")
        rows.append([text, *cells])
    return markdown(rows)


def ratio_table(found: dict[str, Results]) -> str:
    """stoker over the best peer in each respect, and over the floor."""
    rows = [["stoker beside", *(text for _, text, _ in RATIOS)]]
    for title, results in found.items():
        names = [name for name in PEERS if name not in (*OWN, "floor")]
        for other, members in ((f"{title}: best peer", names), (f"{title}: floor", ["floor"])):
            rounds = {name: best_rounds(results, name) for name in members}
            rows.append([other, *(ratio(results, key, rounds, up) for key, _, up in RATIOS)])
    return markdown(rows)


def best_rounds(results: Results, name: str) -> Sequence[dict[str, Any]]:
    """The rounds of a peer's best setting."""
    workers = best_setting(results, name)
    return [] if workers is None else results[label(name, workers)]


def ratio(results: Results, key: str, others: dict[str, Sequence[dict[str, Any]]], more_is_better: bool) -> str:  # noqa: FBT001
    """How far stoker is ahead of the best of others: 2.0 is twice as good, 0.5 half as good."""
    own = own_value(results, key)
    values = {name: middle(rounds, key) for name, rounds in others.items() if rounds}
    known = {name: value for name, value in values.items() if value}
    if own and values and not known and key == "knee":
        lowest = demand(min(rounds[0]["knee"]["lowest"] for rounds in others.values() if rounds))
        return f"over {own / lowest:.1f}x"
    best = best_of(known, more_is_better=more_is_better)
    if not own or best is None:
        return "-"
    value = own / known[best] if more_is_better else known[best] / own
    return f"{value:.2f}x {best}" if best != "floor" else f"{value:.2f}x"


def own_value(results: Results, key: str, name: str = "stoker") -> float | None:
    """What was measured of stoker."""
    return middle(best_rounds(results, name), key)


def peer_values(results: Results, key: str, *, floor: bool) -> dict[str, float]:
    """What was measured of each peer at its best setting, the floor among them or not; those that have none are left
    out."""
    names = [name for name in PEERS if name not in OWN and (floor or name != "floor")]
    values = {name: middle(best_rounds(results, name), key) for name in names}
    return {name: value for name, value in values.items() if value}


def best_of(values: dict[str, float], *, more_is_better: bool) -> str | None:
    """The name of the best value."""
    if not values:
        return None
    return max(values, key=values.__getitem__) if more_is_better else min(values, key=values.__getitem__)


def everything(found: dict[str, Results], left_out: dict[str, str], facts: dict[str, Any], octave: int) -> str:
    """All tables and what they were measured on."""
    counts = [len(quoted(rounds)) for results in found.values() for rounds in results.values()]
    tools = sorted({each["system_calls_by"] for each in every(found) if "system_calls_by" in each})
    parts = [f"- {name}: {_flat(value)}" for name, value in facts.items()]
    parts += [
        f"- rounds: {max(counts, default=0)} for best settings, 1 for the others; medians (least and most)",
        f"- system calls counted by {', '.join(tools)}" + (", reads and writes alone" if "proc" in tools else ""),
        f"- a knee is exact to one step of the grid, {100 * (2 ** (1 / octave) - 1):.0f}%",
    ]
    parts += [f"- left out: {title}: {reason}" for title, reason in left_out.items()]
    for title, results in found.items():
        if results:
            parts += ["", f"### {title}", "", case_table(results)]
    parts += ["", "### Every setting, first measurement", "", settings_table(found)]
    parts += ["", "### Ratios: above 1 stoker is ahead, whatever the column counts", "", ratio_table(found)]
    return "\n".join(parts)


def every(found: dict[str, Results]) -> Iterator[dict[str, Any]]:
    """All results."""
    for results in found.values():
        for rounds in results.values():
            yield from rounds


def _flat(value: Any) -> str:
    return ", ".join(f"{name} {version}" for name, version in value.items()) if isinstance(value, dict) else str(value)
