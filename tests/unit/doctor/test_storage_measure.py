"""The measurement itself, with tiny plans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from stoker.doctor.storage import Plan
from stoker.doctor.storage_measure import measure, remove_left, run_bounded
from stoker.errors import NotFound, TimedOut
from stoker.io.host import host_id
from stoker.units import KIB, MIB

TINY = Plan(file_bytes=8 * MIB, block_bytes=MIB, random_bytes=64 * KIB, readers=2, file_count=20, commit_count=2)


def names_in(directory):
    return sorted(entry.name for entry in directory.iterdir())


def test_all_numbers_are_there_and_the_directory_is_as_before(tmp_path):
    (tmp_path / "mine").write_text("x")
    found = measure(tmp_path, TINY)
    assert found.file_bytes == 8 * MIB
    for name in ("sequential_read", "random_read", "write"):
        assert getattr(found, f"{name}_bytes_per_s") > 0
    assert min(found.creates_per_s, found.stats_per_s, found.removes_per_s, found.commit_s) > 0
    assert found.random_reads_per_s == pytest.approx(found.random_read_bytes_per_s / (64 * KIB))
    assert found.write_engine.requested == found.read_engine.requested == "auto"
    assert names_in(tmp_path) == ["mine"]


def test_each_part_ends_when_its_time_is_over(tmp_path):
    ticks = iter(range(10**9))
    found = measure(tmp_path, Plan(file_bytes=64 * MIB, block_bytes=MIB, readers=1), clock=lambda: float(next(ticks)))
    assert found.file_bytes < 64 * MIB
    assert names_in(tmp_path) == []


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
    import stoker.doctor.storage_measure as module

    def broken(*_):
        raise OSError(5, "input/output error")

    monkeypatch.setattr(module, "_read", broken)
    with pytest.raises(Exception, match="input/output error"):
        measure(tmp_path, TINY)
    assert names_in(tmp_path) == []


def test_a_directory_that_is_not_there_is_said(tmp_path):
    with pytest.raises(NotFound):
        run_bounded(tmp_path / "none", TINY)


def test_a_fault_of_our_own_is_not_taken_for_silence(tmp_path, monkeypatch):
    import stoker.doctor.storage_measure as module

    def broken(*_):
        raise RuntimeError("a fault")

    monkeypatch.setattr(module, "measure", broken)
    with pytest.raises(RuntimeError, match="a fault"):
        run_bounded(tmp_path, TINY)


def test_storage_that_answers_nothing_is_given_up(tmp_path, monkeypatch):
    import threading

    import stoker.doctor.storage_measure as module

    stop = threading.Event()
    monkeypatch.setattr(module, "measure", lambda *_: stop.wait(60))
    plan = Plan(write_s=0, read_s=0, random_s=0, metadata_s=0)
    with pytest.raises(TimedOut, match="did not answer"):
        run_bounded(tmp_path, plan, grace_s=0.02)
    stop.set()


def test_what_a_dead_measurement_left_goes_and_what_a_live_one_uses_stays(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead = tmp_path / f".tmp-doctor-{host_id()}-{gone.pid}-aa"
    live = tmp_path / f".tmp-doctor-{host_id()}-{os.getpid()}-aa"
    foreign = tmp_path / ".tmp-doctor-00000000-1-aa"
    removal = tmp_path / f".tmp-{host_id()}-0123456789abcdef"
    for folder in (dead, live, foreign, removal):
        (folder / "files").mkdir(parents=True)
        (folder / "data").write_text("x")
    (tmp_path / ".tmp-file").write_text("a live writer of a store")
    (tmp_path / "link").symlink_to(dead)
    assert remove_left(tmp_path) == 2
    assert names_in(tmp_path) == sorted([".tmp-file", "link", live.name, foreign.name])
    assert remove_left(tmp_path, now_s=time.time() + 25 * 3600) == 1


def test_what_a_killed_measurement_left_is_removed_by_the_next(tmp_path):
    script = (
        "import sys, pathlib, stoker.doctor.storage_measure as m, time\n"
        "from stoker.doctor.storage import Plan\n"
        "m._commits = lambda *a: (print('ready', flush=True), time.sleep(60))\n"
        "m.measure(pathlib.Path(sys.argv[1]), Plan(file_bytes=4 << 20))\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(f".tmp-doctor-{host_id()}-{child.pid}-")
    measure(tmp_path, TINY)
    assert names_in(tmp_path) == []
