"""Windows of tokens: stoker's loader against one numpy gather of the same windows, in one process and one run.

    PYTHONPATH=src python benchmarks/tokens.py [DIRECTORY]

Prints a Markdown table: windows a second, and stoker's rate over each of the two ways that numpy has. Writes 256 MiB of
tokens (in the page cache then) and takes about half a minute.

- `stack`: `np.stack` of slices of memory maps, one window after the other: what a training script does by hand.
- `take`: one index into a view of all windows of one map, a single copy loop in C. It takes the same number of windows
  from one file of the four, since no index reaches over several maps.

Both are told which windows to take; stoker finds out itself (order, positions), and reads through descriptors, so that
a file that is cut short is an error and no signal. Ways are measured in turn, in rounds: medians, and of the ratios the
least and the most too. CPU time is that of all threads, and says more than rates do where others use the machine.
Before, stoker's arena is written once, so that no page of it is new. What it made ahead is taken before each
measurement.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import stoker
from machine import facts
from stoker.feed.batch import Batch
from stoker.feed.loader import Loader
from stoker.units import MIB

FILES = 4
FILE_TOKENS = 32 * MIB
ARENA_BYTES = 32 * MIB
ROUNDS = 7
ROUND_BYTES = 64 * MIB  # of windows, of each way in each round
SHAPES = ((1024, 64), (2048, 64), (2048, 512), (8192, 64), (32768, 16))  # seq_len, batch


def main() -> None:
    parent = sys.argv[1] if len(sys.argv) > 1 else None
    loads: list[float] = []
    with tempfile.TemporaryDirectory(dir=parent, prefix="tokens-") as place:
        maps = make_tokens(Path(place))
        print("| seq_len | batch | windows/s: stoker, stack, take | CPU us a window | of stack | of take |")
        print("|---|---|---|---|---|---|")
        for seq_len, batch in SHAPES:
            print(compare(Path(place), maps, seq_len, batch), flush=True)
            loads.append(os.getloadavg()[0])
    print()
    found = facts({"numpy": np.__version__, "stoker": stoker.__version__}, loads)
    found["versions"] = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    for name, value in found.items():
        print(f"- {name}: {value}")


def make_tokens(place: Path) -> list[NDArray[np.uint16]]:
    """Files of random tokens, mapped, with every page of the maps touched."""
    rng = np.random.default_rng(0)
    for number in range(FILES):
        rng.integers(0, 50_000, FILE_TOKENS, np.uint16).tofile(place / f"tokens-{number}.bin")
    maps = [np.memmap(path, np.uint16, "r") for path in sorted(place.glob("*.bin"))]
    for one in maps:
        int(one[::1024].sum())
    return maps


def compare(place: Path, maps: list[NDArray[np.uint16]], seq_len: int, batch: int) -> str:
    """One row of the table."""
    steps = max(8, ROUND_BYTES // (2 * seq_len * batch))
    length = seq_len + 1
    per_file = (FILE_TOKENS - 1) // seq_len
    views = np.lib.stride_tricks.sliding_window_view(np.asarray(maps[0]), length)
    spent: dict[str, list[tuple[float, float]]] = {"stoker": [], "stack": [], "take": []}

    def stack(samples: NDArray[np.int64]) -> None:
        files, windows = np.divmod(samples, per_file)
        places = zip(files.tolist(), (windows * seq_len).tolist(), strict=True)
        np.stack([maps[file][start : start + length] for file, start in places])

    def take(samples: NDArray[np.int64]) -> None:
        views[samples % per_file * seq_len]

    with stoker.open(nvme=place / "nvme") as run:
        dataset = stoker.Dataset(f"{place}/*.bin").tokens(seq_len, "uint16", overlap=1)
        loader = run.loader(dataset, global_batch_size=batch, epochs=1000, prefetch_bytes=ARENA_BYTES)
        batches = iter(loader)
        check(next(batches), maps, seq_len)
        for _ in range(2 * ARENA_BYTES // (2 * length * batch)):
            next(batches)["tokens"]
        for number in range(ROUNDS):
            rest(loader)
            chosen = [loader.order.batch(step).samples for step in range(number * steps, (number + 1) * steps)]
            spent["stack"].append(timed(stack, chosen))
            spent["take"].append(timed(take, chosen))
            for _ in range(loader.stats().ready_batches):  # what was made before the clock runs does not count
                next(batches)["tokens"]
            spent["stoker"].append(timed(lambda _: next(batches)["tokens"], chosen))
    return row(seq_len, batch, steps * batch, spent)


def row(seq_len: int, batch: int, count: int, spent: dict[str, list[tuple[float, float]]]) -> str:
    """Medians over the rounds, of `count` windows each: (seconds, CPU seconds)."""
    rates = [f"{count / statistics.median(wall for wall, _ in taken):,.0f}" for taken in spent.values()]
    cpu = [f"{statistics.median(cpu for _, cpu in taken) / count * 1e6:.2f}" for taken in spent.values()]
    cells = [f"{seq_len}", f"{batch}", ", ".join(rates), ", ".join(cpu)]
    for name in ("stack", "take"):
        ratios = [theirs / ours for (ours, _), (theirs, _) in zip(spent["stoker"], spent[name], strict=True)]
        cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    return f"| {' | '.join(cells)} |"


def check(batch: Batch, maps: list[NDArray[np.uint16]], seq_len: int) -> None:
    """Both read the same windows."""
    for key, row in zip(batch.sample_keys, batch["tokens"], strict=True):
        name, _, window = key.rpartition("#")
        start = int(window) * seq_len
        assert np.array_equal(row, maps[int(name[-5])][start : start + seq_len + 1]), key


def rest(loader: Loader) -> None:
    """Wait until the loader has read as far ahead as it may: numpy has the machine for itself then."""
    before = -1
    while before != loader.stats().reads:
        before = loader.stats().reads
        time.sleep(0.05)


def timed(do: Callable[[NDArray[np.int64]], object], chosen: list[NDArray[np.int64]]) -> tuple[float, float]:
    """Seconds that it takes for all batches, and CPU seconds."""
    begin, cpu = time.perf_counter(), time.process_time()
    for samples in chosen:
        do(samples)
    return time.perf_counter() - begin, time.process_time() - cpu


if __name__ == "__main__":
    main()
