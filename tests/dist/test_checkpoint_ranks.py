"""Checkpoints of real ranks: DDP and FSDP under torchrun, and a rank that is killed around its receipt."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from stoker.checkpoint.generation import start_generation
from stoker.checkpoint.save import Checkpoint, SaveOptions
from stoker.errors import SaveFailed
from stoker.ledger import Ledger, LedgerIdentity
from stoker.store.local import LocalStore
from stoker.testing.training import ArrayState
from stoker.values import Layout

pytestmark = pytest.mark.dist

# Trains under DDP and under FSDP, saves, restores into fresh models, and writes down digests of everything.
RANKS = """
import hashlib, json, os, sys, threading
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from stoker.checkpoint.generation import start_generation
from stoker.checkpoint.save import Checkpoint
from stoker.ledger import Ledger, LedgerIdentity
from stoker.store.local import LocalStore
from stoker.torch.rendezvous import make_rendezvous
from stoker.torch.state import TorchState
from stoker.values import Layout

root = Path(sys.argv[1])
dist.init_process_group("gloo")
layout = Layout.from_environment(os.environ)


def network(seed):
    torch.manual_seed(seed)
    # 5 rows over 2 ranks: shards of 3 and 2; the last has one row, so that one rank holds nothing of it.
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1))


def ddp(seed):
    model = nn.parallel.DistributedDataParallel(network(seed))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def fsdp(seed):
    model = network(seed)
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model, optimizer):
    torch.manual_seed(5)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).square().sum().backward()
        optimizer.step()
    torch.manual_seed(100 + layout.dp_rank)


def checkpoint(run, model, optimizer):
    home = LocalStore(root / run, create=True)
    rendezvous = make_rendezvous(layout, os.environ)
    generation = start_generation(home, run=run, layout=layout, rendezvous=rendezvous)
    ledger = Ledger.create(None, LedgerIdentity(run, layout.dp_rank, layout.dp_size, generation.number, "h"))
    state = TorchState(model, optimizer)
    return Checkpoint(home, generation=generation, state=state, data=None, every=1, ledger=ledger)


def digest(model, optimizer):
    found = {}
    for name, value in model.state_dict().items():
        found[name.removeprefix("module.")] = value
    names = list(found)
    for index, values in optimizer.state_dict()["state"].items():
        for key, value in values.items():
            found[f"{names[index]}.{key}"] = value
    whole = {n: v.full_tensor() if hasattr(v, "full_tensor") else v for n, v in sorted(found.items())}
    return {n: hashlib.sha256(v.numpy().tobytes()).hexdigest() for n, v in whole.items()}


out = {}
for run, make in (("ddp", ddp), ("fsdp", fsdp)):
    model, optimizer = make(1)
    train(model, optimizer)
    with checkpoint(run, model, optimizer) as saving:
        saving.save(after=9).wait()
    expected = digest(model, optimizer)
    drawn = torch.rand(4).tolist()
    again = make(2)
    with checkpoint(run, *again) as restoring:
        assert restoring.restore() == 10
    assert torch.rand(4).tolist() == drawn
    assert digest(*again) == expected
    out[run] = expected
# Another layout than it was saved with: replicated tensors into shards, what one rank saved into both.
for run in ("ddp", "plain"):
    model, optimizer = fsdp(3)
    with checkpoint(run, model, optimizer) as restoring:
        assert restoring.restore() == 10
    out[f"{run} in fsdp"] = digest(model, optimizer)
(root / f"out-{layout.dp_rank}.json").write_text(json.dumps(out))
dist.barrier()
dist.destroy_process_group()
# stoker leaves no thread behind. Gloo does: PyTorch's caches of DTensor placements keep the group alive beyond its
# destroy_process_group(), and a worker thread of it still has to drop the tensors of the last all-gather, for which it
# takes the GIL. Where the interpreter is ending by then, the thread is unwound out of a C++ destructor and the process
# aborts: "terminate called without an active exception" (github.com/pytorch/pytorch/issues/190489). So this process
# ends without an end of its interpreter.
assert threading.enumerate() == [threading.main_thread()], threading.enumerate()
os._exit(0)
"""


def plain_checkpoint(root, run, model, optimizer):
    from stoker.torch.state import TorchState

    home = LocalStore(root / run, create=True)
    generation = start_generation(home, run=run, layout=Layout())
    ledger = Ledger.create(None, LedgerIdentity(run, 0, 1, generation.number, "h"))
    return Checkpoint(
        home, generation=generation, state=TorchState(model, optimizer), data=None, every=1, ledger=ledger
    )


def plain_digest(model, optimizer):
    found = dict(model.state_dict())
    names = list(found)
    for index, values in optimizer.state_dict()["state"].items():
        found |= {f"{names[index]}.{key}": value for key, value in values.items()}
    return {n: hashlib.sha256(v.numpy().tobytes()).hexdigest() for n, v in sorted(found.items())}


def test_ddp_and_fsdp_and_one_rank_restore_each_other_bit_for_bit(tmp_path):
    torch = pytest.importorskip("torch")
    from torch import nn

    def make(seed):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1))
        return model, torch.optim.AdamW(model.parameters(), lr=0.01)

    model, optimizer = make(7)
    model(torch.randn(4, 6)).square().sum().backward()
    optimizer.step()
    with plain_checkpoint(tmp_path, "plain", model, optimizer) as saving:
        saving.save(after=9).wait()
    script = tmp_path / "ranks.py"
    script.write_text(textwrap.dedent(RANKS))
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(script),
        str(tmp_path),
    ]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    out = [json.loads((tmp_path / f"out-{rank}.json").read_text()) for rank in range(2)]
    assert out[0] == out[1]
    assert out[0]["plain in fsdp"] == plain_digest(model, optimizer)
    assert out[0]["ddp in fsdp"] == out[0]["ddp"]
    for run in ("ddp", "fsdp"):
        alone = make(8)
        with plain_checkpoint(tmp_path, run, *alone) as restoring:
            assert restoring.restore() == 10
        assert plain_digest(*alone) == out[0][run]
    # Two ranks wrote, each its part: no tensor twice.
    sizes = [p.stat().st_size for p in (tmp_path / "fsdp" / "step-00000010.g0001").glob("*.safetensors")]
    assert len(sizes) == 2


RANK_1 = """
import sys

