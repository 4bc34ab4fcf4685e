"""A PyTorch training state goes through files and back without losing a bit, a type or a name."""

import copy
import gc
import json
import weakref

import pytest
import torch
from torch import nn

from stoker.errors import CheckpointError, ConfigError
from stoker.torch.state import TorchState
from stoker.torch.tensors import DTYPES
from stoker.values import Key


class Net(nn.Module):
    """Some of everything: tied weights, a buffer, dropout."""

    def __init__(self, seed=0, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(5, 4, dtype=dtype)
        self.layers = nn.Sequential(nn.Linear(4, 4, dtype=dtype), nn.Dropout(0.5), nn.Linear(4, 4, dtype=dtype))
        self.head = nn.Linear(4, 5, bias=False, dtype=dtype)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.tensor(1.5 + seed))

    def forward(self, x):
        return self.head(self.layers(self.embed(x))) * self.scale.to(self.head.weight.dtype)


def train(model, optimizer, steps=3, scheduler=None, seed=3):
    torch.manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randint(0, 5, (6,))
        nn.functional.cross_entropy(model(x).float(), x).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def same(a, b):
    """Equal in type, dtype, shape and bits, all the way down."""
    if isinstance(a, torch.Tensor):
        return (
            type(a) is type(b)
            and (a.dtype, a.shape) == (b.dtype, b.shape)
            and torch.equal(
                a.detach().contiguous().view(-1).view(torch.uint8), b.detach().contiguous().view(-1).view(torch.uint8)
            )
        )
    if isinstance(a, dict):
        return type(a) is type(b) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@pytest.mark.parametrize(
    "kind",
    [
        lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.95)),
        lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01), amsgrad=True),
        lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=0.1),
        torch.optim.Adagrad,
        lambda p: torch.optim.RMSprop(p, centered=True),
        lambda p: torch.optim.LBFGS(p, max_iter=2),
    ],
)
def test_a_run_that_is_restored_goes_on_bit_for_bit(transfer, kind):
    source, target = Net(1), Net(2)
    one, two = kind(source.parameters()), kind(target.parameters())

    def step(model, optimizer):
        def closure():
            optimizer.zero_grad()
            x = torch.randint(0, 5, (6,))
            loss = nn.functional.cross_entropy(model(x), x)
            loss.backward()
            return loss

        return [optimizer.step(closure).item() for _ in range(3)]

    step(source, one)
    transfer((source, one), (target, two))
    assert same(target.state_dict(), source.state_dict())
    assert same(two.state_dict(), one.state_dict())
    # The random numbers (dropout, batches) were restored as well, so both go the same way; the source is rewound.
    after = torch.get_rng_state()
    losses = step(target, two)
    torch.set_rng_state(after)
    assert step(source, one) == losses
    assert same(target.state_dict(), source.state_dict())


def test_a_target_that_was_trained_already_is_brought_back(transfer):
    source, target = Net(1), Net(2)
    one, two = (torch.optim.AdamW(m.parameters()) for m in (source, target))
    train(source, one)
    train(target, two, steps=5)
    transfer((source, one), (target, two))
    assert same(two.state_dict(), one.state_dict())


def test_an_optimizer_that_has_no_state_yet_restores_to_one_without(transfer):
    source, target = Net(1), Net(2)
    one, two = (torch.optim.AdamW(m.parameters(), lr=lr) for m, lr in ((source, 0.5), (target, 0.1)))
    train(target, two)
    transfer((source, one), (target, two))
    assert two.state_dict()["state"] == {}
    assert two.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_state_of_another_dtype_than_its_parameter_keeps_it(transfer, dtype):
    source, target = Net(1, dtype), Net(2, dtype)
    one, two = (torch.optim.AdamW(m.parameters()) for m in (source, target))
    for parameter in source.parameters():
        one.state[parameter] = {
            "step": torch.tensor(3.0),
            "exp_avg": torch.randn(parameter.shape, dtype=torch.float32),
            "exp_avg_sq": torch.rand(parameter.shape, dtype=torch.float64),
            "count": torch.tensor([1, 2]),
        }
    transfer((source, one), (target, two))
    assert same(two.state_dict(), one.state_dict())


