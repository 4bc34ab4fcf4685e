"""What may be killed in a training, and what must be so afterwards: each scenario takes a seed and a folder.

A training that something was killed in, and that was started again where it had to be, said for each step what the one
said that nothing happened to: the same samples, bytes and loss; and ended with the same weights. Nothing waited for
longer than 10 s, and nothing is left: no process, no shared memory, no socket, no file that was being written.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from functools import partial
from pathlib import Path

import numpy as np

import stoker

TRAIN = Path(__file__).with_name("train.py")
SAMPLES, STEPS, EVERY = 64, 24, 4
LONGEST_S = 10.0
LAUNCH_S = 170.0
MARK = "KILLED_TRAINING"
# By default ranks share torchrun's store since PyTorch 2.5, and those that it starts again find there the addresses of
# the dead: they cannot connect, or wait for ever (pytorch/pytorch#135712; seen with 2.13). So each attempt has its own.
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def make_data(folder):
    """The data set of all scenarios: its place."""
    dice = np.random.default_rng(1)
    with stoker.writer(folder / "data", shard_bytes=8192) as writer:
        for i in range(SAMPLES):
            writer.write(f"s{i:03d}", {"bin": dice.bytes(256)})
    return folder / "data"


class Training:
    """One training in a folder, started as often as need be, on so many ranks."""

    def __init__(self, folder, data, ranks=1):
        self.folder, self.data, self.ranks = folder, data, ranks
        self.mark = uuid.uuid4().hex
        folder.mkdir(parents=True)

    def start(self, *kills, restarts=0, prefetch_bytes=1 << 20):
        """Run it until it ends; returns how."""
        plan = {"kills": [{"rank": 0, "attempt": 0, **kill} for kill in kills], "prefetch_bytes": prefetch_bytes}
        command = [sys.executable, str(TRAIN), str(self.data), str(self.folder), json.dumps(plan)]
        if self.ranks > 1:
            launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.ranks}"]
            command[1:1] = [*launcher, f"--max-restarts={restarts}"]
        ours = {"OMP_NUM_THREADS": "1", MARK: self.mark} | OWN_STORE
        environ = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")} | ours
        with (self.folder / "stderr").open("ab") as words:
            process = subprocess.Popen(command, env=environ, cwd=self.folder, stdout=words, stderr=words)
            try:
                return process.wait(LAUNCH_S)
            finally:
                process.kill()
                process.wait()
                self.wait_for_the_end_of_all()

    def start_to_its_end(self):
        """Start it again: nothing is killed this time."""
        assert self.start() == 0, self.last_words()

    def wait_for_the_end_of_all(self):
        """No process that this training started lives for long after it; those that do are killed, and told."""
        deadline = time.monotonic() + LONGEST_S
        while left := processes_with(self.mark):
            if time.monotonic() > deadline:
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                raise AssertionError(f"still there after {LONGEST_S:.0f} s: {left}")
            time.sleep(0.01)

    def last_words(self):
        return (self.folder / "stderr").read_text(errors="replace")[-3000:]

    def said(self):
        """Rank -> the lines that all its attempts said, in order."""
        files = sorted((self.folder / "said").iterdir())
        return {file.name: [json.loads(line) for line in file.read_text().splitlines()] for file in files}

    def killed(self):
        return [line["killed"] for lines in self.said().values() for line in lines if "killed" in line]

    def story(self):
        """Rank -> step -> what it said of it, and its weights; AssertionError if two attempts said different things."""
        found = {}
        for rank, lines in self.said().items():
            steps = {}
            for line in lines:
                if "step" in line:
                    assert steps.setdefault(line["step"], line) == line, f"{rank} trained step {line['step']} otherwise"
            assert sorted(steps) == list(range(STEPS)), f"{rank} trained {sorted(steps)}"
            found[rank] = (steps, lines[-1]["weights"])
        assert len(found) == self.ranks
        return found

    def judge(self, expected):
        """It ended as `expected`, and nothing is left of it."""
        ends = [lines[-1] for lines in self.said().values()]
        assert {end["feeder"] for end in ends} == {"child"}, "its batches were not made in a child"
        waited_s = max(end["longest_s"] for end in ends)
        assert waited_s < LONGEST_S, f"waited {waited_s:.1f} s"
        assert self.story() == expected, "it trained something else"
        left = residue(self.folder)
        assert not left, f"left over: {left}"


def processes_with(mark):
    """Who has this mark in its environment."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (place / "environ").read_bytes().split(b"\0"):
                found.append(int(place.name))
        except OSError:
            continue
    return found


