"""Mapping in processes of the feeder: batches are cut into micro-batches, and each goes to whatever worker is free.

The first sample of a batch shows what its results take; the rest of the batch waits for that, later batches do not.
What comes out is what one thread would have made of it, whatever the number of workers: a worker that dies is started
anew, and the batch that it was at is made once more from its bytes, which a function may have written to.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ChildDied, ClosedError, StokerError
from stoker.feed.functions import module_paths
from stoker.feed.map_wire import (
    Freed,
    MapHello,
    Mapped,
    NotMapped,
    Shown,
    Target,
    Task,
    decode_from_worker,
    hear_columns,
    rows_of,
    tell_columns,
)
from stoker.feed.mapper import Column, put_together
from stoker.feed.placement import Placement, Work
from stoker.feed.plan import FeedSpec
from stoker.feed.wire import NOWHERE, MadeField, Said, encode, hear_error, hear_values, say, tell_fields, to_text
from stoker.io.channel import Channel
from stoker.io.child import Child
from stoker.io.limits import start_thread
from stoker.io.memory import Slot, apart_fd, make_words, map_words

MODULE: Final = "stoker.feed.map_worker"
_CUT_LEAST: Final = 8  # a message costs as much as a few small samples
_CUT_MOST: Final = 64
_CUTS_A_WORKER: Final = 4  # so that one which is late holds up a quarter of its share at most
_TRIES_A_SAMPLE: Final = 3  # at that one
_TRIES: Final = 10  # of a micro-batch, wherever in it: several kills by hand or by the kernel are no fault of a sample
_CLOSE_S: Final = 5.0
_LOOK_S: Final = 0.05  # how often an idle worker is asked whether it still keeps what it was lent
_KEYS_SHOWN: Final = 3

_log = logging.getLogger("stoker.feed")


def cut_batch(count: int, workers: int) -> list[tuple[int, int]]:
    """Micro-batches of `count` samples: [start, stop) of 8 to 64 rows, four for each worker where that is possible."""
    size = min(_CUT_MOST, max(_CUT_LEAST, -(-count // (_CUTS_A_WORKER * workers))))
    return [(start, min(count, start + size)) for start in range(0, count, size)]


def start_workers(count: int) -> list[Child]:
    """Processes that load while this one opens the data set. For the main thread, with which they end."""
    return [Child.start(MODULE, dies_with_thread=True) for _ in range(count)]


class _Spoilt(Exception):
    """A process ended in the middle of a micro-batch: the batch is to be read and decoded anew."""


@dataclass(slots=True, eq=False)
class _Mapping:
    """A batch on its way through the workers. `memory` is the loan of its bytes, which lie in `slot` or apart."""

    work: Work
    slot: Slot | None
    memory: NDArray[np.uint8]
    fields: list[MadeField]
    cuts: list[tuple[int, int]]
    cut_count: int
    columns: tuple[Column, ...] | None = None
    target: tuple[int, int] = (NOWHERE, 0)  # offset, bytes
    running: int = 0
    failed_row: int = sys.maxsize
    error: BaseException | None = None
    parts: dict[int, list[MadeField]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Its samples."""
        return len(self.work.plan.ordered.samples)

    @property
    def is_open(self) -> bool:
        """Whether there is a micro-batch that can be begun: the first one, or any once it is known what they give."""
        return bool(self.cuts) and (self.columns is not None or self.cuts[0][0] == 0)


