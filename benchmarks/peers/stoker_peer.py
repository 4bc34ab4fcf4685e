"""stoker: tar shards beside a manifest, window shuffle, each sample checked against its crc32c.

Its feeder is a child process, near and far. Far away the data set is one of many epochs' length, as the peers' are.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import slow
import stoker
import stoker.feed.open  # what run.loader imports when it is called
from peers import Job

STOCK = 16  # batches; what two peers' workers of four hold with prefetch_factor=2 and half as much again
EPOCHS = 1_000_000
AHEAD_RATIO = 0.35  # of a far epoch: blocks that lie in memory. They are read before the clock runs, so its end is left


class StokerFeed:
    stock = STOCK

    def __init__(self, job: Job) -> None:
        if job.gather_bytes is not None:
            os.environ["STOKER_FEED_GATHER_BYTES"] = str(job.gather_bytes)
        self._run = stoker.open(nvme=job.scratch)
        self._far = job.far
        self._loader = self._run.loader(
            job.source,
            global_batch_size=job.batch_size,
            seed=1,
            epochs=1 if job.far else EPOCHS,
            prefetch_bytes=STOCK * (job.batch_size * job.sample_bytes + 64),
        )

    def epoch(self) -> Iterator[Sequence[Any]]:
        most = int((1 - AHEAD_RATIO) * len(self._loader)) if self._far else None
        for batch in itertools.islice(self._loader, most):
            yield [batch.joined("bin")[0]]

    def facts(self) -> dict[str, Any]:
        """What the loader says of itself: where batches are made, what is gathered and how much was read again."""
        return asdict(self._loader.stats())

    def close(self) -> None:
        self._run.close()


def open_feed(job: Job) -> StokerFeed:
    if job.far and Path(job.source).is_dir():
        slow.make_stoker_late()
    return StokerFeed(job)