def residue(folder):
    """What should not be there after a training: names of shared memory and of sockets, and unfinished files.

    Memory without a name ends with the processes, of which none is left either.
    """
    tests = ("stoker-crash-", "stoker-test-")
    shared = [p.name for p in Path("/dev/shm").glob("*stoker*") if not p.name.startswith(tests)]
    sockets = [line for line in Path("/proc/net/unix").read_text().splitlines() if "stoker" in line.rpartition(" ")[2]]
    unfinished = (".tmp-", ".partial", ".aborted", ".undrained")
    files = [str(p) for p in folder.rglob("*") if p.is_socket() or any(each in p.name for each in unfinished)]
    return shared + sockets + files


def uninterrupted(folder, data, ranks):
    """The story of a training that nothing happens to."""
    training = Training(folder, data, ranks)
    training.start_to_its_end()
    story = training.story()
    training.judge(story)
    return story


def some_time(dice):
    """A moment after a step: at once, within the next step or two, or within the save of this one."""
    return dice.choice([0.0, dice.uniform(0.0, 0.005), dice.uniform(0.0, 0.05)])


def kill_often(who, training, dice):
    """Up to three times in one training, which goes on."""
    steps = sorted(dice.sample(range(STEPS - 1), dice.choice([1, 2, 3])))
    kills = [{"who": who, "step": step, "delay_s": some_time(dice)} for step in steps]
    kills[0]["delay_s"] = 0.0
    prefetch_bytes = dice.choice([0, 20_000, 1 << 20])
    assert training.start(*kills, prefetch_bytes=prefetch_bytes) == 0, training.last_words()
    assert who in training.killed()


def kill_feeder_while_saving(training, dice):
    """When the trainer passes a point of its save."""
    kill = {"who": "feeder", "point": "checkpoint-file-written", "pass": dice.randint(1, STEPS // EVERY - 1)}
    assert training.start(kill) == 0, training.last_words()
    assert training.killed() == ["feeder"]


def kill_trainer(training, dice):
    """Once or twice at any moment, and then no more."""
    step = dice.randrange(STEPS - 1)
    assert training.start({"who": "trainer", "step": step, "delay_s": some_time(dice)}) in (-9, 0)
    if dice.random() < 0.5:
        step = dice.randrange(step, STEPS)
        assert training.start({"who": "trainer", "step": step, "delay_s": 0.0}) in (-9, 0)
    training.start_to_its_end()


def kill_trainer_at_a_point(training, dice):
    """Between two durable operations of the start or of a save."""
    status = training.start({"who": "trainer", "point": "*", "pass": dice.randint(1, 40)})
    assert status == (-9 if training.killed() else 0), training.last_words()
    training.start_to_its_end()


def kill_rank(training, dice):
    """One rank of the job, which torchrun starts again."""
    kills = [{"who": "trainer", "rank": dice.randrange(training.ranks)}]
    kills[0] |= {"step": dice.randrange(STEPS - 2), "delay_s": dice.choice([0.0, dice.uniform(0.0, 0.02)])}
    assert training.start(*kills, restarts=2) == 0, training.last_words()
    assert "trainer" in training.killed()


def kill_feeder_while_saving_and_rank(training, dice):
    """One after the other, at both ranks of the job."""
    rank = dice.randrange(training.ranks)
    kills = [
        {"who": "feeder", "rank": 1 - rank, "point": "checkpoint-file-written", "pass": 1},
        {"who": "trainer", "rank": rank, "step": dice.randrange(EVERY, STEPS - 2), "delay_s": 0.0},
    ]
    assert training.start(*kills, restarts=2) == 0, training.last_words()
    assert sorted(training.killed()) == ["feeder", "trainer"]


def kill_rank_and_start_again(training, dice):
    """One rank of the job, which ends, and is started again."""
    kill = {"who": "trainer", "rank": dice.randrange(training.ranks), "step": dice.randrange(STEPS - 2)}
    status = training.start({**kill, "delay_s": 0.0}, {"who": "feeder", "step": 0, "delay_s": 0.0})
    assert status != 0
    training.start_to_its_end()


# name -> what happens, on so many ranks. Who can be killed stands in train.py.
SCENARIOS = {
    "feeder": (partial(kill_often, "feeder"), 1),
    "feeder while saving": (kill_feeder_while_saving, 1),
    "trainer": (kill_trainer, 1),
    "trainer at a point": (kill_trainer_at_a_point, 1),
    "rank, restarted": (kill_rank, 2),
    "feeder and rank": (kill_feeder_while_saving_and_rank, 2),
    "rank, started again": (kill_rank_and_start_again, 2),
}


def play(name, seed, folder, data, expected):
    """One scenario in a new folder; AssertionError with what is wrong. `expected`: ranks -> story."""
    happen, ranks = SCENARIOS[name]
    training = Training(folder, data, ranks)
    happen(training, random.Random(seed))
    training.judge(expected[ranks])
