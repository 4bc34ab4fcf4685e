"""Fully qualified names of parameters and buffers, as the model has them without the wrappers it is trained in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

from stoker.errors import CheckpointError

# Modules that torch.compile, activation checkpointing and FSDP put around others; the names are theirs alone.
_TRANSPARENT: Final = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})
_PARALLEL: Final = (DistributedDataParallel, DataParallel)


def cleaner(model: torch.nn.Module) -> Callable[[str], str]:
    """A function that takes the wrappers out of a name: `module.` of DDP where there is one, `_orig_mod.`, ..."""
    wrapped = {path for path, module in model.named_modules(remove_duplicate=False) if isinstance(module, _PARALLEL)}

    def clean(raw: str) -> str:
        path, kept = "", []
        for part in raw.split("."):
            if not (part in _TRANSPARENT or (part == "module" and path in wrapped)):
                kept.append(part)
            path = f"{path}.{part}" if path else part
        return ".".join(kept)

    return clean


def clean_names(model: torch.nn.Module, raw_names: Iterable[str]) -> dict[str, str]:
    """Raw name -> clean name. Raises CheckpointError if two become the same."""
    clean = cleaner(model)
    found: dict[str, str] = {}
    owners: dict[str, str] = {}
    for raw in raw_names:
        name = clean(raw)
        if name in owners:
            raise CheckpointError(f"{raw!r} and {owners[name]!r} are both named {name!r} without their wrappers")
        found[raw], owners[name] = name, raw
    return found


def parameter_names(model: torch.nn.Module) -> dict[int, str]:
    """The clean name of each parameter by its id(); the first of several for a tied one."""
    clean = cleaner(model)
    names: dict[int, str] = {}
    for raw, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), clean(raw))
    return names
