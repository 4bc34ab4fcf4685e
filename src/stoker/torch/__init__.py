"""The only library room that imports torch.

::

    dataset = stoker.torch.dataset(data)  # for DataLoader(dataset, batch_size=None), Lightning, accelerate
    layout = stoker.torch.layout(mesh, dp="dp")  # who shares batches, from a device mesh
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stoker.errors import UnsupportedError

try:
    import torch  # noqa: F401  asked for once, so that every door of this room gives the same error
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise UnsupportedError("PyTorch is not installed", hint="pip install torch") from error

if TYPE_CHECKING:
    from stoker.torch.batches import TensorBatch
    from stoker.torch.datasets import LoaderDataset, dataset
    from stoker.torch.layouts import layout

__all__ = ["LoaderDataset", "TensorBatch", "dataset", "layout"]

_LAZY = {"LoaderDataset": "datasets", "TensorBatch": "batches", "dataset": "datasets", "layout": "layouts"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'stoker.torch' has no attribute {name!r}")
    return getattr(import_module(f"stoker.torch.{_LAZY[name]}"), name)
