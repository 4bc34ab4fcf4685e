"""An optimizer's state by the names of the parameters, whatever their order in it; and back, with all types.

`optimizer.state.<fqn>.<name>` are its tensors. Groups and everything else become JSON. PyTorch's own loading casts
floating-point state to the parameter's dtype; here what was saved is what comes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import torch

from stoker.checkpoint.plain import LoadTensor, StoreTensor, decode, encode
from stoker.checkpoint.state import Json
from stoker.errors import CheckpointError

STATE_PREFIX: Final = "optimizer.state."
_OWN_KEYS: Final = frozenset({"params", "param_names"})


def ordered_names(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> list[str]:
    """The names of the optimizer's parameters in the order in which its state dict numbers them.

    Raises CheckpointError for a parameter that the model does not have.
    """
    found = []
    for number, group in enumerate(optimizer.param_groups):
        for at, parameter in enumerate(group["params"]):
            name = names.get(id(parameter))
            if name is None:
                shape = list(parameter.shape)
                raise CheckpointError(
                    f"parameter {at} of optimizer group {number}, of shape {shape}, is none of the model's",
                    hint="give the model that the optimizer was made for; its parameters may have been replaced since",
                )
            found.append(name)
    return found


def capture_optimizer(optimizer: torch.optim.Optimizer, names: Mapping[int, str], tensor: StoreTensor) -> Json:
    """Everything but the tensors, as JSON; the tensors go to `tensor` under their names."""
    numbered = ordered_names(optimizer, names)
    state_dict = optimizer.state_dict()
    groups = []
    for number, group in enumerate(state_dict["param_groups"]):
        path = f"optimizer.param_groups.{number}"
        plain = {key: encode(value, f"{path}.{key}", tensor) for key, value in group.items() if key not in _OWN_KEYS}
        groups.append(plain | {"params": [numbered[index] for index in group["params"]]})
    state: dict[str, Json] = {}
    order: dict[str, None] = {}
    for index, values in state_dict["state"].items():
        if not isinstance(index, int):
            raise CheckpointError(f"the optimizer keeps state under {index!r}, which is no parameter")
        name = numbered[index]
        for key, value in values.items():
            path = f"{STATE_PREFIX}{name}.{key}"
            if type(key) is not str:
                raise CheckpointError(f"the optimizer keeps state under {key!r} for {name!r}, which is no text")
            order[key] = None
            if tensor(value, path) is None:
                state.setdefault(name, {})[key] = encode(value, path, tensor)
    return {"groups": groups, "state": state, "order": list(order)}


def split_name(name: str, parameters: Mapping[str, torch.Tensor]) -> tuple[str, str] | None:
    """(parameter, key) of a stored tensor of an optimizer; None if no parameter's name fits."""
    if not name.startswith(STATE_PREFIX):
        return None
    parts = name.removeprefix(STATE_PREFIX).split(".")
    for length in range(len(parts) - 1, 0, -1):
        parameter = ".".join(parts[:length])
        if parameter in parameters:
            return parameter, ".".join(parts[length:])
    return None


def match_groups(stored: Sequence[Mapping[str, Json]], live: Sequence[Sequence[str]]) -> str:
    """What keeps the stored groups from being the live ones, in words; empty if nothing does."""
    if len(stored) != len(live):
        return f"the optimizer has {len(live)} parameter groups, {len(stored)} were saved"
    for number, (group, names) in enumerate(zip(stored, live, strict=True)):
        if sorted(group["params"]) != sorted(names):
            other = sorted(set(group["params"]).symmetric_difference(names))
            return f"group {number} of the optimizer has other parameters than were saved: {', '.join(other[:3])}"
    return ""


def live_groups(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> list[list[str]]:
    """The names of the parameters of each group."""
    numbered = iter(ordered_names(optimizer, names))
    return [[next(numbered) for _ in group["params"]] for group in optimizer.param_groups]


def load_optimizer(
    optimizer: torch.optim.Optimizer,
    names: Mapping[int, str],
    saved: Json,
    tensors: Mapping[str, Mapping[str, torch.Tensor]],
    tensor: LoadTensor,
) -> None:
    """Give the optimizer the saved groups and state; `tensors` are those of each parameter, by name and key."""
    numbered = ordered_names(optimizer, names)
    state: dict[int, dict[str, Any]] = {}
    for index, name in enumerate(numbered):
        values: dict[str, Any] = {key: decode(value, tensor) for key, value in saved["state"].get(name, {}).items()}
        values |= tensors.get(name, {})
        if values:
            state[index] = _in_order(values, saved.get("order", ()))
    groups = []
    start = 0
    for stored, live in zip(saved["groups"], optimizer.param_groups, strict=True):
        group = {key: decode(value, tensor) for key, value in stored.items() if key != "params"}
        for key, value in group.items():
            if isinstance(value, torch.Tensor) and isinstance(live.get(key), torch.Tensor):
                group[key] = value.to(live[key].device)
        stop = start + len(live["params"])
        groups.append(_in_order(group | {"params": list(range(start, stop))}, live))
        start = stop
    kept = [dict(group) for group in optimizer.param_groups]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    _keep_tensors(optimizer.param_groups, kept)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, values in state.items():
        loaded = optimizer.state[parameters[index]]
        for key, value in values.items():
            loaded[key] = _as_saved(loaded[key], value)


def _in_order(values: Mapping[str, Any], order: Iterable[str]) -> dict[str, Any]:
    """The same dict with its keys in this order; those that are not in it stand behind, by name."""
    places = {key: place for place, key in enumerate(order)}
    return {key: values[key] for key in sorted(values, key=lambda key: (places.get(key, len(places)), key))}


def _keep_tensors(groups: Sequence[dict[str, Any]], before: Sequence[Mapping[str, Any]]) -> None:
    """Put the loaded values of tensors in groups (a learning rate) into the tensors that were there before.

    Whoever holds such a tensor sees the value, and one that several groups share stays one: unless they have loaded
    different values.
    """
    places: dict[int, list[tuple[dict[str, Any], str]]] = {}
    tensors: dict[int, torch.Tensor] = {}
    for group, was in zip(groups, before, strict=True):
        for key, value in was.items():
            if type(value) is torch.Tensor and isinstance(group.get(key), torch.Tensor):
                tensors[id(value)] = value
                places.setdefault(id(value), []).append((group, key))
    for number, tensor in tensors.items():
        loaded = [group[key] for group, key in places[number]]
        same = all(one.dtype == tensor.dtype and torch.equal(one, loaded[0]) for one in loaded)
        if same and loaded[0].shape == tensor.shape:
            with torch.no_grad():
                tensor.copy_(loaded[0])
            for group, key in places[number]:
                group[key] = tensor


def _as_saved(loaded: Any, saved: Any) -> Any:
    """What was loaded, on its device, but with the dtype and the types that were saved."""
    if isinstance(saved, torch.Tensor) and isinstance(loaded, torch.Tensor):
        return loaded if loaded.dtype == saved.dtype else saved.to(loaded.device)
    if isinstance(saved, dict) and isinstance(loaded, dict):
        return {key: _as_saved(loaded[key], value) for key, value in saved.items()}
    if isinstance(saved, list | tuple) and isinstance(loaded, list | tuple):
        return type(saved)(_as_saved(a, b) for a, b in zip(loaded, saved, strict=True))
    return loaded if isinstance(loaded, torch.Tensor) else saved
