"""What a batch passes from its plan to its reply: the fetch pool, the decoder and the mapper, each with its threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.dataset.order import OrderedBatch
from stoker.dataset.readable import Readable
from stoker.feed.batch import BYTES, Field, InReply, WireBatch, read_field
from stoker.feed.decode import AsRows, decode_batch, find_decoder
from stoker.feed.fetch import FetchPool, Job
from stoker.feed.mapper import Samples, map_batch
from stoker.feed.options import FeedOptions
from stoker.feed.placement import Placement, Work
from stoker.feed.plan import FeedSpec
from stoker.feed.rows import RowPace
from stoker.io.buffers import view
from stoker.ledger import StageTimes

_Stage: TypeAlias = Callable[[Work], SimpleQueue[Work | None] | None]


class Stages:
    """Fetch, decode and map batches. One thread decodes and one maps, so that user code need not be thread-safe.

    `finish(work, error)` is called once for each batch, in a thread of the stage that was its last. The threads start
    with the first batch.
    """

    def __init__(
        self,
        opened: Readable,
        spec: FeedSpec,
        options: FeedOptions,
        placement: Placement,
        finish: Callable[[Work, BaseException | None], None],
    ) -> None:
        self.pool = FetchPool(options.threads)
        self._rows = RowPace(opened.store, opened.objects.keys, self.pool.count_joined)
        self._opened = opened
        self._spec = spec
        self._placement = placement
        self._finish = finish
        self._decoders = tuple(find_decoder(name, options.decoders) for name in spec.decoders)
        self._decodes = not all(decoder is None or isinstance(decoder, AsRows) for decoder in self._decoders)
        self._to_decode: SimpleQueue[Work | None] = SimpleQueue()
        self._to_map: SimpleQueue[Work | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._known_objects = np.zeros(len(opened.objects), np.bool_)
        self._unknown_count = len(opened.objects)

    def load_offsets(self, ordered: OrderedBatch) -> None:
        """Read the offset tables that a batch is the first to need, side by side. For one thread."""
        if not self._unknown_count:
            return
        firsts = self._opened.objects.first_sample
        touched = np.searchsorted(firsts, ordered.samples, side="right") - 1
        new = np.unique(touched[~self._known_objects[touched]])
        if len(new) > 1:
            loaded = threading.Event()

            def load(index: int) -> int:
                self._opened.extents(firsts[new[index : index + 1]], self._spec.fields)
                return 0

            job = Job(ordered.step, len(new), load, lambda _: loaded.set())
            self.pool.submit(job)
            loaded.wait()
            if job.error is not None:
                raise job.error
        self._known_objects[new] = True
        self._unknown_count -= len(new)

    def fetch(self, work: Work) -> None:
        """Begin the reads of a batch that has its memory and `times[0]`."""
        assert work.memory is not None
        if not self._threads:
            self._start()
        reader = self._rows.reader(work.plan, view(work.memory))
        work.job = Job(work.step, len(reader), reader, partial(self._fetched, work))
        self.pool.submit(work.job)

    def drop(self, work: Work) -> None:
        """Go no further with a batch than what has begun; `finish` is still called."""
        work.dropped = True
        if work.job is not None:
            self.pool.abandon(work.job)

    def stop(self) -> None:
        """Let the threads end when what they do is done."""
        self.pool.close(0)
        self._to_decode.put(None)
        self._to_map.put(None)

    def join(self, timeout_s: float) -> int:
        """Wait until the threads have ended; returns how many have not after `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        left = self.pool.close(timeout_s)
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        return left + sum(thread.is_alive() for thread in self._threads)

    def _start(self) -> None:
        targets: dict[str, Callable[[], None]] = {}
        if self._decodes:
            targets["stoker-decode"] = partial(self._run, self._to_decode, self._decode)
        if self._spec.mappers:
            targets["stoker-map"] = partial(self._run, self._to_map, self._map)
        self._threads = [threading.Thread(target=target, name=name, daemon=True) for name, target in targets.items()]
        for thread in self._threads:
            thread.start()

    def _fetched(self, work: Work, job: Job) -> None:
        work.job = None
        work.times.append(time.perf_counter_ns())
        work.dropped = work.dropped or job.abandoned
        if job.error is not None or work.dropped:
            self._finish(work, job.error)
        elif self._decodes:
            work.stage = "the decoder"
            self._to_decode.put(work)
        else:
            self._pass(self._decode, work)  # nothing to do but to say what lies where

    def _run(self, queue: SimpleQueue[Work | None], stage: _Stage) -> None:
        while (work := queue.get()) is not None:
            self._pass(stage, work)
            del work  # it holds memory

    def _pass(self, stage: _Stage, work: Work) -> None:
        error: BaseException | None = None
        following = None
        if not work.dropped:
            try:
                following = stage(work)
            except BaseException as raised:  # noqa: BLE001  thread boundary: raised where the batch is asked for
                error = raised
        if following is None:
            self._finish(work, error)
        else:
            following.put(work)

    def _decode(self, work: Work) -> SimpleQueue[Work | None] | None:
        assert work.memory is not None
        work.fields, work.nbytes = decode_batch(work.plan, work.memory, self._decoders)
        work.times.append(time.perf_counter_ns())
        if self._spec.mappers:
            work.stage = "the map function"
            return self._to_map
        work.times.append(work.times[-1])
        self._reply(work)
        return None

    def _map(self, work: Work) -> None:
        slot, memory = self._placement.lend_input(work)
        columns = {one.name: read_field(one, memory) for one in work.fields}
        samples = Samples(columns, len(work.plan.ordered.samples), lambda: work.plan.keys)

        def allocate(nbytes: int) -> NDArray[np.uint8]:
            return self._placement.place_output(work, slot, nbytes)

        work.fields, work.nbytes = map_batch(samples, self._spec.mappers, allocate)
        work.times.append(time.perf_counter_ns())
        self._reply(work)

    def _reply(self, work: Work) -> None:
        plan = work.plan
        work.reply = WireBatch(
            step=work.step,
            epoch=plan.ordered.epoch,
            memory=self._placement.lend(work),
            valid=plan.ordered.valid,
            fields=work.fields,
            sample_keys=Field("sample_keys", BYTES, InReply(plan.key_bytes), row_offsets=plan.key_offsets),
            timing=StageTimes(*work.times),
            nbytes=work.nbytes,
        )
