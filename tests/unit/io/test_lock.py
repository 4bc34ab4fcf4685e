"""One holder at a time, over processes and within one, and the kernel frees what a dead one held."""

import gc
import json
import multiprocessing
import os
from pathlib import Path

import pytest

from stoker.errors import StoreError
from stoker.io import ofd
from stoker.io.host import host_name
from stoker.io.lock import FileLock


def test_a_lock_is_held_by_one(tmp_path):
    first, second = FileLock(tmp_path / "a/lock"), FileLock(tmp_path / "a/lock")
    assert first.try_acquire()
    assert first.try_acquire()
    assert not second.try_acquire()
    first.release()
    first.release()
    assert second.try_acquire()
    assert not first.try_acquire()
    second.release()
    assert (tmp_path / "a/lock").exists()


def test_a_lock_is_released_at_the_end_of_its_block(tmp_path):
    with FileLock(tmp_path / "lock") as lock:
        assert lock.try_acquire()
        assert not FileLock(tmp_path / "lock").try_acquire()
    with FileLock(tmp_path / "lock") as lock:
        assert lock.try_acquire()


def test_the_holder_is_named(tmp_path):
    lock = FileLock(tmp_path / "lock")
    assert lock.holder() == "an unknown process"
    with lock:
        lock.try_acquire()
        said = FileLock(tmp_path / "lock").holder()
        assert said.startswith(f"pid {os.getpid()} on {host_name()} since 20")
        assert said.endswith(" UTC")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b'{"pid": "x", "host": "h", "since": 1}',
        b'{"pid":1,"host":"h","since":1e99}',
    ],
)
def test_a_holder_that_cannot_be_read_is_unknown(tmp_path, content):
    (tmp_path / "lock").write_bytes(content)
    assert FileLock(tmp_path / "lock").holder() == "an unknown process"


def test_a_shorter_holder_leaves_nothing_of_a_longer_one(tmp_path):
    (tmp_path / "lock").write_bytes(b"x" * 1000)
    with FileLock(tmp_path / "lock") as lock:
        assert lock.try_acquire()
        assert json.loads((tmp_path / "lock").read_bytes())["pid"] == os.getpid()


def test_closing_the_file_elsewhere_does_not_free_the_lock(tmp_path):
    with FileLock(tmp_path / "lock") as lock:
        assert lock.try_acquire()
        (tmp_path / "lock").read_bytes()  # frees a POSIX record lock, not this one
        assert not FileLock(tmp_path / "lock").try_acquire()


def _hold(path, ready, go_on):
    lock = FileLock(path)
    assert lock.try_acquire()
    ready.set()
    go_on.wait(60)


def test_a_process_that_is_killed_frees_its_lock(tmp_path):
    context = multiprocessing.get_context("fork")
    ready, go_on = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(tmp_path / "lock", ready, go_on))
    holder.start()
    assert ready.wait(30)
    lock = FileLock(tmp_path / "lock")
    assert not lock.try_acquire()
    assert f"pid {holder.pid} " in lock.holder()
    holder.kill()
    holder.join()
    with lock:
        assert lock.try_acquire()


def _release(lock):
    lock.release()


def test_a_forked_child_neither_frees_nor_keeps_its_parents_lock(tmp_path):
    context = multiprocessing.get_context("fork")
    lock, go_on = FileLock(tmp_path / "lock"), context.Event()
    assert lock.try_acquire()
    child = context.Process(target=_release, args=(lock,))
    child.start()
    child.join()
    assert not FileLock(tmp_path / "lock").try_acquire()
    waiting = context.Process(target=go_on.wait, args=(60,))
    waiting.start()
    lock.release()
    with FileLock(tmp_path / "lock") as other:
        assert other.try_acquire()
    go_on.set()
    waiting.join()


def test_a_link_is_not_followed_to_a_lock(tmp_path):
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="symbolic link"):
        FileLock(tmp_path / "lock").try_acquire()
    assert not (tmp_path / "elsewhere").exists()


def test_a_lock_on_a_file_open_for_reading_is_an_error_and_not_a_missing_feature(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="Bad file descriptor") as caught:
            ofd.try_lock(fd)
    finally:
        os.close(fd)
    assert not ofd.is_unsupported(caught.value)


def test_a_lock_that_nobody_references_is_free_and_its_descriptor_closed(tmp_path):
    count = len(list(Path("/proc/self/fd").iterdir()))
    lock = FileLock(tmp_path / "lock")
    assert lock.try_acquire()
    del lock
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == count
    with FileLock(tmp_path / "lock") as other:
        assert other.try_acquire()
