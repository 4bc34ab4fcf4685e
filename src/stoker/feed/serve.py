"""The feeder in a process of its own: it makes batches and pushes them, in order, as they get ready.

The main thread hears what the trainer says, and ends the process when the trainer is gone, whatever the other threads
are doing then. Whatever thread makes the batch that comes next pushes it, as long as that needs no waiting: to hand it
to another costs more than to send it. One more thread, stoker-push, says all the rest: it alone waits when the trainer
does not listen.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from stoker.errors import StokerError
from stoker.feed.page import PAGE_WORDS, Word
from stoker.feed.placement import Placement, Work
from stoker.feed.produce import Producer
from stoker.feed.travel import Fed, Hello, State, unpack_hello
from stoker.feed.wire import (
    NOWHERE,
    Erred,
    Failed,
    FromTrainer,
    Made,
    Release,
    Said,
    Seek,
    Wait,
    decode_from_trainer,
    encode,
    spell,
    tell_error,
    tell_fields,
    tell_keys,
)
from stoker.io.channel import Channel
from stoker.io.entry import enter
from stoker.io.limits import start_thread, within_limits
from stoker.io.memory import Arena, Slot, apart_fd, make_apart, map_words

if TYPE_CHECKING:
    from stoker.io.child import Child

_Message: TypeAlias = tuple[bytes, NDArray[np.uint8] | None]  # a batch, or an error; its memory if that is apart

_TOGETHER_COUNT: Final = 8  # loans, see `are_enough`
_COUNTED: Final = slice(int(Word.READS), int(Word.PUSHED) + 1)  # written together: a word at a time costs 5 us more
_GATHERING: Final = slice(int(Word.GATHERED), int(Word.AGAIN) + 1)
_OPENING_PAUSE_S: Final = 0.001  # between two looks at whether the data set is open


@dataclass(frozen=True, slots=True)
class _Loan:
    """Memory that the trainer holds, or will when it reads on; `work` is None for what a predecessor lent."""

    memory: NDArray[np.uint8]
    work: Work | None


def are_enough(dead_count: int, live_count: int) -> bool:
    """Whether to let the planner know of loans that have died, while others are alive: to wake it for several costs
    what it does for one, some 20 us of CPU time. A quarter of those alive may wait, up to 8: training has the others,
    and says so when it has not. While it waits for a batch none does.
    """
    return dead_count >= _TOGETHER_COUNT or 4 * dead_count >= live_count


class Server(Producer):
    """Serves the trainer at the other end of `channel`."""

    def __init__(
        self, channel: Channel, fed: Fed, hello: Hello, arena: Arena, page: NDArray[np.int64], workers: Sequence[Child]
    ) -> None:
        placement = Placement(hello.prefetch_bytes, fed.spec.grows, arena=arena, apart=make_apart)
        super().__init__(fed.opened, fed.batches, fed.spec, fed.options, hello.step_count, placement, fed.pattern)
        if self._stages.workers is not None:
            self._stages.workers.adopt(workers)
        self._channel = channel
        self._page = page
        self._counted = hello.state.counted
        self._peak_bytes = int(page[Word.PEAK])  # a predecessor's
        self._gathered: dict[str, int] = {}
        self._next_loan = hello.state.first_loan
        self._loans = _claim(arena, hello.state)
        self._dead: list[NDArray[np.uint8]] = []  # their slots are free, but nobody knows yet
        self._number = 0
        self._cursor: int | None = None  # the step that is pushed next
        self._pushed_count = 0
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()  # what to say; None: look for what is made
        self._unsent: _Message | None = None  # what it did not take
        self._held_up = False  # the trainer did not listen: stoker-push pushes until it has caught up
        logging.getLogger().addHandler(_Forward(channel, self._outbox))

    def begin(self) -> None:
        """Be ready to answer. Raises CapacityError."""
        start_thread(threading.Thread(target=self._push_all, name="stoker-push", daemon=True), "cannot make batches")
        self._page[Word.OPENED] = 1

    def serve(self, heard: Sequence[FromTrainer]) -> None:
        """Answer until the other side is gone; `heard` came before."""
        for message in heard:
            self._hear(message)
        while True:
            found = self._channel.receive(self._left_s())
            if found is None:
                self._time_out()
            else:
                self._hear(decode_from_trainer(found[0]))

    def _hear(self, message: FromTrainer) -> None:
        if isinstance(message, Release):
            self._release(message.loans)
        elif isinstance(message, Seek):
            self._seek(message)
        elif isinstance(message, Wait):
            with self._changed:
                if message.number == self._number and message.step == self._cursor and not self._is_made(message.step):
                    self._demand(message.step, message.since_ns)

    def _seek(self, seek: Seek) -> None:
        kept = set(seek.kept)
        with self._changed:
            self._return(seek.dead)
            for number in [number for number in self._loans if number not in kept]:
                work = self._loans.pop(number).work
                if work is None:
                    continue
                if work.step < seek.step or work.step in self._works:
                    self._placement.give_back(work)
                else:
                    self._works[work.step] = work  # it was pushed, but is not taken: it will be once more
            self._number, self._cursor, self._pushed_count = seek.number, seek.step, 0
            self._demand(seek.step, seek.since_ns)
            self._publish()
            self._push_made()

    def _demand(self, step: int, since_ns: int) -> None:
        self._dead.clear()  # it may be room that is missing
        try:
            self._ask(step, since_ns)
        except StokerError as error:  # the planner has ended
            self._errors[step] = error
            self._push_made()

    def _release(self, numbers: Sequence[int]) -> None:
        with self._changed:
            self._return(numbers)
            if self._asked is not None or are_enough(len(self._dead), len(self._loans)):
                self._dead.clear()  # the last references: the slots return

    def _return(self, numbers: Sequence[int]) -> None:
        """These loans have died; with the lock held."""
        for number in numbers:
            loan = self._loans.pop(number, None)
            if loan is None:
                continue
            if loan.work is not None:
                self._placement.hand_over(loan.work)
                loan.work.reply = None
            self._dead.append(loan.memory)

    def _left_s(self) -> float | None:
        with self._changed:
            if self._asked is None:
                return None
            return max(0.0, self._asked_ns / 1e9 + self._options.deadline_s - time.perf_counter())

    def _time_out(self) -> None:
        with self._changed:
            step = self._asked
            if step is None or self._left_s():
                return
            if self._is_made(step):
                self._asked = None  # it is only a matter of the trainer's reading it
                return
            error = self._timed_out(step, self._works.get(step))
            self._asked = self._cursor = None
        self._outbox.put(encode(Erred(self._number, step, tell_error(error))))

    def _tell_made(self, step: int) -> None:
        if step == self._cursor:
            self._push_made()

    # Saying.

    def _push_made(self) -> None:
        """Push what comes next and is made, without waiting; with the lock held."""
        if self._held_up:
            return
        if not self._outbox.empty():  # what was said before comes first
            self._held_up = True
            self._outbox.put(None)
            return
        try:
            while (found := self._next_message()) is not None:
                if not self._send(found, timeout_s=0):
                    self._held_up = True
                    self._unsent = found
                    self._outbox.put(None)
                    return
        except EOFError:
            os._exit(0)

    def _push_all(self) -> None:
        try:
            while True:
                message = self._outbox.get()
                if message is not None:
                    self._channel.send(message)
                    continue
                while (found := self._next_held_up()) is not None:
                    self._send(found)
        except EOFError:
            os._exit(0)

    def _send(self, message: _Message, timeout_s: float | None = None) -> bool:
        data, memory = message
        fds = [apart_fd(memory)] if memory is not None and memory.nbytes else ()
        return self._channel.send(data, fds, timeout_s)

    def _next_held_up(self) -> _Message | None:
        """What is to be pushed next, in the thread that may wait; None when it has caught up."""
        with self._changed:
            found, self._unsent = self._unsent, None
            found = found or self._next_message()
            self._held_up = found is not None
            return found

    def _next_message(self) -> _Message | None:
        """The batch, or the error, that comes next; None if it is not made yet."""
        step = self._cursor
        if step is None or not self._is_made(step):
            return None
        if self._asked == step:
            self._asked = None
        error = self._errors.pop(step, None)
        if error is not None:
            self._cursor = None
            return encode(Erred(self._number, step, tell_error(error))), None
        message = self._take(step)
        self._publish()
        return message

    def _take(self, step: int) -> _Message:
        """The message of a batch that is made, and its memory if that is apart."""
        work = self._works.pop(step)
        reply = work.reply
        assert reply is not None
        loan, self._next_loan = self._next_loan, self._next_loan + 1
        self._loans[loan] = _Loan(reply.memory, work)
        self._cursor = step + 1 if step + 1 < self._step_count else None
        self._next = step + 1
        self._pushed_count += 1
        timing = reply.timing
        keys, key_offsets = tell_keys(reply.sample_keys)
        made = Made(
            number=self._number,
            loan=loan,
            step=step,
            epoch=reply.epoch,
            offset=NOWHERE if work.slot is None else work.slot.offset,
            memory_bytes=reply.memory.nbytes,
            arena_bytes=self._arena.size_bytes,
            nbytes=reply.nbytes,
            times=(timing.planned_ns, timing.fetched_ns, timing.decoded_ns, timing.mapped_ns),
            valid=reply.valid.tobytes(),
            keys=keys,
            key_offsets=key_offsets,
            fields=tell_fields(work.fields, work.encoded),
            bad=list(reply.bad),
        )
        return encode(made), reply.memory if work.slot is None else None

    def _publish(self) -> None:
        """Bring the shared page up to date; with the lock held."""
        pool, stages = self._stages.pool, self._stages
        reads, bytes_read, copied = self._counted
        taken = self._arena.taken_bytes
        self._peak_bytes = max(self._peak_bytes, taken - int(self._page[Word.LENT]))
        self._page[_COUNTED] = (
            reads + pool.read_count,
            bytes_read + pool.read_bytes,
            copied + self._placement.copied_count,
            taken,
            self._peak_bytes,
            self._ready_count(),
            self._pushed_count,
        )
        gathered = stages.gather_stats()
        if gathered != self._gathered:
            self._gathered = gathered
            self._page[_GATHERING] = gathered["gather_bytes"], gathered["gather_needed_bytes"], gathered["read_again"]


def _claim(arena: Arena, state: State) -> dict[int, _Loan]:
    """Take what is lent already where it lies."""
    loans = {}
    for number, offset, nbytes in state.loans:
        slot = Slot(offset, nbytes)
        arena.claim(slot)
        loans[number] = _Loan(arena.lend(slot), None)
    return loans


class _Forward(logging.Handler):
    """Log records go to the trainer, which knows where they belong, and before the batch that they were said of. Takes
    no lock of the feeder's, and never waits.
    """

    def __init__(self, channel: Channel, outbox: SimpleQueue[bytes | None]) -> None:
        super().__init__()
        self._channel = channel
        self._outbox = outbox

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record on, as text."""
        try:
            message = encode(Said(spell(record.name), record.levelno, spell(self.format(record))))
        except Exception:  # noqa: BLE001  user code: arguments that do not fit, as every handler takes it
            self.handleError(record)
            return
        with suppress(EOFError):  # then this process is about to end
            if not self._outbox.empty() or not self._channel.send(message, timeout_s=0):
                self._outbox.put(message)


