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
from stoker.feed.batch import Field, WireBatch
from stoker.feed.fetch import Job
from stoker.feed.plan import BatchPlan
from stoker.io.memory import Arena, Slot, room
from stoker.units import format_bytes

# With prefetch_bytes=0 one batch is lent while the next is made. Wherever the first lies, one of the two gaps around
# it has room for another of the largest size if the arena is three times that size.
_UNBOUNDED_FACTOR: Final = 3

_log = logging.getLogger("stoker.feed")


@dataclass(slots=True, eq=False)
class Work:
    """A batch on its way. It belongs to one thread at a time until it is `ready` or has an `error`.

    `memory` is where its bytes lie: in `slot`, or in ordinary memory if that is None. `output_slot` is kept for what
    a map will return. `times` are those of StageTimes, as far as they are known; `reply` stands when it is ready, and
    its memory is `lent` then: the slot returns when the reply and all views are gone.
    """

    step: int
    plan: BatchPlan
    slot: Slot | None = None
    output_slot: Slot | None = None
    memory: NDArray[np.uint8] | None = None
    job: Job | None = None
    stage: str = "its reads"
    times: list[int] = field(default_factory=list)
    fields: tuple[Field, ...] = ()
    nbytes: int = 0
    reply: WireBatch | None = None
    lent: bool = False
    handed_over: bool = False
    dropped: bool = False


class Placement:
    """The arena, and which batch lies where. Thread-safe, as long as each batch is one thread's at a time.

    `prefetch_bytes` is the size of the arena; with 0 it grows to what the batch that is lent and the next one need.
    With `mapped` each batch also needs room for what the map returns: unknown (`output_bytes` is None) until the
    first batch has passed the map. `arena` is where batches lie, if it is there already, and `apart` gives the memory
    of those that find no slot.
    """

    def __init__(
        self,
        prefetch_bytes: int,
        *,
        mapped: bool,
        arena: Arena | None = None,
        apart: Callable[[int], NDArray[np.uint8]] = lambda nbytes: np.empty(nbytes, np.uint8),
    ) -> None:
        self.arena = Arena(prefetch_bytes) if arena is None else arena
        self._apart = apart
        self._lock = threading.Lock()
        self.output_bytes: int | None = None if mapped else 0
        self.in_flight_bytes = 0
        self.peak_bytes = 0
        self.copied_count = 0
        self._bounded = prefetch_bytes > 0

    def place(self, work: Work, nbytes: int) -> bool:
        """Find room for a batch; False if there is none now. Raises ConfigError if there never is."""
        with self._lock:
            output_bytes = self.output_bytes or 0
            self._check_possible(nbytes, output_bytes)
            slot = self.arena.take(nbytes)
            if slot is None:
                return False
            if output_bytes:
                work.output_slot = self.arena.take(output_bytes)
                if work.output_slot is None:
                    self.arena.give(slot)
                    return False
                self._count(room(output_bytes))
            self._use(work, slot)
            return True

    def place_apart(self, work: Work, nbytes: int) -> None:
        """Put a batch into ordinary memory, since no slot is free."""
        with self._lock:
            self._copy(work, nbytes)

    def place_output(self, work: Work, raw: Slot | None, nbytes: int) -> NDArray[np.uint8]:
        """Find room for what a map returned of a batch whose bytes lie in `raw`, and learn how much it is.

        A batch that was copied stays apart. Raises ConfigError if both together never fit.
        """
        with self._lock:
            self.output_bytes = max(self.output_bytes or 0, nbytes)
            slot, work.output_slot = work.output_slot, None
            if slot is not None and slot.nbytes < nbytes:
                self._free(slot)
                slot = None
            elif slot is not None:
                self._count(-room(slot.nbytes))
            if slot is None and raw is not None:
                self._check_possible(raw.nbytes, nbytes)
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
            if work.output_slot is not None:
                self._free(work.output_slot)
            work.slot = work.output_slot = work.memory = work.reply = None

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

    def _check_possible(self, nbytes: int, output_bytes: int) -> None:
        needed = room(nbytes) + (room(output_bytes) if output_bytes else 0)
        if not self._bounded:
            if self.arena.size_bytes < _UNBOUNDED_FACTOR * needed:
                self.arena.grow(_UNBOUNDED_FACTOR * needed)
        elif needed > self.arena.size_bytes:
            mapped = f" with the {output_bytes} that map() makes of it" if output_bytes else ""
            raise ConfigError(
                f"prefetch_bytes is {self.arena.size_bytes}, and a batch of {nbytes} bytes{mapped} needs {needed}",
                hint=f"the least that works is prefetch_bytes={needed}",
            )
