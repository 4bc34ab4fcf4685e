"""`TorchState`: the training state of a PyTorch job, as the checkpoint room saves and restores it.

Names: `model.<fqn>`, `optimizer.state.<fqn>.<name>`, `extra.<name>.<path>`. Parameters go by their names in the model
without wrappers, so that a state saved under DDP or torch.compile restores without, and the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from stoker.checkpoint.plain import StoreTensor, decode, encode, tensor_names
from stoker.checkpoint.state import Json, Scalars, Share, StoredTensor, TensorEntry
from stoker.errors import CheckpointError, ConfigError
from stoker.torch import rng
from stoker.torch.names import clean_names, cleaner, parameter_names
from stoker.torch.optimizer import (
    STATE_PREFIX,
    capture_optimizer,
    live_groups,
    load_optimizer,
    match_groups,
    split_name,
)
from stoker.torch.tensors import box_of, check_shown, copy_bytes, from_bytes, is_writer, part_like
from stoker.torch.versions import find_versions, put_versions, versions_of, with_versions

_NAMED: Final = 3


@runtime_checkable
class Stateful(Protocol):
    """What stands in `extra` and as scheduler."""

    def state_dict(self) -> Any:
        """The state, as tensors and plain values."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take a state back."""


@dataclass
class TorchCapture:
    """References to the tensors of a training state, and the values of everything else. See `Capture`."""

    scalars: Scalars = field(default_factory=Scalars)
    rng: Json = None
    entries: list[TensorEntry] = field(default_factory=list)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def copy_into(self, name: str, target: NDArray[np.uint8]) -> None:
        """Copy this rank's part of a tensor into `target`; waits for the device. Raises CheckpointError naming it."""
        try:
            copy_bytes(self.tensors[name], target)
        except RuntimeError as error:  # how PyTorch refuses
            raise _refused(name, error) from error

    def taker(self, share: Share) -> StoreTensor:
        """A function that takes tensors with their names, and refuses anything else with None."""

        def take(value: Any, name: str) -> str | None:
            if not isinstance(value, torch.Tensor):
                return None
            if name in self.tensors:
                raise CheckpointError(
                    f"two tensors of the training state are named {name!r}", hint="rename one of them"
                )
            try:
                entry = box_of(name, value, share)
            except RuntimeError as error:
                raise _refused(name, error) from error
            self.tensors[name] = value
            if is_writer(value):
                self.entries.append(entry)
            return name

        return take


Wanted: TypeAlias = dict[str, tuple[TensorEntry, "torch.Tensor | None"]]