def test_state_that_is_no_tensor_keeps_its_types(transfer):
    source, target = Net(1), Net(2)
    one, two = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (source, target))
    one.param_groups[0]["custom"] = ("a", 1, None, [2.5, True], float("inf"))
    first = next(source.parameters())
    one.state[first] = {"momentum_buffer": None, "tag": "text", "seen": 7, "nested": {"v": [torch.ones(2), (1, 2)]}}
    transfer((source, one), (target, two))
    assert same(two.state_dict(), one.state_dict())


def test_groups_may_list_their_parameters_in_another_order(transfer):
    source, target = Net(1), Net(2)
    ordered = list(source.parameters())
    one = torch.optim.AdamW([{"params": ordered[:2], "lr": 0.1}, {"params": ordered[2:]}])
    other = list(target.parameters())
    two = torch.optim.AdamW([{"params": other[:2][::-1]}, {"params": other[2:][::-1], "lr": 0.7}])
    train(source, one)
    transfer((source, one), (target, two))
    assert [group["lr"] for group in two.param_groups] == [0.1, 0.001]
    for a, b in zip(ordered, other, strict=True):
        assert same(one.state[a], two.state[b])


def test_groups_that_differ_are_refused_in_words(checkpoint, transfer):
    source = Net(1)
    one = torch.optim.AdamW(source.parameters())
    target = Net(2)
    parts = list(target.parameters())
    two = torch.optim.AdamW([{"params": parts[:2]}, {"params": parts[2:]}])
    before = copy.deepcopy(target.state_dict())
    with pytest.raises(CheckpointError, match="the optimizer has 2 parameter groups, 1 were saved"):
        transfer((source, one), (target, two))
    with pytest.raises(CheckpointError, match=r"group 0 of the optimizer has other parameters than were saved: embed"):
        checkpoint(target, torch.optim.AdamW(parts[1:])).restore()
    assert same(target.state_dict(), before)


@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 4, 4]),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=50),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o,
            [torch.optim.lr_scheduler.LinearLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)],
            [2],
        ),
    ],
)
def test_a_schedule_goes_on_where_it_was(transfer, schedule):
    made = []
    for seed in (1, 2):
        model = Net(seed)
        optimizer = torch.optim.AdamW(model.parameters())
        made.append((model, optimizer, schedule(optimizer)))
    train(*made[0][:2], scheduler=made[0][2])
    transfer(*made)
    assert same(made[1][2].state_dict(), made[0][2].state_dict())
    for _ in range(3):
        for _, optimizer, scheduler in made:
            optimizer.step()
            scheduler.step()
        assert made[0][1].param_groups[0]["lr"] == made[1][1].param_groups[0]["lr"]


def test_a_plateau_schedule_with_an_infinite_best_comes_back(transfer):
    made = []
    for seed in (1, 2):
        model = Net(seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        made.append((model, optimizer, torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)))
    transfer(*made)
    assert made[1][2].best == float("inf")


class Bag(nn.Module):
    """Holds one buffer of every dtype and shape."""

    def __init__(self, fill):
        super().__init__()
        generator = torch.Generator().manual_seed(fill)
        for dtype in DTYPES:
            for number, shape in enumerate([(), (0,), (3, 0), (5,), (2, 3)]):
                size = torch.zeros(shape, dtype=dtype).nbytes
                data = torch.randint(
                    0, 2 if dtype == torch.bool else 256, (size,), dtype=torch.uint8, generator=generator
                )
                value = data.view(dtype).reshape(shape) if size else torch.zeros(shape, dtype=dtype)
                self.register_buffer(f"{str(dtype).removeprefix('torch.')}_{number}", value)