def main(arguments: Sequence[str]) -> None:
    """Serve the trainer that started this process; returns never."""
    channel = enter(arguments)
    try:
        _serve(channel)
    except EOFError:
        os._exit(0)


def _serve(channel: Channel) -> None:
    found = channel.receive(None)
    assert found is not None
    hello = msgspec.msgpack.decode(found[0], type=Hello)
    arena_fd, page_fd = found[1]
    logging.getLogger().setLevel(hello.state.log_levels[0])
    logging.getLogger("stoker").setLevel(hello.state.log_levels[1])
    heard: list[FromTrainer] = []
    try:
        with within_limits("the process that makes batches cannot begin"):
            server = _make_server(channel, hello, arena_fd, page_fd, heard)
            server.begin()
    except EOFError:
        raise
    except BaseException as error:  # noqa: BLE001  process boundary: told to the trainer
        channel.send(encode(Failed(tell_error(error))))
        while True:
            channel.receive(None)  # until the trainer has heard it
    server.serve(heard)


def _make_server(channel: Channel, hello: Hello, arena_fd: int, page_fd: int, heard: list[FromTrainer]) -> Server:
    """Open the data set, hearing what the trainer says meanwhile. Raises whatever went wrong."""
    workers = _start_workers(hello.map_workers)
    opened: SimpleQueue[Fed | BaseException] = SimpleQueue()
    thread = threading.Thread(target=partial(_open, hello, opened), name="stoker-open", daemon=True)
    thread.start()
    while True:
        try:
            fed = opened.get_nowait()
            break
        except Empty:
            found = channel.receive(_OPENING_PAUSE_S)
            if found is not None:
                heard.append(decode_from_trainer(found[0]))
    if isinstance(fed, BaseException):
        raise fed
    arena = Arena(hello.state.arena_bytes, arena_fd)
    return Server(channel, fed, hello, arena, map_words(page_fd, PAGE_WORDS), workers)


def _start_workers(count: int) -> Sequence[Child]:
    if not count:
        return ()
    from stoker.feed.workers import start_workers  # noqa: PLC0415  4 ms that no data set without a map needs to wait

    return start_workers(count)


def _open(hello: Hello, opened: SimpleQueue[Fed | BaseException]) -> None:
    try:
        opened.put(unpack_hello(hello))
    except BaseException as error:  # noqa: BLE001  thread boundary: told to the trainer
        opened.put(error)
