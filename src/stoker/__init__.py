"""The storage runtime that keeps GPUs fed.

Train, and go on after a kill::

    import stoker

    with stoker.open(run="run-42") as run:
        data = run.loader("/data/train", global_batch_size=256, seed=7, epochs=3)
        state = run.checkpoint(model, optimizer, data=data)
        state.restore()                      # the newest committed step; a fresh run: nothing
        for batch in data:                   # batch["jpg"], batch.step, batch.sample_keys
            train(batch)
            state.save_if_due(after=batch)   # every 100 steps, written behind training
    print(run.report())                      # what training waited for

Say what is wanted of the data: ``stoker.Dataset("/data/train").fields("jpg", "json").decode({"json": "json"})``.

Evaluate: ``run.loader("/data/test", global_batch_size=256, shuffle=False)``; `batch.valid` marks what is no padding.

Write a data set::

    with stoker.writer("/data/new") as writer:
        writer.write("cat/001", {"jpg": jpg, "json": b'{"label": 0}'})

Every error is a `stoker.StokerError` that says what, where, and what helps; `stoker.errors` lists them. Next:
help(stoker.open), help(stoker.Run), help(stoker.Dataset), help(stoker.writer), help(stoker.sample_rng),
help(stoker.Layout). For the shell: stoker --help.

Importing stoker loads neither PyTorch nor Arrow: rooms load what they need when they are entered, and so does each
child process, which a training job waits for before its first batch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stoker import errors
from stoker._version import VERSION
from stoker.errors import StokerError
from stoker.values import Layout

if TYPE_CHECKING:
    from stoker import torch as torch
    from stoker.dataset.describe import Dataset
    from stoker.dataset.writer import writer
    from stoker.feed.randomness import sample_rng
    from stoker.run import Run, open  # noqa: A004  read as stoker.open

__all__ = ["Dataset", "Layout", "Run", "StokerError", "__version__", "errors", "open", "sample_rng", "writer"]

__version__ = VERSION


def __getattr__(name: str) -> Any:
    """The names whose rooms take time to load, on first use."""
    lazy = {
        "Dataset": "stoker.dataset.describe",
        "Run": "stoker.run",
        "open": "stoker.run",
        "sample_rng": "stoker.feed.randomness",
        "writer": "stoker.dataset.writer",
    }
    if name == "torch":
        return import_module("stoker.torch")
    if name not in lazy:
        raise AttributeError(f"module 'stoker' has no attribute {name!r}: it has {', '.join(__all__)}")
    return getattr(import_module(lazy[name]), name)


def __dir__() -> list[str]:
    """The public names, whether they are loaded yet or not."""
    return sorted(__all__)
