"""On a GPU: strict registration, counted reads, and the probe of the doctor. `python -m pytest -m gpu tests/gpu`.

STOKER_GPU_PATH names a directory on the storage to be tested; default: the test's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.doctor.gds_probe import Rung, Stage, cannot_probe, route_of, run_child, rung_of
from stoker.doctor.node import LiveNode
from stoker.units import MIB

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(cannot_probe(LiveNode())), reason="no NVIDIA driver with a GPU is seen here"),
]


@pytest.fixture
def file(tmp_path):
    folder = Path(os.environ.get("STOKER_GPU_PATH") or tmp_path)
    path = folder / "stoker-gpu-test.bin"
    path.write_bytes(os.urandom(8 * MIB))
    with path.open("rb") as opened:
        os.fsync(opened.fileno())
    yield path
    path.unlink()


def test_the_probe_ends_in_time_and_says_what_happened(file):
    pytest.importorskip("cuda.bindings.cufile", reason="the extra gds is not installed")
    seen = run_child(file)
    route = route_of(seen)
    print(json.dumps(seen.to_json()), route)
    assert route.reason
    if seen.stage is Stage.DONE:
        assert seen.returned_bytes == 8 * MIB
        assert seen.counted.total > 0
        assert (route.effective == "gds") == (rung_of(seen) in (Rung.COUNTED, Rung.CORROBORATED))
    else:
        assert route.effective in ("refused", "unknown")


def test_the_verb_reports_rung_and_engine(file):
    command = [sys.executable, "-m", "stoker", "doctor", "gds", str(file), "--probe", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found = json.loads(done.stdout)
    assert found["exit_code"] == done.returncode
    assert found["gds"]["engine"]["requested"] == "gds"
    assert found["gds"]["rung"] in ("P0", "P1", "P2", "P3")
    print(json.dumps(found["gds"]))


def test_why_sees_the_gpu():
    command = [sys.executable, "-m", "stoker", "doctor", "--why", "--seconds", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    signals = json.loads(done.stdout)["attribution"]["signals"]
    assert signals["gpu_busy_ratio"] is not None
    assert 0 <= signals["gpu_busy_ratio"] <= 1
