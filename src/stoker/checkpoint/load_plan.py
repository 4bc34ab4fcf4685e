"""What to read to give a rank the parts it wants of a step's tensors: the plan, and the assembly of what is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stoker.checkpoint.manifest import WrittenFile
from stoker.checkpoint.read import Span, StepReader
from stoker.checkpoint.reshard import Box, pieces, run_of, whole_shape
from stoker.checkpoint.state import StoredTensor, TensorEntry
from stoker.errors import CheckpointError, FormatError
from stoker.io.memory import ALIGNMENT
from stoker.io.safetensors import Header, dtype_bytes


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A box of a tensor in file number `file`, whose first byte there is `start`."""

    file: int
    dtype: str
    start: int
    box: Box


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bytes [start, stop) of a file hold the elements `box` of tensor `name`, laid out as in box `stored`."""

    name: str
    start: int
    stop: int
    box: Box
    stored: Box


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The parts wanted, and for each file the transfers that fill them."""

    wanted: Mapping[str, TensorEntry]
    transfers: Mapping[int, Sequence[Transfer]]


def index_chunks(
    headers: Sequence[Header], offsets: Sequence[Mapping[str, Sequence[int]]]
) -> dict[str, list[StoredChunk]]:
    """Every tensor of a step by its chunks. `offsets` are what each file says of where its chunks begin.

    Of equal boxes the first counts. Ranks of a mesh write each box once, but where a tensor lies on one of several
    meshes side by side, as under FSDP over tensor parallelism what is not tensor-parallel does, each of them writes it.

    Raises FormatError for a chunk whose offsets do not fit its shape, or two of one name with other dtypes.
    """
    found: dict[str, dict[Box, StoredChunk]] = {}
    for number, (header, starts) in enumerate(zip(headers, offsets, strict=True)):
        for name, place in header.tensors.items():
            at = tuple(starts.get(name, ()))
            if len(at) != len(place.shape):
                raise FormatError(f"tensor {name!r} of shape {list(place.shape)} is said to begin at {list(at)}")
            chunk = StoredChunk(number, place.dtype, place.start, Box(at, place.shape))
            chunks = found.setdefault(name, {})
            first = next(iter(chunks.values()), chunk)
            if first.dtype != chunk.dtype:
                raise FormatError(f"tensor {name!r} is {first.dtype} in one file and {chunk.dtype} in another")
            chunks.setdefault(chunk.box, chunk)
    return {name: list(chunks.values()) for name, chunks in found.items()}


def describe(chunks: Sequence[StoredChunk]) -> StoredTensor:
    """The dtype and whole shape of a tensor from its chunks."""
    return StoredTensor(chunks[0].dtype, whole_shape([chunk.box for chunk in chunks]))


def plan_load(wanted: Sequence[TensorEntry], stored: Mapping[str, Sequence[StoredChunk]]) -> LoadPlan:
    """Which bytes of which files fill the wanted parts. Pure.

    Raises CheckpointError for a part that is of another tensor than the stored one, FormatError if elements are
    missing.
    """
    transfers: dict[int, list[Transfer]] = {}
    for entry in wanted:
        chunks = stored[entry.name]
        if describe(chunks) != StoredTensor(entry.dtype, entry.global_shape):
            raise CheckpointError(
                f"{entry.name!r} is wanted as {entry.dtype} {list(entry.global_shape)}, stored is {describe(chunks)}"
            )
        itemsize = dtype_bytes(entry.dtype)
        try:
            parts = pieces(Box(entry.offsets, entry.shape), [chunk.box for chunk in chunks])
        except FormatError as error:
            raise FormatError(f"tensor {entry.name!r}: {error.what}") from error
        for piece in parts:
            chunk = chunks[piece.index]
            run = run_of(piece.box, chunk.box)
            transfers.setdefault(chunk.file, []).append(
                Transfer(
                    entry.name,
                    chunk.start + run.start * itemsize,
                    chunk.start + run.stop * itemsize,
                    piece.box,
                    chunk.box,
                )
            )
    return LoadPlan({entry.name: entry for entry in wanted}, transfers)


class Assembly:
    """The wanted tensors as they fill up: plain memory, touched by nothing live."""

    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan
        self.tensors = {name: _aligned(entry.nbytes) for name, entry in plan.wanted.items()}

    def read(self, reader: StepReader, number: int, file: WrittenFile) -> int:
        """Fill what file `number` holds; returns the bytes verified. Files may be read at the same time."""
        spans = []
        loose: list[tuple[Transfer, NDArray[np.uint8]]] = []
        for transfer in self._plan.transfers[number]:
            direct = self._direct(transfer)
            if direct is None:
                buffer = np.empty(transfer.stop - transfer.start, np.uint8)
                loose.append((transfer, buffer))
                direct = buffer.data
            spans.append(Span(transfer.start, transfer.stop, direct))
        verified_bytes = reader.fill(file, spans)
        for transfer, buffer in loose:
            self._scatter(transfer, buffer)
        return verified_bytes

    def _direct(self, transfer: Transfer) -> memoryview | None:
        """Where the bytes go as they are, if they lie in one piece in the file and in the target."""
        entry = self._plan.wanted[transfer.name]
        run = run_of(transfer.box, Box(entry.offsets, entry.shape))
        if not (run.solid and run_of(transfer.box, transfer.stored).solid):
            return None
        itemsize = dtype_bytes(entry.dtype)
        return self.tensors[transfer.name][run.start * itemsize : run.stop * itemsize].data

    def _scatter(self, transfer: Transfer, buffer: NDArray[np.uint8]) -> None:
        """Copy the elements of a box out of the run of bytes that spans them."""
        entry = self._plan.wanted[transfer.name]
        itemsize = dtype_bytes(entry.dtype)
        element = np.dtype(f"u{itemsize}")
        strides = [itemsize] * len(transfer.stored.shape)
        for dim in reversed(range(len(strides) - 1)):
            strides[dim] = strides[dim + 1] * transfer.stored.shape[dim + 1]
        source = np.ndarray(transfer.box.shape, element, buffer=buffer, strides=strides)
        target = self.tensors[transfer.name].view(element).reshape(entry.shape)
        target[transfer.box.within(Box(entry.offsets, entry.shape))] = source


def _aligned(nbytes: int) -> NDArray[np.uint8]:
    """Memory on a multiple of 64 bytes, as frameworks allocate it: what is restored may stay where it lies."""
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes]