class MapPool:
    """Up to `worker_count` processes, each with a thread here that talks to it.

    `finish(work, error)` is called once for each batch, in one of these threads; its fields and their bytes are set
    then. The threads, and with them the processes, start with the first batch.
    """

    def __init__(
        self,
        spec: FeedSpec,
        worker_count: int,
        placement: Placement,
        finish: Callable[[Work, BaseException | None], None],
    ) -> None:
        self._spec = spec
        self._worker_count = worker_count
        self._placement = placement
        self._finish = finish
        self._changed = threading.Condition()
        self._mappings: list[_Mapping] = []
        self._ends: dict[tuple[int, int], list[int]] = {}  # step and start of a micro-batch -> where processes ended
        self._stopped = False
        self._workers: list[_Worker] = []
        self._hatched: list[Child] = []
        self.threads: list[threading.Thread] = []

    def adopt(self, children: Sequence[Child]) -> None:
        """Before the start: use these processes first, which `start_workers` has started."""
        self._hatched += children

    def start(self) -> None:
        """Start the threads, each of which starts its process. Raises CapacityError; those started are in `threads`."""
        self._workers = [_Worker(self._spec, self._placement) for _ in range(self._worker_count)]
        for worker, child in zip(self._workers, self._hatched, strict=False):
            worker.hatched = child
        for number, worker in enumerate(self._workers):
            thread = threading.Thread(target=self._work, args=(worker,), name=f"stoker-map-{number}", daemon=True)
            start_thread(thread, "cannot start the map workers")
            self.threads.append(thread)

    def pids(self) -> list[int]:
        """The processes that run now."""
        return [worker.child.pid for worker in self._workers if worker.child is not None]

    def submit(self, work: Work) -> None:
        """Map a decoded batch."""
        slot, memory = self._placement.lend_input(work)
        cuts = cut_batch(len(work.plan.ordered.samples), self._worker_count)
        mapping = _Mapping(work, slot, memory, tell_fields(work.fields, work.encoded), cuts, len(cuts))
        with self._changed:
            if not self._stopped:
                self._mappings.append(mapping)
                self._mappings.sort(key=lambda each: each.work.step)
                self._changed.notify_all()
                return
        self._finish(work, ClosedError("the loader is closed"))

    def stop(self) -> None:
        """End the processes, whatever they are doing, and then the threads."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for worker in self._workers:
            worker.shut()

    # In the thread of a worker.

    def _work(self, worker: _Worker) -> None:
        try:
            with suppress(StokerError):  # the first batch meets it again
                worker.prepare()
            while (taken := self._take(worker)) is not None:
                self._do(worker, *taken)
                del taken  # it holds memory
        finally:
            worker.end()
            self._give_up()

    def _take(self, worker: _Worker) -> tuple[_Mapping, int, int] | None:
        """The next micro-batch, of the earliest batch that has one; waits for it. None once stopped."""
        with self._changed:
            while not self._stopped:
                found = next((each for each in self._mappings if each.is_open), None)
                if found is not None:
                    start, stop = found.cuts.pop(0)
                    found.running += 1
                    return found, start, stop
                self._changed.wait(_LOOK_S if worker.kept else None)
                worker.look()
        return None

    def _do(self, worker: _Worker, mapping: _Mapping, start: int, stop: int) -> None:
        error: BaseException | None = None
        row = start
        try:
            if not (mapping.work.dropped or self._stopped):
                answer = self._converse(worker, mapping, start, stop)
                if isinstance(answer, NotMapped):
                    error, row = hear_error(answer.error), max(answer.row, start)
                    if isinstance(error, StokerError) and answer.row >= 0:
                        error.sample_row, error.is_bad_sample = answer.row, answer.is_bad
                else:
                    mapping.parts[start] = answer.lists
        except BaseException as raised:  # noqa: BLE001  thread boundary: raised where the batch is asked for
            error = raised
            worker.end()  # it may wait for an answer
        with self._changed:
            mapping.running -= 1
            if error is not None and row < mapping.failed_row:
                mapping.failed_row, mapping.error = row, error
            if mapping.error is not None or mapping.work.dropped or self._stopped:
                # Of several errors that of the first sample counts, as if there were one worker.
                mapping.cuts = [cut for cut in mapping.cuts if cut[0] < mapping.failed_row and mapping.columns]
                if mapping.work.dropped or self._stopped:
                    mapping.cuts = []
            left = mapping.running + len(mapping.cuts)
            mapping.work.stage = f"the map function: {left} of {mapping.cut_count} micro-batches are left"
            if left:
                self._changed.notify_all()
                return
            self._mappings.remove(mapping)
        self._settle(mapping)

    def _converse(self, worker: _Worker, mapping: _Mapping, start: int, stop: int) -> Mapped | NotMapped:
        """Have a micro-batch mapped. Raises _Spoilt if the process dies at a sample, which may have been written to."""
        rows = self._ends.setdefault((mapping.work.step, start), [])
        while True:
            try:
                worker.prepare()
                worker.send(mapping, start, stop)
                while True:
                    answer = worker.receive()
                    if not isinstance(answer, Shown):
                        return answer
                    self._show(mapping, answer)
                    worker.tell_target(mapping)
            except EOFError:
                rows.append(row := worker.row())
                how, why = worker.bury(silent=self._stopped)
                if self._stopped:
                    raise ClosedError("the loader is closed") from None
                if len(rows) >= _TRIES or (row >= 0 and rows.count(row) >= _TRIES_A_SAMPLE):
                    raise _died_again(mapping.work.plan.keys, range(start, stop), rows, how, why) from None
                if row >= 0:
                    raise _Spoilt from None

    def _show(self, mapping: _Mapping, shown: Shown) -> None:
        """Find room for what the map gives, and let the rest of the batch begin."""
        work = mapping.work
        self._placement.place_output(work, mapping.slot, shown.nbytes)
        mapping.target = (NOWHERE if work.slot is None else work.slot.offset), shown.nbytes
        with self._changed:
            mapping.columns = hear_columns(shown.columns)
            self._changed.notify_all()

    def _settle(self, mapping: _Mapping) -> None:
        """A batch is done, or given up."""
        work, error = mapping.work, mapping.error
        if error is None and not (work.dropped or self._stopped):
            assert mapping.columns is not None
            lists: dict[str, list[object]] = {column.name: [] for column in mapping.columns if not column.dtype}
            for _, parts in sorted(mapping.parts.items()):
                for part in parts:
                    lists[to_text(part.name)] += hear_values(part)
            work.fields, work.nbytes = put_together(mapping.columns, mapping.count, lists)
        elif error is None:
            error = ClosedError("the loader is closed") if self._stopped else None
        mapping.memory = np.empty(0, np.uint8)
        work.again = isinstance(error, _Spoilt)
        for start, _ in () if work.again else cut_batch(mapping.count, self._worker_count):
            self._ends.pop((work.step, start), None)
        self._finish(work, error)

    def _give_up(self) -> None:
        """Once stopped, nobody does what is left."""
        with self._changed:
            left = [mapping for mapping in self._mappings if not mapping.running]
            self._mappings = [mapping for mapping in self._mappings if mapping.running]
        for mapping in left:
            self._finish(mapping.work, ClosedError("the loader is closed"))


def _died_again(keys: list[str], rows: range, ends: list[int], how: str, why: str) -> ChildDied:
    """The error for a micro-batch that ended every process that it was given to, at the row that `ends` says."""
    shown = ", ".join(repr(keys[row]) for row in rows[:_KEYS_SHOWN])
    more = f" and {len(rows) - _KEYS_SHOWN} more" if len(rows) > _KEYS_SHOWN else ""
    at = f"at sample {keys[ends[-1]]!r} of" if ends[-1] >= 0 else "before any of"
    return ChildDied(
        f"map() ended the process that it ran in {len(ends)} times, the last one {at} {shown}{more}: {how}",
        hint=why or "the function, or what it calls, ends its process",
    )


class _Worker:
    """One process, or the one that takes its place. For one thread, but for `shut`."""

    def __init__(self, spec: FeedSpec, placement: Placement) -> None:
        self._spec = spec
        self._placement = placement
        self._number = 0
        self._page: NDArray[np.int64] | None = None
        self._shut = threading.Event()
        self.child: Child | None = None
        self.hatched: Child | None = None
        self.kept: dict[int, NDArray[np.uint8]] = {}  # task -> its input, which the function still holds

    def prepare(self) -> None:
        """Start the process, if there is none. Raises EOFError if it ends at once."""
        if self.child is not None or self._shut.is_set():
            return
        # The kernel kills it with the thread that starts it, which is the one that ends it.
        hatched, self.hatched = self.hatched, None
        child = self.child = hatched or Child.start(MODULE, dies_with_thread=True)
        if self._shut.is_set():
            child.channel.shut()
        page_fd = make_words("stoker-row", 1)
        try:
            self._page = map_words(page_fd, 1)
            levels = logging.getLogger().getEffectiveLevel(), logging.getLogger("stoker").getEffectiveLevel()
            hello = MapHello(
                functions=list(self._spec.packed),
                paths=list(map(os.fsencode, module_paths())),
                seed=self._spec.seed,
                seeded=self._spec.seeds_process,
                arena_bytes=self._placement.arena.size_bytes,
                log_levels=levels,
            )
            child.channel.send(encode(hello), [self._placement.arena.fd, page_fd])
        except EOFError:
            pass  # it is seen when there is something to do
        finally:
            os.close(page_fd)

    def _channel(self) -> Channel:
        if self.child is None:
            raise EOFError
        return self.child.channel

    def send(self, mapping: _Mapping, start: int, stop: int) -> None:
        """Give it a micro-batch."""
        work = mapping.work
        plan, memory = work.plan, mapping.memory
        offsets = plan.key_offsets[start : stop + 1]
        self._number += 1
        if self._page is not None:
            self._page[0] = -1
        task = Task(
            number=self._number,
            step=work.step,
            epoch=plan.ordered.epoch,
            first_row=start,
            count=mapping.count,
            samples=plan.ordered.samples[start:stop].tobytes(),
            keys=plan.key_bytes[int(offsets[0]) : int(offsets[-1])],
            key_offsets=(offsets - offsets[0]).tobytes(),
            fields=[rows_of(each, start, stop) for each in mapping.fields],
            offset=NOWHERE if mapping.slot is None else mapping.slot.offset,
            nbytes=memory.nbytes,
            arena_bytes=self._placement.arena.size_bytes,
            target=self._target(mapping) if mapping.columns is not None else None,
        )
        files = [apart_fd(memory)] if mapping.slot is None and memory.nbytes else []
        self._lent = memory
        self._channel().send(encode(task), files + (self._target_files(mapping) if mapping.columns is not None else []))

    def tell_target(self, mapping: _Mapping) -> None:
        """Tell it where the results go that it asked room for."""
        self._channel().send(encode(self._target(mapping)), self._target_files(mapping))

    def _target(self, mapping: _Mapping) -> Target:
        assert mapping.columns is not None
        return Target(tell_columns(mapping.columns), *mapping.target, self._placement.arena.size_bytes)

    def _target_files(self, mapping: _Mapping) -> list[int]:
        memory = mapping.work.memory
        return [apart_fd(memory)] if mapping.target[0] == NOWHERE and memory is not None and memory.nbytes else []

    def receive(self) -> Shown | Mapped | NotMapped:
        """What it says of its task; waits for that. Raises EOFError if it ends."""
        while True:
            found = self._channel().receive(None)
            assert found is not None
            message = decode_from_worker(found[0])
            if isinstance(message, Said):
                say(message)
            elif isinstance(message, Freed):
                self.kept.pop(message.number, None)
            else:
                if isinstance(message, Mapped | NotMapped):
                    if message.kept:
                        self.kept[self._number] = self._lent
                    self._lent = np.empty(0, np.uint8)
                return message

    _lent: NDArray[np.uint8] = np.empty(0, np.uint8)

    def look(self) -> None:
        """Hear what it said by itself: that it keeps something no longer. Its end is seen with the next task."""
        try:
            while self.child is not None and self.kept and (found := self.child.channel.receive(0)) is not None:
                message = decode_from_worker(found[0])
                if isinstance(message, Freed):
                    self.kept.pop(message.number, None)
                elif isinstance(message, Said):
                    say(message)
        except EOFError:
            self.kept.clear()

    def row(self) -> int:
        """The row of the batch that it was at; -1 if at none."""
        return -1 if self._page is None else int(self._page[0])

    def bury(self, *, silent: bool) -> tuple[str, str]:
        """It has ended: say how, and what is usually behind that, and let go of all it held."""
        child = self.child
        if child is None:
            return "no process", ""
        how = child.end(_CLOSE_S)
        words = child.last_words()
        if not silent:
            _log.warning(
                "the process that maps samples (%d) ended: %s; another one does its samples again. %s",
                child.pid,
                how,
                words,
            )
        self.end()
        said = f"; its last words: {' | '.join(words.splitlines()[-3:])}" if words else ""
        fewer = ": fewer feed.map_workers take less" if how.code == -signal.SIGKILL else ""
        return f"{how}{said}", how.reason + fewer

    def shut(self) -> None:
        """Tell the process to end at once. For any thread."""
        self._shut.set()
        child = self.child
        if child is not None:
            child.channel.shut()

    def end(self) -> None:
        """End the process and give back what it held."""
        child, self.child = self.child, None
        if child is not None:
            child.end(_CLOSE_S)
            child.close()
        self.kept.clear()
        self._lent = np.empty(0, np.uint8)