def test_every_dtype_and_shape_round_trips(transfer):
    source, target = Bag(1), Bag(2)
    transfer((source,), (target,))
    assert same(dict(target.state_dict()), dict(source.state_dict()))
    assert len(DTYPES) >= 17


def test_views_transposes_and_negated_views_are_saved_as_their_values(transfer):
    base = torch.arange(24.0).reshape(4, 6)
    views = [
        base.t(),
        base[::2, 1::2],
        base[0].expand(3, 6),
        torch._neg_view(base),
        torch.view_as_complex(base.view(4, 3, 2)).conj(),
    ]
    source, target = nn.Module(), nn.Module()
    for number, view in enumerate(views):
        source.register_buffer(f"b{number}", view)
        target.register_buffer(f"b{number}", torch.zeros(view.shape, dtype=view.dtype))
    transfer((source,), (target,))
    for number, view in enumerate(views):
        assert torch.equal(getattr(target, f"b{number}"), view.resolve_conj().resolve_neg())


def test_tied_parameters_stay_tied(transfer):
    source, target = Net(1), Net(2)
    transfer((source,), (target,))
    assert target.head.weight is target.embed.weight
    assert same(target.head.weight, source.embed.weight)


def test_what_a_step_changes_after_the_snapshot_does_not_reach_the_file(checkpoint):
    model = Net(1)
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer)
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    with checkpoint(model, optimizer) as saving:
        save = saving.save(after=0)
        train(model, optimizer)
        save.wait()
    restored = Net(2)
    again = torch.optim.AdamW(restored.parameters())
    checkpoint(restored, again).restore()
    assert same(restored.state_dict(), before[0])
    assert same(again.state_dict(), before[1])


