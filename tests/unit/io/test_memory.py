import errno
import gc
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import CapacityError, ClosedError, InternalError, UnsupportedError
from stoker.io.memfd import anonymous_file
from stoker.io.memory import (
    ALIGNMENT,
    Arena,
    Slab,
    Slot,
    Window,
    align,
    apart_fd,
    make_apart,
    make_words,
    map_file,
    map_words,
    take_apart,
)


def address(array):
    return array.__array_interface__["data"][0]


@pytest.fixture
def arena():
    arena = Arena(1 << 16)
    yield arena
    arena.close()


def test_sizes_are_rounded_up_to_64():
    assert [align(n) for n in (0, 1, 63, 64, 65)] == [0, 64, 64, 64, 128]


def test_slots_lie_inside_the_mapping_at_multiples_of_64(arena):
    slots = [arena.take(n) for n in (1, 100, 64)]
    assert [(slot.offset, slot.nbytes) for slot in slots] == [(0, 1), (64, 100), (192, 64)]
    for slot in slots:
        view = arena.lend(slot)
        assert address(view) == arena.address + slot.offset
        assert arena.address <= address(view) < arena.address + arena.size_bytes
        assert (view.dtype, view.shape, view.flags.writeable) == (np.uint8, (slot.nbytes,), True)


def test_the_first_place_that_is_large_enough_is_taken(arena):
    small, _, large, _ = (arena.take(n) for n in (64, 64, 640, 64))
    arena.give(small)
    arena.give(large)
    assert arena.take(65).offset == large.offset
    assert arena.take(64).offset == small.offset


def test_what_does_not_fit_is_not_taken(arena):
    assert arena.take((1 << 16) + 1) is None
    assert arena.take(1 << 16) == Slot(0, 1 << 16)
    assert arena.take(1) is None


def test_a_size_that_is_no_multiple_of_64_loses_only_the_rest():
    arena = Arena(200)
    assert arena.take(192).nbytes == 192
    assert arena.take(1) is None
    arena.close()


def test_an_arena_of_no_size_gives_nothing_until_it_grows():
    arena = Arena(0)
    assert arena.take(1) is None
    arena.grow(128)
    assert [arena.take(64).offset, arena.take(64).offset, arena.take(1)] == [0, 64, None]
    arena.close()


def test_a_slot_given_back_twice_is_a_bug_that_is_told(arena):
    slot = arena.take(10)
    arena.give(slot)
    with pytest.raises(InternalError, match="given back twice"):
        arena.give(slot)


def test_a_loan_returns_when_its_last_view_dies_and_not_before(arena):
    slot = arena.take(1000)
    loan = arena.lend(slot)
    array = np.ndarray((10, 5), np.float32, buffer=loan, offset=8)
    row = array[3]
    window = memoryview(loan)[100:200]
    del loan, array
    assert arena.reclaim() == 0
    del row
    assert arena.reclaim() == 0
    part = window[3:5]
    window.release()
    assert arena.reclaim() == 0
    part.release()
    del part, window
    assert arena.reclaim() == 1
    assert arena.taken_bytes == 0


def test_a_tensor_made_from_a_loan_keeps_it(arena):
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(arena.lend(arena.take(64))).view(torch.int32)[2:4]
    gc.collect()
    assert arena.reclaim() == 0
    del tensor
    assert arena.reclaim() == 1


def test_each_loan_of_a_slot_is_a_loan_of_its_own(arena):
    slot = arena.take(64)
    first = arena.lend(slot)
    del first
    assert arena.reclaim() == 1
    again = arena.lend(arena.take(64))
    assert arena.reclaim() == 0
    del again
    assert arena.reclaim() == 1


def test_a_loan_in_a_cycle_returns_by_a_collection_even_while_the_arena_is_locked(arena):
    class Holder:
        pass

    holder = Holder()
    holder.itself, holder.loan = holder, arena.lend(arena.take(64))
    del holder
    with arena._lock:  # a collection may strike in the middle of take()
        gc.collect()
    assert arena.reclaim() == 1


