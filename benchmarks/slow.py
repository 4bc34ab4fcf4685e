"""A store that is far away: every request takes so much longer, and is counted, in whatever process it is made.

The delay is a sleep before a local file is opened or read: latency without a limit on bandwidth. That favours those
who ask for few large pieces.
"""

from __future__ import annotations

import multiprocessing
import time

_requests = multiprocessing.Value("q", 0)  # shared with the workers that are forked later
_latency_s = 0.0


def set_latency(seconds: float) -> None:
    global _latency_s  # noqa: PLW0603  one store a process, set before anything is opened
    _latency_s = seconds


def latency_s() -> float:
    return _latency_s


def note_request() -> None:
    with _requests.get_lock():
        _requests.value += 1


def request() -> None:
    """Wait as long as a request takes to be answered."""
    note_request()
    time.sleep(_latency_s)


def request_count() -> int:
    return _requests.value
