"""What modules say of themselves in a state dict goes through files and back, as through torch.save."""

import io
from collections import OrderedDict

import pytest
import torch
from torch import nn

from stoker.checkpoint import plain
from stoker.errors import CheckpointError, FormatError
from stoker.torch.state import TorchState
from stoker.torch.versions import find_versions, put_versions


class Scaled(nn.Module):
    """Its first version kept a tenth of its weight, and it reads states of then."""

    _version = 2

    def __init__(self, value=1.0):
        super().__init__()
        self.w = nn.Parameter(torch.full((2,), value))

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *rest):
        self.loaded_version = local_metadata.get("version", 1)
        if self.loaded_version < 2:
            state_dict[prefix + "w"] = state_dict[prefix + "w"] * 10
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


class Holder:
    """Stands in extra, and keeps state dicts of modules deep inside."""

    def __init__(self, module):
        self.module = module

    def state_dict(self):
        return {"list": [0, ("x", {"deep": self.module.state_dict()})]}

    def load_state_dict(self, state):
        self.module.load_state_dict(state["list"][1][1]["deep"])


def there_and_back(value):
    encoded = plain.encode(value, "x", lambda *_: None)
    return put_versions(plain.decode(encoded, pytest.fail), find_versions(value, "x"))


@pytest.mark.parametrize("wrap", [lambda m: m, nn.DataParallel, lambda m: torch.compile(m, backend="eager")])
def test_a_module_is_told_the_version_that_was_saved(transfer, wrap):
    source, target = nn.Sequential(Scaled(3.0)), nn.Sequential(Scaled())
    transfer((wrap(source),), (target,))
    assert target[0].w.tolist() == [3.0, 3.0]
    assert target[0].loaded_version == 2
    transfer((source,), (wrap(nn.Sequential(Scaled())),))


def test_modules_in_extra_are_told_their_version_however_deep_they_stand(transfer):
    source, target = Scaled(3.0), Scaled()
    nested, back = Holder(Scaled(5.0)), Holder(Scaled())
    transfer(
        (nn.Linear(1, 1), None, None, {"m": source, "n": nested}),
        (nn.Linear(1, 1), None, None, {"m": target, "n": back}),
    )
    assert (target.w.tolist(), back.module.w.tolist()) == ([3.0, 3.0], [5.0, 5.0])


def test_a_step_that_does_not_say_versions_is_read_as_before(checkpoint, monkeypatch):
    model = Scaled(3.0)
    with monkeypatch.context() as patch:
        patch.setattr(TorchState, "_capture_versions", lambda self: None)
        with checkpoint(model) as saving:
            saving.save(after=0).wait()
    with checkpoint(model) as restoring:
        restoring.restore()
    assert model.loaded_version == 1


def test_a_state_dict_inside_a_value_comes_back_as_torch_save_gives_it():
    state = nn.Sequential(nn.BatchNorm1d(2)).state_dict()
    state.clear()  # only what it says of itself
    value = {"a": [state, (1, state)], "b": {1: "x"}}
    back = there_and_back(value)
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    right = torch.load(file)
    for found, wanted in ((back["a"][0], right["a"][0]), (back["a"][1][1], right["a"][1][1])):
        assert type(found) is type(wanted) is OrderedDict
        assert found._metadata == wanted._metadata
    assert back == value


def test_what_is_no_state_dict_has_no_versions():
    assert find_versions({"a": [1, {}], "b": OrderedDict()}, "x") == []


def test_a_version_that_cannot_be_saved_is_named():
    state = OrderedDict()
    state._metadata = {"layer": {"version": object()}}
    with pytest.raises(CheckpointError, match=r"x\.a, version of 'layer'"):
        find_versions({"a": state}, "x")


def test_versions_of_another_value_are_refused():
    for where in (["b"], [0], ["a", "b"]):
        with pytest.raises(FormatError, match="versions of modules"):
            put_versions({"a": 1}, [[where, {}]])
