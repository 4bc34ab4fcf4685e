"""The feeder as a child process, as the trainer sees it: a batch that lies ready costs no round trip.

The child pushes batches as they get ready. `request` takes what has come; only where there is nothing does it say that
it waits. Whatever interrupts a request, and whenever the child dies, the next one seeks: it names the step to go on at
and the loans that are still alive, which is all that a feeder needs to know.
"""

from __future__ import annotations

import _thread
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from stoker.dataset.readable import Namer
from stoker.errors import ChildDied, ClosedError, InternalError, TimedOut
from stoker.feed.batch import WireBatch
from stoker.feed.loans import Loan, Loans
from stoker.feed.options import FeedStats
from stoker.feed.page import PAGE_WORDS, Word
from stoker.feed.request import check_request
from stoker.feed.start import start_child
from stoker.feed.travel import Hello, State
from stoker.feed.wire import (
    NOWHERE,
    Erred,
    Failed,
    FromFeeder,
    Made,
    Release,
    Said,
    Seek,
    Wait,
    decode_from_feeder,
    encode,
    hear_batch,
    hear_error,
    say,
)
from stoker.io.child import Child, Ended
from stoker.io.memory import MapWatcher, Slot, Window, make_words, map_words, room, take_apart
from stoker.ledger import Counter
from stoker.units import format_seconds

_CLOSE_S: Final = 5.0  # a child has nothing to finish: it ends at once, unless the kernel holds it in a read
_GRACE_S: Final = 1.0  # so much longer than its deadline training waits for the child's own word on what it waits for
_DEATHS_MAX: Final = 3
_FORGIVEN_AFTER: Final = 100  # batches in a row

_log = logging.getLogger("stoker.feed")


