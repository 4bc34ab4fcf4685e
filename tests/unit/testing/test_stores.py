"""What the wrapping stores add: slowness, a record, and faults where they were asked for."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from stoker.errors import CapacityError, InternalError, NotFound, Unavailable
from stoker.io.host import host_id
from stoker.store.local import LocalStore
from stoker.store.memory import MemoryStore
from stoker.testing import Fault, FaultStore, RecordingStore, SlowStore
from stoker.values import ByteRange, Key

KEY = Key("dir/object")


def write_pieces(store, key, *pieces, commit=True):
    with store.writer(key) as writer:
        for piece in pieces:
            writer.write(piece)
        if commit:
            writer.commit()


# ---- slow


@pytest.mark.alone
def test_reads_are_slow_and_counted_and_do_not_hold_each_other_up():
    store = SlowStore(MemoryStore(), read_s=0.03)
    store.write(KEY, b"12345")
    start = time.perf_counter()
    store.read(KEY)
    assert time.perf_counter() - start >= 0.03
    start = time.perf_counter()
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda _: store.read_into(KEY, 1, bytearray(3)), range(20)))
    assert 0.03 <= time.perf_counter() - start < 20 * 0.03
    assert (store.read_count, store.read_bytes) == (21, 5 + 20 * 3)
    assert store.read(KEY, ByteRange(1, 3)) == b"23"
    assert store.read_bytes == 67


def test_a_slow_store_says_so():
    assert SlowStore(MemoryStore(), read_s=0.5).limits.latency_s == pytest.approx(0.5, abs=0.01)
    assert SlowStore(MemoryStore()).limits.promotes is False


def test_writes_are_slow_when_asked():
    store = SlowStore(MemoryStore(), read_s=0, write_s=0.02)
    for write in (lambda: store.write(KEY, b"1"), lambda: write_pieces(store, KEY, b"1", b"2")):
        start = time.perf_counter()
        write()
        assert time.perf_counter() - start >= 0.02


def test_a_read_that_fails_is_not_counted():
    store = SlowStore(MemoryStore(), read_s=0)
    with pytest.raises(NotFound):
        store.read(KEY)
    assert store.read_count == 0


# ---- recording


def test_what_was_changed_is_recorded_in_order(tmp_path):
    store = RecordingStore(LocalStore(tmp_path))
    store.write(Key("a/1"), b"123")
    write_pieces(store, Key("a/2"), b"12", b"345")
    write_pieces(store, Key("a/3"), b"12", commit=False)
    write_pieces(store, Key("a/4"), commit=False)
    store.read(Key("a/1"))
    list(store.list())
    store.promote("a", "b")
    store.delete(Key("b/1"))
    store.delete_tree("b")
    assert store.writes == [
        ("write", "a/1", 3),
        ("commit", "a/2", 5),
        ("discard", "a/3", 2),
        ("promote", "a -> b", 0),
        ("delete", "b/1", 0),
        ("delete_tree", "b", 0),
    ]
    assert store.written_bytes == 10


def test_what_failed_is_not_recorded_as_done():
    store = RecordingStore(FaultStore(MemoryStore(), [Fault("write", CapacityError("full"), count=None)]))
    with pytest.raises(CapacityError):
        store.write(KEY, b"1")
    with pytest.raises(CapacityError):
        write_pieces(store, KEY, b"1")
    assert store.writes == []


# ---- faults


def test_a_fault_strikes_where_it_was_asked_for():
    faults = [Fault("read", Unavailable("away"), prefix="dir/", skip=2, count=3)]
    store = FaultStore(MemoryStore(), faults)
    for name in ("dir/object", "other"):
        store.write(Key(name), b"1")
    outcomes = []
    for turn in range(7):
        store.read(Key("other"))
        try:
            if turn % 2:
                store.read(KEY)
            else:
                store.read_into(KEY, 0, bytearray(1))
            outcomes.append("ok")
        except Unavailable as error:
            outcomes.append(error.what)
    assert outcomes == ["ok", "ok", "away", "away", "away", "ok", "ok"]
    assert store.raised_count == 3


def test_each_raised_error_is_a_new_one():
    fault = Fault("stat", Unavailable("away", "there", "wait"), count=None)
    store = FaultStore(MemoryStore(), [fault])
    caught = []
    for _ in range(2):
        with pytest.raises(Unavailable) as info:
            store.stat(KEY)
        caught.append(info.value)
    assert caught[0] is not caught[1]
    assert str(caught[0]) == str(caught[1]) == str(fault.error)


def test_a_disk_fills_at_a_byte_whoever_writes_it():
    store = FaultStore(MemoryStore(), [Fault("write", CapacityError("full"), after_bytes=10)])
    store.write(Key("a"), b"1234")
    write_pieces(store, Key("b"), b"123", b"123")
    for write in (lambda: store.write(Key("c"), b"1"), lambda: write_pieces(store, Key("d"), b"1")):
        with pytest.raises(CapacityError, match="full"):
            write()
    store.write(Key("empty"), b"")
    assert {info.key for info in store.list()} == {"a", "b", "empty"}
    store.clear()
    store.write(Key("c"), b"1")


@pytest.mark.parametrize("verb", ["stat", "read", "write", "commit", "list", "delete", "promote", "delete_tree"])
def test_every_verb_can_fail_and_is_then_not_done(tmp_path, verb):
    store = FaultStore(LocalStore(tmp_path))
    store.write(KEY, b"old")
    uses = {
        "stat": lambda: store.stat(KEY),
        "read": lambda: store.read(KEY),
        "write": lambda: store.write(KEY, b"new"),
        "commit": lambda: write_pieces(store, KEY, b"new"),
        "list": lambda: list(store.list()),
        "delete": lambda: store.delete(KEY),
        "promote": lambda: store.promote("dir", "new"),
        "delete_tree": lambda: store.delete_tree("dir"),
    }
    store.add(Fault(verb, Unavailable("away")))
    with pytest.raises(Unavailable):
        uses[verb]()
    assert store.read(KEY) == b"old"
    uses[verb]()


# ---- all


def test_directories_are_refused_by_name_where_the_inner_store_has_none():
    store = RecordingStore(MemoryStore())
    for use in (lambda: store.promote("a", "b"), lambda: store.delete_tree("a"), store.list_dirs):
        with pytest.raises(InternalError, match="promotes"):
            use()
    assert store.writes == []


def test_what_killed_writers_left_is_swept_through_every_wrapper(tmp_path):
    (tmp_path / f".tmp-{host_id()}-1").write_bytes(b"half")
    assert SlowStore(RecordingStore(FaultStore(LocalStore(tmp_path)))).sweep() == 1
    assert RecordingStore(MemoryStore()).sweep() == 0


def test_the_stores_work_without_pytest_and_the_suite_asks_for_it():
    code = (
        "import sys; sys.modules['pytest'] = None\n"
        "import stoker.testing as t\n"
        "from stoker.store.memory import MemoryStore\n"
        "t.SlowStore(t.RecordingStore(MemoryStore()), read_s=0)\n"
        "try:\n    t.StoreSuite\nexcept ImportError: print('asked')\n"
        "try:\n    t.nothing\nexcept AttributeError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "asked\nmodule 'stoker.testing' has no attribute 'nothing'\n"