class TorchState:
    """Model, optimizer, scheduler, random numbers, and `extra`: objects with `state_dict()` and `load_state_dict()`.

    Under several ranks plain tensors of model, optimizer and scheduler count as the same on all; what stands in `extra`
    belongs to each rank alone, but for DTensors. Raises ConfigError for what cannot be such a state.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        scheduler: Stateful | None = None,
        extra: Mapping[str, Stateful] | None = None,
    ) -> None:
        _check_kinds(model, optimizer, scheduler, {} if extra is None else extra)
        self._model = model
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._extra = dict(extra or {})
        self._wanted: Wanted = {}

    def capture(self) -> TorchCapture:
        """Look at the state now. Raises CheckpointError naming the tensor or value that cannot be saved."""
        check_shown(self._model)
        found = TorchCapture()
        take = found.taker(Share.REPLICATED)
        shared: dict[str, Json] = {"model": self._capture_model(take), "optimizer": None, "scheduler": None}
        shared |= {"versions": self._capture_versions(), "classes": self._classes()}
        if self._optimizer is not None:
            shared["optimizer"] = capture_optimizer(self._optimizer, parameter_names(self._model), take)
        if self._scheduler is not None:
            shared["scheduler"] = encode(self._scheduler.state_dict(), "scheduler", take)
        found.scalars = Scalars(shared, self._capture_extra(found.taker(Share.PRIVATE)))
        found.rng = rng.capture_rng()
        return found

    def wanted(self, stored: Mapping[str, StoredTensor], scalars: Scalars) -> Sequence[TensorEntry]:
        """The parts of the stored tensors that this rank needs. Raises CheckpointError with all that does not fit."""
        check_shown(self._model)
        problems = self._differences(scalars)
        live = TorchCapture()
        other = self._capture_model(live.taker(Share.REPLICATED))
        saved_other = scalars.shared.get("model", {})
        if other.keys() != saved_other.keys():
            problems.append(
                f"the model has other extra state than was saved: {_first(other.keys() ^ saved_other.keys())}"
            )
        expected: dict[str, torch.Tensor | None] = dict.fromkeys(tensor_names(dict(scalars.shared)))
        expected |= live.tensors
        differing = [
            f"{name!r} is {_describe(was)}, stored is {_describe(stored[name])}"
            for name, tensor in live.tensors.items()
            if name in stored and stored[name] != (was := _stored_as(name, tensor))
        ]
        if self._optimizer is not None:
            expected |= self._expected_of_optimizer(stored)
        expected |= self._expected_of_extra(scalars)
        problems += _compare(expected.keys(), stored.keys(), differing)
        if problems:
            raise CheckpointError(f"the checkpoint does not fit the training state: {'; '.join(problems)}")
        self._wanted = {name: (part_like(name, stored[name], like), like) for name, like in expected.items()}
        return [entry for entry, _ in self._wanted.values()]

    def load(self, tensors: Mapping[str, NDArray[np.uint8]], scalars: Scalars) -> None:
        """Put the parts that were `wanted` into model, optimizer, scheduler and extra, in this order."""
        found = {name: from_bytes(data, *self._wanted[name]) for name, data in tensors.items()}
        shared = scalars.shared
        values: dict[str, Any] = {n: decode(value, found.__getitem__) for n, value in shared["model"].items()}
        raw = self._model.state_dict()
        names = clean_names(self._model, raw)
        state = {r: found.get(f"model.{name}", values.get(name)) for r, name in names.items()}
        self._model.load_state_dict(self._with_versions(state, shared.get("versions")))
        if self._optimizer is not None:
            ids = parameter_names(self._model)
            by_parameter: dict[str, dict[str, torch.Tensor]] = {}
            in_values = tensor_names(shared["optimizer"])
            for name in sorted(found.keys() - in_values):
                parts = split_name(name, self._parameters())
                if parts is not None:
                    by_parameter.setdefault(parts[0], {})[parts[1]] = found[name]
            load_optimizer(self._optimizer, ids, shared["optimizer"], by_parameter, found.__getitem__)
        if self._scheduler is not None:
            self._scheduler.load_state_dict(decode(shared["scheduler"], found.__getitem__))
        for name, holder in self._extra.items():
            value = decode(scalars.private["extra"][name], found.__getitem__)
            holder.load_state_dict(put_versions(value, scalars.private.get("versions", {}).get(name, [])))
        self._wanted = {}

    def load_rng(self, state: Json) -> None:
        """Continue the random number streams of python, numpy, torch and CUDA."""
        rng.load_rng(state)

    def seed_rng(self, entropy: int) -> None:
        """Start the random number streams anew."""
        rng.seed_rng(entropy)

    def _capture_model(self, take: StoreTensor) -> dict[str, Json]:
        """Take the tensors of the model; what else it keeps, by name."""
        state = self._model.state_dict()
        other = {}
        for raw, name in clean_names(self._model, state).items():
            if take(state[raw], f"model.{name}") is None:
                other[name] = encode(state[raw], f"model.{name}", take)
        return other

    def _capture_extra(self, take: StoreTensor) -> dict[str, Json]:
        if not self._extra:
            return {}
        encoded, versions = {}, {}
        for name, holder in self._extra.items():
            state = holder.state_dict()
            encoded[name] = encode(state, f"extra.{name}", take)
            found = find_versions(state, f"extra.{name}")
            if found:
                versions[name] = found
        return {"extra": encoded} | ({"versions": versions} if versions else {})

    def _capture_versions(self) -> Json:
        """What the model's modules say of themselves, by their names without wrappers; what these say is left out."""
        found = versions_of(self._model.state_dict(), "model")
        clean = cleaner(self._model)
        return None if found is None else {clean(raw): about for raw, about in found.items()}

    def _with_versions(self, state: dict[str, Any], versions: Mapping[str, Json] | None) -> dict[str, Any]:
        """The model's state with the saved versions; as it is if none were saved, or the model has none."""
        raw = versions_of(self._model.state_dict(), "model")
        if versions is None or raw is None:
            return state
        clean = cleaner(self._model)
        return with_versions(state, {name: versions[clean(name)] for name in raw if clean(name) in versions})

    def _classes(self) -> dict[str, str]:
        """What optimizer and scheduler are: their state means nothing to others, though it may look alike."""
        parts = {"optimizer": self._optimizer, "scheduler": self._scheduler}
        return {name: type(part).__qualname__ for name, part in parts.items() if part is not None}

    def _parameters(self) -> dict[str, torch.Tensor]:
        """The optimizer's parameters by their clean names."""
        if self._optimizer is None:
            return {}
        names = parameter_names(self._model)
        groups = self._optimizer.param_groups
        return {names[id(p)]: p for group in groups for p in group["params"] if id(p) in names}

    def _differences(self, scalars: Scalars) -> list[str]:
        """What of the parts that are no tensors does not fit, in words."""
        problems = []
        shared = scalars.shared
        for name, part in (("optimizer", self._optimizer), ("scheduler", self._scheduler)):
            if (part is None) != (shared.get(name) is None):
                was, now = ("with", "without") if part is None else ("without", "with")
                problems.append(f"it was saved {was} {name}, and is restored {now}")
        saved = shared.get("classes", {})
        for name, now in self._classes().items():
            was = saved.get(name, now)
            if was != now:
                problems.append(f"the {name} was {_article(was)} when it was saved, and is {_article(now)}")
        if self._optimizer is not None and shared.get("optimizer") is not None:
            live = live_groups(self._optimizer, parameter_names(self._model))
            problems.append(match_groups(shared["optimizer"]["groups"], live))
        other = self._extra.keys() ^ scalars.private.get("extra", {}).keys()
        if other:
            problems.append(f"extra has other names than were saved: {_first(other)}")
        return [problem for problem in problems if problem]

    def _expected_of_optimizer(self, stored: Mapping[str, StoredTensor]) -> dict[str, torch.Tensor | None]:
        """Of the optimizer's stored tensors, those of parameters that are there; placed as these if shaped as these."""
        parameters = self._parameters()
        found: dict[str, torch.Tensor | None] = {}
        for name, tensor in stored.items():
            parts = split_name(name, parameters) if name.startswith(STATE_PREFIX) else None
            if parts is not None:
                parameter = parameters[parts[0]]
                found[name] = parameter if tensor.shape and tensor.shape == tuple(parameter.shape) else None
        return found

    def _expected_of_extra(self, scalars: Scalars) -> dict[str, torch.Tensor | None]:
        """The tensors that the stored extra refers to; placed as the live ones of the same names."""
        live = TorchCapture()
        self._capture_extra(live.taker(Share.PRIVATE))
        return {name: live.tensors.get(name) for name in tensor_names(dict(scalars.private))}


