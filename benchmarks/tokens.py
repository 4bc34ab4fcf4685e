"""Windows of tokens: stoker's loader against one numpy gather of the same windows, in one process and one run.

    PYTHONPATH=src python benchmarks/tokens.py [--quick] [--json FILE] [--data FOLDER]

Prints a Markdown table: windows a second, and stoker's rate over each of the two ways that numpy has. Writes 256 MiB of
tokens (in the page cache then) and takes about half a minute.

- `stack`: `np.stack` of slices of memory maps, one window after the other: what a training script does by hand.
- `take`: one index into a view of all windows of one map, a single copy loop in C. It takes the same number of windows
  from one file of the four, since no index reaches over several maps.

Both are told which windows to take; stoker finds out itself (order, positions), and reads through descriptors, so that
a file that is cut short is an error and no signal. Ways are measured in turn, in rounds: medians, and of the ratios the
least and the most too. CPU time is that of the tree of processes, and says more than rates do where others use the
machine. Before, stoker's arena is written once, so that no page of it is new. What it made ahead is taken before each
measurement.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import counts
import script
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
QUICK_SHAPES = ((2048, 64), (2048, 512))
EPOCHS = 1000


def main() -> None:
    args = script.options(__doc__).parse_args()
    load = os.getloadavg()[0]
    loads: list[float] = []
    args.data.mkdir(parents=True, exist_ok=True)
    found = []
    with tempfile.TemporaryDirectory(dir=args.data, prefix="tokens-") as place:
        maps = make_tokens(Path(place))
        rows = [["seq_len", "batch", "windows/s: stoker, stack, take", "CPU us a window", "of stack", "of take"]]
        for seq_len, batch in QUICK_SHAPES if args.quick else SHAPES:
            each = compare(Path(place), maps, seq_len, batch, rounds=2 if args.quick else ROUNDS)
            found.append(each)
            rows.append(row(each))
            loads.append(os.getloadavg()[0])
    print(script.markdown(rows))
    print()
    about = facts({"numpy": np.__version__, "stoker": stoker.__version__}, loads)
    about["versions"] = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    for name, value in about.items():
        print(f"- {name}: {value}")
    script.save(args.json, {"load": load, "facts": about, "shapes": found})


def make_tokens(place: Path) -> list[NDArray[np.uint16]]:
    """Files of random tokens, mapped, with every page of the maps touched."""
    rng = np.random.default_rng(0)
    for number in range(FILES):
        rng.integers(0, 50_000, FILE_TOKENS, np.uint16).tofile(place / f"tokens-{number}.bin")
    maps = [np.memmap(path, np.uint16, "r") for path in sorted(place.glob("*.bin"))]
    for one in maps:
        int(one[::1024].sum())
    return maps


def compare(place: Path, maps: list[NDArray[np.uint16]], seq_len: int, batch: int, *, rounds: int) -> script.Json:
    """One shape: the medians of each way, and the ratios."""
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
        loader = run.loader(dataset, global_batch_size=batch, epochs=EPOCHS, prefetch_bytes=ARENA_BYTES)
        batches = iter(loader)
        check(next(batches), maps, seq_len)
        for _ in range(2 * ARENA_BYTES // (2 * length * batch)):
            next(batches)["tokens"]
        for number in range(rounds):
            rest(loader)
            chosen = [loader.order.batch(step).samples for step in range(number * steps, (number + 1) * steps)]
            spent["stack"].append(timed(stack, chosen))
            spent["take"].append(timed(take, chosen))
            for _ in range(loader.stats().ready_batches):  # what was made before the clock runs does not count
                next(batches)["tokens"]
            spent["stoker"].append(timed(lambda _: next(batches)["tokens"], chosen))
    return summary(seq_len, batch, steps * batch, spent)


def summary(seq_len: int, batch: int, count: int, spent: dict[str, list[tuple[float, float]]]) -> script.Json:
    """Medians over the rounds, of `count` windows each: (seconds, CPU seconds)."""
    found: script.Json = {"seq_len": seq_len, "batch": batch, "windows_per_s": {}, "cpu_us": {}, "ratios": {}}
    for name, taken in spent.items():
        found["windows_per_s"][name] = count / statistics.median(wall for wall, _ in taken)
        found["cpu_us"][name] = statistics.median(cpu for _, cpu in taken) / count * 1e6
    for name in ("stack", "take"):
        pairs = zip(spent["stoker"], spent[name], strict=True)
        found["ratios"][name] = sorted(theirs / ours for (ours, _), (theirs, _) in pairs)
    return found


def row(each: script.Json) -> list[str]:
    """One row of the table."""
    rates = ", ".join(f"{value:,.0f}" for value in each["windows_per_s"].values())
    cpu = ", ".join(f"{value:.2f}" for value in each["cpu_us"].values())
    ratios = [f"{statistics.median(one):.2f} ({one[0]:.2f} to {one[-1]:.2f})" for one in each["ratios"].values()]
    return [str(each["seq_len"]), str(each["batch"]), rates, cpu, *ratios]


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
    """Seconds that it takes for all batches, and CPU seconds of this process and its feeder."""
    cpu = counts.count(os.getpid()).tree_cpu_s
    begin = time.perf_counter()
    for samples in chosen:
        do(samples)
    took_s = time.perf_counter() - begin
    return took_s, counts.count(os.getpid()).tree_cpu_s - cpu


if __name__ == "__main__":
    main()
