"""Saving behind training: what stops training, what does not, and how failures come back."""

import contextlib
import json
import linecache
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from stoker.checkpoint import commit
from stoker.checkpoint import save as module
from stoker.checkpoint.layout import HEADER_SPLIT_BYTES
from stoker.checkpoint.manifest import decode_manifest, decode_receipt
from stoker.checkpoint.steps import is_due
from stoker.errors import (
    CapacityError,
    CheckpointError,
    ClosedError,
    ConfigError,
    Fenced,
    LayoutError,
    SaveFailed,
    TimedOut,
)
from stoker.io.checksum import chunk_digests, root_digest
from stoker.io.safetensors import parse_header
from stoker.ledger import Counter
from stoker.testing.training import ArrayState, Part
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
        with pytest.raises(CapacityError, match="cannot save in the background: no thread to be had: can't start"):
            run.checkpoints[0].save(after=0)
    with pytest.raises(SaveFailed, match="cannot be saved in the background"):
        run.checkpoints[0].save(after=1)
    run.save_and_wait(after=1)


def test_a_leftover_of_a_failed_try_is_not_part_of_the_next(home, start, state):
    run = start(state(1))
    home.write(Key("step-00000001.g0001.partial/rank-00000-of-00001.7.safetensors"), b"old")
    run.save_and_wait(after=0)
    assert len(list((home.root / "step-00000001.g0001").iterdir())) == 3


def committed(home):
    return {name for name in home.list_dirs() if name.startswith("step-")}


def test_a_restore_after_a_save_goes_back_to_the_newest_step_and_what_is_trained_again_is_kept(
    home, start, state, equal, feed, gate
):
    run = start(state(1), data=feed)
    checkpoint, live = run.checkpoints[0], run.states[0]
    gate.open.set()
    checkpoint.save(after=9).wait()
    live.arrays["model.weight"][:] = 5
    checkpoint.save(after=19)  # still being written when it goes back
    live.arrays["model.weight"][:] = np.nan
    assert checkpoint.restore() == 20
    assert (live.arrays["model.weight"] == 5).all()
    assert run.feeds[0].next_step == 20
    live.arrays["model.weight"][:] = 7
    again = checkpoint.save(after=19)
    again.wait()
    assert committed(home) == {"step-00000010.g0001", "step-00000020.g0001", "step-00000020.g0002"}
    assert checkpoint.stats().saves == 3
    later = start(state(2), data=feed)
    assert later.restore() == [20]
    assert later.generation[0].number == 3
    assert (later.states[0].arrays["model.weight"] == 7).all()


def test_a_restore_before_any_save_may_be_repeated_and_begins_nothing(home, start, state, equal):
    start(state(1)).save_and_wait(after=9)
    again = start(state(2))
    for _ in range(2):
        again.states[0].arrays["model.weight"][:] = 0
        assert again.restore() == [10]
        assert equal(again.states[0], state(1))
    assert not home.path(Key("gen-0003.json")).exists()


def test_a_restore_after_a_save_that_failed_says_so_once_and_then_goes_back(home, start, state, monkeypatch):
    run = start(state(1))
    run.save_and_wait(after=9)
    fail_writes(home, monkeypatch, times=1)
    run.checkpoints[0].save(after=19)
    with pytest.raises(SaveFailed, match="step 20"):
        run.restore()
    assert run.restore() == [10]


def test_a_fenced_process_does_not_fence_the_newer_one_by_going_back(home, start, state):
    run = start(state(1))
    run.save_and_wait(after=9)
    newer = start(state(2))
    with pytest.raises(Fenced, match="generation 1 is over: generation 2"):
        run.restore()
    newer.save_and_wait(after=19)


def test_several_ranks_are_not_brought_back_by_one_of_them(home, start, state):
    run = start(state(1), state(1))
    run.save_and_wait(after=9)
    for checkpoint in run.checkpoints:
        with pytest.raises(CheckpointError, match="2 ranks cannot agree") as caught:
            checkpoint.restore()
        assert "start the run again" in caught.value.hint
    assert start(state(2), state(2)).restore() == [10, 10]


@pytest.mark.parametrize("step", [True, 2.0, "3", None, 2**53, np.float32(3), np.bool_(True)])
def test_what_is_no_step_is_refused_before_anything_happens(home, start, state, listing, step):
    class Batch:
        pass

    batch = Batch()
    batch.step = step
    run = start(state(1))
    before = listing()
    for after in (step, batch):
        for call in (run.checkpoints[0].save, run.checkpoints[0].save_if_due):
            with pytest.raises(ConfigError, match="save after"):
                call(after=after)
    run.checkpoints[0].close()
    assert listing() == before


def test_a_step_counted_by_numpy_is_a_step(home, start, state):
    run = start(state(1), every=np.int64(5))
    save = run.checkpoints[0].save_if_due(after=np.int32(4))
    save.wait()
    assert (type(save.step), save.step) == (int, 5)
    assert committed(home) == {"step-00000005.g0001"}


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "5", None])
def test_an_interval_that_is_no_whole_number_is_refused(start, state, every):
    with pytest.raises(ConfigError, match=f"every={every!r}"):
        start(state(), every=every)


