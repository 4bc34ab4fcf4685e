"""One rank's files and the thread behind training."""

import threading

from stoker.checkpoint.layout import FileImage, StepId
from stoker.checkpoint.writer import Background, write_file
from stoker.io.checksum import CHUNK_BYTES, chunk_digests, root_digest
from stoker.values import Key

STEP = StepId(generation=1, step=1)


def test_a_file_is_written_in_chunks_with_their_digests(home):
    image = bytes(range(256)) * (CHUNK_BYTES // 128) + b"a longer end"
    file = write_file(home, STEP, FileImage("f", b"", 3, len(image), ()), memoryview(image))
    data = image[3:]
    assert home.read(Key("step-00000001.g0001.partial/f")) == data
    assert file.chunks == tuple(chunk_digests(memoryview(data)))
    assert (file.bytes, file.root, len(file.chunks)) == (len(data), root_digest(file.chunks), 3)


def test_jobs_are_done_in_order_by_one_thread_that_ends():
    done = []
    background = Background("jobs")
    for number in range(20):
        background.submit(lambda number=number: done.append((number, threading.current_thread().name)))
    thread = background._thread
    if thread is not None:
        assert not thread.daemon
        thread.join(10)
    assert done == [(number, "jobs") for number in range(20)]
    assert background._thread is None
    background.submit(lambda: done.append("again"))
    thread = background._thread
    if thread is not None:
        thread.join(10)
    assert done[-1] == "again"


def test_a_job_that_raises_does_not_take_the_others_with_it(caplog):
    background = Background("jobs")
    done = threading.Event()
    background.submit(lambda: 1 / 0)
    background.submit(done.set)
    assert done.wait(10)
    assert "ZeroDivisionError" in caplog.text
