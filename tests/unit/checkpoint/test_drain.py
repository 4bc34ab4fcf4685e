"""A drain copies verified bytes, commits last, resumes what it proves, and obeys a newer generation."""

import threading

import numpy as np
import pytest

from stoker.checkpoint.drain import Pacer, StepDrain, unpaced
from stoker.checkpoint.drain_plan import PaceLimits
from stoker.checkpoint.inventory import flaw, take_far_inventory
from stoker.checkpoint.layout import StepId
from stoker.errors import DigestMismatch, Fenced, NotFound, SaveFailed, Truncated, Unavailable
from stoker.io.checksum import CHUNK_BYTES
from stoker.store.memory import MemoryStore
from stoker.testing.stores import Fault, FaultStore, RecordingStore, WrappedStore
from stoker.testing.training import ArrayState
from stoker.values import Key, ObjectInfo

STEP = StepId(generation=1, step=10)
TENSORS = f"{STEP.name}/rank-00000-of-00001.safetensors"


def big_state(seed=1):
    rng = np.random.default_rng(seed)
    return ArrayState({"model.a": rng.integers(0, 255, CHUNK_BYTES + 99, np.uint8)}, shared={"x": seed})


@pytest.fixture
def saved(start, home):
    """A step in the near tier alone."""
    start(big_state()).save_and_wait(after=9)
    return home


@pytest.fixture
def by_three(start, home, state):
    start(*[state(1) for _ in range(3)]).save_and_wait(after=9)
    return home


def files(store):
    return {str(info.key): store.read(info.key) for info in store.list(f"{STEP.name}/")}


def test_a_drained_step_is_the_same_byte_for_byte_and_the_manifest_comes_last(saved):
    far = RecordingStore(MemoryStore("far"))
    done = StepDrain(saved, far, STEP, 1).run(unpaced())
    assert files(far) == files(saved)
    assert [write.key for write in far.writes] == [
        TENSORS,
        f"{STEP.name}/rank-00000.json",
        f"{STEP.name}/MANIFEST.json",
        "committed.json",  # says that there was a step, should all vanish
    ]
    assert done.copied_bytes == sum(len(data) for name, data in files(saved).items() if "MANIFEST" not in name)
    assert done.kept_bytes == 0


def test_the_manifest_is_written_if_absent(saved, far, monkeypatch):
    asked = []
    write = far.write
    monkeypatch.setattr(
        far, "write", lambda key, data, *, if_absent=False: (asked.append((key, if_absent)), write(key, data))[1]
    )
    StepDrain(saved, far, STEP, 1).run(unpaced())
    assert [key for key, if_absent in asked if if_absent] == [f"{STEP.name}/MANIFEST.json", "committed.json"]


def test_a_step_that_is_there_is_not_copied_again(saved):
    far = RecordingStore(MemoryStore("far"))
    StepDrain(saved, far, STEP, 1).run(unpaced())
    far.writes.clear()
    assert StepDrain(saved, far, STEP, 1).run(unpaced()).copied_bytes == 0
    assert far.writes == []


def test_a_drain_that_failed_goes_on_with_the_rank_it_was_at(by_three):
    inner = MemoryStore("far")
    broken = FaultStore(inner, [Fault("write", Unavailable("gone"), prefix=f"{STEP.name}/rank-00001.json")])
    with pytest.raises(Unavailable):
        StepDrain(by_three, broken, STEP, 1).run(unpaced())
    assert take_far_inventory(inner).steps == ()
    assert take_far_inventory(inner).unfinished == (STEP,)
    far = RecordingStore(inner)
    done = StepDrain(by_three, far, STEP, 1).run(unpaced())
    written = [write.key.rpartition("/")[2] for write in far.writes]
    assert "rank-00000.json" not in written
    assert "rank-00000-of-00003.safetensors" not in written
    assert written[-4:-1] == ["rank-00002-of-00003.safetensors", "rank-00002.json", "MANIFEST.json"]
    assert done.kept_bytes == sum(len(data) for name, data in files(by_three).items() if "rank-00000" in name)
    assert files(inner) == files(by_three)


def test_files_of_the_right_size_without_a_receipt_are_not_believed(saved, far):
    far.write(Key(TENSORS), b"\0" * len(saved.read(Key(TENSORS))))
    assert StepDrain(saved, far, STEP, 1).run(unpaced()).kept_bytes == 0
    assert files(far) == files(saved)


def test_a_receipt_that_is_not_ours_proves_nothing(saved, far):
    far.write(Key(TENSORS), b"\0" * len(saved.read(Key(TENSORS))))
    far.write(Key(f"{STEP.name}/rank-00000.json"), saved.read(Key(f"{STEP.name}/rank-00000.json"))[:-1] + b" ")
    StepDrain(saved, far, STEP, 1).run(unpaced())
    assert files(far) == files(saved)


def test_a_file_that_vanished_beside_its_receipt_is_copied_again(saved, far):
    StepDrain(saved, far, STEP, 1).run(unpaced())
    far.delete(Key(f"{STEP.name}/MANIFEST.json"))
    far.delete(Key(TENSORS))
    StepDrain(saved, far, STEP, 1).run(unpaced())
    assert flaw(far, STEP.name, STEP) == ""


