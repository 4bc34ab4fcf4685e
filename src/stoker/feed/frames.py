"""Memory for units of a data set that were read whole: which unit lies in which frame, and which frame is used next."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.dataset.distinct import distinct
from stoker.dataset.layout import Int64s
from stoker.feed.gather import Units

_LOOK_AGAIN_S: Final = 0.05  # how soon it is seen that a claim is not wanted any more
NO_FRAME: Final = -1
_FIRST: Final = np.iinfo(np.int64).min  # before all others
_EMPTY, _READING, _READY = 0, 1, 2


class Claim(NamedTuple):
    """What a batch of n samples holds until `release`.

    Attributes:
        frames: int64[n], where the unit of a sample lies; -1 where it has no frame.
        unit, frame: the units that the claimer must read and `settle`, and where to.
        awaited: how many frames others are reading; `arrived` is called once for each.
    """

    frames: Int64s
    unit: list[int]
    frame: list[int]
    awaited: int


class Ahead(NamedTuple):
    """What is to be read ahead of use.

    Attributes:
        unit, frame: the units that the claimer must read and `settle`, and where to.
        is_all: whether no unit was left out for want of room.
    """

    unit: list[int]
    frame: list[int]
    is_all: bool


class Frames:
    """`frame_count` frames of `units.frame_bytes`, one for a unit each. Thread-safe; memory is taken when written to.

    A frame that no batch holds is given to another unit: of those whose samples were all delivered the one that was
    last, else one that was never used, else the one that was used longest ago. `again_count` counts units that were
    read again because theirs was taken too early.

    With `keeps`, frames that were never used go first, so that all of them fill: what is delivered whole stays for the
    next epoch, whose samples it is read for no sooner than any other. Without it memory that was never written to is
    left alone as long as there is other: the system has to clear it, which costs more than to read a unit.
    """

    def __init__(self, units: Units, frame_count: int, *, keeps: bool) -> None:
        self.frame_bytes = units.frame_bytes
        self.size_bytes = frame_count * units.frame_bytes
        self.memory = np.empty(self.size_bytes, np.uint8).data
        self.again_count = 0
        self.lock = threading.Lock()
        self._released = threading.Condition(self.lock)
        self._is_short = False  # somebody waits for frames
        self._sample_count = units.sample_count
        self._usable = units.usable
        self._of_unit = np.full(len(units.offset), NO_FRAME, np.int64)
        self._cut_short = np.zeros(len(units.offset), np.bool_)
        self._unit = np.full(frame_count, -1, np.int64)
        self._state = np.zeros(frame_count, np.uint8)
        self._holders = np.zeros(frame_count, np.int64)
        self._left = np.zeros(frame_count, np.int64)  # samples not delivered yet, in this epoch
        # By the clock; less than 0 if all was delivered: then the last is the least. Frames go in this order; at first
        # one after the other, as memory is cleared 2 MiB at a time.
        self._used = np.arange(frame_count) + (_FIRST if keeps else 0)
        self._clock = frame_count
        self._keeps_all = frame_count >= int(units.usable.sum())
        self._is_ahead = np.zeros(frame_count, np.bool_)  # read ahead of use, and not used yet
        self._is_coming = np.zeros(frame_count, np.bool_)  # being read ahead: held for that
        self._waiting: dict[int, list[Callable[[], None]]] = {}

    def claim(self, units: Int64s, arrived: Callable[[], None], gives_up: Callable[[], bool]) -> Claim:
        """Hold the frames of the units of n samples; those that have none get one.

        Waits while there are too few and other batches hold some, until `gives_up`: those go on by themselves. One
        thread claims. What a batch that is alone finds no frame for has none.
        """
        with self.lock:
            self._clock += 1
            frames = self._of_unit[units]
            missing = frames < 0
            unit: list[int] = []
            frame: list[int] = []
            if missing.any():
                self._hold(frames[~missing])
                wanted = distinct(units[missing & self._usable[units]])
                taken = self._take(len(wanted), int((~missing).sum()), gives_up)
                wanted = wanted[: len(taken)]
                self._assign(taken, wanted)
                unit, frame = wanted.tolist(), taken.tolist()
                added = self._of_unit[units[missing]]
                frames[missing] = added
                self._hold(added[added >= 0])
            else:
                self._hold(frames)
            awaited = 0
            if self._waiting:
                held = frames[frames >= 0]
                for one in set(held[self._state[held] == _READING].tolist()) - set(frame):
                    self._waiting[one].append(arrived)
                    awaited += 1
            for one in frame:
                self._waiting[one] = []
        return Claim(frames, unit, frame, awaited)

    def at_hand(self, units: Int64s) -> Int64s | None:
        """The frames of units that are all there, where each unit has room for itself; None if they are not. For the
        thread that claims: no other gives frames away, so what it does with them before it claims again needs no claim.
        """
        if not self._keeps_all:
            return None
        frames = self._of_unit[units]
        if int(frames.min()) < 0 or not bool((self._state[frames] == _READY).all()):
            return None
        self._is_ahead[frames] = False
        return frames

    def claim_ahead(self, units: Int64s, most: int, due: int) -> Ahead:
        """Hold frames for those of the units of n samples that have none, each until it is settled. Never waits.

        No more than `most` are read ahead and not used at a time. They are used `due` claims from now.
        """
        with self.lock:
            missing = distinct(units[(self._of_unit[units] < 0) & self._usable[units]])
            room = max(0, most - int(np.count_nonzero(self._is_ahead)))
            taken = self._choose(min(room, len(missing)), np.flatnonzero(self._holders == 0))
            wanted = missing[: len(taken)]
            self._assign(taken, wanted)
            self._used[taken] = self._clock + due
            self._is_ahead[taken] = self._is_coming[taken] = True
            self._holders[taken] += 1
            for one in taken.tolist():
                self._waiting[one] = []
        return Ahead(wanted.tolist(), taken.tolist(), len(wanted) == len(missing))

    def forget_ahead(self) -> None:
        """What was read ahead will not be used soon: its frames go first."""
        with self.lock:
            self._used[self._is_ahead] = -self._clock
            self._is_ahead[:] = False

    def close(self) -> None:
        """Give the memory back, when no batch is under way any more."""
        self.memory = memoryview(b"")

    def view(self, frame: int, nbytes: int) -> memoryview:
        """The first bytes of a frame."""
        return self.memory[frame * self.frame_bytes : frame * self.frame_bytes + nbytes]

    def settle(self, frame: int, *, ready: bool) -> None:
        """A frame that was to be read holds its unit, or will not. Once for each; later calls do nothing."""
        with self.lock:
            waiting = self._waiting.pop(frame, None)
            if waiting is None:
                return
            if self._is_coming[frame]:
                self._is_coming[frame] = False
                self._holders[frame] -= 1
                if self._is_short:
                    self._released.notify()
            if ready:
                self._state[frame] = _READY
            else:
                self._forget(frame)
        for arrived in waiting:
            arrived()

    def are_ready(self, frames: Int64s) -> NDArray[np.bool_]:
        """For each frame whether it holds its unit; False for -1."""
        ready: NDArray[np.bool_] = (frames >= 0) & (self._state[frames] == _READY)
        return ready

    def release(self, frames: Int64s) -> None:
        """A batch holds its frames no longer."""
        with self.lock:
            np.subtract.at(self._holders, frames[frames >= 0], 1)
            if self._is_short:
                self._released.notify()

    def forget(self, frames: Int64s) -> None:
        """What lies in these frames is not what it should be: it is read again when it is wanted again."""
        with self.lock:
            for frame in set(frames.tolist()):
                if self._state[frame] == _READY:
                    self._forget(frame)

    def _forget(self, frame: int) -> None:
        self._of_unit[self._unit[frame]] = NO_FRAME
        self._unit[frame] = -1
        self._state[frame] = _EMPTY
        self._used[frame] = _FIRST
        self._is_ahead[frame] = False

    def _hold(self, frames: Int64s) -> None:
        """Count the samples of a batch that lie in these frames (one each, repeats allowed)."""
        np.add.at(self._holders, frames, 1)
        finished = frames[self._left[frames] <= 0]  # another epoch has begun
        self._left[finished] = self._sample_count[self._unit[finished]]
        np.subtract.at(self._left, frames, 1)
        self._is_ahead[frames] = False
        self._used[frames] = self._clock
        self._used[frames[self._left[frames] <= 0]] = -self._clock

    def _take(self, count: int, own_count: int, gives_up: Callable[[], bool]) -> Int64s:
        """Up to `count` frames that nobody holds; `own_count` of the holds are the claimer's."""
        while True:
            idle = np.flatnonzero(self._holders == 0)
            if len(idle) >= count or int(self._holders.sum()) == own_count or gives_up():
                return self._choose(count, idle)
            self._is_short = True
            self._released.wait(_LOOK_AGAIN_S)
            self._is_short = False

    def _choose(self, count: int, idle: Int64s) -> Int64s:
        """Up to `count` of the idle frames, those that go first."""
        if not 0 < count < len(idle):
            return idle[:count]
        return idle[np.argpartition(self._used[idle], count)[:count]]

    def _assign(self, frames: Int64s, units: Int64s) -> None:
        old = self._unit[frames]
        self._cut_short[old[(old >= 0) & ((self._left[frames] > 0) | self._is_ahead[frames])]] = True
        self._of_unit[old[old >= 0]] = NO_FRAME
        self._of_unit[units] = frames
        self._unit[frames] = units
        self._state[frames] = _READING
        self._left[frames] = 0
        self._is_ahead[frames] = False
        self.again_count += int(self._cut_short[units].sum())
        self._cut_short[units] = False
