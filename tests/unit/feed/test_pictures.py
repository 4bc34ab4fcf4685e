"""Images of a batch are decoded side by side; what is given up writes nowhere any more."""

import threading
import time

import pytest

from stoker.feed.pictures import ImageThreads


@pytest.fixture
def threads(monkeypatch):
    monkeypatch.setattr("stoker.feed.pictures.cpu_count", lambda: 4)
    threads = ImageThreads()
    yield threads
    threads.stop(wait_for_them=True)


def test_each_thread_takes_some_and_all_are_waited_for(threads):
    left, done, together = iter(range(40)), [], threading.Barrier(4, timeout=10)

    def take_some():
        together.wait()
        for number in left:
            time.sleep(0.001)
            done.append(number)

    threads.run(take_some, 40)
    assert sorted(done) == list(range(40))


def test_no_more_threads_take_some_than_there_are_images(threads):
    calls = []
    threads.run(lambda: calls.append(1), 3)
    assert len(calls) == 3


@pytest.mark.parametrize("started", [0, 1])
def test_when_a_thread_cannot_be_started_nobody_writes_later(threads, monkeypatch, started):
    start, count, running, go_on, done = threading.Thread.start, [], threading.Event(), threading.Event(), []

    def refuse(thread):
        if len(count) >= started:
            running.wait(1 if started else 0)
            go_on.set()
            raise RuntimeError("can't start new thread")
        count.append(thread)
        start(thread)

    def take_some():
        running.set()
        go_on.wait(1)
        time.sleep(0.01)
        done.append(threading.current_thread().name)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            threads.run(take_some, 40)
    written = list(done)
    assert len(written) == started  # what ran was waited for
    threads.run(lambda: None, 40)  # there are threads again: what was queued comes to them
    assert done == written
