"""Saving behind training: what stops training, what does not, and how failures come back."""

import json
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from stoker.checkpoint import commit
from stoker.checkpoint.layout import HEADER_SPLIT_BYTES
from stoker.checkpoint.manifest import decode_manifest, decode_receipt
from stoker.checkpoint.save import is_due
from stoker.errors import (
    CapacityError,
    ClosedError,
    ConfigError,
    LayoutError,
    SaveFailed,
    TimedOut,
)
from stoker.io.checksum import chunk_digests, root_digest
from stoker.io.safetensors import parse_header
from stoker.ledger import Counter
from stoker.testing.training import Part
from stoker.values import Key


class Gate:
    """Holds the writer of a store until it is opened."""

    def __init__(self, home, monkeypatch):
        self.open = threading.Event()
        self.reached = threading.Event()
        writer = home.writer

        def held(key):
            self.reached.set()
            assert self.open.wait(20)
            return writer(key)

        monkeypatch.setattr(home, "writer", held)


@pytest.fixture
def gate(home, monkeypatch):
    made = Gate(home, monkeypatch)
    yield made
    made.open.set()


def fail_writes(home, monkeypatch, times=10**9):
    """Let the next `times` tensor files meet a full disk."""
    writer = home.writer
    left = [times]

    def full(key):
        if left[0] > 0:
            left[0] -= 1
            raise CapacityError("no space left", "disk", "free some")
        return writer(key)

    monkeypatch.setattr(home, "writer", full)


def test_what_was_saved_is_restored_bit_for_bit(start, state, equal, feed):
    start(state(1), data=feed).save_and_wait(after=39)
    again = start(state(2), data=feed)
    assert again.restore() == [40]
    assert equal(again.states[0], state(1))
    assert again.feeds[0].next_step == 40


def test_a_fresh_run_restores_nothing(start, state, equal):
    run = start(state(1))
    assert run.restore() == [None]
    assert equal(run.states[0], state(1))


def test_a_step_holds_what_the_format_says(home, start, state, feed):
    start(state(3), data=feed).save_and_wait(after=39)
    base = home.root / "step-00000040.g0001"
    assert sorted(p.name for p in base.iterdir()) == [
        *("MANIFEST.json", "rank-00000-of-00001.safetensors", "rank-00000.json"),
    ]
    manifest = decode_manifest((base / "MANIFEST.json").read_bytes(), "")
    assert (manifest.run, manifest.step, manifest.generation, manifest.world) == ("run-1", 40, 1, 1)
    assert manifest.ranks == (0,)
    assert manifest.position == feed().position(39).to_json()
    assert manifest.state == {"optimizer": {"lr": 0.1 * 3}}
    for file in manifest.files:
        data = (base / file.name).read_bytes()
        assert (len(data), root_digest(chunk_digests(memoryview(data)))) == (file.bytes, file.root)
    receipt = decode_receipt((base / "rank-00000.json").read_bytes(), "")
    assert (receipt.state.rng, receipt.state.scalars) == ({"stream": 3}, {"count": 3})
    (file,) = receipt.files
    data = (base / file.name).read_bytes()
    header = parse_header(data, len(data))
    assert header.tensors.keys() == state().arrays.keys()
    place = header.tensors["model.weight"]
    assert data[place.start : place.stop] == state(3).arrays["model.weight"].tobytes()
    assert json.loads(header.metadata["DCP_SHARDING_INFO"])["model.scale"] == {"saved_offsets": []}


def test_what_training_does_after_the_save_does_not_reach_the_file(start, state, equal, gate):
    run = start(state(1))
    save = run.checkpoints[0].save(after=0)
    assert gate.reached.wait(10)
    for array in run.states[0].arrays.values():
        array[...] = 0
    run.states[0].shared["optimizer"] = {"lr": -1.0}
    run.states[0].stream = -1
    assert save.staged
    assert save.reached == ()
    gate.open.set()
    save.wait()
    assert not save.staged
    again = start(state(2))
    again.restore()
    assert equal(again.states[0], state(1))


