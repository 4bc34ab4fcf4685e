"""stoker: tar shards beside a manifest, window shuffle, each sample checked against its crc32c."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import slow
import stoker
import stoker.feed.open  # what run.loader imports when it is called
from peers import Job
from stoker.store.base import WriteBuffer
from stoker.store.local import LocalStore
from stoker.values import Key

STOCK = 16  # batches; what two peers' workers of four hold with prefetch_factor=2 and half as much again


class FarStore(LocalStore):
    """A directory whose every read has latency."""

    def read_into(self, key: Key, start: int, buffer: WriteBuffer) -> None:
        slow.request()
        super().read_into(key, start, buffer)

    def read(self, key: Key, range: Any = None) -> bytes:  # noqa: A002  the name in Store
        slow.request()
        return super().read(key, range)


class StokerFeed:
    stock = STOCK

    def __init__(self, job: Job) -> None:
        self._run = stoker.open(nvme=job.scratch)
        source = stoker.Dataset(FarStore(Path(job.source))) if job.far else job.source
        self._loader = self._run.loader(
            source,
            global_batch_size=job.batch_size,
            seed=1,
            epochs=1_000_000,
            prefetch_bytes=STOCK * (job.batch_size * job.sample_bytes + 64),
        )

    def epoch(self) -> Iterator[Sequence[Any]]:
        for batch in self._loader:
            yield batch["bin"]

    def close(self) -> None:
        self._run.close()


def open_feed(job: Job) -> StokerFeed:
    return StokerFeed(job)
