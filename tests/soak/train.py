"""A training that is killed, as a user would write it: one process, or one rank of several under torchrun.

Usage: train.py DATA FOLDER PLAN. It tells each step, and at its end the weights, in lines of FOLDER/said/rank-R.jsonl.
PLAN says in JSON what is killed when.
"""

import ctypes
import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import stoker
from stoker import crash

BATCH, EPOCHS, EVERY = 8, 3, 4
RANK, ATTEMPT = int(os.environ.get("RANK", "0")), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))

# Who can be killed: a name in a plan, and the process that it is.
VICTIMS = {
    "trainer": lambda data: os.getpid(),
    "feeder": lambda data: data._feeder._child.pid,
}


def floats(sample):
    return {"x": np.frombuffer(sample["bin"], np.uint8).astype(np.float32) / 255}


class Model(nn.Module):
    """Some 100,000 parameters, a momentum for each, and dropout: generators of random numbers must be right, too.

    Steps and the averages over ranks are made by hand: an optimizer of PyTorch, or DDP, would spend a second at each
    start on importing its compiler, and there are many starts.
    """

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 128))
        for number, weights in enumerate(self.parameters()):
            self.register_buffer(f"momentum_{number}", torch.zeros_like(weights))

    def forward(self, x):
        return self.layers(x).square().mean()

    @torch.no_grad()
    def step(self):
        for weights, momentum in zip(self.parameters(), self.buffers(), strict=True):
            if dist.is_initialized():
                dist.all_reduce(weights.grad)
            weights.sub_(momentum.mul_(0.9).add_(weights.grad, alpha=0.1))
            weights.grad = None


class Kills:
    """What the plan says for this rank and this attempt."""

    def __init__(self, plan, say):
        self.all = [each for each in plan["kills"] if (each["rank"], each["attempt"]) == (RANK, ATTEMPT)]
        self.say = say
        self.data = None
        self.passes = Counter()
        if any("point" in each for each in self.all):
            crash.point = self.at_point

    def at_point(self, name):
        """As `stoker.crash.point`, for whoever is to be killed when this process passes it."""
        self.passes.update((name, "*"))
        for each in self.all:
            if each.get("point") and self.passes[each["point"]] == each["pass"] and each["point"] in (name, "*"):
                self.kill(each["who"])

    def after_step(self, step):
        for each in self.all:
            if each.get("step") == step and each["delay_s"]:
                threading.Timer(each["delay_s"], self.kill, [each["who"]]).start()
            elif each.get("step") == step:
                self.kill(each["who"])

    def kill(self, who):
        try:
            victim = VICTIMS[who](self.data)
            self.say({"killed": who})
            os.kill(victim, signal.SIGKILL)
        except (AttributeError, LookupError, ProcessLookupError):
            pass  # it is not there yet, or is being replaced, or training has ended


def die_with_parent():
    """If the tests themselves are killed, nothing of this is left behind."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)


def main():
    die_with_parent()
    place, folder, plan = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(RANK)
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    (folder / "said").mkdir(exist_ok=True)
    said = os.open(folder / "said" / f"rank-{RANK}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def say(line):
        os.write(said, json.dumps(line).encode() + b"\n")

    kills = Kills(plan, say)
    longest_s = 0.0

    def timed(work, *arguments):
        nonlocal longest_s
        begin = time.monotonic()
        result = work(*arguments)
        longest_s = max(longest_s, time.monotonic() - begin)
        return result

    with stoker.open(run="r", nvme=folder / "nvme") as run:
        data = run.loader(
            stoker.Dataset(place).map(floats),
            global_batch_size=BATCH,
            seed=5,
            epochs=EPOCHS,
            prefetch_bytes=plan["prefetch_bytes"],
        )
        kills.data = data
        torch.manual_seed(100)
        model = Model()
        torch.manual_seed(200 + RANK)
        state = run.checkpoint(model, data=data, every=EVERY)
        timed(state.restore)
        batches = iter(data)
        while (batch := timed(next, batches, None)) is not None:
            x = batch["x"]
            loss = model(torch.from_numpy(x))
            loss.backward()
            model.step()
            digest = hashlib.sha256(x.tobytes()).hexdigest()
            say({"step": batch.step, "keys": list(batch.sample_keys), "sha256": digest, "loss": loss.item()})
            timed(state.save_if_due, batch)
            kills.after_step(batch.step)
        timed(state.wait)
        feeder = data.stats().feeder
    weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    say({"weights": weights, "feeder": feeder, "longest_s": longest_s})
    if dist.is_initialized():
        dist.destroy_process_group()


main()
