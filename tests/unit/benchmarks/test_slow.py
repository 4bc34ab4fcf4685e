from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import stoker

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
# What a measurement from far away does, with a latency of 1 ms.
PROGRAM = """
import sys, pathlib
sys.path.insert(0, {benchmarks!r})
import slow, stoker
slow.begin(0.001, pathlib.Path({folder!r}, "requests"))
slow.make_stoker_late()
slow.make_stoker_late()
with stoker.open(nvme={folder!r} + "/nvme") as run:
    data = run.loader({folder!r} + "/data", global_batch_size=4)
    opened = slow.request_count()
    batches = [bytes(value) for batch in data for value in batch["bin"]]
    stats = data.stats()
print(len(batches), stats.feeder, slow.request_count() - opened >= stats.reads > 0)
"""


def test_requests_of_a_feeder_in_another_process_are_slow_and_counted(tmp_path):
    with stoker.writer(tmp_path / "data") as writer:
        for number in range(8):
            writer.write(f"{number}", {"bin": b"x" * 100})
    source = str(Path(stoker.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(benchmarks=str(BENCHMARKS), folder=str(tmp_path))],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
        check=False,
    )
    assert (done.stdout.split(), done.stderr) == (["8", "child", "True"], "")
