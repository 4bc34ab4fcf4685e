"""How long a job waits for its first batch, fresh and when it goes on at half of an epoch: whole processes.

From the start of the interpreter until the first batch of 64 is there: what a user waits for, imports and all. Beside
`python -c "import numpy"`, and beside peers without workers, which start quickest. Ways are measured in turn, in
rounds; medians. `from open` is the time from the call that opens the loader, imports done.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import peers
import script
import tables
from make_data import DataSet, make_all, warm

BATCH_SIZE = 64
SET = DataSet("100KB", 102400, 2000, 16 << 20)
QUICK_SET = DataSet("100KB", 102400, 1280, 8 << 20)
MOST_S = 60.0
NUMPY = "import numpy; print('{}')"
# As short as a user would write it. `{half}` is where the job goes on: nothing for a fresh start.
STOKER = """
import json, sys, time
import stoker
opened = time.perf_counter()
with stoker.open(nvme={nvme!r}) as run:
    data = run.loader({source!r}, global_batch_size={batch_size}, seed=1, epochs=2)
    {half}
    batch = next(iter(data))
    batch["bin"]
    print(json.dumps({{"from_open_s": time.perf_counter() - opened, "step": batch.step}}), flush=True)
"""
HALF = "data.seek(data.position(after=data.steps_per_epoch // 2))"
PEER = "import sys; sys.path.insert(0, {here!r}); import start; start.take_first({name!r}, {spec!r})"
RESUMES = ("streaming", "litdata")
OWN = ("import numpy", "stoker", "stoker at half")
QUICK_WAYS = (*OWN, "litdata", "litdata at half")
PEER_ROUNDS = 3  # of those that take seconds, and differ by more than they scatter


def take_first(name: str, spec: dict[str, Any]) -> None:
    """The first batch of a peer, in this process; at half of the epoch if `state` says where."""
    module = peers.load(name)
    opened = time.perf_counter()
    state = spec.pop("state", None)
    spec["scratch"] = Path(spec["scratch"])
    feed = module.open_feed(peers.Job(**spec))
    if state is not None:
        feed.resume(state["batches"])
    next(iter(feed.epoch()))
    print(json.dumps({"from_open_s": time.perf_counter() - opened}), flush=True)
    sys.stdout.flush()
    os._exit(0)  # what a loader does to end is not what is measured


def measure(code: str) -> dict[str, float] | str:
    """Seconds until a program prints its line, and what the line says; or why it did not."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        took_s = time.perf_counter() - begin
        err = process.communicate(timeout=MOST_S)[1]
    except subprocess.TimeoutExpired:
        return f"not done after {MOST_S:.0f} s"
    finally:
        script.end(process)
    if not line.strip():
        return (err.strip().splitlines() or ["it printed nothing"])[-1]
    return {"process_s": took_s, **json.loads(line)}


def programs(data: DataSet, root: Path, scratch: Path) -> dict[str, str]:
    """The ways to measure, as programs."""
    folder = data.folder(root)
    about = {"nvme": str(scratch / "nvme"), "source": str(folder / "tar"), "batch_size": BATCH_SIZE}
    found = {
        "import numpy": NUMPY,
        "stoker": STOKER.format(**about, half=""),
        "stoker at half": STOKER.format(**about, half=HALF),
    }
    for name, peer in peers.PEERS.items():
        if name in tables.OWN:
            continue
        spec = {
            "source": str(folder / peer.folder),
            "sample_count": data.count,
            "sample_bytes": data.sample_bytes,
            "batch_size": BATCH_SIZE,
            "workers": 0,
            "far": False,
            "scratch": str(scratch),
        }
        found[name] = PEER.format(here=str(script.HERE), name=name, spec=spec)
        if name in RESUMES:
            at_half = spec | {"state": {"batches": data.count // 2 // BATCH_SIZE}}
            found[f"{name} at half"] = PEER.format(here=str(script.HERE), name=name, spec=at_half)
    return found


def main() -> None:
    parser = script.options(__doc__)
    args: argparse.Namespace = parser.parse_args()
    load = os.getloadavg()[0]
    data, rounds = (QUICK_SET, 1) if args.quick else (SET, 7)
    args.data.mkdir(parents=True, exist_ok=True)
    make_all([data], args.data)
    warm(data, args.data)
    found: dict[str, list[dict[str, float]]] = {}
    left_out: dict[str, str] = {}
    with tempfile.TemporaryDirectory(dir=args.data, ignore_cleanup_errors=True) as scratch:
        ways = programs(data, args.data, Path(scratch))
        if args.quick:
            ways = {name: code for name, code in ways.items() if name in QUICK_WAYS}
        for number in range(rounds):
            for name, code in ways.items():
                if name in left_out or (number >= PEER_ROUNDS and name not in OWN):
                    continue
                result = measure(code)
                if isinstance(result, str):
                    left_out[name] = result
                else:
                    found.setdefault(name, []).append(result)
    medians = {
        name: {key: script.middle([each[key] for each in rounds]) for key in rounds[0]}
        for name, rounds in found.items()
    }
    numpy_s = medians["import numpy"]["process_s"]
    rows = [["first batch", "whole process s", "of `import numpy`", "from open s"]]
    for name, each in medians.items():
        from_open = f"{each['from_open_s']:.3f}" if "from_open_s" in each else "-"
        rows.append([name, f"{each['process_s']:.3f}", f"{each['process_s'] / numpy_s:.1f}x", from_open])
    print(script.markdown(rows))
    for name, reason in left_out.items():
        print(f"- left out: {name}: {reason}")
    script.save(args.json, {"load": load, "medians": medians, "rounds": found, "left_out": left_out})


if __name__ == "__main__":
    main()