def test_a_file_larger_than_a_chunk_and_a_second_file_round_trip(home, start, state, equal):
    big = {f"model.big{i}": np.random.default_rng(i).standard_normal(700_001) for i in range(3)}
    start(state(1, arrays=big), header_split_bytes=900).save_and_wait(after=0)
    names = sorted(p.name for p in (home.root / "step-00000001.g0001").glob("*.safetensors"))
    assert names == [f"rank-00000-of-00001{k}.safetensors" for k in (".1", ".2", "")]
    again = start(state(2, arrays={name: np.zeros_like(a) for name, a in big.items()}))
    again.restore()
    assert equal(again.states[0], state(1, arrays=big))


def test_the_slab_is_used_again_and_grows_with_the_state(start, state, equal):
    run = start(state(1))
    run.save_and_wait(after=0)
    snapshot = run.checkpoints[0]._snapshot
    first = snapshot._slab
    run.states[0].arrays["model.weight"] += 1
    run.save_and_wait(after=1)
    assert snapshot._slab is first
    run.states[0].arrays["model.more"] = np.arange(5000.0)
    run.save_and_wait(after=2)
    assert snapshot._slab is not first
    again = start(state(9, arrays={n: np.zeros_like(a) for n, a in run.states[0].arrays.items()}))
    assert again.restore() == [3]
    assert equal(again.states[0], run.states[0])


def test_each_save_holds_the_values_of_its_own_time(home, start, state):
    run = start(state(1))
    for step in range(3):
        run.states[0].arrays["model.weight"][:] = step
        run.checkpoints[0].save(after=step)
    run.checkpoints[0].wait()
    for step in range(3):
        home.delete_tree(f"step-{3 - step + 1:08d}.g0001") if step else None
        again = start(state(9))
        assert again.restore() == [3 - step]
        assert (again.states[0].arrays["model.weight"] == 2 - step).all()


def test_a_save_waits_for_the_one_before_it_and_the_wait_counts_as_blocked(start, state, gate):
    run = start(state(1))
    run.checkpoints[0].save(after=0)
    assert gate.reached.wait(10)
    threading.Timer(0.1, gate.open.set).start()
    run.checkpoints[0].save(after=1)
    run.checkpoints[0].wait()
    saves = run.ledgers[0].snapshot().saves
    assert [save.step for save in saves] == [1, 2]
    assert saves[1].blocked_ns > 50_000_000
    assert saves[1].staged_bytes > 4096
    assert run.checkpoints[0].stats().blocked_s == pytest.approx(sum(save.blocked_ns for save in saves) / 1e9)


def test_a_storage_that_hangs_is_a_timeout_that_says_so(start, state, gate):
    run = start(state(1), limit_s=0.08)
    save = run.checkpoints[0].save(after=0)
    with pytest.raises(TimedOut, match=r"save of step 1 was not settled within 80 ms"):
        save.wait()
    with pytest.raises(TimedOut, match="save of step 1 was not written within 80 ms"):
        run.checkpoints[0].save(after=1)


def test_the_same_step_again_is_the_same_save(start, state):
    run = start(state(1))
    first = run.checkpoints[0].save(after=4)
    assert run.checkpoints[0].save(after=4) is first
    assert run.checkpoints[0].stats().saves == 1


def test_a_batch_says_itself_after_which_step_it_is(home, start, state):
    class Batch:
        step = 6

    run = start(state(1))
    run.checkpoints[0].save(after=Batch()).wait()
    run.checkpoints[0].save(after=-1).wait()
    assert set(home.list_dirs()) == {"step-00000007.g0001", "step-00000000.g0001"}
    with pytest.raises(ConfigError, match="save after step -2"):
        run.checkpoints[0].save(after=-2)


@pytest.mark.parametrize(
    ("step", "every", "total", "due"),
    [(10, 10, 70, True), (11, 10, 70, False), (0, 10, 70, False), (70, 20, 70, True), (70, 20, None, False)],
)
def test_a_step_is_due_every_so_many_and_at_the_end(step, every, total, due):
    assert is_due(step, every, total) is due


def test_only_what_is_due_is_saved(start, state, feed):
    run = start(state(1), data=lambda: feed(total=25))
    steps = [save.step for after in range(25) if (save := run.checkpoints[0].save_if_due(after=after))]
    assert steps == [10, 20, 25]


def test_without_data_there_is_no_last_step(start, state):
    run = start(state(1), every=4)
    assert [run.checkpoints[0].save_if_due(after=after) is not None for after in range(4)] == [
        False,
        False,
        False,
        True,
    ]


