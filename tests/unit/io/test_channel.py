import gc
import os
import threading
import time

import pytest

from stoker.io.channel import Channel


@pytest.fixture
def ends():
    ours, theirs = Channel.pair()
    other = Channel(theirs)
    yield ours, other
    ours.close()
    other.close()


def heard(found):
    return bytes(found[0])


def test_messages_arrive_whole_and_in_order_whatever_their_size(ends):
    ours, theirs = ends
    sizes = [1, 2, 1000, 65536, 65537, 3_000_000, 1]
    sender = threading.Thread(target=lambda: [ours.send(bytes([size % 251]) * size) for size in sizes])
    sender.start()
    for size in sizes:
        assert heard(theirs.receive(10)) == bytes([size % 251]) * size
    sender.join()


def test_both_ends_send(ends):
    for a, b in (ends, ends[::-1]):
        a.send(b"hello")
        assert heard(b.receive(1)) == b"hello"


@pytest.mark.parametrize("size", [3, 100_000])
def test_open_files_travel_with_a_message_and_are_not_inherited(ends, size):
    ours, theirs = ends
    reader, writer = os.pipe()
    ours.send(b"x" * size, [reader, writer])
    os.close(reader)
    os.close(writer)
    message, files = theirs.receive(1)
    assert len(message) == size
    os.write(files[1], b"through")
    assert os.read(files[0], 10) == b"through"
    for fd in files:
        assert not os.get_inheritable(fd)
        os.close(fd)


def test_nothing_there_is_none_at_once_or_after_the_time_given(ends):
    assert ends[0].receive(0) is None
    begin = time.monotonic()
    assert ends[0].receive(0.02) is None
    assert 0.015 < time.monotonic() - begin < 5


def test_what_comes_soon_is_received_and_what_does_not_is_none(ends):
    assert ends[0].receive_soon() is None
    ends[1].send(b"there")
    assert heard(ends[0].receive_soon()) == b"there"
    timer = threading.Timer(0.0005, ends[1].send, [b"soon"])
    timer.start()
    timer.join()
    assert heard(ends[0].receive_soon()) == b"soon"
    ends[1].close()
    with pytest.raises(EOFError):
        ends[0].receive_soon()


def test_a_message_that_comes_while_it_is_waited_for_is_received(ends):
    timer = threading.Timer(0.02, ends[1].send, [b"late"])
    timer.start()
    assert heard(ends[0].receive(10)) == b"late"
    timer.join()


def test_a_full_channel_does_not_hold_up_who_gives_a_time(ends):
    ours, theirs = ends
    count = 0
    while ours.post(b"m" * 1000):
        count += 1
    assert count > 10
    assert ours.send(b"m", timeout_s=0.02) is False
    for _ in range(count):
        theirs.receive(0)
    assert ours.send(b"at last", timeout_s=1) is True
    assert heard(theirs.receive(1)) == b"at last"


def test_the_end_of_the_other_side_is_told_when_all_is_read(ends):
    ours, theirs = ends
    theirs.send(b"last")
    ours.send(b"never read")
    theirs.close()
    assert heard(ours.receive(1)) == b"last"
    for _ in range(2):
        with pytest.raises(EOFError):
            ours.receive(1)
    with pytest.raises(EOFError):
        ours.send(b"too late")
    assert ours.post(b"too late") is False


def test_shutting_ends_a_wait_in_another_thread_and_what_came_before_is_still_there(ends):
    ours, theirs = ends
    ended = []

    def wait():
        try:
            while True:
                ours.receive(None)
        except EOFError:
            ended.append(True)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.01)
    ours.shut()
    waiting.join(10)
    assert ended == [True]
    with pytest.raises(EOFError):
        theirs.receive(1)


def test_a_closed_end_says_so_and_closes_twice(ends):
    ours, _ = ends
    ours.close()
    ours.close()
    ours.shut()
    assert ours.post(b"x") is False
    with pytest.raises(EOFError):
        ours.send(b"x")
    with pytest.raises(EOFError):
        ours.receive(0)


def test_a_fork_holds_no_end_open(ends):
    ours, theirs = ends
    pid = os.fork()
    if pid == 0:
        time.sleep(30)
        os._exit(0)
    try:
        ours.close()
        with pytest.raises(EOFError):
            theirs.receive(10)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_no_descriptor_is_left_behind():
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  a count
    ours, theirs = Channel.pair()
    other = Channel(theirs)
    ours.send(b"x" * 100_000)
    other.receive(1)
    ours.close()
    other.close()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
