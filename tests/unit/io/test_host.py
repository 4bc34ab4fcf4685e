"""A process has a name of its own, and whether it has ended is only said where it is sure."""

import os
import subprocess
import sys

import pytest

from stoker.io.host import host_id, is_gone, process_id

SAY = "from stoker.io.host import process_id; print(process_id(), flush=True); input()"


def test_a_process_is_there_until_it_ends():
    with subprocess.Popen(
        [sys.executable, "-c", SAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        name = child.stdout.readline().strip()
        assert name.startswith(f"{host_id()}-{child.pid}-")
        assert not is_gone(name)
        child.stdin.close()
        child.wait(20)
    assert is_gone(name)


def test_another_process_with_the_same_pid_is_not_the_one_that_was_there():
    host, pid, ticks = process_id().split("-")
    assert not is_gone(process_id())
    assert is_gone(f"{host}-{pid}-{int(ticks) + 1}")


@pytest.mark.parametrize(
    "name", ["", "x", f"{host_id()}-", f"{host_id()}-1x-2", f"{host_id()}-0-1", f"{host_id()}-{1 << 40}-1"]
)
def test_what_is_no_name_of_a_process_is_not_said_to_be_gone(name):
    assert not is_gone(name)


def test_a_process_of_another_host_is_not_said_to_be_gone():
    assert not is_gone(f"00000000-{os.getpid()}-1")