def test_a_failed_save_is_raised_by_the_next_one_once_and_then_saving_goes_on(home, start, state, monkeypatch):
    run = start(state(1))
    checkpoint = run.checkpoints[0]
    fail_writes(home, monkeypatch, times=1)
    save = checkpoint.save(after=0)
    assert save._settled.wait(10)
    with pytest.raises(SaveFailed, match="save of step 1 failed on rank 0: no space left") as caught:
        checkpoint.save(after=1)
    assert isinstance(caught.value.__cause__, CapacityError)
    assert (caught.value.where, caught.value.hint) == ("disk", "free some")
    assert save.reached == ()
    assert list(home.list_dirs()) == []
    checkpoint.save(after=1).wait()
    checkpoint.save(after=0).wait()
    assert set(home.list_dirs()) == {"step-00000001.g0001", "step-00000002.g0001"}
    stats = checkpoint.stats()
    assert (stats.saves, stats.committed, stats.failed, stats.last_committed_step) == (3, 2, 1, 1)


def test_a_failed_save_that_wait_raised_is_not_raised_again(home, start, state, monkeypatch):
    run = start(state(1))
    fail_writes(home, monkeypatch, times=1)
    with pytest.raises(SaveFailed):
        run.checkpoints[0].save(after=0).wait()
    run.checkpoints[0].wait()
    run.checkpoints[0].save(after=1).wait()
    fail_writes(home, monkeypatch, times=1)
    with pytest.raises(SaveFailed):
        run.checkpoints[0].save(after=2).wait()
    run.checkpoints[0].close()


def test_a_step_of_another_checkpoint_of_the_same_generation_is_not_replaced(home, start, state):
    run = start(state(1))
    home.write(Key("step-00000001.g0001/MANIFEST.json"), b"other")
    with pytest.raises(SaveFailed, match="is there already"):
        run.save_and_wait(after=0)
    assert home.read(Key("step-00000001.g0001/MANIFEST.json")) == b"other"
    assert list(home.list_dirs()) == ["step-00000001.g0001"]


def test_close_raises_what_nobody_was_told(home, start, state, monkeypatch):
    run = start(state(1))
    fail_writes(home, monkeypatch)
    run.checkpoints[0].save(after=0)
    with pytest.raises(SaveFailed):
        run.checkpoints[0].close()
    run.checkpoints[0].close()


def test_an_error_in_training_is_not_hidden_by_one_of_a_save(home, start, state, monkeypatch, caplog):
    fail_writes(home, monkeypatch)
    checkpoint = start(state(1)).checkpoints[0]

    def train():
        with checkpoint:
            checkpoint.save(after=0)
            raise KeyError("training")

    with pytest.raises(KeyError, match="training"):
        train()
    assert "a save failed as well" in caplog.text


def test_close_waits_for_what_is_staged(home, start, state):
    with start(state(1)).checkpoints[0] as checkpoint:
        checkpoint.save(after=0)
    assert set(home.list_dirs()) == {"step-00000001.g0001"}
    for use in (checkpoint.restore, lambda: checkpoint.save(after=1), lambda: checkpoint.save_if_due(after=1)):
        with pytest.raises(ClosedError):
            use()


def test_an_error_that_is_none_of_ours_is_a_failed_save_too(home, start, state, monkeypatch):
    def broken(key):
        raise RuntimeError("boom")

    monkeypatch.setattr(home, "writer", broken)
    with pytest.raises(SaveFailed, match="RuntimeError: boom"):
        start(state(1)).checkpoints[0].save(after=0).wait()


def test_a_state_that_cannot_be_looked_at_is_an_error_of_the_save_itself(home, start, state):
    run = start(state(1))
    run.states[0].arrays["model.bad"] = np.zeros(2, "c16")
    with pytest.raises(KeyError):
        run.checkpoints[0].save(after=0)
    del run.states[0].arrays["model.bad"]
    run.save_and_wait(after=0)


def test_a_tier_that_there_is_not_is_refused(start, state):
    run = start(state(1), tier="nvme")
    save = run.checkpoints[0].save(after=0)
    with pytest.raises(ConfigError, match="tier 'object'"):
        save.wait("object")
    save.wait("nvme")
    run.checkpoints[0].wait("nvme")
    assert save.reached == ("nvme",)


