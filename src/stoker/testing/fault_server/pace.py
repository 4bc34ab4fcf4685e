"""How fast bytes may pass, and waiting that ends when the server does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

# A sender that wakes up late by less than this catches up; one that was idle for longer begins anew.
SLACK_S: Final = 0.05
PIECE_S: Final = 0.01
PIECE_MIN_BYTES: Final = 2048
PIECE_MAX_BYTES: Final = 1 << 20


class Closing(Exception):
    """The server is being closed: whoever waits ends."""


class Waiting:
    """Sleeping that `close` ends at once, with Closing."""

    def __init__(self) -> None:
        self._closed = threading.Event()

    def close(self) -> None:
        """Wake everyone up, now and from now on."""
        self._closed.set()

    @property
    def is_closed(self) -> bool:
        """Whether the server is being closed."""
        return self._closed.is_set()

    def until(self, due_s: float) -> None:
        """Sleep until `time.monotonic()` is `due_s`. Raises Closing."""
        left_s = due_s - time.monotonic()
        if self._closed.wait(left_s) if left_s > 0 else self._closed.is_set():
            raise Closing


class Pace:
    """A rate that one sender keeps, or several share: each piece has a time before which it must not go. Thread-safe.

    Times follow each other as a line of pieces at `bytes_per_s`, whenever the senders wake up, so that late sleeps do
    not add up.
    """

    def __init__(self, bytes_per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = bytes_per_s
        self._clock = clock
        self._free_s = clock()
        self._lock = threading.Lock()

    @property
    def piece_bytes(self) -> int:
        """How much to send at once: about 10 ms."""
        return max(PIECE_MIN_BYTES, min(PIECE_MAX_BYTES, int(self._rate * PIECE_S)))

    def due_s(self, size_bytes: int) -> float:
        """When the last of the next `size_bytes` may be sent."""
        with self._lock:
            now = self._clock()
            if now - self._free_s > SLACK_S:
                self._free_s = now
            self._free_s += size_bytes / self._rate
            return self._free_s
