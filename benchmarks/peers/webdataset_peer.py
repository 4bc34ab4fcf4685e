"""webdataset: the same tar shards as stoker's, streamed, shuffled by shard and in a buffer, batched in the worker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import webdataset
from torch.utils.data import DataLoader
from webdataset.gopen import gopen_schemes

import slow
from peers import Job
from peers.torch_batches import DataLoaderFeed, stack, worker_options

SHUFFLE_BUFFER = 1000  # samples


def open_feed(job: Job) -> DataLoaderFeed:
    if job.source.startswith("s3://"):
        names = slow.fetch(f"{job.source}/index.txt").decode().split()
        bucket = f"{slow.server()}/{job.source.removeprefix('s3://')}"
        shards = [f"pipe:curl -sf {bucket}/{name}" for name in names]  # how it reads HTTP anyway
    else:
        names = Path(job.source, "index.txt").read_text().split()
        if job.far:
            gopen_schemes["far"] = _open_far
        shards = [f"{'far:' if job.far else ''}{job.source}/{name}" for name in names]
    dataset = (
        webdataset.WebDataset(shards, shardshuffle=len(shards), repeat=True)
        .shuffle(SHUFFLE_BUFFER, initial=SHUFFLE_BUFFER // 4)
        .map(_payload)
        .batched(job.batch_size, collation_fn=stack, partial=False)
    )
    return DataLoaderFeed(DataLoader(dataset, batch_size=None, **worker_options(job)))


def _payload(sample: dict[str, Any]) -> Sequence[int]:
    return sample["bin"]


def _open_far(url: str, mode: str = "rb", bufsize: int = 8192) -> Any:
    """One request a shard, which then comes as fast as memory: the best that a remote store could do."""
    slow.request()
    return Path(url.removeprefix("far:")).open(mode, buffering=bufsize)