def test_damage_nearby_is_not_copied_outward(saved, far):
    path = saved.path(Key(TENSORS))
    data = bytearray(path.read_bytes())
    data[CHUNK_BYTES + 50] ^= 1
    path.write_bytes(data)
    with pytest.raises(DigestMismatch, match="chunk 1 of"):
        StepDrain(saved, far, STEP, 1).run(unpaced())
    assert files(far) == {}


def test_what_is_short_at_the_far_end_is_not_committed(saved, far, monkeypatch):
    monkeypatch.setattr(far, "stat", lambda key: ObjectInfo(key, 3, "v"))
    with pytest.raises(Truncated, match="has 3 of"):
        StepDrain(saved, far, STEP, 1).run(unpaced())
    assert take_far_inventory(far).steps == ()


class Forgetful(WrappedStore):
    """A store that flips a bit of what it keeps."""

    def read_into(self, key, start, buffer):
        super().read_into(key, start, buffer)
        buffer[0] ^= 1


def test_reading_back_finds_what_a_size_does_not(saved, far):
    with pytest.raises(DigestMismatch, match="chunk 0 of"):
        StepDrain(saved, Forgetful(far), STEP, 1).run(unpaced(), read_back=True)
    assert take_far_inventory(far).steps == ()
    StepDrain(saved, far, STEP, 1).run(unpaced(), read_back=True)
    assert take_far_inventory(far).steps == (STEP,)


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_fenced_generation_commits_nothing_in_the_far_tier(saved, far, when, monkeypatch):
    def begin_newer():
        far.write(Key("gen-0002.json"), b"{}")

    if when == "before":
        begin_newer()
    else:
        writer = far.writer
        monkeypatch.setattr(far, "writer", lambda key, **_: (begin_newer(), writer(key))[1])
    with pytest.raises(Fenced, match="generation 2"):
        StepDrain(saved, far, STEP, 1).run(unpaced())
    assert f"{STEP.name}/MANIFEST.json" not in files(far)
    assert len(files(far)) == (0 if when == "before" else 2)


def test_two_processes_that_drain_the_same_step_agree(saved, far, monkeypatch):
    other = StepDrain(saved, far, STEP, 1)
    writer = far.writer

    def race(key, **_):
        monkeypatch.setattr(far, "writer", writer)
        other.run(unpaced())
        return writer(key)

    monkeypatch.setattr(far, "writer", race)
    StepDrain(saved, far, STEP, 1).run(unpaced())
    assert files(far) == files(saved)


def test_another_step_under_the_same_name_is_an_error(saved, far, monkeypatch):
    writer = far.writer
    monkeypatch.setattr(
        far, "writer", lambda key, **_: (far.write(Key(f"{STEP.name}/MANIFEST.json"), b"{}"), writer(key))[1]
    )
    with pytest.raises(SaveFailed, match="another step named"):
        StepDrain(saved, far, STEP, 1).run(unpaced())


def test_a_step_that_is_not_nearby_cannot_be_drained(home, far):
    with pytest.raises(NotFound):
        StepDrain(home, far, STEP, 1).run(unpaced())


def test_a_listing_that_shows_nothing_makes_a_drain_copy_again_and_no_more(saved, far, monkeypatch):
    StepDrain(saved, far, STEP, 1).run(unpaced())
    far.delete(Key(f"{STEP.name}/MANIFEST.json"))
    monkeypatch.setattr(far, "list", lambda prefix="": iter(()))
    assert StepDrain(saved, far, STEP, 1).run(unpaced()).kept_bytes == 0
    monkeypatch.undo()
    assert files(far) == files(saved)


class Ticking:
    """Time that passes while somebody waits, as an event's wait and as a clock."""

    def __init__(self):
        self.now = 0.0
        self.pauses = []

    def __call__(self):
        return self.now

    def wait(self, timeout):
        self.pauses.append(timeout)
        self.now += timeout


def test_a_drain_takes_half_the_interval_and_no_longer_once_it_is_hurried():
    time = Ticking()
    pacer = Pacer(PaceLimits(1), 100.0, time, time)
    pacer.begin(1000)
    assert pacer.bytes_per_s == 20
    for _ in range(10):
        pacer.moved(100)
    assert time.now == pytest.approx(50)
    hurry = threading.Event()
    hurry.set()
    pacer = Pacer(PaceLimits(1e-3, 1e-3), None, hurry, time)
    pacer.begin(10**9)
    pacer.moved(10**9)  # would take thirty thousand years


def test_a_drain_tells_the_far_store_how_large_each_file_will_be(saved):
    class Told(WrappedStore):
        def writer(self, key, *, size_bytes=0):
            told[str(key)] = size_bytes
            return self.inner.writer(key, size_bytes=size_bytes)

    told = {}
    StepDrain(saved, Told(MemoryStore("far")), STEP, 1).run(unpaced())
    assert told == {TENSORS: len(saved.read(Key(TENSORS)))}
