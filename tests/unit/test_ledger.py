"""The account of one rank: what is counted, and that nothing can tear it."""

from __future__ import annotations

import errno
import os
import random
import stat
import subprocess
import sys
import threading
import time
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker import ledger_format
from stoker.errors import (
    AlreadyExists,
    CapacityError,
    ClosedError,
    ConfigError,
    FormatError,
    InternalError,
    NewerFormat,
    NotFound,
    StokerError,
    StoreError,
)
from stoker.ledger import (
    Cause,
    Counter,
    Ledger,
    LedgerIdentity,
    LedgerStart,
    StageTimes,
    ledger_name,
    parse_ledger,
    read_ledger,
    split_wait,
)

IDENTITY = LedgerIdentity(run="run-42", rank=3, world=8, generation=2, host="node-a")
START = LedgerStart(pid=77, boot_id="boot", wall_s=1_700_000_000.5, perf_ns=1000)


def make(path=None, identity=IDENTITY, clock=lambda: 0):
    return Ledger.create(path, identity, start=START, clock=clock)


def step(ledger, number, entered, left, cause=Cause.FETCH):
    ledger.record_step(number, number // 10, entered, left, {cause: left - entered}, 16, 4096)


# --- splitting a wait ---


def test_a_wait_is_charged_to_the_stage_the_batch_was_in():
    stages = StageTimes(planned_ns=10, fetched_ns=40, decoded_ns=60, mapped_ns=65)
    assert split_wait(0, 70, stages) == {Cause.FETCH: 30, Cause.DECODE: 20, Cause.MAP: 5, Cause.HANDOFF: 15}


def test_what_a_batch_went_through_before_the_wait_is_not_charged():
    stages = StageTimes(planned_ns=0, fetched_ns=50, decoded_ns=100, mapped_ns=100)
    assert split_wait(80, 110, stages) == {Cause.FETCH: 0, Cause.DECODE: 20, Cause.MAP: 0, Cause.HANDOFF: 10}


def test_a_batch_that_was_ready_waits_for_the_handoff_alone():
    stages = StageTimes(planned_ns=0, fetched_ns=1, decoded_ns=2, mapped_ns=3)
    assert split_wait(100, 104, stages)[Cause.HANDOFF] == 4


def test_a_wait_that_ends_before_it_begins_is_a_bug():
    with pytest.raises(InternalError, match="ends 5 ns before"):
        split_wait(10, 5, StageTimes(0, 0, 0, 0))


times = st.integers(min_value=0, max_value=1000)


@given(times, times, st.tuples(times, times, times, times))
def test_the_parts_of_a_wait_are_never_negative_and_sum_to_it(a, b, stages):
    start, stop = sorted((a, b))
    parts = split_wait(start, stop, StageTimes(*stages))
    assert sum(parts.values()) == stop - start
    assert min(parts.values()) >= 0
    assert Cause.CHECKPOINT not in parts


@given(times, times, st.lists(times, min_size=4, max_size=4))
def test_each_part_is_the_overlap_of_the_wait_with_its_stage(a, b, marks):
    start, stop = sorted((a, b))
    planned, fetched, decoded, mapped = sorted(marks)

    def overlap(left, right):
        return max(0, min(right, stop) - max(left, start))

    assert split_wait(start, stop, StageTimes(planned, fetched, decoded, mapped)) == {
        Cause.FETCH: overlap(planned, fetched),
        Cause.DECODE: overlap(fetched, decoded),
        Cause.MAP: overlap(decoded, mapped),
        Cause.HANDOFF: overlap(0, planned) + overlap(mapped, 2000),
    }


# --- what is counted ---


def test_compute_is_the_time_between_two_batches():
    ledger = make()
    step(ledger, 0, 100, 150)
    step(ledger, 1, 250, 260)
    step(ledger, 2, 400, 400)
    totals = ledger.snapshot().totals
    assert (totals.steps, totals.samples, totals.batch_bytes) == (3, 48, 12288)
    assert totals.compute_ns == 100 + 140
    assert totals.wait_ns == 60
    assert [s.compute_before_ns for s in ledger.snapshot().steps] == [0, 100, 140]


def test_the_first_step_of_a_ledger_is_kept_apart_as_well():
    ledger = make()
    step(ledger, 40, 100, 150)
    step(ledger, 41, 250, 260)
    ledger.record_end(300)
    totals = ledger.snapshot().totals
    assert (totals.first_wait_ns, totals.first_compute_ns, totals.first_entered_ns) == (50, 100, 100)
    assert (totals.first_step, totals.last_step) == (40, 41)
    assert totals.compute_ns == 140
    assert totals.last_ns == 300


def test_the_end_of_a_loop_closes_the_last_compute_and_the_next_loop_begins_without():
    ledger = make()
    step(ledger, 0, 0, 10)
    ledger.record_end(70)
    ledger.record_end(90)
    step(ledger, 0, 1000, 1005)
    assert ledger.snapshot().totals.compute_ns == 60
    assert ledger.snapshot().steps[1].compute_before_ns == 0


def test_time_blocked_in_a_save_is_a_wait_and_not_compute():
    ledger = make(clock=lambda: 180)
    step(ledger, 0, 0, 100)
    ledger.record_checkpoint(1, blocked_ns=30, staged_bytes=500)
    step(ledger, 1, 200, 205, Cause.MAP)
    snapshot = ledger.snapshot()
    assert snapshot.totals.compute_ns == 70
    assert snapshot.waits_ns == {
        Cause.FETCH: 100,
        Cause.DECODE: 0,
        Cause.MAP: 5,
        Cause.HANDOFF: 0,
        Cause.CHECKPOINT: 30,
    }
    assert snapshot.steps[1].waits_ns[Cause.CHECKPOINT] == 30
    assert snapshot.steps[1].wait_ns == 5
    (save,) = snapshot.saves
    assert (save.step, save.at_ns, save.blocked_ns, save.staged_bytes) == (1, 180, 30, 500)
    assert (snapshot.totals.saves, snapshot.totals.staged_bytes, snapshot.totals.blocked_max_ns) == (1, 500, 30)


def test_a_save_after_the_last_batch_is_taken_off_the_last_compute():
    ledger = make()
    step(ledger, 0, 0, 100)
    ledger.record_checkpoint(1, 30, 0)
    ledger.record_end(200)
    assert ledger.snapshot().totals.compute_ns == 70


def test_a_save_between_two_loops_belongs_to_no_step():
    ledger = make()
    ledger.record_checkpoint(0, 30, 0)
    step(ledger, 0, 1000, 1000)
    step(ledger, 1, 1100, 1100)
    assert ledger.snapshot().totals.compute_ns == 100
    assert ledger.snapshot().waits_ns[Cause.CHECKPOINT] == 30
    assert [s.waits_ns[Cause.CHECKPOINT] for s in ledger.snapshot().steps] == [0, 0]


@pytest.mark.parametrize(
    "waits",
    [
        {Cause.FETCH: 9},
        {Cause.FETCH: 11},
        {Cause.FETCH: 20, Cause.MAP: -10},
        {Cause.CHECKPOINT: 10},
        {},
    ],
)
def test_a_wait_that_is_not_accounted_for_exactly_is_a_bug(waits):
    ledger = make()
    with pytest.raises(InternalError, match="of 10 ns"):
        ledger.record_step(0, 0, 0, 10, waits, 1, 1)
    assert ledger.snapshot().totals.steps == 0


def test_a_save_that_blocked_for_less_than_nothing_is_a_bug():
    with pytest.raises(InternalError):
        make().record_checkpoint(1, -1, 0)


def test_counters_add_up_over_threads_while_steps_are_recorded():
    ledger = make()

    def work():
        for _ in range(500):
            ledger.add(Counter.READS, 1)
            ledger.add(Counter.BYTES_READ, 100)
            ledger.add(Counter.BYTES_IN_FLIGHT, 7)
            ledger.add(Counter.BYTES_IN_FLIGHT, -7)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(500):
        step(ledger, number, number * 10, number * 10)
    for thread in threads:
        thread.join()
    counters = ledger.snapshot().counters
    assert (counters[Counter.READS], counters[Counter.BYTES_READ]) == (2000, 200_000)
    assert counters[Counter.BYTES_IN_FLIGHT] == 0
    assert ledger.snapshot().totals.steps == 500


def test_the_last_4096_steps_and_256_saves_are_kept_and_the_totals_hold_all():
    ledger = make()
    for number in range(5000):
        step(ledger, number, number * 100, number * 100 + 10)
    for number in range(300):
        ledger.record_checkpoint(number, number, 1)
    snapshot = ledger.snapshot()
    assert [s.step for s in snapshot.steps] == list(range(5000 - 4096, 5000))
    assert [s.step for s in snapshot.saves] == list(range(300 - 256, 300))
    assert (snapshot.totals.steps, snapshot.totals.saves) == (5000, 300)
    assert snapshot.totals.wait_ns == 50_000 + sum(range(300))


def test_a_closed_ledger_says_so_keeps_its_account_and_takes_no_more(tmp_path):
    path = tmp_path / ledger_name(3, 2)
    with make(path, clock=lambda: 5000) as ledger:
        step(ledger, 0, 0, 10)
        assert not ledger.snapshot().totals.closed
    ledger.close()
    assert ledger.snapshot() == read_ledger(path) == parse_ledger(ledger.image(), "here")
    assert (ledger.snapshot().totals.closed, ledger.snapshot().totals.last_ns) == (1, 5000)
    for use in (
        lambda: step(ledger, 1, 10, 20),
        lambda: ledger.record_end(10),
        lambda: ledger.record_checkpoint(1, 1, 1),
        lambda: ledger.add(Counter.READS, 1),
    ):
        with pytest.raises(ClosedError):
            use()
    assert ledger.snapshot().totals.steps == 1


def test_a_ledger_says_whose_it_is_and_when_it_began():
    ledger = Ledger.create(None, IDENTITY)
    snapshot = ledger.snapshot()
    assert snapshot.identity == IDENTITY
    assert snapshot.start.pid == os.getpid()
    assert abs(snapshot.start.wall_s - time.time()) < 60
    assert 0 <= time.perf_counter_ns() - snapshot.start.perf_ns < 60e9
    assert snapshot.start.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_the_name_of_a_ledger_sorts_by_rank_and_generation():
    assert ledger_name(12, 3) == "rank-00012.g0003.ledger"


@pytest.mark.alone
def test_recording_a_step_costs_less_than_a_tenth_of_a_millisecond():
    ledger = make()
    waits = {Cause.FETCH: 5, Cause.DECODE: 3, Cause.MAP: 1, Cause.HANDOFF: 1}
    best = min(_time_of(ledger, waits) for _ in range(5))
    assert best < 100e-6


def _time_of(ledger, waits):
    start = time.perf_counter()
    for number in range(200):
        ledger.record_step(number, 0, number, number + 10, waits, 16, 4096)
    return (time.perf_counter() - start) / 200


# --- the file ---


def test_a_ledger_file_is_private_of_fixed_size_and_never_over_an_existing_one(tmp_path):
    path = tmp_path / "a.ledger"
    old = os.umask(0)
    try:
        make(path).close()
    finally:
        os.umask(old)
    status = path.stat()
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_size == ledger_format.LEDGER_BYTES == 548_864
    assert status.st_blocks * 512 >= status.st_size
    before = path.read_bytes()
    with pytest.raises(AlreadyExists):
        make(path)
    assert path.read_bytes() == before


def test_links_are_followed_neither_to_write_nor_to_read(tmp_path):
    make(tmp_path / "a.ledger").close()
    (tmp_path / "link").symlink_to(tmp_path / "a.ledger")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StoreError):
        read_ledger(tmp_path / "link")
    with pytest.raises(AlreadyExists):
        make(tmp_path / "dangling")
    assert not (tmp_path / "nowhere").exists()


