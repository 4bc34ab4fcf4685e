"""Random number streams of a process: python, numpy, torch on the CPU, and on CUDA where it is in use."""

from __future__ import annotations

import base64
import logging
import random
from typing import Any

import numpy as np
import torch

from stoker.checkpoint.plain import decode, encode
from stoker.checkpoint.state import Json
from stoker.errors import FormatError

_log = logging.getLogger("stoker.torch")


def capture_rng() -> Json:
    """The states of all streams, as JSON of about 10 KB. CUDA's only if this process uses CUDA already."""
    version, internal, gauss = random.getstate()
    found = {
        "python": {"version": version, "state": _pack(np.array(internal, "<u4").tobytes()), "gauss": gauss},
        "numpy": encode(np.random.get_state(legacy=False), "rng.numpy", _no_tensor),  # noqa: NPY002  the global stream
        "torch": _pack(torch.get_rng_state().numpy().tobytes()),
        "cuda": None,
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states = [_pack(state.numpy().tobytes()) for state in torch.cuda.get_rng_state_all()]
        found["cuda"] = {"current": torch.cuda.current_device(), "states": states}
    return found


def load_rng(rng: Json) -> None:
    """Continue the streams that `capture_rng` recorded: what is drawn next is what would have been drawn then.

    The stream of the CUDA device that was current goes to the one that is current now. Raises FormatError.
    """
    try:
        internal = np.frombuffer(_unpack(rng["python"]["state"]), "<u4")
        random.setstate((rng["python"]["version"], tuple(internal.tolist()), rng["python"]["gauss"]))
        np.random.set_state(decode(rng["numpy"], _no_name))  # noqa: NPY002  the global stream
        torch.set_rng_state(_tensor(rng["torch"]))
        cuda = rng["cuda"]
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise FormatError(f"not the random number states that were saved: {error!r}") from error
    if cuda is None:
        return
    if not torch.cuda.is_available():
        _log.warning("the checkpoint has random number states of CUDA, and there is no CUDA here: they are left out")
        return
    _load_cuda(cuda)


def seed_rng(entropy: int) -> None:
    """Start all streams anew from `entropy`, 0..2^64-1."""
    random.seed(entropy)
    np.random.seed([entropy & 0xFFFFFFFF, entropy >> 32])  # noqa: NPY002  the global stream
    torch.manual_seed(entropy)  # also CUDA's, on all devices


def _load_cuda(cuda: Json) -> None:
    now, then = torch.cuda.current_device(), cuda["current"]
    for device, state in enumerate(cuda["states"]):
        target = now if device == then else then if device == now else device
        if target < torch.cuda.device_count():
            torch.cuda.set_rng_state(_tensor(state), target)


def _pack(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _unpack(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(_unpack(text)), dtype=torch.uint8)


def _no_tensor(_value: Any, _path: str) -> None:
    return None


def _no_name(name: str) -> Any:
    raise FormatError(f"not the random number states that were saved: they refer to tensor {name!r}")
