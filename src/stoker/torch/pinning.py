"""The memory of batches, pinned once, so that the device's copy engine reads it without a copy in between.

`Driver` is what is needed of CUDA, and `CudaDriver` has it from PyTorch. cudaHostRegister needs only an address and a
length of memory of this process; it takes the pages, all of them, and keeps them until cudaHostUnregister.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol

import torch

from stoker.errors import CapacityError, UnsupportedError
from stoker.units import format_bytes

_log = logging.getLogger("stoker.torch")


class Event(Protocol):
    """A mark in a stream, as torch.cuda.Event."""

    def query(self) -> bool:
        """Whether all before it is done."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this to a later mark, both done."""


class Stream(Protocol):
    """A queue of work of a device, as torch.cuda.Stream."""

    def record_event(self, event: Any = None) -> Any:
        """Put a mark behind what is queued."""

    def wait_event(self, event: Any) -> None:
        """What is queued from now on begins when the mark is reached."""

    def synchronize(self) -> None:
        """Wait on the host until all that is queued is done."""


class Driver(Protocol):
    """What pinning and copying need of a device."""

    def register(self, address: int, size_bytes: int) -> None:
        """Pin memory. Raises UnsupportedError."""

    def unregister(self, address: int) -> None:
        """Let pinned memory go; no copy may read it any more. Raises UnsupportedError."""

    def new_stream(self) -> Any:
        """A stream beside the one that training uses."""

    def current_stream(self) -> Any:
        """The stream that training uses now."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """What is queued, and the memory that is taken, inside belongs to `stream`."""

    def timed_event(self) -> Any:
        """A mark that knows when it was reached."""

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Queue a copy to the device; the host does not wait if the memory is pinned."""

    def all_true(self, count: int) -> torch.Tensor:
        """A bool tensor [count] of True, made on the device: nothing is copied."""

    def keep_for(self, tensor: torch.Tensor, stream: Any) -> None:
        """Do not use the tensor's memory again before what `stream` holds when it is freed is done."""


class CudaDriver:
    """CUDA by way of PyTorch, for one device. Thread-safe."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def register(self, address: int, size_bytes: int) -> None:
        """Call cudaHostRegister. What it refuses it also keeps as the last error, which is cleared here."""
        with torch.cuda.device(self.device):
            try:
                _check("cudaHostRegister", _cudart().cudaHostRegister(address, size_bytes, 0))
            except UnsupportedError:
                self._clear_last_error()
                raise

    def unregister(self, address: int) -> None:
        """Call cudaHostUnregister."""
        with torch.cuda.device(self.device):
            _check("cudaHostUnregister", _cudart().cudaHostUnregister(address))

    def _clear_last_error(self) -> None:
        """PyTorch asks for the last error behind every kernel, and takes one of another call for its own: once."""
        with suppress(RuntimeError):
            torch.zeros(1, device=self.device)

    def new_stream(self) -> torch.cuda.Stream:
        """A stream of the device's own."""
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # torch ships it without types

    def current_stream(self) -> torch.cuda.Stream:
        """The device's current stream in this thread."""
        return torch.cuda.current_stream(self.device)

    def on(self, stream: torch.cuda.Stream) -> AbstractContextManager[Any]:
        """torch.cuda.stream."""
        return torch.cuda.stream(stream)

    def timed_event(self) -> torch.cuda.Event:
        """An event with timing: about 0.5 us of the device."""
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch ships it without types

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor.to`, not blocking. Raises CapacityError if the device has no room."""
        try:
            return tensor.to(self.device, non_blocking=True)
        except torch.OutOfMemoryError as error:
            raise CapacityError(
                f"no memory on device {str(self.device)!r} for {format_bytes(tensor.nbytes)} of a batch",
                hint="two batches lie there besides what training needs: make the batch smaller, or the model",
            ) from error

    def all_true(self, count: int) -> torch.Tensor:
        """torch.ones, on the device."""
        return torch.ones(count, dtype=torch.bool, device=self.device)

    def keep_for(self, tensor: torch.Tensor, stream: torch.cuda.Stream) -> None:
        """`tensor.record_stream`: it was allocated on the side stream and is used on training's."""
        tensor.record_stream(stream)


class Pinning:
    """Keeps memory pinned wherever it is mapped. A MapWatcher; where pinning is refused, copies go without, said once.

    Attributes:
        pinned_bytes: how much is pinned now.
        refusal: why nothing is, or "".
    """

    def __init__(self, driver: Driver, stream: Stream) -> None:
        self._driver = driver
        self._stream = stream
        self._address: int | None = None
        self.pinned_bytes = 0
        self.refusal = ""

    def mapped(self, address: int, size_bytes: int) -> None:
        """Pin `size_bytes` at `address`: about 0.1 s a GiB, and as much memory as that, at once."""
        if not size_bytes:
            return
        try:
            self._driver.register(address, size_bytes)
        except UnsupportedError as error:
            if not self.refusal:
                _log.warning(
                    "%s of prefetch memory cannot be pinned (%s): copies to the device go through PyTorch's own "
                    "memory; lower prefetch_bytes, or raise the limit of locked memory",
                    format_bytes(size_bytes),
                    error.what,
                )
            self.refusal = error.what
            return
        self._address, self.pinned_bytes, self.refusal = address, size_bytes, ""

    def unmapping(self) -> None:
        """Let the memory go, once no copy reads it any more."""
        address, self._address, self.pinned_bytes = self._address, None, 0
        if address is None:
            return
        self._stream.synchronize()
        try:
            self._driver.unregister(address)
        except UnsupportedError as error:  # the memory goes all the same
            _log.warning("prefetch memory stays pinned: %s", error.what)


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch ships it without types


def _check(name: str, answer: Any) -> None:
    """Raise UnsupportedError with CUDA's own words for anything but success."""
    if int(answer):
        raise UnsupportedError(f"{name} says: {_cudart().cudaGetErrorString(answer)} ({int(answer)})")
