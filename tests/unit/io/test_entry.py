import os
import signal
from pathlib import Path

import pytest

from stoker.errors import InternalError
from stoker.io import entry
from stoker.io.entry import enter
from stoker.io.memfd import anonymous_file


@pytest.mark.parametrize("arguments", [[], ["x"], ["0", "987654"]])
def test_a_module_started_by_hand_says_that_it_is_not_for_that(arguments):
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTTOU)}
    try:
        with pytest.raises(InternalError, match="started by stoker itself"):
            enter(arguments)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_last_words_do_not_grow_without_end():
    fd = anonymous_file("words")
    with Path("/dev/null").open("w") as shown:
        words = entry._Words(shown, fd)
        for number in range(3000):
            print(f"line {number} {'x' * 60}", file=words)
    assert os.fstat(fd).st_size <= entry._WORDS_MAX_BYTES + 100
    assert os.pread(fd, 1 << 20, 0).rstrip().endswith(b"line 2999 " + b"x" * 60)
    os.close(fd)
