"""Where batches lie: which slots of the arena they take, and what happens when there is no room for one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError
from stoker.feed.batch import BadSample, Field, WireBatch
from stoker.feed.cached import Runs
from stoker.feed.fetch import Job
from stoker.feed.plan import BatchPlan
from stoker.feed.wire import Encoded
from stoker.io.memory import Arena, Slot, room
from stoker.units import format_bytes

# With prefetch_bytes=0 one batch is lent while the next is made. Wherever the first lies, one of the two gaps around
# it has room for another of the largest size if the arena is three times that size.
_UNBOUNDED_FACTOR: Final = 3

DECODED, MAPPED = 0, 1  # the stages that may put a batch elsewhere

_log = logging.getLogger("stoker.feed")


@dataclass(slots=True, eq=False)
class Work:
    """A batch on its way. It belongs to one thread at a time until it is `ready` or has an `error`.

    `bad` are the samples that others stand for; `runs` is how its parts are read, if they may be cached. `memory` is
    where its bytes lie: in `slot`, or in ordinary memory if that is None. `reserved` is kept for what decoding and a
    map give. `times` are those of StageTimes, as far as known; `encoded` says for each field where the bytes lie that
    were decoded, and nothing after a map. `reply` stands when it is ready, and its memory is `lent` then: the slot
    returns when the reply and all views are gone. `again`: no fault of its own ended it.
    """

    step: int
    plan: BatchPlan
    bad: tuple[BadSample, ...] = ()
    runs: Runs | None = None
    slot: Slot | None = None
    reserved: list[Slot | None] = field(default_factory=lambda: [None, None])
    memory: NDArray[np.uint8] | None = None
    job: Job | None = None
    stage: str = "its reads"
    times: list[int] = field(default_factory=list)
    fields: tuple[Field, ...] = ()
    encoded: tuple[Encoded, ...] = ()
    nbytes: int = 0
    reply: WireBatch | None = None
    lent: bool = False
    handed_over: bool = False
    dropped: bool = False
    again: bool = False


class Placement:
    """The arena, and which batch lies where. Thread-safe, as long as each batch is one thread's at a time.

    `prefetch_bytes` is the size of the arena; with 0 it grows to what the batch that is lent and the next one need.
    `grows` says whether decoding, and whether mapping, puts each batch into memory of its own: how much is unknown
    (`output_bytes` is None) until the first batch has passed. `arena` is where batches lie, if it is there already, and
    `apart` gives the memory of those that find no slot.
    """

    def __init__(
        self,
        prefetch_bytes: int,
        grows: tuple[bool, bool] = (False, False),
        arena: Arena | None = None,
        apart: Callable[[int], NDArray[np.uint8]] = lambda nbytes: np.empty(nbytes, np.uint8),
    ) -> None:
        self.arena = Arena(prefetch_bytes) if arena is None else arena
        self._apart = apart
        self._lock = threading.Lock()
        self._needs: list[int | None] = [None if each else 0 for each in grows]
        self.in_flight_bytes = 0
        self.peak_bytes = 0
        self.copied_count = 0
        self._bounded = prefetch_bytes > 0

    @property
    def output_bytes(self) -> int | None:
        """What a batch needs besides its bytes as they are read; None until that is known."""
        return None if None in self._needs else sum(each or 0 for each in self._needs)

    def place(self, work: Work, nbytes: int) -> bool:
        """Find room for a batch; False if there is none now. Raises ConfigError if there never is."""
        with self._lock:
            sizes = [each or 0 for each in self._needs]
            self._check_possible(nbytes, *sizes)
            if not any(sizes):
                slot = self.arena.take(nbytes)
                if slot is not None:
                    self._use(work, slot)
                return slot is not None
            taken = [self.arena.take(nbytes)]
            for size in sizes:
                taken.append(self.arena.take(size) if size and None not in taken[:1] else None)
            if taken[0] is None or any(size and slot is None for size, slot in zip(sizes, taken[1:], strict=True)):
                for slot in filter(None, taken):
                    self.arena.give(slot)
                return False
            work.reserved = taken[1:]
            for slot in filter(None, work.reserved):
                self._count(room(slot.nbytes))
            self._use(work, taken[0])
            return True

    def place_apart(self, work: Work, nbytes: int) -> None:
        """Put a batch into ordinary memory, since no slot is free."""
        with self._lock:
            self._copy(work, nbytes)

    def place_output(self, work: Work, raw: Slot | None, nbytes: int, stage: int = MAPPED) -> NDArray[np.uint8]:
        """Find room for what a stage gives of a batch whose bytes lie in `raw`, and learn how much it is.

        A batch that was copied stays apart. Raises ConfigError if both together never fit.
        """
        with self._lock:
            self._needs[stage] = max(self._needs[stage] or 0, nbytes)
            slot, work.reserved[stage] = work.reserved[stage], None
            if slot is not None and slot.nbytes < nbytes:
                self._free(slot)
                slot = None
            elif slot is not None:
                self._count(-room(slot.nbytes))
            if slot is None and raw is not None:
                self._check_possible(raw.nbytes, *((nbytes, 0) if stage == DECODED else (0, nbytes)))
                slot = self.arena.take(nbytes)
            if slot is not None:
                self._use(work, slot)
            elif raw is not None and nbytes:
                self._copy(work, nbytes)
            else:
                work.memory = self._apart(nbytes)
            assert work.memory is not None
            return work.memory

    def lend_input(self, work: Work) -> tuple[Slot | None, NDArray[np.uint8]]:
        """The bytes of a batch, for a map: their slot returns when the map and all it kept of them are done."""
        with self._lock:
            slot, memory = work.slot, work.memory
            assert memory is not None
            work.slot = work.memory = None
            if slot is None:
                return None, memory
            self._count(-room(slot.nbytes))
            return slot, self.arena.lend(slot)

    def lend(self, work: Work) -> NDArray[np.uint8]:
        """The bytes of a batch that is made. From now on its slot returns by itself, when the last view is gone: the
        thread that takes the batch may be interrupted anywhere, and nothing is lost.
        """
        assert work.memory is not None
        memory = work.memory if work.slot is None else self.arena.lend(work.slot)
        work.memory, work.lent = None, True
        return memory

    def hand_over(self, work: Work) -> None:
        """A batch is delivered: its bytes are its receiver's now. Once, however often it is called."""
        with self._lock:
            nbytes = room(work.slot.nbytes) if work.slot is not None else 0
            if not work.handed_over:
                # One line without a call: no interrupt comes between the two.
                work.handed_over, self.in_flight_bytes = True, self.in_flight_bytes - nbytes

    def give_back(self, work: Work) -> None:
        """A batch is not wanted any more: its slots are free at once, or with the next `reclaim` if it was made."""
        with self._lock:
            if work.slot is not None and not work.lent:
                self._free(work.slot)
            elif work.slot is not None and not work.handed_over:
                self._count(-room(work.slot.nbytes))
            for slot in filter(None, work.reserved):
                self._free(slot)
            work.slot = work.memory = work.reply = None
            work.reserved = [None, None]

    def _copy(self, work: Work, nbytes: int) -> None:
        if not self.copied_count:
            _log.warning(
                "all %s of prefetch memory are lent: batch %d and others are copied into ordinary memory; "
                "let batches go, or raise prefetch_bytes",
                format_bytes(self.arena.size_bytes),
                work.step,
            )
        self.copied_count += 1
        work.slot = None
        work.memory = self._apart(nbytes)

    def _use(self, work: Work, slot: Slot) -> None:
        work.slot = slot
        work.memory = self.arena.view(slot)
        self._count(room(slot.nbytes))

    def _free(self, slot: Slot) -> None:
        self.arena.give(slot)
        self._count(-room(slot.nbytes))

    def _count(self, nbytes: int) -> None:
        self.in_flight_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.in_flight_bytes)

    def _check_possible(self, nbytes: int, decoded_bytes: int, mapped_bytes: int) -> None:
        needed = room(nbytes) + sum(room(each) for each in (decoded_bytes, mapped_bytes) if each)
        if not self._bounded:
            if self.arena.size_bytes < _UNBOUNDED_FACTOR * needed:
                self.arena.grow(_UNBOUNDED_FACTOR * needed)
        elif needed > self.arena.size_bytes:
            more = f" with the {decoded_bytes} that it is decoded to" if decoded_bytes else ""
            more += f" with the {mapped_bytes} that map() makes of it" if mapped_bytes else ""
            raise ConfigError(
                f"prefetch_bytes is {self.arena.size_bytes}, and a batch of {nbytes} bytes{more} needs {needed}",
                hint=f"the least that works is prefetch_bytes={needed}",
            )
