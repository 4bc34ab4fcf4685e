"""What the children do that are killed, each function called with texts; and how the parent sees what they left."""

from pathlib import Path

import numpy as np
import obstore  # noqa: F401  loaded here, used in the children

from stoker.checkpoint.generation import end_run, start_generation
from stoker.checkpoint.inventory import flaw, take_inventory
from stoker.checkpoint.save import Checkpoint, SaveOptions
from stoker.checkpoint.tiers import Tiers
from stoker.dataset import index as indexing
from stoker.dataset import pack as packing
from stoker.dataset.open import open_dataset
from stoker.dataset.sample import read_sample
from stoker.dataset.write import DatasetWriter
from stoker.errors import AlreadyExists, DatasetError, NotFound, StokerError
from stoker.ledger import Ledger, LedgerIdentity
from stoker.store.local import LocalStore
from stoker.store.memory import MemoryContents, MemoryStore
from stoker.store.open import open_store
from stoker.testing.training import ArrayState
from stoker.values import Layout

SAMPLES = {f"{i:02}": {field: bytes([65 + i]) * (700 + i * 100) for field in ("a", "b")} for i in range(18)}
SHARD_BYTES, SHARDS = 20 << 10, 5


def pack(source, url):
    packing.pack(Path(source), open_store(url), packing.PackOptions(shard_bytes=SHARD_BYTES))


def index(url):
    indexing.index(open_store(url), "")


def index_with_checksums(url):
    indexing.index(open_store(url), "", options=indexing.IndexOptions(checksums=True))


def fail_to_index(url):
    """What lies there is no archive throughout: nothing may stay of the index."""
    try:
        index(url)
    except StokerError:
        return
    raise AssertionError(f"{url} was indexed")


def write(url):
    """Write the same samples, unless they are there."""
    try:
        with DatasetWriter(open_store(url), shard_bytes=SHARD_BYTES) as writer:
            for key, fields in SAMPLES.items():
                writer.write(key, fields)
    except AlreadyExists:
        assert is_whole(url)


def abandon(url):
    """Write some, and discard them."""
    writer = DatasetWriter(open_store(url), shard_bytes=SHARD_BYTES)
    for key in list(SAMPLES)[: len(SAMPLES) // 2]:
        writer.write(key, SAMPLES[key])
    writer.discard()


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


def tars_of():
    """The same samples in tars, by their name."""
    store = MemoryStore("tars", MemoryContents())
    with DatasetWriter(store, shard_bytes=SHARD_BYTES) as writer:
        for key, fields in SAMPLES.items():
            writer.write(key, fields)
    return {str(info.key): store.read(info.key) for info in store.list("shard-")}


def exists(place):
    """Whether a reader finds a data set."""
    try:
        open_dataset(open_store(place))
    except NotFound as error:  # no folder yet, or nothing in the bucket
        if error.what in ("no such folder", "nothing is stored there"):
            return False
        raise
    except DatasetError as error:
        if "not a data set" in error.what:
            return False
        raise
    return True


def is_whole(place):
    """True for a data set that is there and whole, False for none; anything between is a failure."""
    if not exists(place):
        return False
    opened = open_dataset(open_store(place))
    count = opened.manifest.sample_count
    assert {key: read_sample(opened, i) for i, key in enumerate(opened.keys(np.arange(count)))} == SAMPLES
    return True


def steps(store, take=take_inventory):
    """The steps that a reader sees in a tier, by their number; each must be whole."""
    found = take(store).steps
    assert [flaw(store, step.name, step) for step in found] == [""] * len(found)
    return {step.step: step for step in found}


def tensors(store, step):
    """The bytes of the tensors of a step, by the name of their file."""
    infos = store.list(f"{step.name}/")
    return {info.key.rpartition("/")[2]: store.read(info.key) for info in infos if info.key.endswith(".safetensors")}


def unfinished(objects):
    """Names that nothing finished has: those of partial steps, of notes, and of files that are being written."""
    return [n for n in objects if any(m in n for m in (".partial", ".aborted", ".undrained", ".tmp-", "probe"))]