import numpy as np

from stoker.checkpoint.generation import Generation
from stoker.checkpoint.save import Checkpoint, SaveOptions
from stoker.ledger import Ledger, LedgerIdentity
from stoker.store.local import LocalStore
from stoker.testing.training import ArrayState
from stoker.values import Layout

state = ArrayState({f"model.{i}": np.arange(100.0) for i in range(6)}, stream=1)
ledger = Ledger.create(None, LedgerIdentity("r", 1, 2, 1, "h"))
checkpoint = Checkpoint(
    LocalStore(sys.argv[1]),
    generation=Generation("r", 1, Layout(1, 2)),
    state=state,
    data=None,
    every=1,
    ledger=ledger,
    options=SaveOptions(deadline_s=20),
)
checkpoint.save(after=9).wait()
"""


class Told:
    """A rendezvous with nobody at the other end."""

    def broadcast(self, name, value, deadline_s):
        return value


@pytest.fixture
def rank_0(tmp_path):
    """rank_0(deadline_s) is the checkpoint of rank 0 of 2."""

    def make(deadline_s):
        home = LocalStore(tmp_path / "home", create=True)
        generation = start_generation(home, run="r", layout=Layout(0, 2), rendezvous=Told())
        state = ArrayState({f"model.{i}": np.arange(100.0) for i in range(6)})
        ledger = Ledger.create(None, LedgerIdentity("r", 0, 2, generation.number, "h"))
        options = SaveOptions(deadline_s=deadline_s)
        return Checkpoint(home, generation=generation, state=state, data=None, every=1, ledger=ledger, options=options)

    return make


def run_rank_1(tmp_path, dies_at):
    environ = {**os.environ, "STOKER_CRASH": dies_at}
    return subprocess.Popen([sys.executable, "-c", RANK_1, str(tmp_path / "home")], env=environ)


def test_a_save_commits_when_a_rank_is_killed_right_after_its_receipt(tmp_path, rank_0):
    checkpoint = rank_0(deadline_s=60)
    rank_1 = run_rank_1(tmp_path, "checkpoint-receipt-written")
    assert rank_1.wait(60) == -signal.SIGKILL
    checkpoint.save(after=9).wait()
    state = ArrayState({f"model.{i}": np.zeros(100) for i in range(6)})
    home = LocalStore(tmp_path / "home")
    assert list(home.list_dirs()) == ["step-00000010.g0001"]
    generation = start_generation(home, run="r", layout=Layout())
    ledger = Ledger.create(None, LedgerIdentity("r", 0, 1, generation.number, "h"))
    again = Checkpoint(home, generation=generation, state=state, data=None, every=1, ledger=ledger)
    assert again.restore() == 10
    assert all(np.array_equal(a, np.arange(100.0)) for a in state.arrays.values())


def test_a_save_is_given_up_by_the_deadline_when_a_rank_is_killed_before_its_receipt(tmp_path, rank_0):
    checkpoint = rank_0(deadline_s=0.3)
    rank_1 = run_rank_1(tmp_path, "checkpoint-file-written")
    assert rank_1.wait(60) == -signal.SIGKILL
    assert (tmp_path / "home" / "step-00000010.g0001.partial" / "rank-00001-of-00002.safetensors").exists()
    began = time.monotonic()
    save = checkpoint.save(after=9)
    with pytest.raises(SaveFailed, match="no receipt of rank 1 within 300 ms"):
        save.wait()
    assert 0.3 <= time.monotonic() - began < 5
    home = LocalStore(tmp_path / "home")
    assert list(home.list_dirs()) == ["step-00000010.g0001.aborted"]
    start_generation(home, run="r", layout=Layout())
    assert list(home.list_dirs()) == []
