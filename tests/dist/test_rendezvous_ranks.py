"""Ranks that are processes meet over a store that outlives them, also after some were killed while they met."""

import os
import subprocess
import sys
from datetime import timedelta

import pytest
import torch.distributed as dist

pytestmark = pytest.mark.dist

# Meets the others and prints what rank 0 says; "here" as soon as it has asked for the first time.
RANK = """
import os, sys
from stoker.torch import rendezvous
from stoker.values import Layout

rank, size, said = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


def sleep(seconds, real=rendezvous.time.sleep):
    print("here", flush=True)
    real(seconds)


class Time:
    monotonic = rendezvous.time.monotonic
    sleep = staticmethod(sleep)


rendezvous.time = Time
met = rendezvous.make_rendezvous(Layout(rank, size), os.environ, 60)
print("heard", met.broadcast("topic", said if rank == 0 else None, 60), flush=True)
"""


@pytest.fixture
def started():
    processes = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def test_ranks_killed_while_they_meet_do_not_disturb_the_next_attempt_of_nodes_that_count_differently(started):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=10))

    def start(rank, said, restarts):
        environ = os.environ | {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RUN_ID": "job",
            "TORCHELASTIC_RESTART_COUNT": str(restarts),
        }
        command = [sys.executable, "-c", RANK, str(rank), "3", said]
        started.append(subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True))
        return started[-1]

    first = [start(rank, "first", 0) for rank in (0, 1)]  # rank 2 never comes
    for process in first:
        assert process.stdout.readline() == "here\n"
        process.kill()
    second = [start(rank, "second", restarts) for rank, restarts in ((2, 1), (1, 0), (0, 4))]
    for process in second:
        lines = process.communicate(timeout=120)[0].splitlines()
        assert process.returncode == 0
        assert set(lines[:-1]) <= {"here"}
        assert lines[-1] == "heard second"
