"""Trainer and feeder are killed at any moment: the run goes on the same, or nothing of it remains."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import stoker
from stoker.dataset.describe import Dataset
from stoker.dataset.write import DatasetWriter
from stoker.store.local import LocalStore
from stoker.values import Layout

pytestmark = pytest.mark.crash

STEPS = 60


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    rng = np.random.default_rng(1)
    root = tmp_path_factory.mktemp("feeder") / "data"
    with DatasetWriter(LocalStore(root, create=True), shard_bytes=1 << 16) as writer:
        for i in range(120):
            writer.write(f"s{i:03d}", {"bin": rng.bytes(2000)})
    return root


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("STOKER_CONFIG", "")
    with stoker.open(nvme=tmp_path / "nvme", layout=Layout()) as run:
        yield run


def plus_one(sample):
    return {"x": np.frombuffer(sample["bin"], np.uint8) + 1}


def digest(batch):
    values = b"".join(map(bytes, batch["bin"] if "bin" in batch else batch["x"]))
    return batch.step, tuple(batch.sample_keys), hashlib.sha256(values).hexdigest()


@pytest.fixture(scope="module")
def expected(place, tmp_path_factory):
    """What a run that nothing happens to sees, without a map and with one."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STOKER_FEED_FEEDER", "inline")
        patch.setenv("STOKER_CONFIG", "")
        with stoker.open(nvme=tmp_path_factory.mktemp("nvme"), layout=Layout()) as run:
            for dataset in (Dataset(place), Dataset(place).map(plus_one)):
                loader = run.loader(dataset, global_batch_size=8, seed=3, epochs=4)
                found[bool(dataset.mappers)] = [digest(batch) for batch in loader]
    return found


@pytest.mark.parametrize("seed", range(10))
def test_a_feeder_killed_at_any_moment_changes_nothing(place, run, expected, seed):
    choose = random.Random(seed)
    dataset = Dataset(place).map(plus_one) if seed % 2 else Dataset(place)
    data = run.loader(dataset, global_batch_size=8, seed=3, epochs=4, prefetch_bytes=choose.choice([0, 100_000]))
    ended = threading.Event()

    def kill_at_random():
        for _ in range(3):
            if ended.wait(choose.uniform(0, 0.8)):
                return
            child = data._feeder._child
            if child is not None:
                os.kill(child.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_at_random)
    killer.start()
    seen, held, longest_s = [], [], 0.0
    begin = time.monotonic()
    for batch in data:
        longest_s = max(longest_s, time.monotonic() - begin)
        seen.append(digest(batch))
        held = [*held[-2:], (seen[-1], batch)]
        for then, kept in held:
            assert digest(kept) == then
        time.sleep(choose.uniform(0, 0.02))
        begin = time.monotonic()
    ended.set()
    killer.join()
    assert seen == expected[bool(dataset.mappers)]
    assert len(seen) == STEPS
    assert longest_s < 10


def slowly(sample):
    time.sleep(0.001)
    return plus_one(sample)


def children_of(pid):
    """Processes that this one has started."""
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            found |= set(map(int, (task / "children").read_text().split()))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_a_map_worker_killed_at_any_moment_changes_nothing(place, run, expected, seed):
    choose = random.Random(seed)
    data = run.loader(Dataset(place).map(slowly), global_batch_size=8, seed=3, epochs=4)
    ended = threading.Event()
    killed = set()

    def kill_at_random():
        while len(killed) < 4 and not ended.wait(choose.uniform(0, 0.3)):
            child = data._feeder._child
            workers = children_of(child.pid) - killed if child is not None else set()
            for victim in list(workers)[:1]:
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                killed.add(victim)

    killer = threading.Thread(target=kill_at_random)
    killer.start()
    seen, longest_s = [], 0.0
    begin = time.monotonic()
    for batch in data:
        longest_s = max(longest_s, time.monotonic() - begin)
        seen.append(digest(batch))
        time.sleep(choose.uniform(0, 0.02))
        begin = time.monotonic()
    ended.set()
    killer.join()
    assert killed
    assert seen == expected[True]
    assert longest_s < 10


TRAIN = """
import sys, time
import stoker

def stuck(sample):
    print("stuck", flush=True)
    time.sleep(100)
    return sample

def holding_the_interpreter_lock(sample):
    print("stuck", flush=True)
    sum(range(1 << 62))
    return sample

def train():
    dataset = stoker.Dataset(sys.argv[1])
    if sys.argv[2] != "idle":
        dataset = dataset.map(globals()[sys.argv[2]])
    with stoker.open(nvme=sys.argv[3]) as run:
        data = run.loader(dataset, global_batch_size=8)
        print(data._feeder._child.pid, flush=True)
        next(iter(data))
        print("stuck", flush=True)
        time.sleep(100)

train()
"""


@pytest.mark.alone
@pytest.mark.parametrize("state", ["idle", "stuck", "holding_the_interpreter_lock"])
def test_when_the_trainer_is_killed_its_feeder_ends_and_nothing_remains(place, tmp_path, state):
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    trainer = subprocess.Popen(
        [sys.executable, script, place, state, tmp_path / "nvme"], stdout=subprocess.PIPE, text=True
    )
    try:
        feeder = int(trainer.stdout.readline())
        assert trainer.stdout.readline() == "stuck\n"
        assert is_alive(feeder)
        all_of_them = {feeder, *children_of(feeder)}
        assert (len(all_of_them) > 1) == (state != "idle")  # with what maps, which user code holds up
        trainer.kill()
        trainer.wait()
        deadline = time.monotonic() + 10
        while any(map(is_alive, all_of_them)):
            assert time.monotonic() < deadline, "the feeder, or what maps for it, outlives its trainer"
            time.sleep(0.01)
    finally:
        trainer.kill()
        trainer.wait()
        trainer.stdout.close()
    assert [
        path
        for path in Path("/dev/shm").glob("*stoker*")
        if not path.name.startswith(("stoker-crash-", "stoker-test-"))
    ] == []


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
