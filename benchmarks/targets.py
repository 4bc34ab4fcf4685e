"""The targets, and whether what was measured meets them. Pure: from the JSON of the scripts to one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import script
import tables
from emulate import demand

Documents = dict[str, dict[str, Any]]  # script -> what it wrote
BATCH_SIZE = 64


@dataclass(frozen=True)
class Measured:
    """What to hold to a target: a number, and words on where it is from."""

    value: float
    words: str


@dataclass(frozen=True)
class Target:
    """`measure` finds the number; None if it was not measured. It is met at `least` or more, or at `most` or less; with
    neither it only stands beside the others."""

    what: str
    text: str
    measure: Callable[[Documents], Measured | None]
    least: float | None = None
    most: float | None = None

    def met(self, value: float) -> bool | None:
        if self.least is None and self.most is None:
            return None
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


def knee(case: str, name: str, *, floor: bool) -> Callable[[Documents], Measured | None]:
    """The knee over that of the best peer."""

    def measure(documents: Documents) -> Measured | None:
        results = _case(documents, case)
        own = tables.own_value(results, "knee", name)
        peers = tables.peer_values(results, "knee", floor=floor)
        best = tables.best_of(peers, more_is_better=True)
        if not own:
            return None
        if best is None:
            lows = [rounds[0]["knee"]["lowest"] for text, rounds in results.items() if text not in tables.OWN]
            return Measured(own / demand(min(lows)), "at least: no peer meets the lowest demand") if lows else None
        return Measured(own / peers[best], f"{own:,.0f} to {peers[best]:,.0f} samples/s of {best}")

    return measure


def cost(key: str, case: str, unit: float, name: str, *, floor: bool) -> Callable[[Documents], Measured | None]:
    """What a sample costs, over what it costs the peer that pays least, or the floor."""

    def measure(documents: Documents) -> Measured | None:
        results = _case(documents, case)
        own = tables.own_value(results, key)
        peers = tables.peer_values(results, key, floor=floor)
        if floor:
            peers = {each: value for each, value in peers.items() if each == "floor"}
        best = tables.best_of(peers, more_is_better=False)
        if own is None or best is None:
            return None
        return Measured(own / peers[best], f"{own * unit:.3g} to {peers[best] * unit:.3g} {name} of {best}")

    return measure


def trainer_us(case: str) -> Callable[[Documents], Measured | None]:
    """CPU time of the trainer for one batch, in microseconds."""

    def measure(documents: Documents) -> Measured | None:
        own = tables.own_value(_case(documents, case), "trainer_us_a_batch")
        return None if own is None else Measured(own, f"us a batch of {BATCH_SIZE}")

    return measure


def tokens(documents: Documents) -> Measured | None:
    """The worst shape against `np.stack`; the other gather is named beside it."""
    shapes = documents.get("tokens", {}).get("shapes", [])
    if not shapes:
        return None
    middles = [{name: script.middle(each["ratios"][name]) for name in ("stack", "take")} for each in shapes]
    number = min(range(len(shapes)), key=lambda index: middles[index]["stack"])
    best = max(each["stack"] for each in middles)
    words = f"worst of {len(shapes)} shapes, seq_len {shapes[number]['seq_len']}, batch {shapes[number]['batch']}"
    return Measured(
        middles[number]["stack"], f"of stack, {words}; best {best:.2f}; of take {middles[number]['take']:.2f}"
    )


def jpeg(documents: Documents) -> Measured | None:
    medians = documents.get("jpeg", {}).get("medians")
    if not medians:
        return None
    words = f"{medians['stoker']:,.0f} to {medians['DataLoader']:,.0f} images/s"
    return Measured(medians["stoker"] / medians["DataLoader"], words)


def ticker(key: str) -> Callable[[Documents], Measured | None]:
    """How much later than beside a busy process, in milliseconds."""

    def measure(documents: Documents) -> Measured | None:
        medians = documents.get("ticker", {}).get("medians", {})
        if not {"stoker", "busy process"} <= set(medians):
            return None
        own, other = (1000 * medians[way][key] for way in ("stoker", "busy process"))
        return Measured(own - other, f"ms later: {own:.3f} to {other:.3f}")

    return measure


def first_batch(documents: Documents) -> Measured | None:
    medians = documents.get("start", {}).get("medians", {})
    if not {"stoker", "import numpy"} <= set(medians):
        return None
    own, numpy = medians["stoker"]["process_s"], medians["import numpy"]["process_s"]
    return Measured(own / numpy, f"{own:.3f} to {numpy:.3f} s")


def resume(documents: Documents) -> Measured | None:
    medians = documents.get("start", {}).get("medians", {})
    if not {"stoker", "stoker at half"} <= set(medians):
        return None
    half, fresh = medians["stoker at half"], medians["stoker"]
    words = f"from open: {half['from_open_s']:.3f} to {fresh['from_open_s']:.3f} s; "
    words += f"whole process {half['process_s'] / fresh['process_s']:.2f}"
    return Measured(half["from_open_s"] / fresh["from_open_s"], words)


def memory(documents: Documents) -> Measured | None:
    """The most that any data set grows, in MiB."""
    grown = {}
    for name, each in documents.get("memory", {}).get("found", {}).items():
        if "stoker" in each:
            pss = each["stoker"]["pss_bytes"]
            grown[name] = (pss["5"] - pss["2"]) / 2**20
    if not grown:
        return None
    worst = max(grown, key=grown.__getitem__)
    return Measured(grown[worst], f"MiB more at {worst}")


TARGETS = (
    Target("knee, 100 KB, local", ">= 6x best peer or floor", knee("100KB local", "stoker", floor=True), least=6),
    Target("knee, 2 KB, local", ">= 3x best peer or floor", knee("2KB local", "stoker", floor=True), least=3),
    Target(
        "the same, data larger than its memory",
        ">= 3x best peer or floor",
        knee("2KB local", "stoker-little", floor=True),
        least=3,
    ),
    Target("knee, 100 KB, 20 ms away", ">= 3x best peer", knee("100KB far", "stoker", floor=True), least=3),
    Target("knee, 2 KB, 20 ms away", ">= 3x best peer", knee("2KB far", "stoker", floor=True), least=3),
    *(
        target
        for case in ("100KB local", "2KB local", "100KB far", "2KB far")
        for target in (
            Target(
                f"CPU of the trainer a sample, {case}",
                "<= 1/5 of best peer",
                cost("trainer_us_a_batch", case, 1, "us a batch", floor=False),
                most=0.2,
            ),
            Target("the same beside the floor", "-", cost("trainer_us_a_batch", case, 1, "us a batch", floor=True)),
            Target(f"CPU of the trainer a batch, {case}", "<= 150 us", trainer_us(case), most=150),
            Target(
                f"CPU of the tree a sample, {case}",
                "<= 1.0x best peer",
                cost("tree_cpu_s", case, 1000, "us", floor=False),
                most=1.0,
            ),
            Target("the same beside the floor", "-", cost("tree_cpu_s", case, 1000, "us", floor=True)),
        )
    ),
    Target("token windows", ">= 0.7x one numpy gather", tokens, least=0.7),
    Target("JPEG, same decoder and workers", ">= 1.3x", jpeg, least=1.3),
    Target("ticker of 1 ms, p50", "<= busy process + 0.2 ms", ticker("p50_s"), most=0.2),
    Target("ticker of 1 ms, p99", "<= busy process + 0.2 ms", ticker("p99_s"), most=0.2),
    Target("first batch, whole process", "<= 3x import numpy", first_batch, most=3),
    Target("resume at 50%", "<= 1.5x a fresh start", resume, most=1.5),
    Target("memory after epoch 5", "<= after epoch 2 + 8 MiB", memory, most=8),
)


def rows(documents: Documents) -> list[dict[str, Any]]:
    """Each target with what was measured; `met` is None where nothing was."""
    found = []
    for target in TARGETS:
        measured = target.measure(documents)
        found.append(
            {
                "what": target.what,
                "target": target.text,
                "value": None if measured is None else measured.value,
                "words": "not measured" if measured is None else measured.words,
                "met": None if measured is None else target.met(measured.value),
            }
        )
    return found


def table(found: list[dict[str, Any]]) -> str:
    """The summary."""
    said = {True: "met", False: "MISSED", None: "-"}
    lines = [["what", "target", "measured", "", "details"]]
    for each in found:
        value = "-" if each["value"] is None else f"{each['value']:.2f}"
        lines.append([each["what"], each["target"], value, said[each["met"]], each["words"]])
    return script.markdown(lines)


def _case(documents: Documents, title: str) -> tables.Results:
    results: tables.Results = documents.get("loader", {}).get("found", {}).get(title, {})
    return results