def test_loans_that_die_in_other_threads_return(arena):
    loans = [arena.lend(arena.take(64)) for _ in range(100)]
    threads = [threading.Thread(target=loans.pop) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    del threads, thread
    assert arena.reclaim() == 100
    assert arena.taken_bytes == 0


def test_reclaim_waits_for_a_loan_to_die(arena):
    loan = [arena.lend(arena.take(64))]
    timer = threading.Timer(0.02, loan.clear)
    timer.start()
    assert arena.reclaim(10) == 1
    timer.join()


def test_reclaim_gives_up_after_its_time_and_when_woken(arena):
    held = arena.lend(arena.take(64))
    begin = time.monotonic()
    assert arena.reclaim(0.02) == 0
    assert time.monotonic() - begin >= 0.02
    arena.wake()
    assert arena.reclaim(None) == 0
    del held


def test_growing_keeps_what_lies_there_and_older_views_see_newer_writes(arena):
    slot = arena.take(1 << 16)
    loan = arena.lend(slot)
    loan[:] = 7
    arena.grow(1 << 17)
    assert arena.take(1 << 16).offset == 1 << 16
    arena.view(slot)[5] = 9
    assert (loan[4], loan[5]) == (7, 9)
    del loan
    assert arena.reclaim() == 1


def test_the_most_that_was_taken_is_remembered(arena):
    slots = [arena.take(64) for _ in range(5)]
    for slot in slots:
        arena.give(slot)
    assert (arena.taken_bytes, arena.peak_bytes) == (0, 320)


def test_what_is_lent_outlives_a_closed_arena():
    arena = Arena(1 << 12)
    loan = arena.lend(arena.take(100))
    loan[:] = 42
    arena.close()
    arena.close()
    assert loan.sum() == 4200
    with pytest.raises(ClosedError):
        arena.lend(Slot(0, 64))
    assert arena.take(1) is None
    del loan
    assert arena.reclaim() == 1


def test_no_descriptor_is_left_behind():
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(10):
        arena = Arena(1 << 12)
        loan = arena.lend(arena.take(64))
        arena.grow(1 << 13)
        arena.close()
        del loan
        Slab(1 << 12).close()
        Arena(64).take(64)  # nobody closes this one
    del arena
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_untouched_memory_costs_nothing():
    arena = Arena(1 << 40)  # a TiB of addresses
    assert arena.take(1 << 39).nbytes == 1 << 39
    arena.close()


@pytest.mark.parametrize("size", [1 << 62, 1 << 70])
def test_more_than_there_are_addresses_for_is_refused_with_the_number(size):
    with pytest.raises(CapacityError, match="TiB of shared memory"):
        Arena(size)


def test_the_limit_of_file_sizes_is_named(monkeypatch):
    def refuse(fd, size_bytes):
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr(os, "ftruncate", refuse)
    with pytest.raises(CapacityError, match="no shared memory of 64 B: file too large") as caught:
        Arena(64)
    assert "ulimit -f" in caught.value.hint


def test_running_out_of_descriptors_says_so(monkeypatch):
    def refuse(name, flags):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(CapacityError, match="too many open files") as caught:
        Arena(64)
    assert "ulimit -n" in caught.value.hint


@pytest.mark.parametrize("call", ["memfd_create", "ftruncate"])
@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS])
def test_a_sandbox_that_refuses_shared_memory_is_named_as_that(monkeypatch, call, code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(UnsupportedError, match="may have no shared memory") as caught:
        Arena(64)
    assert os.strerror(code).lower() in caught.value.what
    assert "seccomp" in caught.value.hint


class NaiveAllocator:
    """Every byte by itself, in units of 64: the plainest first-fit there is."""

    def __init__(self, units):
        self.owner = [None] * units

    def take(self, units, owner):
        for start in range(len(self.owner) - units + 1):
            if all(one is None for one in self.owner[start : start + units]):
                self.owner[start : start + units] = [owner] * units
                return start
        return None

    def give(self, owner):
        self.owner = [None if one is owner else one for one in self.owner]

    def grow(self, units):
        self.owner += [None] * (units - len(self.owner))


ACTIONS = st.one_of(
    st.tuples(st.sampled_from(["take", "take and lend"]), st.integers(0, 600)),
    st.tuples(st.just("end"), st.integers(0, 50)),
    st.tuples(st.just("grow"), st.integers(1, 8)),
)


@settings(max_examples=200, deadline=None)
@given(units=st.integers(0, 30), actions=st.lists(ACTIONS, max_size=60))
def test_slots_lie_where_a_naive_allocator_puts_them_and_all_space_comes_back(units, actions):
    arena, naive = Arena(units * ALIGNMENT), NaiveAllocator(units)
    held = {}  # slot -> its loan, or None

    def end(slot):
        if held.pop(slot) is None:
            arena.give(slot)
        else:
            assert arena.reclaim() == 1
        naive.give(slot)

    for action, number in actions:
        if action == "grow":
            units += number
            arena.grow(units * ALIGNMENT)
            naive.grow(units)
        elif action == "end":
            if held:
                end(list(held)[number % len(held)])
        else:
            slot = arena.take(number)
            start = naive.take(max(1, align(number) // ALIGNMENT), slot)
            assert (slot is None) == (start is None)
            if slot is not None:
                assert (slot.offset, slot.nbytes) == (start * ALIGNMENT, number)
                held[slot] = arena.lend(slot) if action == "take and lend" else None
        assert arena.taken_bytes == sum(one is not None for one in naive.owner) * ALIGNMENT
    for slot in list(held):
        end(slot)
    assert arena.taken_bytes == 0
    if units:
        assert arena.take(units * ALIGNMENT) == Slot(0, units * ALIGNMENT)
    arena.close()


def test_slots_held_at_once_never_overlap(arena):
    rng = np.random.default_rng(5)
    held = []
    for number in range(2000):
        if held and rng.random() < 0.5:
            value, loan = held.pop(rng.integers(len(held)))
            assert (loan == value).all()
            del loan
            arena.reclaim()
        elif (slot := arena.take(int(rng.integers(1, 5000)))) is not None:
            loan = arena.lend(slot)
            loan[:] = number % 256
            held.append((number % 256, loan))
    assert len(held) > 5


def test_a_slab_is_memory_that_stays():
    slab = Slab(1000)
    part = slab.view(100, 200)
    part[:] = 3
    assert (slab.view(0, 1000).sum(), part.shape, part.dtype) == (300, (100,), np.uint8)
    assert slab.view(1000, 1000).size == 0
    with pytest.raises(InternalError, match=r"\[0, 1001\) of a slab of 1000"):
        slab.view(0, 1001)
    slab.close()
    slab.close()
    assert part.sum() == 300
    with pytest.raises(ClosedError):
        slab.view(0, 1)


def test_a_slab_of_nothing_is_possible():
    assert Slab(0).view(0, 0).size == 0


def test_a_window_shows_what_an_arena_over_the_same_memory_holds_and_tells_when_loans_die():
    window = Window(1024)
    arena = Arena(1024, os.dup(window.fd))
    slot = arena.take(100)
    arena.view(slot)[:] = 7
    returned = []
    loan = window.lend(slot, returned.append, 5)
    assert bytes(loan) == b"\7" * 100
    assert window.address <= loan.__array_interface__["data"][0] < window.address + 1024
    row = loan[10:]
    del loan
    assert returned == []
    del row
    assert returned == [5]
    arena.grow(1 << 20)
    last = arena.take(1 << 19)
    arena.view(last)[-1] = 9
    window.grow(arena.size_bytes)
    assert window.lend(last, returned.append, 6)[-1] == 9
    window.close()
    arena.close()


def test_an_arena_over_memory_that_is_lent_already_claims_it_and_gives_no_byte_of_it_away():
    window = Window(1024)
    arena = Arena(1024, os.dup(window.fd))
    held = [Slot(64, 100), Slot(512, 64), Slot(0, 0), Slot(960, 1)]
    for slot in held:
        arena.claim(slot)
    assert arena.taken_bytes == 128 + 64 + 64 + 64
    taken = []
    while (slot := arena.take(64)) is not None:
        taken.append(slot.offset)
    assert taken == [*range(192, 512, 64), *range(576, 960, 64)]
    with pytest.raises(InternalError, match="not free"):
        arena.claim(Slot(64, 10))
    for slot in held:
        arena.give(slot)
    assert arena.take(192) == Slot(0, 192)
    window.close()
    arena.close()


@pytest.mark.parametrize("nbytes", [0, 1, 100_000])
def test_memory_apart_is_passed_by_its_file_and_copied(nbytes):
    memory = make_apart(nbytes)
    memory[:] = 3
    copy = take_apart(os.dup(apart_fd(memory)), nbytes)
    memory[:] = 4
    assert (copy.nbytes, bytes(copy)) == (nbytes, b"\3" * nbytes)
    with pytest.raises(InternalError):
        apart_fd(copy)
    with pytest.raises(InternalError, match="are missing"):
        take_apart(os.dup(apart_fd(memory)), 1 << 20)


def test_words_are_seen_by_all_who_map_them():
    fd = make_words("words", 4)
    ours, theirs = map_words(fd, 4), map_words(fd, 4)
    os.close(fd)
    ours[2] = -5
    assert theirs.tolist() == [0, 0, -5, 0]


def test_an_anonymous_file_holds_what_it_is_given():
    fd = anonymous_file("x", b"content" * 100_000)
    assert os.pread(fd, 1 << 20, 0) == b"content" * 100_000
    os.close(fd)


class Watcher:
    """Notes what it is told of a mapping."""

    def __init__(self):
        self.told = []

    def mapped(self, address, size_bytes):
        self.told.append((address, size_bytes))

    def unmapping(self):
        self.told.append("unmapping")


def test_a_watcher_knows_at_any_time_where_the_arena_is_mapped():
    arena, watcher = Arena(4096), Watcher()
    arena.watch(watcher)
    first = arena.address
    arena.grow(8192)
    second = arena.address
    arena.close()
    arena.close()
    assert watcher.told == [(first, 4096), "unmapping", (second, 8192), "unmapping"]


def test_a_mapped_file_is_what_it_was_when_another_takes_its_place_and_holds_no_file_open(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content" * 1000)
    before = len(list(Path("/proc/self/fd").iterdir()))
    mapped = [map_file(path) for _ in range(3)]
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    (tmp_path / "other").write_bytes(b"x")
    (tmp_path / "other").rename(path)
    assert mapped[0] == mapped[2] == b"content" * 1000
    assert mapped[0].readonly
    assert str(path) in Path("/proc/self/maps").read_text()
    part = mapped.pop()[7:14]
    del mapped
    gc.collect()
    assert part == b"content"
    del part
    gc.collect()
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_an_empty_file_and_one_that_is_not_there(tmp_path):
    (tmp_path / "empty").touch()
    assert map_file(tmp_path / "empty") == b""
    with pytest.raises(FileNotFoundError):
        map_file(tmp_path / "none")
