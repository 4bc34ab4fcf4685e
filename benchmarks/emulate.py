"""The emulated accelerator, and the arithmetic of its utilisation.

A step is a sleep. The copy of batch k into one buffer runs in a thread beside step k, as a copy engine would do it; the
next copy begins when it has ended. The functions at the top are pure and are tested in tests/unit/benchmarks/.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np

BAR = 0.9  # MLPerf Storage's accelerator utilisation
OCTAVE = 4  # demands a doubling: neighbours lie 19% apart, which is the resolution of a knee


def demand(index: int) -> float:
    """Samples a second at a place on the grid of demands."""
    return 2.0 ** (index / OCTAVE)


def place_of(samples_per_s: float) -> int:
    """The nearest place on the grid."""
    place = 0
    while demand(place) < samples_per_s:
        place += 1
    below = demand(place - 1)
    return place - 1 if place and samples_per_s / below < demand(place) / samples_per_s else place


def utilisation(steps: int, step_s: float, wall_s: float) -> float:
    """The part of the time in which the accelerator computes: what it is asked to do over the time it took."""
    return steps * step_s / wall_s if wall_s > 0 else 0.0


def relative(loader: float, null: float) -> float:
    """Utilisation with a loader over that with none, at the same demand; the null loader's own shortfall cancels."""
    return loader / null if null > 0 else 0.0


@dataclass(frozen=True)
class Knee:
    """`place` on the grid, None if even the lowest demand is too much; `open_ended` if the highest was met too."""

    place: int | None
    open_ended: bool
    points: int


def find_knee(measure: Callable[[int], float], lowest: int, highest: int, guess: int) -> Knee:
    """The largest place on the grid with a value of at least BAR, for values that fall as demand grows.

    Doubling strides from `guess` find two places around it, halving finds it between them: about six measurements.
    """
    seen: dict[int, bool] = {}

    def holds(place: int) -> bool:
        if place not in seen:
            seen[place] = measure(place) >= BAR
        return seen[place]

    place = min(max(guess, lowest), highest)
    stride = OCTAVE // 2
    upward = holds(place)
    good, bad = (place, None) if upward else (None, place)
    while good is None or bad is None:
        edge = highest if upward else lowest
        if place == edge:
            return Knee(good, open_ended=upward, points=len(seen))
        place = min(place + stride, highest) if upward else max(place - stride, lowest)
        stride *= 2
        if holds(place):
            good = place
        else:
            bad = place
    while bad - good > 1:
        middle = (good + bad) // 2
        if holds(middle):
            good = middle
        else:
            bad = middle
    return Knee(good, open_ended=False, points=len(seen))


class Copier:
    """The copy engine: one thread that copies the pieces of a batch into one buffer, end to end."""

    def __init__(self, nbytes: int) -> None:
        self._buffer = np.zeros(nbytes, np.uint8)
        self._orders: SimpleQueue[Sequence | None] = SimpleQueue()
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._busy = False
        self.cpu_s = 0.0
        self.copied_bytes = 0
        self._thread = threading.Thread(target=self._work, name="copy-engine", daemon=True)
        self._thread.start()

    def submit(self, pieces: Sequence) -> None:
        """Begin to copy one batch. The one before must have ended."""
        self._busy = True
        self._orders.put(pieces)

    def wait(self) -> None:
        """Until what was submitted is copied."""
        if self._busy:
            self._busy = False
            error = self._done.get()
            if error is not None:
                raise error

    def close(self) -> None:
        self.wait()
        self._orders.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (pieces := self._orders.get()) is not None:
            before = time.thread_time()
            error = None
            try:
                self._copy(pieces)
            except BaseException as raised:  # noqa: BLE001  thread boundary: raised by wait()
                error = raised
            del pieces  # the batch is the loader's again
            self.cpu_s += time.thread_time() - before
            self._done.put(error)

    def _copy(self, pieces: Sequence) -> None:
        buffer, start = self._buffer, 0
        for piece in pieces:
            array = piece if isinstance(piece, np.ndarray) else np.frombuffer(piece, np.uint8)
            stop = start + array.size
            np.copyto(buffer[start:stop], array.reshape(-1))
            start = stop
        if start != len(buffer):
            raise RuntimeError(f"a batch has {start} bytes, not {len(buffer)}")
        self.copied_bytes += start


@dataclass(frozen=True)
class Stretch:
    """A part of a run: how many steps, and in what time."""

    steps: int
    wall_s: float


def run(batches: Iterator, copier: Copier, step_s: float, seconds: float, steps: tuple[int, int]) -> Stretch:
    """Train for about `seconds`, and for at least and at most so many steps. Without a step: as fast as it goes."""
    least, most = steps
    count = 0
    begin = now = time.perf_counter()
    while count < most and (count < least or now - begin < seconds):
        pieces = next(batches)
        copier.wait()
        copier.submit(pieces)
        del pieces
        if step_s:
            time.sleep(step_s)
        count += 1
        now = time.perf_counter()
    return Stretch(count, now - begin)