def _check_kinds(model: Any, optimizer: Any, scheduler: Any, extra: Mapping[str, Any]) -> None:
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(f"model is a {type(model).__name__}, not a torch.nn.Module", hint="give the module itself")
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            f"optimizer is a {type(optimizer).__name__}, not a torch.optim.Optimizer",
            hint='give one, and further ones as extra={"name": optimizer}',
        )
    given: object = extra
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ConfigError(f"extra is {given!r:.100}", hint='give names and objects: extra={"ema": ema}')
    holders = {f"extra[{name!r}]": value for name, value in extra.items()}
    if scheduler is not None:
        holders["scheduler"] = scheduler
    for name, holder in holders.items():
        if not isinstance(holder, Stateful):
            raise ConfigError(
                f"{name} is a {type(holder).__name__} without state_dict() and load_state_dict()",
                hint="give the object that holds the state, not the state",
            )


def _refused(name: str, error: RuntimeError) -> CheckpointError:
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    return CheckpointError(f"tensor {name!r} cannot be saved: {reason}")


def _article(name: str) -> str:
    return f"{'an' if name[:1] in 'AEIOUaeiou' else 'a'} {name}"


def _stored_as(name: str, tensor: torch.Tensor) -> StoredTensor:
    entry = box_of(name, tensor, Share.REPLICATED)
    return StoredTensor(entry.dtype, entry.global_shape)


def _compare(expected: Any, stored: Any, differing: list[str]) -> list[str]:
    found = []
    missing, unexpected = expected - stored, stored - expected
    if missing:
        found.append(f"{len(missing)} tensors are missing in it: {_first(missing)}")
    if unexpected:
        found.append(f"{len(unexpected)} tensors in it are unexpected: {_first(unexpected)}")
    if differing:
        more = ", ..." if len(differing) > _NAMED else ""
        found.append(f"{len(differing)} differ in shape or dtype: {', '.join(differing[:_NAMED])}{more}")
    return found


def _first(names: Any) -> str:
    """The first few of a set of names."""
    listed = sorted(names)
    return ", ".join(repr(name) for name in listed[:_NAMED]) + (", ..." if len(listed) > _NAMED else "")


def _describe(tensor: StoredTensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"
