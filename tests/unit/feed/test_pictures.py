"""Images of a batch are decoded side by side; what is given up writes nowhere any more."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from stoker.feed.pictures import _do_all


def test_all_jobs_are_done_and_the_first_error_is_raised_when_none_runs_any_more():
    done = []

    def job(number):
        if number in (2, 5):
            raise ValueError(number)
        time.sleep(0.002)
        done.append(number)

    with ThreadPoolExecutor(4) as threads:
        with pytest.raises(ValueError, match="2"):
            _do_all([lambda n=number: job(n) for number in range(8)], threads)
        assert sorted(done) == [0, 1, 3, 4, 6, 7]


@pytest.mark.parametrize("started", [0, 1])
def test_when_a_thread_cannot_be_started_no_job_is_done_later(monkeypatch, started):
    start, count, running, go_on, done = threading.Thread.start, [], threading.Event(), threading.Event(), []

    def refuse(thread):
        if len(count) >= started:
            running.wait(1 if started else 0)
            go_on.set()
            raise RuntimeError("can't start new thread")
        count.append(thread)
        start(thread)

    def job(number):
        running.set()
        go_on.wait(1)
        time.sleep(0.01)
        done.append(number)

    with ThreadPoolExecutor(4) as threads:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start"):
                _do_all([lambda n=number: job(n) for number in range(4)], threads)
        written = list(done)
        assert written == list(range(started))  # what ran was waited for
        threads.submit(lambda: None).result(5)  # there are threads again: what was queued comes to them
    assert done == written