def test_a_directory_that_is_not_there_and_a_ledger_that_is_not_there_are_not_found(tmp_path):
    with pytest.raises(NotFound):
        make(tmp_path / "none" / "a.ledger")
    with pytest.raises(NotFound):
        read_ledger(tmp_path / "a.ledger")


def test_a_full_disk_is_an_error_when_the_ledger_is_made(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(CapacityError, match="548864 bytes"):
        make(tmp_path / "a.ledger")
    with pytest.raises(FormatError, match="died while it was made"):
        read_ledger(tmp_path / "a.ledger")


def test_an_identity_that_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="4064 fit"):
        make(identity=LedgerIdentity("x" * 5000, 0, 1, 1, "h"))


def test_what_is_not_a_ledger_is_refused(tmp_path):
    good = make().image()
    for bad in (
        b"",
        b"STOK",
        bytes(len(good)),
        b"x" * len(good),
        good[:-1],
        good + b"\0",
        good[:100],
        good[:40] + b"?" + good[41:],
        good[:4096] + bytes(len(good) - 4096),
    ):
        path = tmp_path / "bad"
        path.write_bytes(bad)
        with pytest.raises(FormatError) as raised:
            read_ledger(path)
        assert str(path) in str(raised.value)
        assert not isinstance(raised.value, NewerFormat)
        with pytest.raises(FormatError):
            parse_ledger(bad, "memory")


