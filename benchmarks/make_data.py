"""Makes the data sets: random bytes in samples of one size, in the format of each peer.

Usage: make_data.py FOLDER SET...; a set is written as `name:bytes:count:shard`. Run as a process of its own, by
loader.py; what is there already is kept.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

LONG = "tar-long"
REPEATS = 8  # of the data, so that an epoch lasts for a measurement where a loader cannot go on without end


@dataclass(frozen=True)
class DataSet:
    """`count` samples of `sample_bytes`, in shards of about `shard_bytes`."""

    name: str
    sample_bytes: int
    count: int
    shard_bytes: int

    def __str__(self) -> str:
        return f"{self.name}:{self.sample_bytes}:{self.count}:{self.shard_bytes}"

    @classmethod
    def parse(cls, text: str) -> DataSet:
        name, *numbers = text.split(":")
        return cls(name, *map(int, numbers))

    def folder(self, root: Path) -> Path:
        return root / f"{self.name}-{self.count}"

    def sample(self, number: int) -> bytes:
        return np.random.default_rng(number).bytes(self.sample_bytes)


def make_all(sets: Sequence[DataSet], root: Path) -> None:
    """Make what is missing, in a process of its own: its libraries print and leave threads."""
    command = [sys.executable, __file__, str(root), *map(str, sets)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    os.sync()  # what is written back later would disturb what is measured
    if done.returncode:
        raise SystemExit(f"the data sets were not made:\n{done.stderr[-2000:]}")


def make(data: DataSet, root: Path) -> None:
    """Every format of a data set, side by side; each appears whole or not at all."""
    folder = data.folder(root)
    makers = {"tar": _make_tar, LONG: _make_long_tar, "mds": _make_mds, "litdata": _make_litdata}
    for name, maker in makers.items():
        if (folder / name).exists():
            continue
        unfinished = folder / f"{name}.partial"
        shutil.rmtree(unfinished, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        maker(data, unfinished)
        unfinished.rename(folder / name)


def warm(data: DataSet, root: Path) -> int:
    """Read all files once, so that they lie in the page cache. Returns their bytes."""
    total, seen = 0, set()
    for path in sorted(data.folder(root).rglob("*")):
        if path.is_file() and path.stat().st_ino not in seen:
            seen.add(path.stat().st_ino)
            with path.open("rb", buffering=0) as file:
                while piece := file.read(1 << 20):
                    total += len(piece)
    return total


def _make_tar(data: DataSet, target: Path) -> None:
    """stoker's own: tar shards beside a manifest. And the floor's index of the same tars: shard and offset."""
    from stoker.dataset.open import open_dataset
    from stoker.store.local import LocalStore

    _write_tar(data, target, repeats=1)
    store = LocalStore(target)
    opened = open_dataset(store)
    extents = opened.extents(np.arange(data.count), ("bin",))
    np.save(target / "index.npy", np.column_stack([extents.object, extents.offset[:, 0]]).astype(np.int64))
    (target / "index.txt").write_text("\n".join(opened.objects.keys))
    store.close()


def _make_long_tar(data: DataSet, target: Path) -> None:
    """The same samples many times: the long epoch that the other formats have by hard links."""
    _write_tar(data, target, repeats=REPEATS)


def _write_tar(data: DataSet, target: Path, *, repeats: int) -> None:
    from stoker.dataset.write import DatasetWriter
    from stoker.store.local import LocalStore

    store = LocalStore(target, create=True)
    samples = [data.sample(number) for number in range(data.count)]
    with DatasetWriter(store, shard_bytes=data.shard_bytes) as writer:
        for number in range(data.count * repeats):
            writer.write(f"{number:08d}", {"bin": samples[number % data.count]})
    store.close()


def _make_mds(data: DataSet, target: Path) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(target), columns={"bin": "bytes"}, size_limit=data.shard_bytes) as writer:
        for number in range(data.count):
            writer.write({"bin": data.sample(number)})
    _repeat(target, "shards", _mds_copy)


def _make_litdata(data: DataSet, target: Path) -> None:
    from litdata import optimize

    make_sample = partial(_litdata_sample, data)
    numbers = list(range(data.count))
    optimize(make_sample, numbers, str(target), chunk_bytes=data.shard_bytes, num_workers=1, verbose=False)
    _repeat(target, "chunks", _litdata_copy)


def _litdata_sample(data: DataSet, number: int) -> bytes:
    return data.sample(number)


def _repeat(folder: Path, lists: str, naming: Callable[[dict, int], tuple[str, str, dict]]) -> None:
    """The same shards many times under other names, and an index that names them all."""
    index = json.loads((folder / "index.json").read_text())
    entries = list(index[lists])
    for copy in range(1, REPEATS):
        for entry in index[lists]:
            old, new, named = naming(entry, copy)
            os.link(folder / old, folder / new)
            entries.append(named)
    (folder / "index.json").write_text(json.dumps({**index, lists: entries}))


def _mds_copy(entry: dict, copy: int) -> tuple[str, str, dict]:
    old = entry["raw_data"]["basename"]
    new = f"shard.{copy:02d}{old.removeprefix('shard.')}"
    return old, new, {**entry, "raw_data": {**entry["raw_data"], "basename": new}}


def _litdata_copy(entry: dict, copy: int) -> tuple[str, str, dict]:
    old = entry["filename"]
    new = f"chunk-{copy:02d}-{old.removeprefix('chunk-')}"
    return old, new, {**entry, "filename": new}


if __name__ == "__main__":
    for text in sys.argv[2:]:
        make(DataSet.parse(text), Path(sys.argv[1]))
