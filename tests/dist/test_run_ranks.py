"""Whole runs under torchrun: the same batches and the same weights on one rank and on two."""

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
import stoker

data, places, out, stop_after, group = sys.argv[1:6]
rank = int(os.environ["RANK"])
if group == "group":
    dist.init_process_group("gloo")
torch.manual_seed(0)
with stoker.open(run="r", nvme=f"{out}-nvme", **json.loads(places)) as run:
    loader = run.loader(stoker.Dataset(data).decode({"json": "json"}), global_batch_size=8, seed=3, epochs=2)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    state = run.checkpoint(model=model, optimizer=optimizer, data=loader, every=4)
    state.restore()
    steps = {}
    for batch in loader:
        steps[batch.step] = list(batch.sample_keys)
        for p in model.parameters():  # the same on every rank, as an all-reduce would leave it
            p.grad = torch.full_like(p, float(batch.step + 1))
        optimizer.step()
        state.save_if_due(after=batch)
        if batch.step + 1 == int(stop_after):
            break
    state.wait()
with open(f"{out}-{rank}.json", "w") as f:
    json.dump({"steps": steps, "weights": [p.tolist() for p in model.parameters()]}, f)
if group == "group":
    dist.destroy_process_group()
"""


def launch(tmp_path, data, ranks, out, *, stop_after=99, group="group", tier="shared"):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(script)]
    (tmp_path / tier).mkdir(exist_ok=True)
    command += [str(data), json.dumps({tier: str(tmp_path / tier)}), str(tmp_path / out), str(stop_after), group]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((tmp_path / f"{out}-{rank}.json").read_text()) for rank in range(ranks)]


def whole_batches(results):
    steps = results[0]["steps"]
    assert all(result["steps"].keys() == steps.keys() for result in results)
    return {int(step): [key for result in results for key in result["steps"][step]] for step in steps}


@pytest.fixture
def data(tmp_path):
    with stoker.writer(tmp_path / "data") as w:
        for i in range(50):
            w.write(f"s{i:03d}", {"json": json.dumps(i).encode()})
    return tmp_path / "data"


@pytest.mark.parametrize("group", ["group", "no-group"])
def test_two_ranks_then_one_then_two_train_as_one_rank_would(tmp_path, data, group):
    first = launch(tmp_path, data, 2, "a", stop_after=5, group=group)
    second = launch(tmp_path, data, 1, "b", stop_after=9, group=group)
    third = launch(tmp_path, data, 2, "c", group=group)
    a, b, c = (whole_batches(results) for results in (first, second, third))
    assert (sorted(a), sorted(b), sorted(c)) == (list(range(5)), list(range(4, 9)), list(range(8, 12)))
    with stoker.open(nvme=tmp_path / "alone") as run:
        loader = run.loader(data, global_batch_size=8, seed=3, epochs=2)
        alone = {batch.step: list(batch.sample_keys) for batch in loader}
    assert {**a, **b, **c} == alone
    assert third[0]["weights"] == third[1]["weights"]
    assert {p.name for p in (tmp_path / "shared" / "r").glob("step-*")} >= {
        "step-00000004.g0001",
        "step-00000012.g0003",
    }


def test_ranks_of_a_node_save_to_its_nvme_and_another_node_goes_on_from_the_object_tier(tmp_path, data):
    first = launch(tmp_path, data, 2, "a", stop_after=5, tier="object")
    home = tmp_path / "object" / "r" / "step-00000004.g0001"
    assert {p.name for p in home.iterdir()} >= {"MANIFEST.json", "rank-00000.json", "rank-00001.json"}
    nearby = tmp_path / "a-nvme" / "checkpoint" / "r" / home.name
    assert {p.name: p.read_bytes() for p in home.iterdir()} == {p.name: p.read_bytes() for p in nearby.iterdir()}
    second = launch(tmp_path, data, 1, "b", tier="object")  # its nvme directory is another
    a, b = (whole_batches(results) for results in (first, second))
    assert (sorted(a), sorted(b)) == (list(range(5)), list(range(4, 12)))
    assert (tmp_path / "object" / "r" / "step-00000012.g0002" / "MANIFEST.json").exists()