def test_the_ledger_counts_bytes_and_outcomes(home, start, state):
    run = start(state(1))
    run.save_and_wait(after=0)
    counters = run.ledgers[0].snapshot().counters
    base = home.root / "step-00000001.g0001"
    written = sum(p.stat().st_size for p in base.iterdir() if p.name != "MANIFEST.json")
    assert counters[Counter.CHECKPOINT_BYTES] == written == run.checkpoints[0].stats().written_bytes
    assert counters[Counter.CHECKPOINTS_COMMITTED] == 1
    again = start(state(2))
    again.restore()
    counters = again.ledgers[0].snapshot().counters
    assert counters[Counter.RESTORES] == 1
    assert counters[Counter.RESTORED_BYTES] == sum(a.nbytes for a in state().arrays.values())
    assert counters[Counter.VERIFIED_BYTES] >= counters[Counter.RESTORED_BYTES]
    assert counters[Counter.RESTORE_NS] > 0
    assert again.checkpoints[0].stats().verified_bytes == counters[Counter.VERIFIED_BYTES]


def test_a_state_that_is_spread_over_ranks_that_the_layout_does_not_have_is_refused(start, state):
    run = start(state(1, parts={"model.weight": Part((5, 0), (10, 3))}))
    with pytest.raises(LayoutError, match=r"1 tensors are spread over several ranks, 'model\.weight'"):
        run.checkpoints[0].save(after=0)


def test_an_interval_below_1_is_refused(start, state):
    with pytest.raises(ConfigError, match="every=0"):
        start(state(), every=0)


def test_the_thread_is_gone_when_there_is_nothing_to_do(start, state):
    run = start(state(1))
    run.save_and_wait(after=0)
    deadline = time.monotonic() + 5
    while any(t.name.startswith("stoker-checkpoint") for t in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    run.save_and_wait(after=1)


def test_headers_are_split_at_50_mib_and_pauses_end_at_a_second():
    assert HEADER_SPLIT_BYTES == 50 * 1024 * 1024
    now = [0.0]
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    patience = commit.Patience(10, clock=lambda: now[0], sleep=sleep)
    while patience.pause():
        pass
    assert slept[0] == 0.005
    assert max(slept) == 1.0
    assert now[0] == pytest.approx(10)


LEAVES = """
import sys

import numpy as np

from stoker.checkpoint.generation import start_generation
from stoker.checkpoint.save import Checkpoint
from stoker.ledger import Ledger, LedgerIdentity
from stoker.store.local import LocalStore
from stoker.testing.training import ArrayState
from stoker.values import Layout

home = LocalStore(sys.argv[1])
generation = start_generation(home, run="r", layout=Layout())
ledger = Ledger.create(None, LedgerIdentity("r", 0, 1, 1, "h"))
state = ArrayState({"model.a": np.arange(3_000_000.0)})
Checkpoint(home, generation=generation, state=state, data=None, every=1, ledger=ledger).save(after=0)
if sys.argv[2] == "raise":
    raise SystemExit("training broke")
"""


@pytest.mark.parametrize(("how", "code"), [("return", 0), ("raise", 1)])
def test_a_process_that_ends_finishes_what_it_staged(home, how, code):
    done = subprocess.run([sys.executable, "-c", LEAVES, str(home.root), how], check=False, timeout=60)
    assert done.returncode == code
    assert list(home.list_dirs()) == ["step-00000001.g0001"]


def test_a_thread_that_cannot_be_started_fails_the_save_and_leaves_the_next_one_free(start, state, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    run = start(state(1))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            run.checkpoints[0].save(after=0)
    with pytest.raises(SaveFailed, match="cannot be saved in the background"):
        run.checkpoints[0].save(after=1)
    run.save_and_wait(after=1)


def test_a_leftover_of_a_failed_try_is_not_part_of_the_next(home, start, state):
    run = start(state(1))
    home.write(Key("step-00000001.g0001.partial/rank-00000-of-00001.7.safetensors"), b"old")
    run.save_and_wait(after=0)
    assert len(list((home.root / "step-00000001.g0001").iterdir())) == 3
