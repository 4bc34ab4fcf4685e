"""What memory a loader takes, and whether it grows: Pss of the tree of processes after epochs 2 and 5.

Pss shares each page among those who map it, so that shared memory counts once; files in the page cache count where they
are mapped. Peers are measured with two workers, over as many batches as five epochs have. MiB.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import counts
import peers
import script
from make_data import DataSet, make_all, warm

BATCH_SIZE = 64
SETS = (DataSet("100KB", 102400, 2000, 16 << 20), DataSet("2KB", 2048, 20000, 4 << 20))
QUICK_SETS = (DataSet("100KB", 102400, 1280, 8 << 20),)
QUICK_PEERS = ("stoker", "floor")
MARKS = (2, 5)  # epochs
WORKERS = 2
MOST_S = 60.0


def pss_bytes(root: int) -> int:
    """Pss of a process and its living descendants."""
    return sum(map(_pss_bytes, counts.tree(root)))


def _pss_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0  # ended meanwhile
    return parse_pss(text)


def parse_pss(text: str) -> int:
    """Bytes of the Pss line of a smaps_rollup."""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "Pss":
            return int(value.split()[0]) << 10
    return 0


def measure(name: str, spec: dict[str, Any]) -> None:
    """Feed five epochs in this process and print Pss after each mark."""
    module = peers.load(name)
    spec["scratch"] = Path(spec["scratch"])
    feed = module.open_feed(peers.Job(**spec))
    batches, left = iter(feed.epoch()), 0
    found = {"0": pss_bytes(os.getpid())}
    taken, total = 0, 0
    for epoch in MARKS:
        left = epoch * (spec["sample_count"] // BATCH_SIZE) - taken
        for _ in range(left):
            pieces = next(batches, None)
            if pieces is None:
                batches = iter(feed.epoch())
                pieces = next(batches)
            total += sum(len(memoryview(piece).cast("B")) for piece in pieces)
            taken += 1
        found[str(epoch)] = pss_bytes(os.getpid())
    print(json.dumps({"pss_bytes": found, "read_bytes": total}), flush=True)
    os._exit(0)


def main() -> None:
    args = script.options(__doc__).parse_args()
    load = os.getloadavg()[0]
    sets = QUICK_SETS if args.quick else SETS
    args.data.mkdir(parents=True, exist_ok=True)
    make_all(sets, args.data)
    found: dict[str, dict[str, Any]] = {}
    left_out: dict[str, str] = {}
    rows = [["Pss of the tree, MiB", "data", *(f"after epoch {mark}" for mark in MARKS), "more"]]
    for data in sets:
        warm(data, args.data)
        for name, about in peers.PEERS.items():
            if name == "stoker-little" or (args.quick and name not in QUICK_PEERS):
                continue
            with tempfile.TemporaryDirectory(dir=args.data, ignore_cleanup_errors=True) as scratch:
                spec = {
                    "source": str(data.folder(args.data) / about.folder),
                    "sample_count": data.count,
                    "sample_bytes": data.sample_bytes,
                    "batch_size": BATCH_SIZE,
                    "workers": min(WORKERS, max(about.workers)),
                    "far": False,
                    "scratch": scratch,
                }
                result = script.ask([sys.executable, __file__, "--one", name, json.dumps(spec)], MOST_S)
            if isinstance(result, str):
                left_out[f"{data.name} {name}"] = result
                continue
            pss = result["pss_bytes"]
            found.setdefault(data.name, {})[name] = result
            mib = [pss[str(mark)] / 2**20 for mark in MARKS]
            rows.append([name, data.name, *(f"{value:.0f}" for value in mib), f"{mib[-1] - mib[0]:+.1f}"])
    print(script.markdown(rows))
    for name, reason in left_out.items():
        print(f"- left out: {name}: {reason}")
    script.save(args.json, {"load": load, "found": found, "left_out": left_out})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        measure(sys.argv[2], json.loads(sys.argv[3]))
    main()
