"""`stoker.torch.dataset`: a loader as PyTorch's IterableDataset, for DataLoader and what is built on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch.utils.data import IterableDataset, get_worker_info

from stoker.dataset.position import Position
from stoker.errors import UnsupportedError
from stoker.feed.batch import Batch
from stoker.feed.loader import Loader
from stoker.torch.batches import TensorBatch, as_tensors, valid_of

_WORKER_HINT = "use DataLoader(dataset, batch_size=None, num_workers=0): the loader reads ahead by itself"


def dataset(data: Loader) -> LoaderDataset:
    """The loader `data` as an IterableDataset whose elements are whole batches: this rank's share, as tensors.

    Give it to `DataLoader(dataset, batch_size=None)`. Its elements are batched and sharded over the ranks already:
    neither a sampler nor a wrapper may do it again (docs/guides/pytorch.md, lightning.md and huggingface.md).
    """
    return LoaderDataset(data)


class LoaderDataset(IterableDataset[TensorBatch]):
    """Batches of a loader, as tensors. Made by `stoker.torch.dataset`.

    One loop is one epoch, or what is left of it: it goes on where training stands, and the last one also when a
    checkpoint was restored in its middle. An evaluation begins anew with each loop. Arrays are tensors over the same
    memory; raw samples are tensors uint8 of their length (a DataLoader would take memoryviews apart, byte by byte);
    text and json stay lists.

    With `num_workers` above 0 it is refused: UnsupportedError, from the first `next()` of the DataLoader, or from its
    `iter()` where workers are spawned.
    """

    def __init__(self, data: Loader) -> None:
        self._data = data

    def __len__(self) -> int:
        """Steps of one epoch, the same on every rank."""
        return self._data.steps_per_epoch

    def __iter__(self) -> Iterator[TensorBatch]:
        """This rank's batches to the end of the epoch. Raises as the loader does; UnsupportedError in a worker."""
        if get_worker_info() is not None:
            raise UnsupportedError("a loader cannot be used in a worker process of a DataLoader", hint=_WORKER_HINT)
        return self._epoch()

    def _epoch(self) -> Iterator[TensorBatch]:
        data = self._data
        for batch in data:
            step = batch.step
            yield _converted(batch)
            del batch  # its slot is the caller's to hold
            if (step + 1) % data.steps_per_epoch == 0 and not data.finished:
                return

    def set_epoch(self, epoch: int) -> None:
        """Nothing: which epoch it is follows from the step. Here because frameworks call it."""

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch handed over, under 1 KiB, the same on every rank.

        Right for whoever has trained on that batch: a wrapper that looks ahead must ask before it fetches the next, as
        torchdata's StatefulDataLoader does with `num_workers=0`. `{}` for an evaluation, which has none.
        """
        progress = self._data.progress
        return {} if progress is None else self._data.position(after=progress.next_step - 1).to_json()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on at the position. Raises FormatError, NewerFormat, or ConfigError if it is of other data."""
        if state_dict or self._data.progress is not None:
            self._data.seek(Position.from_json(state_dict))

    def __reduce__(self) -> NoReturn:
        """A loader stays in its process: refused where a DataLoader spawns workers."""
        raise UnsupportedError("a loader cannot be sent to another process", hint=_WORKER_HINT)


def _converted(batch: Batch | TensorBatch) -> TensorBatch:
    made = batch if isinstance(batch, TensorBatch) else TensorBatch.of(batch, as_tensors(batch), valid_of(batch))
    for name, value in made.items():
        if isinstance(value, list):
            made[name] = [_raw(sample) if isinstance(sample, memoryview) else sample for sample in value]
    return made


def _raw(sample: memoryview) -> torch.Tensor:
    """Bytes of one sample as uint8[n], over the same memory."""
    return torch.frombuffer(sample, dtype=torch.uint8) if len(sample) else torch.empty(0, dtype=torch.uint8)
