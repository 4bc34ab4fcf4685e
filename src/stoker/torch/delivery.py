"""Batches as tensors on a device: what `device=` of `run.loader` asks for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch

from stoker.errors import ConfigError, UnsupportedError
from stoker.feed.batch import Batch
from stoker.feed.deliver import Delivery
from stoker.ledger import Counter
from stoker.torch.batches import TensorBatch, as_tensors, valid_of
from stoker.torch.pinning import CudaDriver, Driver, Event, Pinning

DeviceName: TypeAlias = str | torch.device

_NS_PER_MS: Final = 1e6


def open_delivery(device: DeviceName) -> Delivery:
    """How batches get to `device`: "cpu" as tensors over the memory they lie in, "cuda" or "cuda:1" by copies.

    Raises ConfigError for what names no device, UnsupportedError for one that is not there or not supported.
    """
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device is {device!r}", hint='it must be "cpu", "cuda" or one such as "cuda:1"') from error
    if wanted.type == "cpu":
        return CpuDelivery()
    if wanted.type != "cuda":
        raise UnsupportedError(
            f"batches cannot be put on a device of type {wanted.type!r}", hint='"cpu" and "cuda" can be asked for'
        )
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = wanted.index if ":" in str(wanted) else None
    if not there or (index is not None and index >= there):
        raise UnsupportedError(
            f"device {str(wanted)!r} is not there: PyTorch {torch.__version__} sees {there} CUDA devices",
            hint="leave device= out for numpy arrays, or give one that torch.cuda.device_count() counts",
        )
    return CudaDelivery(CudaDriver(torch.device("cuda", torch.cuda.current_device() if index is None else index)))


class CpuDelivery:
    """Tensors over the memory of the batch. No copies, nothing to wait for."""

    looks_ahead = False

    def mapped(self, address: int, size_bytes: int) -> None:
        """Nothing to do."""

    def unmapping(self) -> None:
        """Nothing to do."""

    def count(self) -> dict[Counter, int]:
        """Nothing."""
        return {}

    def enter(self) -> None:
        """Nothing to do."""

    def begin(self, batch: Batch) -> TensorBatch:
        """The tensors."""
        return TensorBatch.of(batch, as_tensors(batch), valid_of(batch))

    def finish(self, begun: TensorBatch) -> TensorBatch:
        """The same."""
        return begun

    def wait(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        """Nothing to let go of."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """A batch on its way to the device: there when `done` is reached."""

    batch: TensorBatch
    done: Any


class CudaDelivery:
    """Copies batches to a device on a stream of its own, one ahead of training, out of pinned memory.

    A slot of the feeder stays lent until the event behind its copy is reached: looked at whenever a batch is asked for.
    Training's stream waits for that event on the device; the host never does. Raw samples, text and json stay on the
    host, as lists.

    `idle_ns` is how long training's stream stood still between the end of what was queued when a batch was asked for
    and that batch: measured by two events a step, and known one step later.
    """

    looks_ahead = True

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._side = driver.new_stream()
        self._pinning = Pinning(driver, self._side)
        self._held: deque[tuple[Event, tuple[torch.Tensor, ...]]] = deque()
        self._gaps: deque[tuple[Event, Event]] = deque()
        self._asked: Event | None = None
        self.idle_ns = 0
        self.pageable_count = 0

    def count(self) -> dict[Counter, int]:
        """Idle time, and batches that were copied out of memory that is not pinned."""
        return {Counter.DEVICE_IDLE_NS: self.idle_ns, Counter.PAGEABLE_BATCHES: self.pageable_count}

    @property
    def pinned_bytes(self) -> int:
        """How much of the feeder's memory is pinned."""
        return self._pinning.pinned_bytes

    @property
    def held_count(self) -> int:
        """Batches whose slots wait for their copies."""
        return len(self._held)

    def mapped(self, address: int, size_bytes: int) -> None:
        """Pin the feeder's memory."""
        self._pinning.mapped(address, size_bytes)

    def unmapping(self) -> None:
        """Let it go, once no copy reads it."""
        self._pinning.unmapping()

    def enter(self) -> None:
        """Mark what training has queued so far, and let go of slots whose copies are done."""
        self._look()
        self._asked = self._mark(self._driver.current_stream())

    def begin(self, batch: Batch) -> _Copy:
        """Queue the copies of a batch."""
        values = as_tensors(batch)
        host = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
        self.pageable_count += bool(self._pinning.refusal)
        with self._driver.on(self._side):
            # A copy out of memory that is not pinned waits for what the stream holds: it comes first, or not at all.
            whole = bool(batch.valid.all())
            valid = self._driver.all_true(len(batch.valid)) if whole else self._driver.copy(valid_of(batch))
            copied = {name: self._driver.copy(tensor) for name, tensor in host.items()}
            done = self._side.record_event()
        self._held.append((done, tuple(host.values())))
        return _Copy(TensorBatch.of(batch, values | copied, valid), done)

    def finish(self, begun: _Copy) -> TensorBatch:
        """Let training's stream wait for the copies, and keep their memory as long as it uses it."""
        stream = self._driver.current_stream()
        stream.wait_event(begun.done)
        for value in (*begun.batch.values(), begun.batch.valid):
            if isinstance(value, torch.Tensor):
                self._driver.keep_for(value, stream)
        if self._asked is not None:
            self._gaps.append((self._asked, self._mark(stream)))
            self._asked = None
        return begun.batch

    def wait(self) -> None:
        """Wait until training's stream and the copies are done."""
        self._driver.current_stream().synchronize()
        self._side.synchronize()
        self._look()

    def close(self) -> None:
        """Wait for the copies, and let go of all slots."""
        self._side.synchronize()
        self._look()
        self._held.clear()

    def _mark(self, stream: Any) -> Any:
        event = self._driver.timed_event()
        stream.record_event(event)
        return event

    def _look(self) -> None:
        """Take note of the events that were reached."""
        while self._held and self._held[0][0].query():
            self._held.popleft()
        while self._gaps and self._gaps[0][1].query():
            asked, there = self._gaps.popleft()
            self.idle_ns += max(0, int(asked.elapsed_time(there) * _NS_PER_MS))
