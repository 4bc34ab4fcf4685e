"""Checkpoints of version 1, pinned for ever.

golden/checkpoint-v1 was saved by two ranks of the first release. It must restore for ever, on any number of ranks, and
saving the same state again must give the same bytes. The reader below is written from
docs/reference/checkpoint-format.md alone.
"""

import hashlib
import json
import shutil
import struct
import threading
from pathlib import Path

import numpy as np
import pytest
import xxhash

from stoker.checkpoint.generation import Generation, start_generation
from stoker.checkpoint.layout import StepId
from stoker.checkpoint.save import Checkpoint
from stoker.dataset.position import Position, Segment
from stoker.ledger import Ledger, LedgerIdentity
from stoker.store.local import LocalStore
from stoker.testing.training import ArrayState, Part
from stoker.values import Layout

GOLDEN = Path(__file__).parent / "golden" / "checkpoint-v1"
STEP = "step-00000040.g0002"
DIGEST = "73a4968fdef8824c4c97343f21d328c5a99e383cf99095029d5ee8526bf5dcde"

WHOLE = np.arange(35, dtype="f4").reshape(7, 5) / 8
ROWS = [(0, 4), (4, 7)]
REPLICATED = {
    "model.bias": np.array([0.5, -0.0, np.inf, -1e-45], "f4"),
    "model.half": np.array([1.5, 65504.0], "f2"),
    "model.flags": np.array([[True, False], [False, True]]),
    "model.count": np.array(2**62 + 1, "i8"),
    "model.none": np.zeros((0, 3), "f8"),
    "model.größe": np.array([7], "u2"),
    "optimizer.state.bias.step": np.array(40, "f4"),
    "optimizer.state.bias.exp_avg": np.array([1, 2, 3, 4], "f8") / 3,
}
SHARED = {
    "optimizer": {
        "groups": [{"lr": 0.1, "betas": {"$tuple": [0.9, 0.999]}, "params": ["weight", "bias"]}],
        "state": {},
    },
    "scheduler": {"last_epoch": 40, "best": {"$float": "inf"}},
}


def state_of(rank, world=2):
    lo, hi = ROWS[rank] if world == 2 else (0, 7)
    arrays = {name: array.copy() for name, array in REPLICATED.items()}
    arrays["model.weight"] = WHOLE[lo:hi].copy()
    arrays["extra.seen.counts"] = np.array([rank, 10], "i4")
    return ArrayState(
        arrays,
        parts={"model.weight": Part((lo, 0), WHOLE.shape)},
        shared=SHARED,
        private={"extra": {"seen": {"counts": {"$tensor": "extra.seen.counts"}, "rank": rank}}},
        stream=1000 + rank,
    )


class Data:
    """The data of the golden run."""

    next_step = 0

    def __len__(self):
        return 100

    def position(self, after):
        return Position((Segment("m" * 64, "r" * 64, 0),), after + 1)

    def seek(self, position):
        self.next_step = position.next_step


def checkpoint_of(home, state, generation, data):
    ledger = Ledger.create(None, LedgerIdentity("golden", generation.layout.dp_rank, generation.layout.dp_size, 1, "h"))
    return Checkpoint(home, generation=generation, state=state, data=data, every=1, ledger=ledger)


def save(root):
    """Save the golden step again."""
    home = LocalStore(root, create=True)
    made = [checkpoint_of(home, state_of(rank), Generation("golden", 2, Layout(rank, 2)), Data()) for rank in range(2)]
    saves = [checkpoint.save(after=39) for checkpoint in made]
    for one in saves:
        one.wait()


def files_of(root):
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def xxh3(data):
    return xxhash.xxh3_128_hexdigest(data)