def test_names_in_the_file_are_those_of_the_model(home, checkpoint):
    model = nn.Sequential(nn.Linear(2, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.step()
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    with checkpoint(model, optimizer) as saving:
        saving.save(after=0).wait()
    data = home.read(Key("step-00000001.g0001/rank-00000-of-00001.safetensors"))
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    parameters = ["0.weight", "0.bias"]
    assert header.keys() - {"__metadata__"} == {f"model.{p}" for p in parameters} | {
        f"optimizer.state.{p}.{k}" for p in parameters for k in ("step", "exp_avg", "exp_avg_sq")
    }
    manifest = json.loads(home.read(Key("step-00000001.g0001/MANIFEST.json")))
    group = manifest["state"]["optimizer"]["groups"][0]
    assert group["params"] == parameters
    assert (group["lr"], group["betas"]) == (0.001, {"$tuple": [0.9, 0.999]})


class Wrapper(nn.Module):
    def __init__(self, name, module):
        super().__init__()
        self.add_module(name, module)


def test_wrappers_of_compile_and_checkpointing_leave_no_trace(transfer):
    source, target = Net(1), Net(2)
    wrapped = Wrapper("_orig_mod", Wrapper("_checkpoint_wrapped_module", target))
    one, two = torch.optim.AdamW(source.parameters()), torch.optim.AdamW(wrapped.parameters())
    train(source, one)
    transfer((source, one), (wrapped, two))
    assert same(target.state_dict(), source.state_dict())
    assert same(two.state_dict()["state"], one.state_dict()["state"])
    transfer((wrapped, two), (source, one))


def test_a_compiled_model_saves_as_the_model_it_was(transfer):
    source, target = Net(1), Net(2)
    transfer((torch.compile(source, backend="eager"),), (target,))
    assert same(target.state_dict(), source.state_dict())


class Average:
    """An exponential moving average, as users write them."""

    def __init__(self, model):
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.count = 0

    def state_dict(self):
        return {"shadow": self.shadow, "count": self.count, "decay": (0.9, None)}

    def load_state_dict(self, state):
        self.shadow, self.count = state["shadow"], state["count"]
        assert state["decay"] == (0.9, None)


def test_extra_objects_come_back(transfer):
    source, target = Net(1), Net(2)
    one, two = Average(source), Average(target)
    one.count = 7
    muon = [torch.optim.SGD(m.parameters(), lr=lr, momentum=0.9) for m, lr in ((source, 0.3), (target, 0.1))]
    train(source, muon[0])
    transfer((source, None, None, {"ema": one, "muon": muon[0]}), (target, None, None, {"ema": two, "muon": muon[1]}))
    assert two.count == 7
    assert same(two.shadow, one.shadow)
    assert same(muon[1].state_dict(), muon[0].state_dict())


class Fp8(nn.Linear):
    """A module with extra state that is no tensor, as transformer engines have."""

    history = (1.0,)

    def get_extra_state(self):
        return {"history": self.history, "amax": torch.tensor([2.5])}

    def set_extra_state(self, state):
        self.history, self.amax = state["history"], state["amax"]


def test_extra_state_of_modules_comes_back(transfer):
    source, target = Fp8(2, 2), Fp8(2, 2)
    source.history = (3.0, 4.0)
    transfer((source,), (target,))
    assert target.history == (3.0, 4.0)
    assert same(target.amax, torch.tensor([2.5]))


def test_all_that_does_not_fit_is_told_at_once_and_nothing_changes(checkpoint):
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    with checkpoint(model) as saving:
        saving.save(after=0).wait()
    other = nn.ModuleDict({"a": nn.Linear(2, 3, dtype=torch.float64), "c": nn.Linear(2, 2), "d": nn.Linear(2, 2)})
    before = copy.deepcopy(other.state_dict())
    state = torch.get_rng_state()
    with pytest.raises(CheckpointError) as caught:
        checkpoint(other).restore()
    assert caught.value.what == (
        "the checkpoint does not fit the training state: "
        "4 tensors are missing in it: 'model.c.bias', 'model.c.weight', 'model.d.bias', ...; "
        "2 tensors in it are unexpected: 'model.b.bias', 'model.b.weight'; "
        "2 differ in shape or dtype: 'model.a.weight' is F64 [3, 2], stored is F32 [2, 2], "
        "'model.a.bias' is F64 [3], stored is F32 [2]"
    )
    assert same(other.state_dict(), before)
    assert torch.equal(torch.get_rng_state(), state)


def test_parts_that_are_there_on_one_side_only_are_told(checkpoint):
    model = Net(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    with checkpoint(model, optimizer, scheduler, {"ema": Average(model)}) as saving:
        saving.save(after=0).wait()
    with pytest.raises(CheckpointError) as caught:
        checkpoint(model).restore()
    for told in [
        "it was saved with optimizer, and is restored without",
        "it was saved with scheduler, and is restored without",
        "extra has other names than were saved: 'ema'",
    ]:
        assert told in caught.value.what
    with checkpoint(model) as saving:
        saving.save(after=0).wait()
    with pytest.raises(CheckpointError, match="saved without optimizer, and is restored with"):
        checkpoint(model, optimizer).restore()


@pytest.mark.parametrize(
    ("tensor", "what"),
    [
        (torch.zeros(2, device="meta"), "meta device"),
        (torch.zeros(2).to_sparse(), "layout is torch.sparse_coo"),
        (torch.zeros(2, dtype=torch.complex128), "no dtype for torch.complex128"),
        (torch.zeros(2).as_subclass(type("Odd", (torch.Tensor,), {})), "it is a .*Odd"),
    ],
)
def test_tensors_that_cannot_be_stored_as_they_are_are_refused_by_name(tensor, what):
    model = nn.Module()
    model.register_buffer("odd", tensor)
    with pytest.raises(CheckpointError, match=rf"tensor 'model\.odd' cannot be saved: .*{what}"):
        TorchState(model).capture()


def test_values_that_cannot_be_stored_are_refused_by_name(checkpoint):
    model = Net(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["odd"] = object()
    with pytest.raises(CheckpointError, match=r"'optimizer\.param_groups\.0\.odd' cannot be saved"):
        checkpoint(model, optimizer).save(after=0)


def test_a_parameter_that_is_none_of_the_models_is_refused(checkpoint):
    model = Net(1)
    optimizer = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(7))], lr=0.1)
    with pytest.raises(
        CheckpointError, match=r"parameter 5 of optimizer group 0, of shape \[7\], is none of the model's"
    ):
        checkpoint(model, optimizer).save(after=0)


def test_two_tensors_of_one_path_are_refused():
    class Twice:
        def state_dict(self):
            return {"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)}

        def load_state_dict(self, state):
            pass

    with pytest.raises(CheckpointError, match=r"two tensors of the training state are named 'extra\.x\.a\.b'"):
        TorchState(Net(1), extra={"x": Twice()}).capture()


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        (("model",), "model is a str"),
        ((nn.Linear(1, 1), [torch.optim.SGD([nn.Parameter(torch.ones(1))])]), "optimizer is a list"),
        ((nn.Linear(1, 1), None, 3), "scheduler is a int without state_dict"),
        ((nn.Linear(1, 1), None, None, {"ema": 3}), r"extra\['ema'\] is a int"),
        ((nn.Linear(1, 1), None, None, [nn.Linear(1, 1)]), r"extra is \[Linear"),
        ((nn.Linear(1, 1), None, None, 5), "extra is 5"),
        ((nn.Linear(1, 1), None, None, {5: nn.Linear(1, 1)}), "extra is {5: Linear"),
    ],
)
def test_what_is_no_training_state_is_refused_at_once(parts, what):
    with pytest.raises(ConfigError, match=what):
        TorchState(*parts)


