"""What the system gives no more of is an error that says which, and what helps."""

import errno
import threading

import pytest

from stoker.errors import CapacityError, NotFound
from stoker.io.limits import shortage, start_thread, within_limits


@pytest.mark.parametrize(
    ("error", "said", "hint"),
    [
        (MemoryError(), "cannot go on: no memory to be had", "ulimit -v"),
        (MemoryError("3 GiB"), "cannot go on: no memory to be had: 3 GiB", "ulimit -v"),
        (
            OSError(errno.ENOMEM, "Cannot allocate memory"),
            "cannot go on: no memory to be had: cannot allocate memory",
            "limit of memory",
        ),
        (
            RuntimeError("can't start new thread"),
            "cannot go on: no thread to be had: can't start new thread",
            "ulimit -u",
        ),
        (
            OSError(errno.EMFILE, "Too many open files"),
            "cannot go on: no open file to be had: too many open files",
            "ulimit -n",
        ),
    ],
)
def test_what_there_is_too_little_of_is_named_with_the_limit(error, said, hint):
    with pytest.raises(CapacityError) as caught, within_limits("cannot go on", "here"):
        raise error
    assert (caught.value.what, caught.value.where) == (said, "here")
    assert hint in caught.value.hint
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("can't start"),
        OSError(errno.EIO, "I/O error"),
        OSError("text"),
        ValueError("x"),
        KeyboardInterrupt(),
        CapacityError("no memory"),
        NotFound("no file"),
    ],
)
def test_every_other_error_passes_as_it_is(error):
    assert shortage(error, "doing") is None
    with pytest.raises(type(error)) as caught, within_limits("doing"):
        raise error
    assert caught.value is error


def test_a_function_may_be_bound_by_it_again_and_again():
    @within_limits("cannot add")
    def add(a, b):
        if b == 0:
            raise MemoryError
        return a + b

    assert [add(1, 2), add(3, 4)] == [3, 7]
    for _ in range(2):
        with pytest.raises(CapacityError, match="cannot add: no memory to be had"):
            add(1, 0)


def test_a_thread_is_started_or_the_limit_is_named(monkeypatch):
    done = []
    thread = threading.Thread(target=done.append, args=(1,))
    start_thread(thread, "cannot work")
    thread.join()
    assert done == [1]

    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading, "_start_new_thread", refuse)
    with pytest.raises(CapacityError, match="cannot work: no thread to be had"):
        start_thread(threading.Thread(target=done.append), "cannot work")
