"""Four real ranks on a mesh of two by two: tensor-parallel peers get the same batches, data-parallel ranks share them."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

import stoker

pytest.importorskip("torch")
pytestmark = pytest.mark.dist

SCRIPT = """
import json, os, sys
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.utils.data import DataLoader
import stoker

data, out, shared = sys.argv[1:4]
dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
layout = stoker.torch.layout(mesh)
photos = stoker.Dataset(data).decode({"json": "json"})
said = {"layout": [layout.dp_rank, layout.dp_size]}

# The run has four ranks, each its own; the loader has two, each twice. Checkpoints need the one, data the other.
with stoker.open(run="r", nvme=f"{out}-nvme", shared=shared) as run:
    loader = run.loader(photos, global_batch_size=8, seed=3, epochs=2, layout=layout)
    torch.manual_seed(int(out[-1], 36))  # each launch begins with other weights
    model = torch.nn.Sequential(torch.nn.Linear(4, 6))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    state = run.checkpoint(model=model, optimizer=optimizer, data=loader, every=4)
    said["restored"] = state.restore()

    def weights():
        return {name: value.full_tensor().tolist() for name, value in model.state_dict().items()}

    said["weights"] = {-1: weights()}
    steps = {}
    for batch in loader:
        steps[batch.step] = [batch.sample_keys, batch["json"]]
        optimizer.zero_grad()
        model(torch.tensor(batch["json"], dtype=torch.float32)[:, None].expand(-1, 4)).square().mean().backward()
        optimizer.step()
        said["weights"][batch.step] = weights()
        state.save_if_due(after=batch)
        if len(steps) == 5:
            break
    state.wait()
said["named"] = steps

# The layout of the mesh for a whole run: without a name, without checkpoints.
with stoker.open(nvme=f"{out}-nvme", layout=layout) as run:
    loader = run.loader(photos, global_batch_size=8, seed=3, epochs=2)
    said["nameless"] = {b.step: [b.sample_keys, b["json"]] for b in DataLoader(stoker.torch.dataset(loader), batch_size=None)}
    said["state"] = loader.position(after=3).to_json()

# With a name it is refused on every rank, before anything is made.
try:
    stoker.open(run="peers", nvme=f"{out}-nvme", layout=layout, shared=shared)
except stoker.errors.LayoutError as error:
    said["refused"] = str(error)
with open(f"{out}-{rank}.json", "w") as f:
    json.dump(said, f)
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # gloo may abort at the end of an interpreter
"""


@pytest.fixture
def data(tmp_path):
    with stoker.writer(tmp_path / "data") as w:
        for i in range(50):
            w.write(f"s{i:03d}", {"json": json.dumps(i).encode()})
    return tmp_path / "data"


@pytest.fixture
def launch(tmp_path, data):
    def launch(out):
        script = tmp_path / "mesh.py"
        script.write_text(textwrap.dedent(SCRIPT))
        (tmp_path / "shared").mkdir(exist_ok=True)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", str(script)]
        command += [str(data), str(tmp_path / out), str(tmp_path / "shared")]
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=150, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return [json.loads((tmp_path / f"{out}-{rank}.json").read_text()) for rank in range(4)]

    return launch


def test_peers_get_the_same_batches_and_the_halves_make_up_the_global_batch(tmp_path, data, launch):
    ranks = launch("a")
    with stoker.open(nvme=tmp_path / "alone") as run:
        loader = run.loader(stoker.Dataset(data).decode({"json": "json"}), global_batch_size=8, seed=3, epochs=2)
        whole = {str(batch.step): [batch.sample_keys, batch["json"]] for batch in loader}
    assert [one["layout"] for one in ranks] == [[0, 2], [0, 2], [1, 2], [1, 2]]
    assert len(whole) == 12
    for kind, steps in (("named", list(whole)[:5]), ("nameless", list(whole)[:6])):  # a loop of a data set is an epoch
        assert list(ranks[0][kind]) == steps
        assert ranks[0][kind] == ranks[1][kind]
        assert ranks[2][kind] == ranks[3][kind]
        for step in steps:
            upper, lower = ranks[0][kind][step], ranks[2][kind][step]
            assert upper != lower
            assert [upper[0] + lower[0], upper[1] + lower[1]] == whole[step]
    assert [one["state"] for one in ranks] == [ranks[0]["state"]] * 4
    for rank, one in enumerate(ranks):
        assert f"rank {rank // 2} of 2 by layout, but rank {rank} of 4 by torch.distributed" in one["refused"]
        assert "run.loader(layout=...)" in one["refused"]

    again = launch("b")  # goes on after the newest save, step 3
    assert [one["restored"] for one in again] == [4] * 4
    assert ranks[0]["weights"]["3"] != ranks[0]["weights"]["-1"]
    assert [one["weights"]["-1"] for one in again] == [ranks[0]["weights"]["3"]] * 4
    assert again[0]["weights"]["4"] == ranks[0]["weights"]["4"]  # the optimizer's state came back too
    assert list(again[0]["named"]) == [str(step) for step in range(4, 9)]
    assert again[0]["named"]["4"] == ranks[0]["named"]["4"]
    assert again[3]["named"]["4"] == ranks[3]["named"]["4"]
