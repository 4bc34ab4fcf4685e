"""Tensors as the checkpoint room sees them: a dtype by its safetensors name, a box of a global shape, flat bytes.

A DTensor is a chunk of a larger tensor; any other strided tensor stands for itself. Everything else is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.nn.parallel import DistributedDataParallel

from stoker.checkpoint.state import Share, StoredTensor, TensorEntry
from stoker.errors import CheckpointError

DTYPES: Final[Mapping[torch.dtype, str]] = {
    getattr(torch, name): code
    for name, code in {
        "bool": "BOOL",
        "uint8": "U8",
        "int8": "I8",
        "uint16": "U16",
        "int16": "I16",
        "uint32": "U32",
        "int32": "I32",
        "uint64": "U64",
        "int64": "I64",
        "float16": "F16",
        "bfloat16": "BF16",
        "float32": "F32",
        "float64": "F64",
        "complex64": "C64",
        "float8_e4m3fn": "F8_E4M3",
        "float8_e5m2": "F8_E5M2",
        "float8_e4m3fnuz": "F8_E4M3FNUZ",
        "float8_e5m2fnuz": "F8_E5M2FNUZ",
        "float8_e8m0fnu": "F8_E8M0",
    }.items()
    if hasattr(torch, name)
}
_BY_CODE: Final = {code: dtype for dtype, code in DTYPES.items()}
_PLAIN_TYPES: Final = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def box_of(name: str, tensor: torch.Tensor, share: Share) -> TensorEntry:
    """The part of tensor `name` that this rank holds: all of a plain tensor, the local shard of a DTensor.

    Raises CheckpointError for what cannot be stored as it is: sparse, quantized, on the meta device, another subclass
    of Tensor, a dtype that safetensors does not have, a DTensor with pending sums.
    """
    if not isinstance(tensor, DTensor):
        _check(name, tensor)
        return TensorEntry.whole(name, DTYPES[tensor.dtype], tensor.shape, share)
    _check(name, tensor.to_local())
    if any(isinstance(placement, Partial) for placement in tensor.placements):
        raise CheckpointError(f"tensor {name!r} cannot be saved: its sums over ranks are pending ({tensor.placements})")
    shape, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    local = tuple(tensor.to_local().shape)
    if tuple(shape) != local or not _is_box(tensor):
        raise CheckpointError(
            f"tensor {name!r} cannot be saved: its shard {list(local)} is no box of {list(tensor.shape)} "
            f"placed as {tensor.placements}"
        )
    return TensorEntry(name, DTYPES[tensor.dtype], local, tuple(offsets), tuple(tensor.shape), Share.CHUNK)


def is_writer(tensor: torch.Tensor) -> bool:
    """Whether this rank is the one that writes its part: of equal shards the first, and no empty ones.

    True for plain tensors, which are dealt otherwise.
    """
    if not isinstance(tensor, DTensor):
        return True
    place = tensor.device_mesh.get_coordinate()
    if place is None:
        return False
    copies = [at for at, placement in zip(place, tensor.placements, strict=True) if isinstance(placement, Replicate)]
    if tensor.numel() == 0:
        return not any(place)
    return not any(copies) and tensor.to_local().numel() > 0


def check_shown(model: torch.nn.Module) -> None:
    """Refuse a model whose sharded parameters are not in its `state_dict`, or are local parts there, as
    DistributedDataParallel(device_mesh=...) over tensor parallelism leaves them (torch 2.13,
    distributed/tensor/parallel/ddp.py): they would be left out, or stored as if all ranks had the same.

    Raises CheckpointError naming the first. Looks at nothing else than a model of that kind.
    """
    if not isinstance(model, DistributedDataParallel) or getattr(model, "device_mesh", None) is None:
        return
    for path, module in model.module.named_modules():
        parts = [name for name, value in module.named_parameters(recurse=False) if hasattr(value, "_st_info")]
        hidden = [name for name, value in vars(module).items() if isinstance(value, DTensor)]
        for name in (*parts, *hidden):
            full = ".".join(filter(None, (path, name)))
            raise CheckpointError(
                f"parameter {full!r} cannot be saved: DistributedDataParallel hides that it is a shard",
                hint="replicate with fully_shard over a mesh of (replicate, shard), not with device_mesh=",
            )


def copy_bytes(tensor: torch.Tensor, target: NDArray[np.uint8]) -> None:
    """Copy this rank's part of `tensor`, from whatever device, row-major into `target`."""
    local = local_of(tensor)
    if target.size:
        with torch.no_grad():
            _view(target, local.dtype, tuple(local.shape)).copy_(local)


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that is on this rank."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def part_like(name: str, stored: StoredTensor, like: torch.Tensor | None) -> TensorEntry:
    """The part of a stored tensor that this rank needs, if it is to be laid out as `like`; all of it without one."""
    if isinstance(like, DTensor):
        box = box_of(name, like, Share.CHUNK)
        return TensorEntry(name, stored.dtype, box.shape, box.offsets, stored.shape, Share.CHUNK)
    return TensorEntry.whole(name, stored.dtype, stored.shape)


def from_bytes(data: NDArray[np.uint8], entry: TensorEntry, like: torch.Tensor | None) -> torch.Tensor:
    """A tensor of the bytes of `entry`, without a copy: a DTensor placed as `like` if that is one, else on the CPU."""
    dtype = _BY_CODE[entry.dtype]
    local = _view(data, dtype, entry.shape) if data.size else torch.empty(entry.shape, dtype=dtype)
    if not isinstance(like, DTensor):
        return local
    return DTensor.from_local(
        local.to(local_of(like).device),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=torch.Size(entry.global_shape),
        stride=_strides(entry.global_shape),
    )


def _is_box(tensor: DTensor) -> bool:
    """Whether the elements of a shard lie side by side in the whole tensor.

    FSDP over tensor parallelism shards a dimension twice, the right mesh dimension first: a strided shard, which is a
    box as long as it is strided by the shards that are cut after it.
    """
    for at, placement in enumerate(tensor.placements):
        factor = getattr(placement, "split_factor", 1)
        dim = getattr(placement, "dim", None)
        later = [i for i in range(at + 1, len(tensor.placements)) if getattr(tensor.placements[i], "dim", None) == dim]
        if factor > 1 and factor != math.prod(tensor.device_mesh.size(i) for i in later):
            return False
    return True


def _view(data: NDArray[np.uint8], dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(data).view(dtype).reshape(shape)


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for dim in reversed(range(len(shape) - 1)):
        strides[dim] = strides[dim + 1] * max(shape[dim + 1], 1)
    return tuple(strides)


def _extent(tensor: torch.Tensor) -> int:
    """Bytes of storage from its begin to the end of the tensor."""
    if tensor.numel() == 0:
        return 0
    last = sum((count - 1) * stride for count, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((tensor.storage_offset() + last + 1) * tensor.element_size())


def _check(name: str, tensor: Any) -> None:
    problem = ""
    if type(tensor) not in _PLAIN_TYPES:
        problem = f"it is a {type(tensor).__module__}.{type(tensor).__qualname__}"
    elif tensor.layout is not torch.strided:
        problem = f"its layout is {tensor.layout}"
    elif tensor.device.type == "meta":
        problem = "it is on the meta device and has no values"
    elif tensor.dtype not in DTYPES:
        problem = f"safetensors has no dtype for {tensor.dtype}"
    elif tensor.untyped_storage().nbytes() < _extent(tensor):
        problem = "its memory was freed, as sharded training does between steps"
    if problem:
        raise CheckpointError(
            f"tensor {name!r} cannot be saved: {problem}", hint="convert it, or keep it out of the state"
        )
