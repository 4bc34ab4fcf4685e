"""Steps that stock PyTorch loads without stoker, onto other ranks than saved them, bit for bit.

One start of four ranks does it all: what one rank saved goes onto two and onto 2 x 2; what two and 2 x 2 saved goes
onto four, onto two and, in the test, onto one. Plain safetensors reads each file as well.
"""

import json
import os
import subprocess
import sys

import pytest

from stoker.checkpoint.generation import start_generation
from stoker.checkpoint.save import Checkpoint
from stoker.ledger import Ledger, LedgerIdentity
from stoker.store.local import LocalStore
from stoker.values import Layout

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
pytestmark = pytest.mark.dist

# What both sides share: the network, how it is trained, how stock PyTorch loads it, and digests of everything in it.
COMMON = """
import hashlib

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict


class Net(nn.Module):
    def __init__(self, seed):
        torch.manual_seed(seed)
        super().__init__()
        self.up = nn.Linear(6, 8)  # colwise on 2 x 2
        self.down = nn.Linear(8, 4)  # rowwise
        self.norm = nn.LayerNorm(4)  # on every rank of a tensor-parallel pair
        self.odd = nn.Linear(4, 5)  # 5 rows over 2 or 4 ranks
        self.last = nn.Linear(5, 1)  # one row: some ranks hold nothing of it
        self.scale = nn.Parameter(torch.rand(1))
        self.register_buffer("low", torch.rand(7, 3).bfloat16())
        self.register_buffer("count", torch.tensor(seed))  # no dimensions

    def forward(self, x):
        x = self.norm(self.down(self.up(x).relu()))
        return self.last(self.odd(x)) * self.scale + self.low.float().sum()


def train(model, optimizer):
    torch.manual_seed(5)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).square().sum().backward()
        optimizer.step()


def whole(value):
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def digests(tensors):
    found = {n: whole(v) for n, v in sorted(tensors.items())}
    flat = {n: v.detach().contiguous().view(-1).view(torch.uint8) for n, v in found.items()}
    return {n: hashlib.sha256(v.numpy().tobytes()).hexdigest() for n, v in flat.items()}


def flat(weights, moments):
    found = {f"model.{n}": v for n, v in weights.items()}
    for name, values in moments["state"].items():
        found |= {f"optimizer.state.{name}.{key}": value for key, value in values.items()}
    return found


def live(model, optimizer):
    return digests(flat(*get_state_dict(model, optimizer)))


def load(step, model, optimizer, **how):
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    reader = dcp.HuggingFaceStorageReader(str(step))
    dcp.load(state, storage_reader=reader, planner=dcp.DefaultLoadPlanner(allow_partial_load=True), **how)
    return digests(flat(state["model"], state["optimizer"]))
"""

RANKS = (
    COMMON
    + """
import json, os, sys, threading
from itertools import count
from pathlib import Path

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from stoker.checkpoint.generation import start_generation
from stoker.checkpoint.save import Checkpoint
from stoker.ledger import Ledger, LedgerIdentity
from stoker.store.local import LocalStore
from stoker.torch.rendezvous import StoreRendezvous
from stoker.torch.state import TorchState
from stoker.values import Layout

root = Path(sys.argv[1])
dist.init_process_group("gloo")
rank = dist.get_rank()
out = {}


def fsdp(seed, mesh):
    model = Net(seed)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)


def fsdp_over_tp(seed):
    model = Net(seed)
    parallelize_module(model, grid["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(model, mesh=grid["dp"])
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)


class Tables:
    '''Tensors cut along two dimensions of the mesh, unevenly, along one dimension or two of their own.'''

    def __init__(self, seed):
        torch.manual_seed(seed)
        self.values = {
            "block": distribute_tensor(torch.rand(5, 7), grid, [Shard(0), Shard(1)]),
            "rows": distribute_tensor(torch.rand(9, 3), grid, [Shard(0), Shard(0)]),
        }

    def state_dict(self):
        return self.values

    def load_state_dict(self, state):
        self.values = dict(state)


def start(run, world, model, optimizer, **extra):
    store = dist.distributed_c10d._get_default_store()
    layout = Layout(rank, world)
    home = LocalStore(root / run, create=True)
    rendezvous = StoreRendezvous(store, rank, f"{run}-{next(starts)}")
    generation = start_generation(home, run=run, layout=layout, rendezvous=rendezvous)
    ledger = Ledger.create(None, LedgerIdentity(run, rank, world, generation.number, "h"))
    state = TorchState(model, optimizer, extra=extra)
    return Checkpoint(home, generation=generation, state=state, data=None, every=1, ledger=ledger)


def save(*parts, **extra):
    with start(*parts, **extra) as saving:
        saving.save(after=9).wait()


def step(run):
    return root / run / "step-00000010.g0001"


starts = count()
grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
four = init_device_mesh("cpu", (4,))
two = DeviceMesh("cpu", [0, 1])

made = fsdp_over_tp(1)
train(*made)
tables = Tables(1)
save("grid", 4, *made, tables=tables)
out["grid"] = live(*made) | digests({f"extra.tables.{n}": v for n, v in tables.values.items()})
again, others = fsdp_over_tp(2), Tables(2)
with start("grid", 4, *again, tables=others) as restoring:  # by stoker
    assert restoring.restore() == 10
assert live(*again) | digests({f"extra.tables.{n}": v for n, v in others.values.items()}) == out["grid"]
for run in ("one", "grid"):
    again = fsdp_over_tp(2)
    train(*again)
    out[f"{run} on 2 x 2"] = load(step(run), *again)
    again = fsdp(2, four)
    train(*again)
    out[f"{run} on 4"] = load(step(run), *again)
into = {
    "extra.tables.block": distribute_tensor(torch.zeros(5, 7), four, [Shard(1)]),
    "extra.tables.rows": distribute_tensor(torch.zeros(9, 3), grid, [Shard(1), Shard(0)]),
}
dcp.load(into, storage_reader=dcp.HuggingFaceStorageReader(str(step("grid"))))
out["tables"] = digests(into)
if rank < 2:
    made = fsdp(1, two)
    train(*made)
    save("two", 2, *made)
    out["two"] = live(*made)
    for run in ("one", "two", "grid"):
        again = fsdp(2, two)
        train(*again)
        out[f"{run} on 2"] = load(step(run), *again, process_group=two.get_group())
(root / f"out-{rank}.json").write_text(json.dumps(out))
dist.barrier()
dist.destroy_process_group()
assert threading.enumerate() == [threading.main_thread()], threading.enumerate()
os._exit(0)  # test_checkpoint_ranks.py says why
"""
)


