"""Fetching: a pool of threads that reads samples straight into the memory of their batch, the earliest batch first."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.dataset.places import NO_CHECKSUM
from stoker.errors import CapacityError, DigestMismatch, Truncated
from stoker.feed.gather import NEAR_S
from stoker.feed.plan import BatchPlan
from stoker.io.checksum import crc32c_of_view
from stoker.store.base import Store
from stoker.values import Key

# A thread takes as many reads at once as fit in 1 ms: waking another one costs as much as several warm local reads,
# and 1 ms in a row is little beside a step.
_TURN_S: Final = 0.001
_TURN_MAX_COUNT: Final = 64
# Reads that hardly wait for storage wait for the interpreter lock instead when several threads do them: 16 threads
# took 50 us of CPU for a warm local read that one does in 10 us. So no more threads read at a time than three quarters
# of the time a read takes over the CPU time it takes: for warm files one, for slow storage all of them.
_OVERLAP: Final = 0.75
# Time spent waiting for the interpreter lock looks like time spent waiting for storage: on busy cores near reads would
# call for ever more threads. 64 of them fed 10,000 to 16,000 local samples of 100 KB a second where four fed
# 26,000 to 28,000 at half the CPU time (2 cores). So storage gets four threads at most, besides those whose reads hang,
# as long as the quickest of its recent reads took less than a millisecond: the interpreter lock delays many, never all.
_NEAR_WIDTH: Final = 4
_FORGET: Final = 1.1  # the quickest read is forgotten by so much a turn
_OVERDUE_S: Final = 0.005  # a thread that has read for longer is waiting for storage, whatever reads cost before
_WEIGHT: Final = 0.2  # of the newest turn in the two running means
# A thread that is preempted, for 4 ms or more on busy cores, seems to have waited for storage: one such read in a
# hundred tripled the mean. Near storage that has become slow shows in every read: eight turns lead from 20 us to 1 ms.
_OUTLIER: Final = 4.0

_log = logging.getLogger("stoker.feed")


class Job:
    """Work for the pool: `do(i)`, which returns the bytes it read, for each i below `count`; then `done(job)`, once.

    After an error, or when abandoned, no more of it is begun; `done` comes when what runs has ended. Both are called
    in threads of the pool, `done` also in the one that abandons. `left` counts what has not been done.
    """

    __slots__ = ("abandoned", "count", "do", "done", "error", "finished", "left", "parts", "queued", "running", "step")

    def __init__(self, step: int, count: int, do: Callable[[int], int], done: Callable[[Job], None]) -> None:
        self.step = step
        self.count = count
        self.left = count
        self.do = do
        self.done = done
        self.error: BaseException | None = None
        self.abandoned = False
        self.finished = False
        self.queued = False
        self.running = 0
        self.parts = [(0, count)] if count else []  # what no thread has taken yet


class FetchPool:
    """At most `thread_count` daemon threads named stoker-fetch-N, started when they are first needed.

    How many of them read, and how much each takes at once, follows from what reads were seen to cost; until then all
    of them take one read each.
    """

    def __init__(self, thread_count: int) -> None:
        self._changed = threading.Condition()
        self._queue: list[tuple[int, int, Job]] = []  # some of it may have nothing left to take
        self._waiting_count = 0  # parts that no thread has taken
        self._submitted = 0
        self._thread_count = thread_count
        self._threads: list[threading.Thread] = []
        self._started_count = 0
        self._starting_count = 0  # of these that have not come to look for work yet
        self._idle_count = 0
        self._looked_out = False
        self._reading: dict[int, float] = {}  # thread -> when it began, the last one last
        self._closed = False
        self._read_s = 0.0  # running means over reads: time, and CPU time of the thread
        self._cpu_s = 0.0
        self._least_s = 0.0  # the quickest of the recent reads
        self.read_count = 0
        self.read_bytes = 0

    @property
    def least_s(self) -> float:
        """The quickest of the recent reads; 0 before the first."""
        return self._least_s

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def note(self, read_count: int, nbytes: int, read_s: float | None) -> None:
        """Count reads that were done elsewhere, which took `read_s` each; None if that says nothing of the storage."""
        with self._changed:
            self.read_count += read_count
            self.read_bytes += nbytes
            if read_s is not None:
                self._least_s = min(read_s, self._least_s * _FORGET) if self._least_s else read_s

    def submit(self, job: Job) -> None:
        """Do a job before all those of later steps."""
        with self._changed:
            if job.finished:
                return
            finished = self._finishes(job)
            if not finished:
                self._waiting_count += job.count
                self._offer(job, job.count)
        if finished:  # not job.finished: a thread may have done it all by now
            job.done(job)
        else:
            self._start_threads()

    def count_joined(self, count: int) -> None:
        """One of the things that a job does was so many more reads than one."""
        with self._changed:
            self.read_count += count

    def abandon(self, job: Job) -> None:
        """Begin no more of a job. No effect on one that is finished."""
        with self._changed:
            job.abandoned = True
            finished = self._finishes(job)
        if finished:
            job.done(job)

    def close(self, timeout_s: float) -> int:
        """Abandon all jobs and end the threads; returns how many still wait for a read after `timeout_s`."""
        with self._changed:
            self._closed = True
            queued = [job for _, _, job in self._queue]
            self._queue.clear()
            self._changed.notify_all()
        for job in queued:
            self.abandon(job)
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:  # a thread that is starting another one is joined before it
            thread.join(max(0.0, deadline - time.monotonic()))
        return sum(thread.is_alive() for thread in self._threads)

    def _start_threads(self) -> None:
        """Start what threads are missing, one after the other: the first may show that no more are needed.

        One more than read waits, as a lookout for reads that hang.
        """
        while True:
            with self._changed:
                wanted = min(self._width() - self._count_reading(), self._count_turns(self._waiting_count))
                missing = max(wanted, 1) - self._idle_count - self._starting_count
                if self._closed or missing <= 0 or self._started_count >= self._thread_count or not self._has_parts():
                    return
                number = self._started_count
                self._started_count += 1
                self._starting_count += 1
            thread = threading.Thread(target=self._work, name=f"stoker-fetch-{number}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no more processes, or no memory for a stack
                self._do_with_fewer(error)
                return
            self._threads.append(thread)

    def _do_with_fewer(self, error: RuntimeError) -> None:
        """The system gives no further thread: those that there are do the work. Raises CapacityError without any."""
        with self._changed:
            self._started_count -= 1
            self._starting_count -= 1
            self._thread_count = max(1, self._started_count)
        if not self._started_count:
            raise CapacityError(
                f"no thread to read with: {error}", hint="raise the limit of processes (ulimit -u) or of memory"
            ) from error
        _log.warning("%d threads read, since the system gives no more: %s", self._started_count, error)

    def _turn_count(self) -> int:
        """How many reads a thread takes at once."""
        return max(1, min(_TURN_MAX_COUNT, int(_TURN_S / self._read_s))) if self._read_s else 1

    def _count_turns(self, count: int) -> int:
        """How many threads are needed for so many reads to begin."""
        return -(-count // self._turn_count())

    def _width(self) -> int:
        """How many threads read at a time."""
        near = 0 < self._least_s < NEAR_S
        most = min(self._thread_count, _NEAR_WIDTH) if near else self._thread_count
        return max(1, min(most, int(_OVERLAP * self._read_s / self._cpu_s))) if self._cpu_s else most

    def _count_reading(self) -> int:
        """How many threads read, but for those that hang."""
        overdue_s = time.perf_counter() - _OVERDUE_S
        count = 0
        for begin_s in reversed(self._reading.values()):
            if begin_s <= overdue_s:
                break
            count += 1
        return count

    def _has_parts(self) -> bool:
        """Whether there is something that no thread has taken."""
        while self._queue and not self._queue[0][2].parts:
            heapq.heappop(self._queue)[2].queued = False
        return bool(self._queue)

    def _offer(self, job: Job, count: int) -> None:
        """Let threads know of `count` parts of a job that nobody has taken."""
        if not job.queued:
            job.queued = True
            self._submitted += 1
            heapq.heappush(self._queue, (job.step, self._submitted, job))
        least = 0 if self._looked_out else 1
        self._changed.notify(max(least, min(self._count_turns(count), self._width() - self._count_reading())))

    def _work(self) -> None:
        is_new = True
        while (turn := self._take(is_new=is_new)) is not None:
            is_new = False
            if not self._idle_count:
                self._start_threads()
            self._read(*turn)
            del turn  # it holds the memory of a batch

    def _take(self, *, is_new: bool) -> tuple[Job, int, int] | None:
        """The next reads to do, also of a new thread; waits for some. None when the pool is closed."""
        with self._changed:
            self._starting_count -= is_new
            while not self._closed:
                waiting = self._has_parts()
                if waiting and self._count_reading() < self._width():
                    job = self._queue[0][2]
                    start, stop = job.parts.pop()
                    taken = min(stop, start + self._turn_count())
                    if taken < stop:
                        job.parts.append((taken, stop))
                    self._waiting_count -= taken - start
                    job.running += 1
                    self._reading[threading.get_ident()] = time.perf_counter()
                    if not self._looked_out and self._has_parts():
                        self._changed.notify()
                    return job, start, taken
                looks_out = waiting and not self._looked_out
                self._looked_out = self._looked_out or looks_out
                self._idle_count += 1
                self._changed.wait(_OVERDUE_S if looks_out else None)
                self._idle_count -= 1
                if looks_out:
                    self._looked_out = False
        return None

    def _read(self, job: Job, start: int, stop: int) -> None:
        nbytes = count = reads = 0
        begin = now = time.perf_counter()
        cpu = time.thread_time()
        try:
            for index in range(start, stop):
                read = job.do(index)
                nbytes += read
                reads += read > 0
                count += 1
                before, now = now, time.perf_counter()
                if now - before > _TURN_S or job.abandoned:
                    break
        except BaseException as error:  # noqa: BLE001  thread boundary: it is raised where the batch is asked for
            job.error = job.error or error
        cpu = time.thread_time() - cpu
        with self._changed:
            del self._reading[threading.get_ident()]
            job.running -= 1
            job.left -= count
            if reads:
                self.read_count += reads
                self.read_bytes += nbytes
                self._learn((now - begin) / count, cpu / count)
            # This thread takes one of the turns in a moment. Whoever is woken for nothing costs as much as for a read.
            turns = self._count_turns(self._waiting_count) - 1
            spare = max(0, min(turns, self._width() - self._count_reading() - 1))
            self._changed.notify(spare)
            rest = stop - start - count
            if rest and job.error is None and not self._closed:  # slower than thought: others may take the rest
                job.parts.append((start + count, stop))
                self._waiting_count += rest
                self._offer(job, rest)
            finished = self._finishes(job)
        if finished:
            job.done(job)
        if spare:
            self._start_threads()

    def _learn(self, read_s: float, cpu_s: float) -> None:
        """What the reads of one turn cost each. Slow storage shows at once, fast storage only in the mean."""
        self._least_s = min(read_s, self._least_s * _FORGET) if self._least_s else read_s
        if not self._cpu_s:
            self._read_s, self._cpu_s = read_s, cpu_s
            return
        if self._least_s < NEAR_S:
            read_s, cpu_s = min(read_s, _OUTLIER * self._read_s), min(cpu_s, _OUTLIER * self._cpu_s)
        self._cpu_s += _WEIGHT * (cpu_s - self._cpu_s)
        self._read_s = (
            max(read_s, self._read_s) if read_s > _TURN_S else self._read_s + _WEIGHT * (read_s - self._read_s)
        )

    def _finishes(self, job: Job) -> bool:
        job.abandoned = job.abandoned or self._closed
        if job.abandoned or job.error is not None:
            if job.queued:
                self._waiting_count -= sum(stop - start for start, stop in job.parts)
            job.parts.clear()
        if job.finished or job.running or job.parts:
            return False
        job.finished = True
        return True


class SampleReader:
    """`do` of the job that reads a batch: read i, field by field of one sample after the other, goes to its place in
    `memory` and is checked there. `parts` int64[m] names the reads if they are not all n * f of the plan.
    """

    def __init__(
        self,
        store: Store,
        objects: Sequence[Key],
        plan: BatchPlan,
        memory: memoryview,
        parts: NDArray[np.int64] | None = None,
    ) -> None:
        self._store = store
        self._objects = objects
        self._plan = plan
        self._memory = memory
        every = np.repeat(plan.objects, len(plan.fields)), plan.offsets, plan.sizes, plan.crc32cs, plan.targets
        columns = [one.ravel() if parts is None else one.ravel()[parts] for one in every]
        self._parts = parts
        self._reads = list(zip(*(column.tolist() for column in columns), strict=True))

    def __len__(self) -> int:
        return len(self._reads)

    def __call__(self, index: int) -> int:
        """Read and check; returns the bytes read. Raises DigestMismatch, and what the store raises."""
        size: int
        number, offset, size, expected, start = self._reads[index]
        target = self._memory[start : start + size]
        try:
            if size:
                self._store.read_into(self._objects[number], offset, target)
        except Truncated as error:
            error.sample_row, error.is_bad_sample = self._place(index)[0], True
            raise
        # What was only indexed has no checksum: the object was held to its version before its first use.
        if expected != NO_CHECKSUM and (digest := crc32c_of_view(target)) != expected:
            row, column = self._place(index)
            wrong = DigestMismatch(
                f"field {self._plan.fields[column]!r} of sample {self._plan.keys[row]!r} has crc32c {digest:08x}, "
                f"not {expected:08x}",
                where=f"{size} bytes at {offset} of {self._objects[number]} in {self._store.url}",
                hint="the data set was changed or damaged after it was written",
            )
            wrong.sample_row, wrong.is_bad_sample = row, True
            raise wrong
        return size

    def _place(self, index: int) -> tuple[int, int]:
        """The sample and the field that a read is of."""
        return divmod(index if self._parts is None else int(self._parts[index]), len(self._plan.fields))