def read_step(directory):
    """(manifest, receipts, {tensor name: [(offsets, array)]}), as a stranger would read it."""
    kinds = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "BOOL": "?", "I32": "<i4", "I64": "<i8", "U16": "<u2"}
    manifest = json.loads((directory / "MANIFEST.json").read_bytes())
    body = {name: value for name, value in manifest.items() if name != "digest"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert hashlib.sha256(text).hexdigest() == manifest["digest"]
    receipts = []
    tensors = {}
    for file in manifest["files"]:
        data = (directory / file["name"]).read_bytes()
        chunks = [xxh3(data[at : at + 4194304]) for at in range(0, len(data), 4194304)]
        assert len(data) == file["bytes"]
        assert xxh3(b"".join(map(bytes.fromhex, chunks))) == file["root"]
        if file["name"].endswith(".json"):
            receipts.append(json.loads(data))
            continue
        (size,) = struct.unpack("<Q", data[:8])
        assert (8 + size) % 4096 == 0
        header = json.loads(data[8 : 8 + size])
        about = header.pop("__metadata__")
        assert (about["format"], about["DCP_VERSION"]) == ("pt", "1.0")
        offsets = json.loads(about["DCP_SHARDING_INFO"])
        assert offsets.keys() == header.keys()
        for name, entry in header.items():
            start, stop = (8 + size + at for at in entry["data_offsets"])
            array = np.frombuffer(data[start:stop], kinds[entry["dtype"]]).reshape(entry["shape"])
            tensors.setdefault(name, []).append((offsets[name]["saved_offsets"], array))
    for receipt in receipts:
        listed = [{k: file[k] for k in ("name", "bytes", "root")} for file in receipt["files"]]
        assert all(file in manifest["files"] for file in listed)
    return manifest, receipts, tensors


def test_the_golden_step_is_what_its_page_says():
    manifest, receipts, tensors = read_step(GOLDEN / STEP)
    assert manifest["digest"] == DIGEST
    assert {k: manifest[k] for k in ("format", "run", "step", "generation", "world", "ranks")} == {
        "format": 1,
        "run": "golden",
        "step": 40,
        "generation": 2,
        "world": 2,
        "ranks": [0, 1],
    }
    assert manifest["state"] == SHARED
    assert manifest["position"] == Data().position(39).to_json()
    assert [receipt["state"]["rng"] for receipt in receipts] == [{"stream": 1000}, {"stream": 1001}]
    assert receipts[0]["deal"] == receipts[1]["deal"]
    assert tensors.keys() == REPLICATED.keys() | {"model.weight"} | {
        f"extra.seen.counts.rank-{rank:05d}" for rank in range(2)
    }
    for name, array in REPLICATED.items():
        ((offsets, found),) = tensors[name]  # once, though both ranks held it
        assert offsets == [0] * array.ndim
        assert found.dtype == array.dtype
        assert found.tobytes() == array.tobytes()
    rows = sorted(tensors["model.weight"], key=lambda part: part[0])
    assert [offsets for offsets, _ in rows] == [[lo, 0] for lo, _ in ROWS]
    assert np.array_equal(np.vstack([array for _, array in rows]), WHOLE)


def test_the_golden_step_is_saved_again_byte_for_byte(tmp_path):
    save(tmp_path)
    assert files_of(tmp_path / STEP) == files_of(GOLDEN / STEP)


@pytest.mark.parametrize("world", [1, 2])
def test_the_golden_run_goes_on(tmp_path, world):
    root = tmp_path / "home"
    shutil.copytree(GOLDEN, root)
    home = LocalStore(root)
    said = {}
    ready = threading.Event()

    class Wire:
        def broadcast(self, name, value, deadline_s):
            if value is not None:
                said[name] = value
                ready.set()
            assert ready.wait(deadline_s)
            return said[name]

    for rank in range(world):
        generation = start_generation(home, run="golden", layout=Layout(rank, world), rendezvous=Wire(), deadline_s=5)
        assert (generation.number, generation.restore) == (3, StepId(generation=2, step=40))
        state = state_of(rank, world)
        state.shared, state.private, state.stream = dict.fromkeys(SHARED), {}, 0
        for array in state.arrays.values():
            array[...] = 0
        data = Data()
        assert checkpoint_of(home, state, generation, data).restore() == 40
        right = state_of(rank, world)
        assert all(state.arrays[name].tobytes() == array.tobytes() for name, array in right.arrays.items())
        assert (state.shared, state.private, state.stream) == (right.shared, right.private, right.stream)
        assert data.next_step == 40


def test_the_records_of_the_golden_run_have_these_fields_and_those_of_today_too(tmp_path):
    start_generation(LocalStore(tmp_path, create=True), run="golden", layout=Layout())
    for name in ("run.json", "gen-0001.json"):
        then, now = (json.loads((root / name).read_bytes()) for root in (GOLDEN, tmp_path))
        assert then.keys() == now.keys()
        assert then["format"] == now["format"] == 1
