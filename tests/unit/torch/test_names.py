"""Names of parameters without the wrappers around the model."""

import pytest
import torch.distributed as dist
from torch import nn

from stoker.errors import CheckpointError
from stoker.torch.names import clean_names, cleaner, parameter_names


class Holder(nn.Module):
    def __init__(self, **modules):
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)


def test_data_parallel_wrappers_are_taken_out_wherever_they_stand():
    model = Holder(trunk=nn.DataParallel(nn.Linear(1, 1)), head=nn.Linear(1, 1))
    assert set(clean_names(model, model.state_dict()).values()) == {
        *("trunk.weight", "trunk.bias", "head.weight", "head.bias"),
    }
    assert set(parameter_names(nn.DataParallel(nn.DataParallel(nn.Linear(1, 1)))).values()) == {"weight", "bias"}


def test_distributed_data_parallel_is_taken_out():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
        assert clean_names(model, model.state_dict()) == {"module.weight": "weight", "module.bias": "bias"}
    finally:
        dist.destroy_process_group()


def test_a_module_of_the_users_that_is_called_module_keeps_its_name():
    model = Holder(module=nn.Linear(1, 1))
    assert cleaner(model)("module.weight") == "module.weight"
    assert cleaner(nn.DataParallel(model))("module.module.weight") == "module.weight"


def test_names_that_become_the_same_are_refused():
    model = Holder(_orig_mod=Holder(a=nn.Linear(1, 1)), a=nn.Linear(1, 1))
    with pytest.raises(CheckpointError, match=r"'a\.weight' and '_orig_mod\.a\.weight' are both named 'a\.weight'"):
        clean_names(model, model.state_dict())


def test_a_tied_parameter_has_the_first_of_its_names():
    model = Holder(a=nn.Linear(2, 2), b=nn.Linear(2, 2))
    model.b.weight = model.a.weight
    assert sorted(parameter_names(model).values()) == ["a.bias", "a.weight", "b.bias"]