@pytest.fixture(scope="module")
def here():
    """The network and how it is loaded, in this process."""
    names = {}
    exec(COMMON, names)
    return names


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, here):
    """Where the steps are, the state that one rank saved, and what each rank found."""
    from stoker.torch.state import TorchState

    root = tmp_path_factory.mktemp("ranks")
    model = here["Net"](7)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    here["train"](model, optimizer)
    home = LocalStore(root / "one", create=True)
    generation = start_generation(home, run="one", layout=Layout())
    ledger = Ledger.create(None, LedgerIdentity("one", 0, 1, generation.number, "h"))
    state = TorchState(model, optimizer)
    with Checkpoint(home, generation=generation, state=state, data=None, every=1, ledger=ledger) as saving:
        saving.save(after=9).wait()
    script = root / "ranks.py"
    script.write_text(RANKS)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*launch, str(script), str(root)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    out = [json.loads((root / f"out-{rank}.json").read_text()) for rank in range(4)]
    return root, here["live"](model, optimizer), out


def test_what_one_rank_saved_goes_onto_two_and_onto_a_mesh_of_two_by_two(ranks):
    _, saved, out = ranks
    assert [found["one on 2 x 2"] for found in out] == [saved] * 4
    assert [found["one on 2"] for found in out[:2]] == [saved] * 2


@pytest.mark.parametrize(
    ("run", "names"), [("two", ["two on 2"]), ("grid", ["grid on 2 x 2", "grid on 4", "grid on 2"])]
)
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # what one process means to do
def test_what_several_ranks_saved_goes_onto_as_many_others_and_one(ranks, here, run, names):
    root, _, out = ranks
    saved = {n: digest for n, digest in out[0][run].items() if not n.startswith("extra.")}
    for name in names:
        found = [one[name] for one in out if name in one]
        assert found == [saved] * len(found)
        assert len(found) == (2 if name.endswith("2") and "x" not in name else 4)
    model = here["Net"](3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    here["train"](model, optimizer)
    assert here["load"](root / run / "step-00000010.g0001", model, optimizer, no_dist=True) == saved


def test_tensors_cut_along_two_dimensions_of_a_mesh_go_onto_other_meshes_and_one_rank(ranks, here):
    root, _, out = ranks
    saved = {n: digest for n, digest in out[0]["grid"].items() if n.startswith("extra.")}
    assert len(saved) == 2
    assert [found["tables"] for found in out] == [saved] * 4
    dcp = here["dcp"]
    into = {"extra.tables.block": torch.zeros(5, 7), "extra.tables.rows": torch.zeros(9, 3)}
    reader = dcp.HuggingFaceStorageReader(str(root / "grid" / "step-00000010.g0001"))
    with pytest.warns(UserWarning, match="torch.distributed is disabled"):
        dcp.load(into, storage_reader=reader, no_dist=True)
    assert here["digests"](into) == saved


@pytest.mark.parametrize(("run", "count"), [("one", 1), ("two", 2), ("grid", 4)])
def test_plain_safetensors_reads_every_file_and_the_parts_make_up_the_tensors(ranks, here, run, count):
    from safetensors import safe_open

    root, one, out = ranks
    files = sorted((root / run / "step-00000010.g0001").glob("*.safetensors"))
    assert len(files) == count
    whole = {}
    for path in files:
        with safe_open(path, framework="pt") as file:
            starts = json.loads(file.metadata()["DCP_SHARDING_INFO"])
            assert starts.keys() == set(file.keys())
            for name in file.keys():  # noqa: SIM118  not a dict
                part, at = file.get_tensor(name), starts[name]["saved_offsets"]
                box = tuple(slice(a, a + size) for a, size in zip(at, part.shape, strict=True))
                sizes = [part_slice.stop for part_slice in box]
                held = whole.get(name, torch.zeros([0] * part.dim(), dtype=part.dtype))
                grown = torch.zeros([max(a, b) for a, b in zip(sizes, held.shape, strict=True)], dtype=part.dtype)
                grown[tuple(slice(size) for size in held.shape)] = held
                grown[box] = part
                whole[name] = grown
    assert here["digests"](whole) == (one if run == "one" else out[0][run])
