"""A training process is killed, its node's directory is gone, and another goes on from a bucket: bit for bit."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest

import stoker

pytest.importorskip("torch")
pytestmark = pytest.mark.crash

SCRIPT = """
import json, sys, time
import torch
import stoker

data, nvme, far, stand_still_at = sys.argv[1:]
torch.manual_seed(0)
with stoker.open(run="r", nvme=nvme, object=far) as run:
    loader = run.loader(stoker.Dataset(data).decode({"json": "json"}), global_batch_size=8, seed=3, epochs=2)
    model = torch.nn.Sequential(torch.nn.Linear(1, 50), torch.nn.Dropout(0.5), torch.nn.Linear(50, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    state = run.checkpoint(model=model, optimizer=optimizer, data=loader, every=4)
    state.restore()
    for batch in loader:
        rows = torch.tensor([[float(n)] for n in batch["json"]])
        model(rows / 100).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        state.save_if_due(after=batch)
        if batch.step == int(stand_still_at):
            state.wait("object")
            print(json.dumps({"reached": batch.step}), flush=True)
            time.sleep(600)
    stats = state.stats()
print(json.dumps({
    "from": stats.restored_from,
    "step": stats.restored_step,
    "weights": [p.tolist() for p in model.parameters()],
}))
"""


def start(tmp_path, data, nvme, far, server, stand_still_at=-1):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, str(script), str(data), str(tmp_path / nvme), far, str(stand_still_at)]
    environ = {**os.environ, **server.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)


def finish(process):
    with process:
        out, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    return json.loads(out)


def test_a_run_killed_on_a_node_that_is_lost_ends_on_another_as_one_that_never_stopped(tmp_path, object_server):
    data = tmp_path / "data"
    with stoker.writer(data) as w:
        for i in range(50):
            w.write(f"s{i:03d}", {"json": json.dumps(i).encode()})
    far = object_server.new_url()
    with start(tmp_path, data, "node-1", far, object_server, stand_still_at=9) as process:
        assert json.loads(process.stdout.readline()) == {"reached": 9}
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert (tmp_path / "node-1" / "checkpoint" / "r" / "step-00000008.g0001" / "MANIFEST.json").exists()
    shutil.rmtree(tmp_path / "node-1")
    resumed = finish(start(tmp_path, data, "node-2", far, object_server))
    whole = finish(start(tmp_path, data, "node-3", object_server.new_url(), object_server))
    assert (resumed["from"], resumed["step"]) == ("object", 8)
    assert (whole["from"], whole["step"]) == (None, None)
    assert resumed["weights"] == whole["weights"]
