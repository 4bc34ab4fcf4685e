"""The loader benchmark: stoker beside its peers and the honest floor. Run by bench.py; see README.md beside it.

Every measurement is a process of its own (measure.py). First each peer with each number of workers, once and short, in
turn; then rounds over the best setting of each, as many as the time allows, of which the first always is. Progress goes
to stderr, tables to stdout.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import emulate
import machine
import peers
import script
import slow
import tables
from make_data import LONG, REPEATS, DataSet, make_all, warm
from script import say

BATCH_SIZE = 64
MEASUREMENT_MAX_S = 60.0
GATHER_BYTES = 512 << 20  # stoker's default, and of a data set that is to be larger than that memory
GATHER_RATIO = 0.4


@dataclass(frozen=True)
class Plan:
    """How much is measured, and for how long each.

    `grid` holds the lowest and the highest place of demands by the bytes of a sample: above them a step is as short as
    what it costs to sleep, below them one is longer than a measurement.
    """

    sets: tuple[DataSet, ...]
    near_sets: tuple[str, ...]
    far_sets: tuple[str, ...]
    little_sets: tuple[str, ...]
    workers: tuple[int, ...]
    rounds: int
    flat_s: float
    point_s: float
    null_s: float
    knee_s: float
    search_ratio: float
    grid: dict[int, tuple[int, int]]


FULL = Plan(
    sets=(DataSet("100KB", 102400, 2000, 16 << 20), DataSet("2KB", 2048, 20000, 4 << 20)),
    near_sets=("100KB", "2KB"),
    far_sets=("100KB", "2KB"),
    little_sets=("2KB",),
    workers=peers.WORKERS,
    rounds=3,
    flat_s=0.8,
    point_s=0.6,
    null_s=0.25,
    knee_s=10.0,
    search_ratio=0.4,
    grid={102400: (28, 66), 2048: (36, 72)},
)
QUICK = Plan(
    sets=(DataSet("100KB", 102400, 1280, 8 << 20), DataSet("2KB", 2048, 12800, 2 << 20)),
    near_sets=("100KB",),
    far_sets=("2KB",),
    little_sets=("100KB",),
    workers=(2,),
    rounds=1,
    flat_s=0.2,
    point_s=0.15,
    null_s=0.05,
    knee_s=1.0,
    search_ratio=1.0,
    grid={102400: (36, 56), 2048: (40, 64)},
)


@dataclass(frozen=True)
class Case:
    """One table: a data set, near or far away."""

    data: DataSet
    far: bool

    @property
    def title(self) -> str:
        return f"{self.data.name} {'far' if self.far else 'local'}"


class Bench:
    """Starts measurements and keeps what they said."""

    def __init__(self, plan: Plan, args: argparse.Namespace, store: str) -> None:
        self.plan = plan
        self.root = args.data
        self.store = store
        self.deadline = time.monotonic() + 60 * args.minutes
        self.cases = [Case(data, far=False) for data in plan.sets if data.name in plan.near_sets]
        self.cases += [Case(data, far=True) for data in plan.sets if data.name in plan.far_sets]
        self.found: dict[str, dict[str, list[dict[str, Any]]]] = {case.title: {} for case in self.cases}
        self.left_out: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self.loads: list[float] = []
        self.took_s: list[float] = []
        self._null: dict[str, dict[str, float]] = {}

    def search(self) -> None:
        """Every peer with every setting. The settings of one peer lie apart in time, so that a busy moment of the
        machine does not hit one peer alone."""
        self._measure_null()
        for turn in range(len(peers.WORKERS)):
            for case in self.cases:
                for name in self._peers(case):
                    wanted = self._settings(case, name)
                    if turn < len(wanted) > 1:
                        self._measure(case, name, wanted[turn], search=True)

    def rounds(self) -> None:
        """The best setting of each peer, turn by turn, while there is time."""
        finalists = [
            (case, name, setting)
            for case in self.cases
            for name in self._peers(case)
            if (setting := self._best(case, name)) is not None
        ]
        self.took_s.clear()
        for number in range(self.plan.rounds):
            round_s = statistics.mean(self.took_s or [0.0]) * (len(finalists) + len(self.plan.sets))
            if number and time.monotonic() + round_s > self.deadline:
                say(f"no time for round {number + 1} of {self.plan.rounds}: it would take {round_s:.0f} s")
                return
            self._measure_null()
            for case, name, setting in finalists:
                self._measure(case, name, setting, search=False)

    def _settings(self, case: Case, name: str) -> tuple[int, ...]:
        """The numbers of workers that are tried. Where each of them waits for one request after the other, more are
        better, and what is slowest needs no search."""
        about = peers.PEERS[name]
        if len(about.workers) == 1:
            return about.workers
        return (max(self.plan.workers),) if case.far and name == "floor" else self.plan.workers

    def _peers(self, case: Case) -> list[str]:
        """Who takes part."""
        little = not case.far and case.data.name in self.plan.little_sets
        return [name for name in peers.PEERS if little or name != "stoker-little"]

    def _best(self, case: Case, name: str) -> int | None:
        """The setting to measure at length."""
        wanted = self._settings(case, name)
        if len(wanted) == 1:
            return wanted[0]
        return tables.best_setting(self.found[case.title], name)

    def _measure_null(self) -> None:
        for data in self.plan.sets:
            spec = self._spec(Case(data, far=False), "null", 0)
            result = self._run(spec, f"{data.name} null loader")
            if result is not None:
                self._null[data.name] = {key: result[key] for key in ("null", "harness_cpu_s")}

    def _measure(self, case: Case, name: str, workers: int, *, search: bool) -> None:
        label = tables.label(name, workers)
        if f"{case.title} {label}" in self.left_out:
            return
        spec = self._spec(case, name, workers) | {"system_calls": not search} | self._null[case.data.name]
        if search:
            spec |= {key: spec[key] * self.plan.search_ratio for key in ("flat_s", "point_s", "knee_s")}
        result = self._run(spec, f"{case.title} {label}")
        if result is not None:
            result["search"] = search
            self.found[case.title].setdefault(label, []).append(result)

    def _spec(self, case: Case, name: str, workers: int) -> dict[str, Any]:
        lowest, highest = self.plan.grid[case.data.sample_bytes]
        about = peers.PEERS.get(name, peers.NULL)
        folder = about.far_folder if case.far and about.far_folder else about.folder
        gather_bytes = None
        if folder == LONG:
            long_bytes = REPEATS * case.data.count * case.data.sample_bytes
            gather_bytes = min(GATHER_BYTES, int(GATHER_RATIO * long_bytes))
        source, latency_s = str(case.data.folder(self.root) / folder), 0.0
        if case.far and self.store.startswith("sleep:"):
            latency_s = float(self.store.removeprefix("sleep:"))
        elif case.far:  # a server, or any store that has the folders of the data sets
            source = f"{self.store.rstrip('/')}/{case.data.folder(Path()).name}/{folder}"
        return {
            "peer": name,
            "workers": workers,
            "gather_bytes": gather_bytes,
            "source": source,
            "sample_count": case.data.count,
            "sample_bytes": case.data.sample_bytes,
            "batch_size": BATCH_SIZE,
            "far": case.far,
            "latency_s": latency_s,
            "lowest": lowest,
            "highest": highest,
            "flat_s": self.plan.flat_s,
            "point_s": self.plan.point_s,
            "null_s": self.plan.null_s,
            "knee_s": self.plan.knee_s,
        }

    def _run(self, spec: dict[str, Any], title: str) -> dict[str, Any] | None:
        """A measurement in a process of its own; None, and why, if it failed."""
        begin = time.monotonic()
        self.loads.append(os.getloadavg()[0])
        scratch = tempfile.mkdtemp(prefix="scratch-", dir=self.root)
        command = [sys.executable, str(script.HERE / "measure.py"), json.dumps(spec | {"scratch": scratch})]
        result = script.ask(command, MEASUREMENT_MAX_S)
        shutil.rmtree(scratch, ignore_errors=True)
        self.took_s.append(time.monotonic() - begin)
        if isinstance(result, str):
            self.left_out[title] = result
            say(f"{title}: left out: {result}")
            return None
        self.versions |= result["versions"]
        said = "" if spec["peer"] == "null" else tables.one_line(result)
        say(f"{title}: {said} ({time.monotonic() - begin:.1f} s)")
        return result


@contextlib.contextmanager
def serving(store: str, root: Path) -> Iterator[str]:
    """The store far away. For "server:SECONDS" it is a server of ours, to which the environment leads every client."""
    if not store.startswith("server:"):
        yield store
        return
    with tempfile.NamedTemporaryFile("w", suffix=".json") as script_file:
        json.dump({"latency_s": float(store.removeprefix("server:"))}, script_file)
        script_file.flush()
        module = ["-m", "stoker.testing.fault_server", "--directory", str(root), "--script", script_file.name]
        process = subprocess.Popen([sys.executable, *module], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            about = json.loads(process.stdout.readline())
            url = about["url"]
            os.environ |= {slow.SERVER: url, "AWS_ENDPOINT_URL": url, "S3_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true"}
            os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
            yield f"s3://{about['bucket']}"
        finally:
            process.terminate()
            process.wait()


def main() -> None:
    parser = script.options(__doc__)
    parser.add_argument("--minutes", type=float, default=8.5, help="no round begins that would end later than this")
    parser.add_argument(
        "--latency-store",
        default="sleep:0.02",
        metavar="STORE",
        help="sleep:SECONDS a request; server:SECONDS, an S3 server on this machine; or the URL under which the "
        "folders of the data sets lie",
    )
    args = parser.parse_args()
    begin, load = time.monotonic(), os.getloadavg()[0]
    plan = QUICK if args.quick else FULL
    args.data.mkdir(parents=True, exist_ok=True)
    say(f"data sets in {args.data}")
    make_all(plan.sets, args.data)
    for data in plan.sets:
        warm(data, args.data)
    with serving(args.latency_store, args.data) as store:
        bench = Bench(plan, args, store)
        if len(plan.workers) > 1:
            bench.search()
        bench.rounds()
    facts = machine.facts(bench.versions, bench.loads)
    facts["minutes"] = round((time.monotonic() - begin) / 60, 1)
    facts["latency store"] = args.latency_store
    facts["load average at the start"] = f"{load:.1f}"
    print(tables.everything(bench.found, bench.left_out, facts, emulate.OCTAVE))
    script.save(args.json, {"load": load, "facts": facts, "found": bench.found, "left_out": bench.left_out})


if __name__ == "__main__":
    main()
