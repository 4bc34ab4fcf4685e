"""`stoker verify` of checkpoints that lie in a bucket, also through faults."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

pytest.importorskip("obstore", reason="obstore is not installed")

from stoker.checkpoint.generation import start_generation
from stoker.checkpoint.save import Checkpoint
from stoker.checkpoint.verify import verify_run
from stoker.cli.main import run
from stoker.io.checksum import CHUNK_BYTES
from stoker.ledger import Ledger, LedgerIdentity
from stoker.store.local import LocalStore
from stoker.store.object import ObjectStore
from stoker.store.retry import RetryPolicy, RetryStore
from stoker.testing.fault_server import Answer, Cut, ErrorBody, Every, FaultServer, Reset, Rule, Script, WrongLength
from stoker.testing.training import ArrayState
from stoker.values import Layout

URL = "s3://bucket/runs/r"
STEPS = ["step-00000010.g0001", "step-00000020.g0001"]


@pytest.fixture
def server(monkeypatch) -> Iterator[FaultServer]:
    with FaultServer() as server:
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def saved(server, tmp_path):
    """Two steps of a run in the bucket, and one that is on its way there."""
    with closing(LocalStore(tmp_path / "home", create=True)) as home:
        generation = start_generation(home, run="r", layout=Layout(), rendezvous=None, deadline_s=5)
        ledger = Ledger.create(None, LedgerIdentity("r", 0, 1, 1, "host"))
        state = ArrayState({"model.a": np.random.default_rng(1).integers(0, 255, CHUNK_BYTES + 5, np.uint8)})
        checkpoint = Checkpoint(home, generation=generation, state=state, data=None, every=10, ledger=ledger)
        for after in (9, 19):
            checkpoint.save(after=after).wait()
        checkpoint.close()
        ledger.close()
        for info in home.list():
            server.put(f"runs/r/{info.key}", home.read(info.key))
    server.put("runs/r/step-00000030.g0001/rank-00000-of-00001.safetensors", b"half")


@pytest.fixture
def verify(capfd):
    """Run the command: (exit code, facts)."""

    def verify(*arguments):
        code = run(["verify", *arguments, "--json"])
        return code, json.loads(capfd.readouterr().out)

    return verify


def tensors(server, step):
    (key,) = (key for key in server.keys(f"runs/r/{step}/") if key.endswith(".safetensors"))
    return key


def test_a_run_and_a_step_of_it_are_verified_by_url_and_a_step_under_way_is_none(server, saved, verify):
    code, facts = verify(URL, "--deep")
    assert (code, facts["kind"], facts["steps"], facts["faults"]) == (0, "checkpoint", STEPS, [])
    assert facts["read_bytes"] == sum(len(server.get(tensors(server, step))) for step in STEPS)
    server.forget_requests()
    code, facts = verify(f"{URL}/{STEPS[1]}/")
    assert (code, facts["steps"], facts["read_bytes"]) == (0, STEPS[1:], 0)
    assert server.requests("GetObject", "*.safetensors") == []


def test_a_flipped_byte_is_found_by_reading_deep_and_a_file_that_is_gone_without(server, saved, verify):
    key = tensors(server, STEPS[0])
    data = bytearray(server.get(key))
    data[CHUNK_BYTES + 1] ^= 1
    server.put(key, bytes(data))
    assert verify(URL)[0] == 0
    code, facts = verify(URL, "--deep")
    assert (code, [fault["error"] for fault in facts["faults"]]) == (4, ["DigestMismatch"])
    assert "chunk 1" in facts["faults"][0]["what"]
    server.put(key, bytes(data[:-1]))
    code, facts = verify(f"{URL}/{STEPS[0]}")
    assert (code, [fault["error"] for fault in facts["faults"]]) == (4, ["Truncated"])


def test_what_is_no_run_is_looked_at_as_a_data_set(server, saved, verify, capfd):
    assert run(["verify", "s3://bucket/nothing"]) == 6
    server.put("runs/odd/MANIFEST.json", b"{}")
    assert run(["verify", "s3://bucket/runs/odd"]) == 6
    assert "not the name of a committed step" in capfd.readouterr().err


@pytest.mark.parametrize("fault", [Answer(), Reset(), Cut(100), WrongLength(-1), ErrorBody()], ids=str)
def test_steps_are_verified_through_faults(server, saved, fault):
    store = RetryStore(
        ObjectStore(URL, environ=server.environ), RetryPolicy(attempts=40, base_s=0.001, cap_s=0.01, budget=1e9)
    )
    server.play(Script((Rule(fault, Every(3), method="GET"),)))
    found = list(verify_run(store, deep=True))
    assert [(one.name, one.faults) for one in found] == [(step, ()) for step in STEPS]
    assert [record for record in server.requests() if record.fault]
