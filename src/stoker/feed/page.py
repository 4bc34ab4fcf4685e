"""The page that trainer and feeder share: numbers that the one writes and the other reads without asking."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

PAGE_WORDS: Final = 16


class Word(IntEnum):
    """Where a number stands in the page. All are written by the feeder, but for LENT.

    OPENED: 1 once the data set is open. READS, BYTES_READ, COPIED: as FeedStats counts them. TAKEN: bytes of the slots
    that are taken, lent ones among them. PEAK: the most that TAKEN without LENT ever was. READY: batches that lie ready
    and were not pushed. PUSHED: batches pushed since the last seek. LENT: bytes of the slots that the trainer holds,
    or has not said yet that it does not.
    GATHERED, NEEDED, AGAIN: what FeedStats says of gathering.
    """

    OPENED = 0
    READS = 1
    BYTES_READ = 2
    COPIED = 3
    TAKEN = 4
    PEAK = 5
    READY = 6
    PUSHED = 7
    LENT = 8
    GATHERED = 9
    NEEDED = 10
    AGAIN = 11