def test_nothing_of_the_model_is_held_after_a_save(checkpoint):
    model = Net(1)
    with checkpoint(model) as saving:
        saving.save(after=0).wait()
        parameter = weakref.ref(model.layers[0].weight)
        model.layers[0].weight = nn.Parameter(torch.zeros(4, 4))
        gc.collect()
        assert parameter() is None
        saving.save(after=1).wait()
    again = Net(2)
    checkpoint(again).restore()
    assert (again.layers[0].weight == 0).all()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # what one process means to do
def test_stock_pytorch_loads_a_step_without_stoker(home, checkpoint):
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    pytest.importorskip("safetensors")
    model = Net(1)
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer)
    with checkpoint(model, optimizer) as saving:
        saving.save(after=0).wait()
    from torch.distributed.checkpoint.state_dict import get_state_dict

    target = Net(2)
    again = torch.optim.AdamW(target.parameters(), lr=0.7)
    train(target, again)
    weights, moments = get_state_dict(target, again)
    state = {"model": weights, "optimizer": moments}
    dcp.load(
        state,
        storage_reader=dcp.HuggingFaceStorageReader(str(home.root / "step-00000001.g0001")),
        planner=dcp.DefaultLoadPlanner(allow_partial_load=True),
        no_dist=True,
    )
    assert same(dict(state["model"]), dict(model.state_dict()))
    expected = get_state_dict(model, optimizer)[1]["state"]
    assert same(state["optimizer"]["state"], expected)


def test_another_kind_of_optimizer_or_scheduler_is_refused_by_both_names(checkpoint):
    def parts(kind, schedule):
        model = Net(1)
        optimizer = kind(model.parameters(), lr=0.1)
        return model, optimizer, schedule(optimizer)

    def steps(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 3)

    def cosine(optimizer):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)

    with checkpoint(*parts(torch.optim.Adam, steps)) as saving:
        saving.save(after=0).wait()
    with pytest.raises(CheckpointError, match="the optimizer was an Adam when it was saved, and is an AdamW"):
        checkpoint(*parts(torch.optim.AdamW, steps)).restore()
    with pytest.raises(
        CheckpointError, match="the scheduler was a StepLR when it was saved, and is a CosineAnnealingLR"
    ):
        checkpoint(*parts(torch.optim.Adam, cosine)).restore()
    assert checkpoint(*parts(torch.optim.Adam, steps)).restore() == 1


