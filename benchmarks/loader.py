"""The loader benchmark: stoker beside its peers and the honest floor. Run by `make bench`; see README.md beside it.

Every measurement is a process of its own (measure.py). First each peer with each number of workers, once, in turn;
then rounds over the best setting of each, as many as the time allows. Progress goes to stderr, tables to stdout.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import emulate
import machine
import peers
import tables
from make_data import DataSet, make_all, warm

HERE = Path(__file__).parent
BATCH_SIZE = 64
MEASUREMENT_MAX_S = 60.0


@dataclass(frozen=True)
class Plan:
    """How much is measured, and for how long each.

    `grid` holds the lowest and the highest place of demands by the bytes of a sample: above them a step is as short as
    what it costs to sleep, below them one is longer than a measurement.
    """

    sets: tuple[DataSet, ...]
    far_sets: tuple[str, ...]
    workers: tuple[int, ...]
    rounds: int
    flat_s: float
    point_s: float
    null_s: float
    knee_s: float
    grid: dict[int, tuple[int, int]]


FULL = Plan(
    sets=(DataSet("100KB", 102400, 3000, 16 << 20), DataSet("2KB", 2048, 20000, 4 << 20)),
    far_sets=("100KB", "2KB"),
    workers=peers.WORKERS,
    rounds=3,
    flat_s=0.8,
    point_s=0.6,
    null_s=0.25,
    knee_s=12.0,
    grid={102400: (28, 60), 2048: (36, 70)},
)
QUICK = Plan(
    sets=(DataSet("100KB", 102400, 1280, 8 << 20),),
    far_sets=("100KB",),
    workers=(4,),
    rounds=1,
    flat_s=0.3,
    point_s=0.2,
    null_s=0.05,
    knee_s=2.0,
    grid={102400: (36, 56)},
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

    def __init__(self, plan: Plan, args: argparse.Namespace) -> None:
        self.plan = plan
        self.root = args.data
        self.store = args.latency_store
        self.deadline = time.monotonic() + 60 * args.minutes
        self.cases = [Case(data, far=False) for data in plan.sets]
        self.cases += [Case(data, far=True) for data in plan.sets if data.name in plan.far_sets]
        self.found: dict[str, dict[str, list[dict[str, Any]]]] = {case.title: {} for case in self.cases}
        self.left_out: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self.loads: list[float] = []
        self.took_s: list[float] = []
        self._null: dict[str, dict[str, float]] = {}

    def first_round(self) -> None:
        """Every peer with every setting. The settings of one peer lie apart in time, so that a busy moment of the
        machine does not hit one peer alone."""
        self._measure_null()
        for turn in range(len(peers.WORKERS)):
            for case in self.cases:
                for name, about in peers.PEERS.items():
                    wanted = about.workers if len(about.workers) == 1 else self.plan.workers
                    if turn < len(wanted):
                        self._measure(case, name, wanted[turn], count_calls=self.plan.rounds == 1)

    def more_rounds(self) -> None:
        """The best setting of each peer again, turn by turn, while there is time."""
        finalists = [
            (case, name, setting)
            for case in self.cases
            for name in peers.PEERS
            if (setting := tables.best_setting(self.found[case.title], name)) is not None
        ]
        for number in range(1, self.plan.rounds):
            round_s = statistics.mean(self.took_s) * (len(finalists) + len(self.plan.sets))
            if time.monotonic() + round_s > self.deadline:
                say(f"no time for round {number + 1} of {self.plan.rounds}: it would take {round_s:.0f} s")
                return
            self._measure_null()
            for case, name, setting in finalists:
                self._measure(case, name, setting, count_calls=number == 1)

    def _measure_null(self) -> None:
        for data in self.plan.sets:
            spec = self._spec(Case(data, far=False), "null", 0)
            result = self._run(spec, f"{data.name} null loader")
            if result is not None:
                self._null[data.name] = result["null"]

    def _measure(self, case: Case, name: str, workers: int, *, count_calls: bool) -> None:
        label = tables.label(name, workers)
        if f"{case.title} {label}" in self.left_out:
            return
        spec = self._spec(case, name, workers) | {"system_calls": count_calls, "null": self._null[case.data.name]}
        result = self._run(spec, f"{case.title} {label}")
        if result is not None:
            self.found[case.title].setdefault(label, []).append(result)

    def _spec(self, case: Case, name: str, workers: int) -> dict[str, Any]:
        lowest, highest = self.plan.grid[case.data.sample_bytes]
        folder = peers.PEERS.get(name, peers.NULL).folder
        source, latency_s = str(case.data.folder(self.root) / folder), 0.0
        if case.far and self.store.startswith("sleep:"):
            latency_s = float(self.store.removeprefix("sleep:"))
        elif case.far:
            source = f"{self.store.rstrip('/')}/{case.data.folder(Path()).name}/{folder}"
        return {
            "peer": name,
            "workers": workers,
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
        command = [sys.executable, str(HERE / "measure.py"), json.dumps(spec | {"scratch": scratch})]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            out, err = process.communicate(timeout=MEASUREMENT_MAX_S)
        except subprocess.TimeoutExpired:
            out, err = "", f"not done after {MEASUREMENT_MAX_S:.0f} s"
        finally:
            _end(process)
            shutil.rmtree(scratch, ignore_errors=True)
            self.took_s.append(time.monotonic() - begin)
        if process.returncode != 0 or not out:
            lines = [line for line in err.splitlines() if line.strip()] or [f"exit code {process.returncode}"]
            self.left_out[title] = lines[-1].strip()
            say(f"{title}: left out: {lines[-1].strip()}")
            return None
        result = json.loads(out.splitlines()[-1])
        self.versions |= result["versions"]
        said = "" if spec["peer"] == "null" else tables.one_line(result)
        say(f"{title}: {said} ({time.monotonic() - begin:.1f} s)")
        return result


def _end(process: subprocess.Popen[str]) -> None:
    """End a measurement and the workers it started: they are a session of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke test of a minute: its numbers mean nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    parser.add_argument("--minutes", type=float, default=11.0, help="no round begins that would end later than this")
    parser.add_argument(
        "--latency-store",
        default="sleep:0.02",
        metavar="STORE",
        help="sleep:SECONDS a request, or the URL under which the folders of the data sets lie",
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(tempfile.gettempdir(), f"stoker-bench-{os.geteuid()}"),
        metavar="FOLDER",
        help="where the data sets are made, about 1 GB, and kept",
    )
    args = parser.parse_args()
    begin = time.monotonic()
    plan = QUICK if args.quick else FULL
    args.data.mkdir(parents=True, exist_ok=True)
    say(f"data sets in {args.data}")
    make_all(plan.sets, args.data)
    bench = Bench(plan, args)
    for data in plan.sets:
        warm(data, args.data)
    bench.first_round()
    bench.more_rounds()
    facts = machine.facts(bench.versions, bench.loads)
    facts["minutes"] = round((time.monotonic() - begin) / 60, 1)
    facts["latency store"] = bench.store
    print(tables.everything(bench.found, bench.left_out, facts, emulate.OCTAVE))
    if args.json is not None:
        document = {"facts": facts, "found": bench.found, "left_out": bench.left_out}
        args.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