class ChildFeeder:
    """A feeder in a child process, which `child` is the first of. `ends` is called once when all has ended; `namer`
    makes the keys of samples where they do not come with a batch.
    """

    def __init__(
        self,
        child: Child,
        hello: Hello,
        ends: Callable[[dict[Counter, int]], None] = lambda _: None,
        namer: Namer | None = None,
    ) -> None:
        self._hello = hello
        self._namer = namer
        self._ends = ends
        self._pid = os.getpid()
        self._one_request = threading.Lock()
        self._closing = False
        self._arena = Window(hello.prefetch_bytes)
        self._page_fd = make_words("stoker-page", PAGE_WORDS)
        self._page = map_words(self._page_fd, PAGE_WORDS)
        self._loans = Loans()
        self._number = 0  # of the last seek
        self._early: tuple[FromFeeder, list[int]] | None = None  # what came and was not what was asked for
        self._next: int | None = None  # the step that comes next by itself; None: it must be sought
        self._taken_count = 0  # batches since the last seek
        self._death_count = 0
        self._since_death_count = 0
        self._peak_bytes = 0
        self._child: Child | None = None
        try:
            self._begin(child)
        except BaseException:  # Ctrl-C, and then there is no feeder to close it
            os.close(self._page_fd)
            raise

    def request(self, step: int) -> WireBatch:
        """As `Feeder.request`; ChildDied if the child ended once too often."""
        check_request(step, self._hello.step_count, self._pid)
        since_ns = time.perf_counter_ns()
        with self._one_request:
            goes_on, self._next = self._next == step, None  # whatever interrupts this: the next one seeks
            found = self._take_pushed(step) if goes_on and self._hello.prefetch_bytes else None
            made, files = found or self._receive(step, since_ns, goes_on=goes_on)
            wire = hear_batch(made, self._lend(made, files), self._namer)
            self._taken_count += 1
            self._since_death_count += 1
            if found is None:  # the first one, or one that had to be waited for
                self._loans.adapt(self._arena.size_bytes)
            self._page[Word.LENT] = self._loans.taken_bytes
            self._next = step + 1
            return wire

    def _take_pushed(self, step: int) -> tuple[Made, list[int]] | None:
        """The message that brings `step`, as it nearly always is: pushed already, or about to be. None if anything else
        was, or nothing: `_receive` goes on from there.
        """
        child = self._child
        if child is None or self._closing:
            return None
        if self._page[Word.PUSHED] <= self._taken_count:
            self._loans.tell_before_wait()
        try:
            found = child.channel.receive_soon()
        except EOFError:  # it is met again
            return None
        if found is None:
            return None
        message = decode_from_feeder(found[0])
        if type(message) is Made and message.number == self._number and message.step == step:
            return message, found[1]
        self._early = message, found[1]
        return None

    def _receive(self, step: int, since_ns: int, *, goes_on: bool) -> tuple[Made, list[int]]:
        """The message that brings `step`. Raises what the feeder says went wrong with it."""
        deadline_s = since_ns / 1e9 + self._hello.deadline_s + _GRACE_S
        self._loans.is_waiting = True  # before it is looked at what has died
        try:
            return self._await(step, since_ns, deadline_s, goes_on=goes_on)
        finally:
            self._loans.is_waiting = False

    def _await(self, step: int, since_ns: int, deadline_s: float, *, goes_on: bool) -> tuple[Made, list[int]]:
        while True:
            child = self._running()
            try:
                found = self._expect(child, step, since_ns, deadline_s) if goes_on else None
                if found is None:
                    if not goes_on:
                        self._seek(child, step, since_ns, deadline_s)
                    found = self._next_reply(child, deadline_s)
            except EOFError:
                self._bury(child)
                goes_on = False
                continue
            if found is None:
                raise self._silent(child, step)
            reply, files = found
            if isinstance(reply, Made):
                if reply.step != step:
                    raise InternalError(f"the feeder sent step {reply.step} for step {step}")
                return reply, files
            if isinstance(reply, Failed):
                self._part(child)
            error = hear_error(reply.error)
            try:
                raise error
            finally:
                del error  # no cycle of error, traceback and frame

    def _expect(
        self, child: Child, step: int, since_ns: int, deadline_s: float
    ) -> tuple[Made | Erred | Failed, list[int]] | None:
        """What was pushed already, or comes once the child knows that it is waited for; None at the deadline."""
        found = self._next_reply(child, 0)
        if found is None:
            loans = self._loans
            dead = list(loans.untold.copy())
            if dead and child.channel.send(encode(Release(dead)), timeout_s=self._left_s(deadline_s)):
                loans.forget(dead)
            self._page[Word.LENT] = loans.taken_bytes
            child.channel.send(encode(Wait(self._number, step, since_ns)), timeout_s=self._left_s(deadline_s))
            found = self._next_reply(child, deadline_s)
            if found is None:
                raise self._silent(child, step)
        return found

    def _seek(self, child: Child, step: int, since_ns: int, deadline_s: float) -> None:
        """Go on at `step`, and forget what was pushed and not taken."""
        self._number += 1
        self._taken_count = 0
        kept = list(self._loans.live.copy())  # first: what dies from now on is in both, never in neither
        dead = list(self._loans.untold.copy())
        self._page[Word.LENT] = self._loans.nbytes
        seek = Seek(self._number, step, since_ns, kept, dead)
        if child.channel.send(encode(seek), timeout_s=self._left_s(deadline_s)):
            self._loans.forget(dead)  # they are not among those alive any more

    def _next_reply(self, child: Child, deadline_s: float) -> tuple[Made | Erred | Failed, list[int]] | None:
        """The next message that is of now; None if none came until the deadline (0: none is there)."""
        while True:
            early, self._early = self._early, None
            if early is None:
                found = child.channel.receive(self._left_s(deadline_s) if deadline_s else 0)
                if found is None:
                    return None
                early = decode_from_feeder(found[0]), found[1]
            message, files = early
            if isinstance(message, Said):
                say(message)
            elif isinstance(message, Failed) or message.number == self._number:
                return message, files
            else:
                for fd in files:
                    os.close(fd)

    @staticmethod
    def _left_s(deadline_s: float) -> float:
        return max(0.0, deadline_s - time.perf_counter())

    def _lend(self, made: Made, files: list[int]) -> NDArray[np.uint8]:
        """The memory of a batch, from now on the trainer's until its last view dies."""
        loans = self._loans
        loans.next_number = max(loans.next_number, made.loan + 1)
        if made.offset == NOWHERE:
            memory = take_apart(files[0], made.memory_bytes) if files else np.empty(0, np.uint8)
            child = self._child
            if child is not None:
                child.channel.post(
                    encode(Release([made.loan]))
                )  # its maker need not keep it; if this is lost, a seek says
            return memory
        offset, nbytes = made.offset, made.memory_bytes
        loan = Loan(offset, nbytes, room(nbytes))
        if offset + loan.slot_bytes > self._arena.size_bytes:
            self._arena.grow(made.arena_bytes)
        # In this order: a loan that dies before it is noted, in an interrupt, is no loan to the next seek.
        memory = self._arena.lend(Slot(offset, nbytes), loans.returned, made.loan)
        loans.live[made.loan] = loan
        return memory

    # The child's life.

    def _running(self) -> Child:
        """The child; another one if it has ended."""
        child = self._child
        if child is None and not self._closing:
            child = start_child(maps=bool(self._hello.functions))
            self._begin(child)
        if self._closing:  # looked at last: close() looks for the child after it has said so
            raise ClosedError("the loader is closed")
        assert child is not None
        return child

    def _begin(self, child: Child) -> None:
        """Tell a new child all it must know."""
        self._page[Word.OPENED] = 0
        live = self._loans.live.copy()
        counted = (int(self._page[Word.READS]), int(self._page[Word.BYTES_READ]), int(self._page[Word.COPIED]))
        lent = [(number, loan.offset, loan.nbytes) for number, loan in live.items()]
        levels = logging.getLogger().getEffectiveLevel(), logging.getLogger("stoker").getEffectiveLevel()
        state = State(self._arena.size_bytes, lent, self._loans.next_number, counted, levels)
        hello = msgspec.structs.replace(self._hello, state=state)
        with contextlib.suppress(EOFError):  # if it is gone already, the next request sees it
            child.channel.send(encode(hello), [self._arena.fd, self._page_fd], timeout_s=_CLOSE_S)
        self._child, self._loans.channel = child, child.channel

    def _bury(self, child: Child) -> None:
        """The child is gone: note how. Raises ClosedError if it was told to go, ChildDied if it died too often."""
        if self._closing:
            raise ClosedError("the loader is closed")
        how = child.end(_CLOSE_S)
        words = child.last_words()
        self._part(child)
        if self._since_death_count >= _FORGIVEN_AFTER:
            self._death_count = 0
        self._since_death_count = 0
        self._death_count += 1
        what = f"the process that makes batches ({child.pid}) ended: {how}"
        if self._death_count > _DEATHS_MAX:
            said = f"; its last words: {' | '.join(words.splitlines()[-3:])}" if words else ""
            raise ChildDied(
                f"{what}, as {_DEATHS_MAX} before it{said}",
                where=os.fsdecode(self._hello.data),
                hint=f"{self._why(how)}; feeder='inline' makes batches in this process",
            )
        _log.warning("%s; another one goes on (%d of %d). %s", what, self._death_count, _DEATHS_MAX, words)

    def _why(self, how: Ended) -> str:
        if how.reason:
            return how.reason
        if self._page[Word.OPENED]:
            return "the last words of a process say why it ended"
        return f"it never began: its last words may say why; is {sys.executable!r} the Python of this program?"

    def _part(self, child: Child) -> None:
        self._child = self._loans.channel = None
        child.end(_CLOSE_S)
        child.close()

    def _silent(self, child: Child, step: int) -> TimedOut:
        """The error for a child that does not even say what it waits for."""
        if child.is_stopped():
            does, hint = "was stopped by a signal", f"kill -CONT {child.pid} lets it go on"
        elif not self._page[Word.OPENED]:
            does, hint = "is still starting, or opening the data set", "the storage does not answer, or is slow"
        else:
            does, hint = "does not answer", f"if it is killed, another one takes over: kill -9 {child.pid}"
        return TimedOut(
            f"the batch of step {step} was not there after {format_seconds(self._hello.deadline_s)}: "
            f"the process that makes batches ({child.pid}) {does}",
            where=os.fsdecode(self._hello.data),
            hint=hint,
        )

    # What it tells.

    def is_ready(self, step: int) -> bool:
        """As `Feeder.is_ready`."""
        return self._next == step and int(self._page[Word.PUSHED]) > self._taken_count

    def watch(self, watcher: MapWatcher) -> None:
        """As `Feeder.watch`."""
        self._arena.watch(watcher)

    def stats(self) -> FeedStats:
        """As `Feeder.stats`."""
        page, lent = self._page, self._loans.nbytes
        in_flight = 0 if self._closing else max(0, int(page[Word.TAKEN]) - self._loans.taken_bytes)
        ready = int(page[Word.READY]) + int(page[Word.PUSHED]) - self._taken_count
        self._peak_bytes = max(self._peak_bytes, in_flight, int(page[Word.PEAK]))
        return FeedStats(
            feeder="child",
            budget_bytes=self._arena.size_bytes,
            bytes_in_flight=in_flight,
            peak_bytes_in_flight=self._peak_bytes,
            lent_bytes=lent,
            ready_batches=0 if self._closing else max(0, ready),
            copied_batches=int(page[Word.COPIED]),
            reads=int(page[Word.READS]),
            bytes_read=int(page[Word.BYTES_READ]),
            gather_bytes=int(page[Word.GATHERED]),
            gather_needed_bytes=int(page[Word.NEEDED]),
            read_again=int(page[Word.AGAIN]),
        )

    def count(self) -> dict[Counter, int]:
        """As `Feeder.count`."""
        _, reads, bytes_read, copied, taken, *_, lent = self._page.tolist()[: Word.LENT + 1]
        return {
            Counter.READS: reads,
            Counter.BYTES_READ: bytes_read,
            Counter.COPIED_BATCHES: copied,
            Counter.BYTES_IN_FLIGHT: 0 if self._closing else max(0, taken - lent),
        }

    # Ending.

    def abandon(self) -> None:
        """As `Feeder.abandon`."""
        if os.getpid() != self._pid:  # a fork, in which nothing of it is left but memory
            return
        self._closing = True
        child = self._child
        if child is not None:
            child.channel.shut()
        with contextlib.suppress(RuntimeError):  # at the end of this process no thread can start, and nothing is left
            _thread.start_new_thread(self._let_go, ())  # threading's own would take locks

    def close(self) -> None:
        """As `Feeder.close`."""
        if os.getpid() != self._pid:
            return
        self._closing = True
        child = self._child
        if child is not None:
            child.channel.shut()  # ends a request that waits
        with self._one_request:
            self._let_go()

    def _let_go(self) -> None:
        child = self._child
        if child is not None:
            child.end(_CLOSE_S)
            with contextlib.suppress(EOFError):
                while (found := child.channel.receive(0)) is not None:
                    message = decode_from_feeder(found[0])
                    if isinstance(message, Said):
                        say(message)
                    for fd in found[1]:
                        os.close(fd)
            self._part(child)
        early, self._early = self._early, None
        for fd in early[1] if early is not None else ():
            os.close(fd)
        self._arena.close()
        self._page = self._page.copy()  # what it says now stays; the mapping holds an open file
        page_fd, self._page_fd = self._page_fd, -1
        if page_fd >= 0:
            os.close(page_fd)
        ends, self._ends = self._ends, lambda _: None
        ends(self.count())
