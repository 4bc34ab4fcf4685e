"""stoker: the storage runtime that keeps GPUs fed.

::

    with stoker.open(run="run-42") as run:
        data = run.loader("/data/train", global_batch_size=256, seed=7, epochs=3)
        state = run.checkpoint(model=model, optimizer=optimizer, data=data)
        state.restore()
        for batch in data:
            train(batch)
            state.save_if_due(after=batch)
    print(run.report())

Importing stoker loads neither PyTorch nor Arrow: rooms load what they need when they are entered.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stoker import errors
from stoker._version import VERSION
from stoker.errors import StokerError
from stoker.run import Run, open  # noqa: A004  read as stoker.open
from stoker.values import Layout

if TYPE_CHECKING:
    from stoker import torch as torch
    from stoker.dataset.describe import Dataset
    from stoker.dataset.writer import writer

__all__ = ["Dataset", "Layout", "Run", "StokerError", "__version__", "errors", "open", "writer"]

__version__ = VERSION

_LAZY = {"Dataset": "stoker.dataset.describe", "writer": "stoker.dataset.writer"}


def __getattr__(name: str) -> Any:
    if name == "torch":
        return import_module("stoker.torch")
    if name not in _LAZY:
        raise AttributeError(f"module 'stoker' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
