"""One measurement of one loader, in a process of its own. Usage: measure.py SPEC, a JSON object; prints another one.

Imports come before any clock. Then: the first batch; flat out, with what it costs; the knee; all system calls. What a
loader may have ready is consumed before each, so that nothing that was made ahead of a measurement counts in it.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import counts
import emulate
import peers
import slow

SYSTEM_CALL_BATCHES = 40
LEAST_US = 1.0  # of CPU time a batch: less cannot be told from the harness's own
MIN_STEPS = 3  # of a stretch, however long they take


class Endless:
    """Batches of one epoch after another. Ends of epochs are not measured: the clock stands still meanwhile.

    An iterator for emulate.run; `paused_s` and `paused` are what its caller must take off, and what is taken in a pause
    is not `taken`. With `afresh` every epoch is that of a new loader in an empty folder, so that nothing comes from a
    cache that an earlier one filled.
    """

    def __init__(self, module: Any, job: peers.Job, *, afresh: bool) -> None:
        self._module = module
        self._job = job
        self._afresh = afresh
        self._feed: Any = None
        self._batches: Iterator[Any] = iter(())
        self.paused_s = 0.0
        self.paused = counts.ZERO
        self.paused_own_s = 0.0
        self.epochs = 0
        self.taken = 0

    def __next__(self) -> Any:
        pieces = next(self._batches, None)
        if pieces is None:
            begin, own_s = time.perf_counter(), time.process_time()
            before = counts.count(os.getpid()) if self.epochs else counts.ZERO
            self._begin()
            for _ in range(self._feed.stock if self.epochs > 1 else 0):
                next(self._batches)
            pieces = next(self._batches)
            if self.epochs > 1:
                self.paused += counts.count(os.getpid()) - before
            self.paused_own_s += time.process_time() - own_s
            self.paused_s += time.perf_counter() - begin
        self.taken += 1
        return pieces

    def drain(self) -> None:
        """Take what may lie ready."""
        for _ in range(self._feed.stock):
            next(self)

    def facts(self) -> dict[str, Any]:
        """What the loader says of itself, where it does."""
        tell = getattr(self._feed, "facts", None)
        return tell() if tell is not None else {}

    def close(self) -> None:
        self._batches = iter(())
        if self._feed is not None:
            self._feed.close()

    def _begin(self) -> None:
        if self._feed is None or self._afresh:
            self.close()
            scratch = self._job.scratch / f"epoch-{self.epochs}"
            shutil.rmtree(self._job.scratch / f"epoch-{self.epochs - 1}", ignore_errors=True)
            scratch.mkdir()
            self._feed = self._module.open_feed(replace(self._job, scratch=scratch))
        self.epochs += 1
        self._batches = iter(self._feed.epoch())


def run(batches: Endless, copier: emulate.Copier, step_s: float, seconds: float, steps: tuple[int, int]) -> Any:
    """emulate.run, less the time at the ends of epochs."""
    before = batches.paused_s
    stretch = emulate.run(batches, copier, step_s, seconds, steps)
    return replace(stretch, wall_s=stretch.wall_s - (batches.paused_s - before))


def settle(job: peers.Job) -> None:
    """Until the loader has ready what it may have ready: between two such moments it makes what is consumed."""
    time.sleep(0.8 if job.far else 0.3)


def flat_out(batches: Endless, copier: emulate.Copier, job: peers.Job, seconds: float) -> dict[str, float]:
    """As fast as it goes, from nothing ready; and what 1,000 samples and each byte of them cost."""
    settle(job)
    requests, copied_s, taken = slow.request_count(), copier.cpu_s, batches.taken
    before, paused, paused_own_s = counts.count(os.getpid()), batches.paused, batches.paused_own_s
    own_s = time.process_time()  # apart from the counting itself, which looks at every process of the machine
    batches.drain()
    stretch = run(batches, copier, 0.0, seconds, (MIN_STEPS, 1_000_000))
    copier.wait()
    settle(job)
    own_s = time.process_time() - own_s - (batches.paused_own_s - paused_own_s)
    spent = counts.count(os.getpid()) - before - (batches.paused - paused)
    samples = (batches.taken - taken) * job.batch_size
    nbytes = samples * job.sample_bytes
    copied = stretch.steps * job.batch_size
    return {
        "samples_per_s": stretch.steps * job.batch_size / stretch.wall_s,
        "tree_cpu_s": spent.tree_cpu_s / samples * 1000,
        "trainer_cpu_s": (own_s - (copier.cpu_s - copied_s)) / samples * 1000,
        "copy_cpu_s": (copier.cpu_s - copied_s) / copied * 1000,
        "reads": spent.reads / samples * 1000,
        "writes": spent.writes / samples * 1000,
        "kernel_copies": (spent.read_bytes + spent.written_bytes) / nbytes,
        "requests_per_gib": (slow.request_count() - requests) / nbytes * 2**30,
    }


def knee(batches: Endless, copier: emulate.Copier, spec: dict[str, Any], flat: float) -> dict[str, Any]:
    """The largest demand with a utilisation of 0.9 relative to the null loader's."""
    null = {int(place): value for place, value in spec["null"].items()}
    lowest, highest = min(null), max(null)
    if flat < emulate.BAR * emulate.demand(lowest - emulate.OCTAVE // 2):
        return {
            "place": None,
            "open_ended": False,
            "points": 0,
            "lowest": lowest,
            "seen": {},
        }  # no step is long enough to hide it
    seconds, deadline = spec["point_s"], time.perf_counter() + spec["knee_s"]
    seen: dict[int, float] = {}

    def measure(place: int) -> float:
        if time.perf_counter() > deadline:
            raise TimeoutError
        step_s = spec["batch_size"] / emulate.demand(place)
        batches.drain()
        run(batches, copier, step_s, 0.0, (1, 1))  # the first step does not count, as in MLPerf Storage
        stretch = run(batches, copier, step_s, seconds, (MIN_STEPS, 1_000_000))
        used = emulate.utilisation(stretch.steps, step_s, stretch.wall_s)
        seen[place] = emulate.relative(used, null[place])
        return seen[place]

    beside = spec["workers"] > 0 or spec["peer"] == "stoker"  # made beside the step, or in it
    guess = emulate.place_of(max(1.0, flat * (0.4 if beside else 0.08)))
    try:
        found = asdict(emulate.find_knee(measure, lowest, highest, guess))
    except TimeoutError:
        good = [place for place, value in seen.items() if value >= emulate.BAR]
        found = {"place": max(good, default=None), "open_ended": False, "points": len(seen), "gave_up": True}
    return {**found, "lowest": lowest, "seen": seen}


def null_utilisations(batches: Endless, copier: emulate.Copier, spec: dict[str, Any]) -> dict[int, float]:
    """What the harness alone reaches at each place of the grid: every second one measured, the others between them."""
    places = list(range(spec["lowest"], spec["highest"] + 1))
    found = {}
    for place in places[::2]:
        step_s = spec["batch_size"] / emulate.demand(place)
        stretch = run(batches, copier, step_s, spec["null_s"], (MIN_STEPS, 1_000_000))
        found[place] = emulate.utilisation(stretch.steps, step_s, stretch.wall_s)
    for place in places[1:-1:2]:
        found[place] = (found[place - 1] + found[place + 1]) / 2
    return found


def system_calls(batches: Endless, copier: emulate.Copier, job: peers.Job, flat: float) -> dict[str, Any]:
    """All system calls of the tree for 1,000 samples, in steady state, and what counted them."""
    settle(job)
    counter = counts.SystemCalls(os.getpid())
    taken = batches.taken
    steps = max(MIN_STEPS, min(SYSTEM_CALL_BATCHES, int(flat / job.batch_size)))
    run(batches, copier, 0.0, 0.0, (steps, steps))
    copier.wait()
    settle(job)
    calls = counter.stop() / (batches.taken - taken) / job.batch_size * 1000
    return {"system_calls": calls, "system_calls_by": counter.tool}


def main() -> None:
    spec = json.loads(sys.argv[1])
    module, about = peers.load(spec["peer"]), peers.PEERS.get(spec["peer"], peers.NULL)
    slow.forget_requests()
    if spec["far"] and "://" not in spec["source"]:
        slow.begin(spec["latency_s"], Path(spec["scratch"], "requests"))
    with tempfile.TemporaryDirectory(dir=spec["scratch"], ignore_cleanup_errors=True) as scratch:
        job = peers.Job(
            source=spec["source"],
            sample_count=spec["sample_count"],
            sample_bytes=spec["sample_bytes"],
            batch_size=spec["batch_size"],
            workers=spec["workers"],
            far=spec["far"],
            scratch=Path(scratch),
            gather_bytes=spec["gather_bytes"],
        )
        copier = emulate.Copier(job.batch_size * job.sample_bytes)
        batches = Endless(module, job, afresh=job.far and about.caches)
        begin = time.perf_counter()
        next(batches)
        result: dict[str, Any] = {"first_batch_s": time.perf_counter() - begin}
        if spec["peer"] == "null":
            result["harness_cpu_s"] = flat_out(batches, copier, job, spec["flat_s"])["trainer_cpu_s"]
            result["null"] = null_utilisations(batches, copier, spec)
        else:
            batches.drain()
            run(batches, copier, 0.0, spec["flat_s"] / 4, (1, 1_000_000))
            result |= flat_out(batches, copier, job, spec["flat_s"])
            net_s = max(0.0, result["trainer_cpu_s"] - spec["harness_cpu_s"]) / 1000 * job.batch_size
            result["trainer_us_a_batch"] = max(LEAST_US, net_s * 1e6)
            result["knee"] = knee(batches, copier, spec, result["samples_per_s"])
            if spec["system_calls"]:
                result |= system_calls(batches, copier, job, result["samples_per_s"])
        result["facts"] = batches.facts()
        result["versions"] = {name: importlib.metadata.version(name) for name in about.packages}
        copier.close()
        batches.close()
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