def test_a_step_that_does_not_say_of_which_kind_it_is_restores_into_any(checkpoint, monkeypatch):
    model = Net(1)
    with monkeypatch.context() as patch:
        patch.setattr(TorchState, "_classes", lambda self: {})
        with checkpoint(model, torch.optim.Adam(model.parameters())) as saving:
            saving.save(after=0).wait()
    assert checkpoint(model, torch.optim.AdamW(model.parameters())).restore() == 1


def test_keys_of_an_optimizer_keep_their_order(transfer):
    source, target = Net(1), Net(2)
    one, two = (torch.optim.AdamW(m.parameters()) for m in (source, target))
    train(source, one)
    one.param_groups[0]["zz"] = 1
    transfer((source, one), (target, two))
    assert [list(values) for values in two.state.values()] == [["step", "exp_avg", "exp_avg_sq"]] * len(two.state)
    assert list(two.param_groups[0]) == list(one.param_groups[0])


def test_a_learning_rate_that_groups_share_stays_one_tensor(transfer):
    def shared(model, value):
        rate = torch.tensor(value)
        groups = [{"params": [p], "lr": rate} for p in model.parameters()]
        return rate, torch.optim.SGD(groups)

    source, target = nn.Linear(2, 2), nn.Linear(2, 2)
    _, one = shared(source, 0.5)
    rate, two = shared(target, 0.1)
    transfer((source, one), (target, two))
    assert rate.item() == 0.5
    assert all(group["lr"] is rate for group in two.param_groups)
    one.param_groups[0]["lr"] = torch.tensor(0.25)  # what was saved apart stays apart
    transfer((source, one), (target, two))
    assert [group["lr"].item() for group in two.param_groups] == [0.25, 0.5]


def test_a_tensor_whose_memory_was_freed_is_named(checkpoint):
    model = nn.Linear(2, 2)
    saving = checkpoint(model)
    model.weight.untyped_storage().resize_(0)  # as sharded training leaves it between steps
    with pytest.raises(CheckpointError, match=r"tensor 'model\.weight' cannot be saved: its memory was freed"):
        saving.save(after=0)


@pytest.mark.parametrize("place", ["box_of", "copy_bytes"])
def test_a_tensor_that_pytorch_refuses_to_look_at_or_copy_is_named(checkpoint, monkeypatch, place):
    def refuse(*_):
        raise RuntimeError("not implemented\nfor this backend")

    saving = checkpoint(nn.Linear(2, 2))
    monkeypatch.setattr(f"stoker.torch.state.{place}", refuse)
    with pytest.raises(CheckpointError, match=r"tensor 'model\.\w+' cannot be saved: not implemented$"):
        saving.save(after=0)


@pytest.mark.parametrize("trained", [False, True])
def test_shards_that_data_parallel_hides_are_refused_and_not_left_out(trained):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        grid = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
        plain = nn.parallel.DistributedDataParallel(nn.Linear(2, 2), device_mesh=grid["dp"])
        assert len(TorchState(plain).capture().entries) == 2
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        parallelize_module(model, grid["tp"], {"1": ColwiseParallel()})
        wrapped = nn.parallel.DistributedDataParallel(model, device_mesh=grid["dp"])
        if trained:
            wrapped(torch.ones(1, 2)).sum().backward()
        with pytest.raises(CheckpointError, match=r"parameter '1\.\w+' cannot be saved: .* hides that it is a shard"):
            TorchState(wrapped).capture()
    finally:
        dist.destroy_process_group()
