"""Whether a loader disturbs the training process: how late a ticker of 1 ms is beside it.

One thread of the trainer sleeps until the next millisecond and notes how much later it woke; another takes batches of
64 samples of 100 KiB, 4,000 a second. Beside a null loader (one cached batch) runs one unrelated process that is always
busy, as many as stoker has feeders: what a machine with so much other work does to a ticker anyway. Peers have one
worker. Ways are measured in turn, in rounds; medians of the rounds.

The kernel says how long a thread that was to run waited for a processor (schedstat, proc(5)). What is left of a tick's
lateness is the timer's, and the wait for the interpreter lock: only that does a loader cost a trainer that has
processors to itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import emulate
import peers
import script
from make_data import DataSet, make_all, warm

BATCH_SIZE = 64
SET = DataSet("100KB", 102400, 2000, 16 << 20)
QUICK_SET = DataSet("100KB", 102400, 1280, 8 << 20)
STEP_S = BATCH_SIZE / 4000
TICK_S = 0.001
WAYS = {"stoker": "stoker", "busy process": "null", "floor w=1": "floor", "litdata w=1": "litdata"}
MOST_S = 30.0


def quantile(values: list[float], ratio: float) -> float:
    """The value below which `ratio` of them lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(ratio * len(ordered)))]


class Queued:
    """How long this thread, which made it, was to run and had no processor. 0 where the kernel does not say."""

    def __init__(self) -> None:
        try:
            self._fd = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        except OSError:
            self._fd = -1

    def seconds(self) -> float:
        return int(os.pread(self._fd, 100, 0).split()[1]) / 1e9 if self._fd >= 0 else 0.0


def tick(seconds: float) -> tuple[list[float], list[float]]:
    """How late each tick was, in seconds; and the same less the wait for a processor."""
    late, unqueued, count, queued = [], [], int(seconds / TICK_S), Queued()
    begin = time.perf_counter()
    for number in range(1, count + 1):
        due = begin + number * TICK_S
        before = queued.seconds()
        left = due - time.perf_counter()
        if left > 0:
            time.sleep(left)
            late.append(time.perf_counter() - due)
            unqueued.append(late[-1] - (queued.seconds() - before))
        else:
            late.append(-left)  # the tick before took so long
    return late, unqueued


def serve(name: str, spec: dict[str, Any]) -> None:
    """A trainer: for each line of its input it trains and ticks so many seconds, and prints how late it was."""
    module = peers.load(name)
    spec["scratch"] = Path(spec["scratch"])
    feed = module.open_feed(peers.Job(**spec))
    copier = emulate.Copier(BATCH_SIZE * spec["sample_bytes"])

    def batches() -> Any:
        while True:
            yield from feed.epoch()

    stream = batches()
    emulate.run(stream, copier, 0.0, 0.0, (30, 30))
    print("ready", flush=True)
    for line in sys.stdin:
        seconds = float(line)
        done: list[emulate.Stretch] = []

        def train(seconds: float = seconds, done: list[emulate.Stretch] = done) -> None:
            done.append(emulate.run(stream, copier, STEP_S, seconds, (1, 1_000_000)))

        trainer = threading.Thread(target=train)
        trainer.start()
        late, unqueued = tick(seconds)
        trainer.join()
        each = {
            "p50_s": quantile(late, 0.5),
            "p99_s": quantile(late, 0.99),
            "p99_unqueued_s": quantile(unqueued, 0.99),
            "steps_per_s": done[0].steps / done[0].wall_s,
        }
        print(json.dumps(each), flush=True)
    os._exit(0)


class Trainer:
    """A trainer in a process of its own."""

    def __init__(self, name: str, spec: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--one", name, json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def line(self) -> str:
        """What it says next, or the end of its complaints."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        timer = threading.Timer(MOST_S, self.process.kill)
        timer.start()
        said = self.process.stdout.readline()
        timer.cancel()
        if not said:
            text = self.process.stderr.read().strip()
            raise RuntimeError(text.splitlines()[-1] if text else "it ended")
        return said

    def run(self, seconds: float) -> dict[str, float]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        found: dict[str, float] = json.loads(self.line())
        return found


def main() -> None:
    args = script.options(__doc__).parse_args()
    load = os.getloadavg()[0]
    data, rounds, seconds = (QUICK_SET, 2, 0.4) if args.quick else (SET, 5, 1.5)
    args.data.mkdir(parents=True, exist_ok=True)
    make_all([data], args.data)
    warm(data, args.data)
    found: dict[str, list[dict[str, float]]] = {}
    left_out: dict[str, str] = {}
    trainers: dict[str, Trainer] = {}
    with tempfile.TemporaryDirectory(dir=args.data, ignore_cleanup_errors=True) as scratch:
        try:
            for way, name in WAYS.items():
                about = peers.PEERS.get(name, peers.NULL)
                own = Path(scratch, name)
                own.mkdir()
                spec = {
                    "source": str(data.folder(args.data) / about.folder),
                    "sample_count": data.count,
                    "sample_bytes": data.sample_bytes,
                    "batch_size": BATCH_SIZE,
                    "workers": min(1, max(about.workers)),
                    "far": False,
                    "scratch": str(own),
                }
                trainer = trainers[way] = Trainer(name, spec)
                try:
                    trainer.line()
                except RuntimeError as error:
                    left_out[way] = str(error)
            for _ in range(rounds):
                for way in WAYS:
                    if way not in left_out:
                        found.setdefault(way, []).append(_turn(way, trainers[way], seconds))
        finally:
            for trainer in trainers.values():
                script.end(trainer.process)
    medians = {
        way: {key: script.middle([each[key] for each in turns]) for key in turns[0]} for way, turns in found.items()
    }
    rows = [["beside", "late by, p50 ms", "p99 ms", "p99 ms, processors aside", "steps/s"]]
    rows += [
        [
            way,
            *(f"{1000 * each[key]:.3f}" for key in ("p50_s", "p99_s", "p99_unqueued_s")),
            f"{each['steps_per_s']:.0f}",
        ]
        for way, each in medians.items()
    ]
    print(script.markdown(rows))
    for way, reason in left_out.items():
        print(f"- left out: {way}: {reason}")
    script.save(args.json, {"load": load, "medians": medians, "rounds": found, "left_out": left_out})


def _turn(way: str, trainer: Trainer, seconds: float) -> dict[str, float]:
    busy = None
    if WAYS[way] == "null":
        busy = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
        time.sleep(0.1)
    try:
        return trainer.run(seconds)
    finally:
        if busy is not None:
            busy.kill()
            busy.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        serve(sys.argv[2], json.loads(sys.argv[3]))
    main()
