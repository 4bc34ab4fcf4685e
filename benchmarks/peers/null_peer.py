"""No loader: one cached batch, again and again. What the harness itself costs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from peers import Job


class NullFeed:
    stock = 1

    def __init__(self, job: Job) -> None:
        self._batch = [np.random.default_rng(1).integers(0, 256, job.batch_size * job.sample_bytes, np.uint8)]

    def epoch(self) -> Iterator[Sequence[Any]]:
        return itertools.repeat(self._batch)

    def close(self) -> None:
        pass


def open_feed(job: Job) -> NullFeed:
    return NullFeed(job)