class Interrupt:
    """Raises KeyboardInterrupt before the `at`th line that the calling thread runs in a few modules.

    Not at `with`: the interpreter takes no signal between a body and its `__exit__`, but tells a tracer of that line.
    """

    MODULES = ("checkpoint/save.py", "checkpoint/publish.py", "checkpoint/writer.py")

    def __init__(self, at):
        self.left = at

    def __enter__(self):
        sys.settrace(self.enter)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def enter(self, frame, event, argument):
        return self.line if frame.f_code.co_filename.endswith(self.MODULES) else None

    def line(self, frame, event, argument):
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and not text.lstrip().startswith("with "):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self.line


def test_a_save_that_is_interrupted_anywhere_is_over_one_way_or_the_other(home, start, state, equal):
    run = start(ArrayState({"model.a": np.arange(3.0)}), limit_s=10)
    checkpoint = run.checkpoints[0]
    outcomes = set()
    for number in range(1, 2000):
        with Interrupt(number) as interrupt:
            with contextlib.suppress(KeyboardInterrupt):
                checkpoint.save(after=2 * number)
            sys.settrace(None)
        assert len(checkpoint._unsettled) <= 1
        with contextlib.suppress(SaveFailed):
            checkpoint.wait()
        name = f"step-{2 * number + 1:08d}.g0001"
        outcomes.add((interrupt.left > 0, name in committed(home)))
        checkpoint.save(after=2 * number + 1).wait()
        assert checkpoint._unsettled == [] or checkpoint._unsettled[0].settled
        if interrupt.left > 0:
            break
    assert interrupt.left > 0, "a save never came to its end"
    assert number > 40
    assert outcomes == {(False, False), (False, True), (True, True)}
    assert not [name for name in home.list_dirs() if "partial" in name]


def test_other_ranks_hear_of_a_snapshot_that_was_interrupted(start, state, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    run = start(state(1), state(1))
    first = run.checkpoints[0].save(after=0)
    monkeypatch.setattr(run.states[1], "capture", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.checkpoints[1].save(after=0)
    with pytest.raises(SaveFailed, match="failed on rank 1: the snapshot failed: KeyboardInterrupt"):
        first.wait()


@pytest.mark.parametrize("error", [SystemExit, RuntimeError, MemoryError])
def test_a_background_thread_that_ends_unexpectedly_leaves_no_save_open(start, state, monkeypatch, error):
    def broken(*_):
        raise error("unexpected")

    run = start(state(1), limit_s=10)
    with monkeypatch.context() as patch:
        patch.setattr(module, "publish", broken)
        save = run.checkpoints[0].save(after=0)
        with pytest.raises(SaveFailed, match="step 1"):
            save.wait()
    run.save_and_wait(after=1)


def test_a_close_that_is_interrupted_leaves_the_snapshot_to_the_thread_that_writes_it(home, start, state, gate):
    run = start(state(1))
    checkpoint = run.checkpoints[0]
    save = checkpoint.save(after=0)
    assert gate.reached.wait(10)

    def interrupted(until=None):
        raise KeyboardInterrupt

    save.wait_settled = interrupted
    with pytest.raises(KeyboardInterrupt):
        checkpoint.close()
    gate.open.set()
    assert save._settled.wait(10)
    assert save.error is None


def test_what_is_no_training_loader_is_refused_as_data_at_once(start, state, feed):
    class Partial:
        def __len__(self):
            return 1

    class Evaluation(feed):
        def position(self, after):
            raise ConfigError("a loader with shuffle=False is an evaluation")

    for data, what in (
        ([1, 2], "a list, which has no position, seek"),
        (Partial(), "a Partial, which has no position, seek"),
        (3, "an? int, which has no __len__"),
        (Evaluation(), "is an evaluation"),
    ):
        with pytest.raises(ConfigError, match=what):
            start(state(), data=lambda data=data: data)


def test_a_step_that_this_start_has_saved_before_is_an_error_with_a_way_on(home, start, state):
    run = start(state(1))
    for after in (9, 19):
        run.save_and_wait(after=after)
    run.states[0].arrays["model.weight"][:] = 5
    with pytest.raises(SaveFailed, match=r"step 10 failed on rank 0: .* is there already") as caught:
        run.save_and_wait(after=9)
    assert "nothing is overwritten: save a later step, or restore() first" in caught.value.hint
    run.save_and_wait(after=29)
    assert committed(home) == {f"step-{step:08d}.g0001" for step in (10, 20, 30)}


def test_a_save_and_a_checkpoint_show_themselves_on_one_line(home, start, state, gate):
    run = start(state(1), every=5)
    (checkpoint,) = run.checkpoints
    assert repr(checkpoint) == f"<Checkpoint of run 'run-1' in {home.url}: every 5 steps, 0 of 0 saves committed>"
    (save,) = run.save(after=4)
    assert repr(save) == "<Save of step 5: being written>"
    gate.open.set()
    save.wait()
    assert repr(save) == "<Save of step 5: committed to shared>"
    assert repr(checkpoint).endswith("every 5 steps, 1 of 1 saves committed, newest step 5>")
    again = start(state(1))
    again.restore()
    assert "restored step 5" in repr(again.checkpoints[0])
    again.checkpoints[0].close()
    assert repr(again.checkpoints[0]).endswith("closed>")
