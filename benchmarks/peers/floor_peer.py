"""The honest floor: the stock DataLoader over an index of the tar shards, one pread a sample into one tensor.

What anyone can write in thirty lines: `__getitems__` of a whole batch, exact shuffle, no checksum, no resume.
"""

from __future__ import annotations

import http.client
import io
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

import slow
from peers import Job
from peers.torch_batches import DataLoaderFeed, worker_options


class Preads(Dataset):
    def __init__(self, job: Job) -> None:
        remote = job.source.startswith("s3://")
        load = slow.fetch if remote else lambda name: Path(name).read_bytes()
        index = np.load(io.BytesIO(load(f"{job.source}/index.npy")))  # int64[n, 2]: shard, offset
        self._shards, self._offsets = index[:, 0].tolist(), index[:, 1].tolist()
        names = load(f"{job.source}/index.txt").decode().split()
        self._paths = [f"/{job.source.removeprefix('s3://')}/{name}" for name in names] if remote else []
        self._descriptors = [] if remote else [os.open(Path(job.source, name), os.O_RDONLY) for name in names]
        self._connection: http.client.HTTPConnection | None = None
        self._size = job.sample_bytes
        self._far = job.far

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitems__(self, samples: list[int]) -> torch.Tensor:
        shape = (len(samples), self._size)
        if get_worker_info() is None:
            batch = torch.empty(shape, dtype=torch.uint8)
        else:
            batch = torch.empty(0, dtype=torch.uint8)
            batch.set_(torch.UntypedStorage._new_shared(shape[0] * shape[1]), 0, shape)
        rows, size = memoryview(batch.numpy()).cast("B"), self._size
        for row, sample in enumerate(samples):
            target = rows[row * size : (row + 1) * size]
            shard, offset = self._shards[sample], self._offsets[sample]
            if self._paths:
                self._get(shard, offset, target)
                continue
            if self._far:
                slow.request()
            if os.preadv(self._descriptors[shard], [target], offset) != size:
                raise RuntimeError(f"sample {sample} is cut off")
        return batch

    def _get(self, shard: int, offset: int, target: memoryview) -> None:
        """A range of an object, over a connection that stays; each worker has its own."""
        if self._connection is None:
            self._connection = http.client.HTTPConnection(slow.server().removeprefix("http://"))
        span = f"bytes={offset}-{offset + len(target) - 1}"
        self._connection.request("GET", self._paths[shard], headers={"Range": span})
        reply = self._connection.getresponse()
        filled = 0
        while filled < len(target) and (count := reply.readinto(target[filled:])):
            filled += count
        if reply.status != 206 or filled != len(target):
            raise RuntimeError(f"status {reply.status}, {filled} of {len(target)} bytes")
        reply.read()


class EndlessBatches(Sampler):
    """One exact shuffle after another, so that no epoch ends in a measurement."""

    def __init__(self, job: Job) -> None:
        self._count, self._size = job.sample_count, job.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            order = torch.randperm(self._count).tolist()
            for start in range(0, self._count - self._size + 1, self._size):
                yield order[start : start + self._size]


def open_feed(job: Job) -> DataLoaderFeed:
    loader = DataLoader(
        Preads(job),
        batch_sampler=EndlessBatches(job),
        collate_fn=_as_it_is,
        **worker_options(job),
    )
    return DataLoaderFeed(loader)


def _as_it_is(batch: torch.Tensor) -> torch.Tensor:
    return batch