def test_a_newer_format_is_refused_by_its_number_whatever_its_size(tmp_path):
    image = bytearray(make().image())
    image[8:12] = (2).to_bytes(4, "little")
    for newer in (bytes(image), bytes(image[:200])):
        (tmp_path / "new").write_bytes(newer)
        with pytest.raises(NewerFormat, match="format 2 is newer than 1"):
            read_ledger(tmp_path / "new")


def test_a_ledger_that_cannot_be_read_at_all_is_a_store_error(tmp_path):
    with pytest.raises(StoreError, match="is a directory"):
        read_ledger(tmp_path)


@cache
def _filled():
    ledger = make()
    for number in range(20):
        step(ledger, number, number * 100, number * 100 + 10)
    ledger.record_checkpoint(20, 5, 5)
    return ledger.image()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30_000), st.integers(0, 255)), max_size=20))
def test_damaged_bytes_give_an_error_or_an_account_but_nothing_else(changes):
    image = bytearray(_filled())
    for offset, value in changes:
        image[offset] = value
    try:
        snapshot = parse_ledger(bytes(image), "fuzz")
    except StokerError:
        return
    assert snapshot.totals.steps in (19, 20)
    assert {s.wait_ns for s in snapshot.steps} <= {10}


# --- nothing tears it ---


