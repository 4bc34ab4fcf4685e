"""What the peers share that stand on torch's DataLoader: batches as one tensor, made by the worker in shared memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

from peers import Job

torch.set_num_threads(1)
warnings.filterwarnings("ignore", message="The given buffer is not writable")


def stack(samples: list[bytes]) -> torch.Tensor:
    """uint8[n, size] of n samples of one size; a worker writes it straight into shared memory."""
    return default_collate([torch.frombuffer(sample, dtype=torch.uint8) for sample in samples])


class DataLoaderFeed:
    """Batches of a DataLoader whose workers stay. `resume(n)`, where a peer can, goes on after n batches."""

    def __init__(self, loader: DataLoader, resume: Callable[[int], None] | None = None) -> None:
        self._loader = loader
        self.resume = resume
        self.stock = loader.num_workers * (loader.prefetch_factor or 0) + 1
        self._iterator: Any = None

    def epoch(self) -> Iterator[Sequence[Any]]:
        self._iterator = iter(self._loader)
        for batch in self._iterator:
            yield [batch.numpy()]

    def close(self) -> None:
        shutdown = getattr(self._iterator, "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()


def worker_options(job: Job) -> dict[str, Any]:
    """Settings of a DataLoader that keeps its workers, with torch's own depth of prefetch (2 a worker)."""
    return {"num_workers": job.workers, "persistent_workers": job.workers > 0}
