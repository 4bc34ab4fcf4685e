"""What the children do that are killed: each function is called with texts, in a process of its own."""

from pathlib import Path

import numpy as np
import obstore  # noqa: F401  loaded here, used in the children

from stoker.checkpoint.generation import end_run, start_generation
from stoker.checkpoint.save import Checkpoint, SaveOptions
from stoker.checkpoint.tiers import Tiers
from stoker.dataset import index as indexing
from stoker.dataset import pack as packing
from stoker.ledger import Ledger, LedgerIdentity
from stoker.store.local import LocalStore
from stoker.store.open import open_store
from stoker.testing.training import ArrayState
from stoker.values import Layout

SHARD_BYTES = 20 << 10
STEP_BEFORE, STEP = 10, 20


def pack(source, url):
    packing.pack(Path(source), open_store(url), packing.PackOptions(shard_bytes=SHARD_BYTES))


def index(url):
    indexing.index(open_store(url), "")


def state(seed):
    rng = np.random.default_rng(seed)
    arrays = {f"model.{i}": rng.standard_normal(400) for i in range(4)} | {"model.step": np.array(seed)}
    return ArrayState(arrays, shared={"seed": seed}, private={"seed": seed}, stream=seed)


def begin(near, far, training):
    """The run's next generation. A file a tensor; `far` may be empty."""
    tiers = Tiers(LocalStore(near, create=True), open_store(far) if far else None)
    generation = start_generation(tiers, run="r", layout=Layout())
    ledger = Ledger.create(None, LedgerIdentity("r", 0, 1, generation.number, "h"))
    options = SaveOptions(tier="nvme", header_split_bytes=1)
    return Checkpoint(tiers, generation=generation, state=training, data=None, every=1, ledger=ledger, options=options)


def train(near, far, last):
    """Go on from what was saved to step `last`, save it, and note the end: in all tiers before it returns."""
    training = state(0)
    with begin(near, far, training) as checkpoint:
        restored = checkpoint.restore()
        if restored != int(last):
            right = state(int(last))
            training.arrays, training.stream = right.arrays, right.stream
            training.shared, training.private = right.shared, right.private
            checkpoint.save(after=int(last) - 1)
        checkpoint.wait("object" if far else None)
    end_run(checkpoint._tiers, checkpoint._generation)