def test_a_writer_that_dies_after_any_byte_of_any_write_leaves_a_whole_account(monkeypatch):
    ledger = make()
    step(ledger, 0, 0, 10)
    writes = []
    whole = Ledger._write

    def watched(self, offset, body):
        writes.append((self._memory[:], offset, body))
        whole(self, offset, body)

    monkeypatch.setattr(Ledger, "_write", watched)
    step(ledger, 1, 100, 110)
    ledger.record_checkpoint(2, 5, 7)
    ledger.add(Counter.READS, 1)
    step(ledger, 2, 200, 210)
    ledger.record_end(300)
    ledger.close()
    assert len(writes) == 9
    for image, offset, body in writes:
        before = parse_ledger(image, "before")
        after = parse_ledger(image[:offset] + body + image[offset + len(body) :], "after")
        for cut in range(len(body)):
            torn = parse_ledger(image[:offset] + body[:cut] + image[offset + cut :], "torn")
            assert torn == before or (torn == after and body[cut:] == image[offset + cut : offset + len(body)])


CHILD = """
import sys, itertools
from pathlib import Path
from stoker.ledger import Cause, Counter, Ledger, LedgerIdentity, LedgerStart

start = LedgerStart(1, "boot", 0.0, 0)
ledger = Ledger.create(Path(sys.argv[1]), LedgerIdentity("run", 0, 1, 1, "host"), start=start, clock=lambda: 0)
waits = {Cause.FETCH: 5, Cause.DECODE: 3, Cause.MAP: 2, Cause.HANDOFF: 1}
for n in itertools.count():
    ledger.record_step(n, 0, n * 100, n * 100 + 11, waits, 16, 1000)
    if n % 3 == 0:
        ledger.record_checkpoint(n, 4, 50)
    ledger.add(Counter.READS, 1)
"""


def _check_account(snapshot, *, live):
    totals, steps = snapshot.totals, snapshot.steps
    n = totals.steps
    assert totals.samples == 16 * n
    assert totals.batch_bytes == 1000 * n
    assert totals.last_step == n - 1
    assert [totals.waits_ns[c] for c in (Cause.FETCH, Cause.DECODE, Cause.MAP, Cause.HANDOFF)] == [
        5 * n,
        3 * n,
        2 * n,
        n,
    ]
    assert totals.saves in ((n + 1) // 3, (n + 2) // 3)
    assert totals.waits_ns[Cause.CHECKPOINT] == 4 * totals.saves
    # Every save but one behind the last step has been taken off the compute of its step.
    assert totals.compute_ns == 89 * max(0, n - 1) - 4 * ((n + 1) // 3)
    assert totals.counters[Counter.READS] in (n - 1, n)
    for record in steps:
        assert record.step == record.sequence - 1
        assert (record.entered_ns, record.wait_ns) == (record.step * 100, 11)
    sequences = [record.sequence for record in steps]
    assert sequences == list(range(n - len(steps) + 1, n + 1))
    # A live reader loses the oldest records that were overwritten while it read.
    assert len(steps) >= min(n, 4095) or live


def _wait_for(path, *, steps):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if read_ledger(path).totals.steps >= steps:
                return
        except (NotFound, FormatError):
            pass
        time.sleep(0.001)
    pytest.fail("the child records nothing")


@pytest.mark.crash
def test_the_account_is_whole_while_another_process_writes_it_and_after_kill_9(tmp_path):
    moments = random.Random(11)
    seen_steps = []
    for attempt in range(30):
        path = tmp_path / f"{attempt}.ledger"
        child = subprocess.Popen([sys.executable, "-c", CHILD, path])
        try:
            _wait_for(path, steps=5000 if attempt == 0 else 0)
            time.sleep(moments.uniform(0, 0.03))
            live = read_ledger(path)
            _check_account(live, live=True)
        finally:
            child.kill()
            assert child.wait() == -9
        dead = read_ledger(path)
        _check_account(dead, live=False)
        assert dead.totals.steps >= live.totals.steps
        assert not dead.totals.closed
        seen_steps.append(dead.totals.steps)
    assert seen_steps[0] >= 5000
    assert len(set(seen_steps)) > 20
