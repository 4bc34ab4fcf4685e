"""Decoding JPEGs: stoker's decoder against a stock DataLoader that calls Pillow, with as many workers.

Images a second, flat out, from warm files: 256 x 256 pixels, about 30 KB. Both decode with the library that stoker's
own decoder uses, into one array of a batch. Says so, and measures nothing, where stoker has no decoder "image" or the
library is not installed.
"""

from __future__ import annotations

import importlib.util
import io
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import script

BATCH_SIZE = 64
COUNT = 512
SIDE = 256
WORKERS = 2
SECONDS = 3.0
ROUNDS = 5
DECODER = "image"
LIBRARY = "PIL"


def missing() -> str:
    """What is not there; empty if all is."""
    if importlib.util.find_spec(LIBRARY) is None:
        return "Pillow is not installed"
    from stoker.feed.decode import DECODERS

    return "" if DECODER in DECODERS else f"this stoker has no decoder {DECODER!r}"


def make_images(folder: Path) -> None:
    """A data set of smooth noise, as JPEG."""
    from PIL import Image

    import stoker

    rng = np.random.default_rng(0)
    with stoker.writer(str(folder)) as writer:
        for number in range(COUNT):
            coarse = Image.fromarray(rng.integers(0, 256, (SIDE // 8, SIDE // 8, 3), np.uint8))
            file = io.BytesIO()
            coarse.resize((SIDE, SIDE)).save(file, "JPEG", quality=90)
            writer.write(f"{number:05d}", {"jpg": file.getvalue()})


def stoker_batches(folder: Path, scratch: Path) -> Iterator[Any]:
    """Arrays of a batch."""
    import stoker

    dataset = stoker.Dataset(str(folder)).fields("jpg").decode({"jpg": DECODER})
    with stoker.open(nvme=scratch) as run:
        for batch in run.loader(dataset, global_batch_size=BATCH_SIZE, seed=1, epochs=100_000):
            yield batch["jpg"]


class Images:
    """The stock way: one file, one image."""

    def __init__(self, files: list[bytes]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Any:
        import torch
        from PIL import Image

        with Image.open(io.BytesIO(self._files[index])) as image:
            return torch.from_numpy(np.array(image.convert("RGB")))


def stock_batches(folder: Path) -> Iterator[Any]:
    """Tensors of a batch, from a DataLoader. The files lie in memory: nothing but decoding counts."""
    from torch.utils.data import DataLoader

    import stoker

    with tempfile.TemporaryDirectory() as scratch, stoker.open(nvme=scratch) as run:
        loader = run.loader(str(folder), global_batch_size=1, shuffle=False)
        files = [bytes(batch["jpg"][0]) for batch in loader]
    loader = DataLoader(
        Images(files),  # type: ignore[arg-type]
        batch_size=BATCH_SIZE,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        persistent_workers=True,
    )
    while True:
        yield from loader


def rate(batches: Iterator[Any], seconds: float) -> float:
    """Images a second. What lies ready at the start counts: it is as much at the end."""
    count, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        next(batches)
        count += BATCH_SIZE
    return count / (time.perf_counter() - begin)


def main() -> int:
    args = script.options(__doc__).parse_args()
    load = os.getloadavg()[0]
    reason = missing()
    if reason:
        print(f"- JPEG is not measured: {reason}")
        script.save(args.json, {"load": load, "missing": reason})
        return 0
    seconds, rounds = (0.5, 1) if args.quick else (SECONDS, ROUNDS)
    args.data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.data, ignore_cleanup_errors=True) as place:
        folder = Path(place, "jpeg")
        make_images(folder)
        ways = {"stoker": stoker_batches(folder, Path(place, "nvme")), "DataLoader": stock_batches(folder)}
        for batches in ways.values():
            rate(batches, seconds / 2)
        found: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, batches in ways.items():
                found[name].append(rate(batches, seconds))
    medians = {name: script.middle(rates) for name, rates in found.items()}
    rows = [["JPEG", "images/s"], *([name, f"{value:,.0f}"] for name, value in medians.items())]
    print(script.markdown(rows))
    script.save(args.json, {"load": load, "medians": medians, "rounds": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
