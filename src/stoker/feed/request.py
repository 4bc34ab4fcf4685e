"""The feeder, as a loader sees it: makes the batches of a rank, ahead of their use.

It serves a small protocol: `request(step)` is answered with a WireBatch whose values lie in a slot of the arena, which
returns when the last view of it dies; `close()` ends it. Any step may be asked for at any time; the feeder reads ahead
of the last one asked for.
"""

from __future__ import annotations

import os
from typing import Protocol

from stoker.errors import ConfigError, UnsupportedError
from stoker.feed.batch import WireBatch
from stoker.feed.options import FeedStats
from stoker.io.memory import MapWatcher
from stoker.ledger import Counter


class Feeder(Protocol):
    """What a loader asks for its batches."""

    def request(self, step: int) -> WireBatch:
        """The batch of `step`; waits until it is made. Its memory is the caller's from then on.

        May be interrupted anywhere, as by Ctrl-C: the batch is then delivered to the next request for it, or given up.
        Raises what made the batch fail, as itself: NotFound, Truncated, DigestMismatch, SampleError and others; a
        second request tries anew. TimedOut after `deadline_s`, ClosedError, UnsupportedError in a forked process.
        """

    def is_ready(self, step: int) -> bool:
        """Whether `request(step)` would return a batch at once."""

    def watch(self, watcher: MapWatcher) -> None:
        """Tell `watcher` where the memory of batches is mapped, now and whenever that changes."""

    def stats(self) -> FeedStats:
        """What it has done, and what it holds now."""

    def count(self) -> dict[Counter, int]:
        """What the ledger keeps of `stats`, at next to no cost."""

    def abandon(self) -> None:
        """Stop soon, without waiting. Takes no lock: a garbage collection may call it anywhere."""

    def close(self) -> None:
        """End all threads and processes and give the memory back, but for what is lent. Idempotent."""


def check_request(step: int, step_count: int, pid: int) -> None:
    """Raise UnsupportedError in another process than `pid`, which made the feeder; ConfigError for no step of it."""
    if os.getpid() != pid:
        raise UnsupportedError(
            f"this loader belongs to process {pid} and cannot be used in its fork {os.getpid()}",
            hint="make the loader in the process that uses it; with a DataLoader use num_workers=0",
        )
    if not 0 <= step < step_count:
        raise ConfigError(f"there is no step {step}", hint=f"steps count from 0 to {step_count - 1}")
