"""A drain brings a step to a bucket whole, whichever of its requests meets a fault, and counts what it did."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("obstore", reason="obstore is not installed")

from stoker.checkpoint.drain import StepDrain, unpaced
from stoker.checkpoint.generation import start_generation
from stoker.checkpoint.layout import StepId
from stoker.checkpoint.save import Checkpoint
from stoker.checkpoint.verify import verify_step
from stoker.ledger import Ledger, LedgerIdentity
from stoker.store.local import LocalStore
from stoker.store.object import ObjectStore
from stoker.store.object_options import ObjectOptions
from stoker.store.retry import RetryPolicy, RetryStore
from stoker.testing.fault_server import Answer, Cut, ErrorBody, FaultServer, First, Reset, Rule, Script, WrongLength
from stoker.testing.training import ArrayState
from stoker.units import MIB
from stoker.values import Layout

STEP = StepId(generation=1, step=10)
OPERATIONS = [
    *("CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload", "PutObject"),
    *("GetObject", "ListObjectsV2", "HeadObject"),
]
FAULTS = [Answer(), Answer(500, "InternalError", done=True), Reset(done=True), Cut(), WrongLength(1), ErrorBody()]
BEYOND = [  # what no client can tell: a length told once and wrong; an error as a 200, of a part (S3 has none)
    (WrongLength(1), "HeadObject"),
    (ErrorBody(), "UploadPart"),
]


@pytest.fixture(scope="module")
def near(tmp_path_factory):
    """A committed step of 12 MiB: two parts, and small files."""
    with closing(LocalStore(tmp_path_factory.mktemp("near"))) as home:
        generation = start_generation(home, run="r", layout=Layout(), rendezvous=None, deadline_s=5)
        ledger = Ledger.create(None, LedgerIdentity("r", 0, 1, 1, "host"))
        state = ArrayState({"model.a": np.random.default_rng(1).integers(0, 255, 12 * MIB, np.uint8)})
        checkpoint = Checkpoint(home, generation=generation, state=state, data=None, every=10, ledger=ledger)
        checkpoint.save(after=9).wait()
        checkpoint.close()
        ledger.close()
        yield home


@pytest.mark.parametrize(
    ("fault", "operation"),
    [(fault, operation) for fault in FAULTS for operation in OPERATIONS if (fault, operation) not in BEYOND],
    ids=str,
)
def test_a_step_arrives_whole_whichever_request_fails_once(near, operation, fault):
    with FaultServer() as server:
        options = replace(ObjectOptions.from_environ(server.environ), part_bytes=8 * MIB)
        policy = RetryPolicy(base_s=0.001)
        far = RetryStore(ObjectStore("s3://bucket/r", options, environ=server.environ), policy, settles=True)
        server.play(Script((Rule(fault, First(1), operation=operation),)))
        StepDrain(near, far, STEP, 1).run(unpaced())
        for info in near.list(f"{STEP.name}/"):
            assert server.get(f"r/{info.key}") == near.read(info.key)
        assert verify_step(far, STEP, deep=True).faults == ()
        assert len(server.requests("CreateMultipartUpload")) <= 2
