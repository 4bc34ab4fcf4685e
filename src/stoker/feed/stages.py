"""What a batch passes from its plan to its reply: the fetch pool, the decoder and the mapper, each with its threads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.dataset.distinct import distinct
from stoker.dataset.order import OrderedBatch
from stoker.dataset.readable import Readable
from stoker.errors import StokerError
from stoker.feed.batch import WireBatch, blank, key_field, read_field
from stoker.feed.cached import Runs, order_runs, read_cached
from stoker.feed.decode import AsRows, decode_batch, find_decoder
from stoker.feed.fetch import FetchPool, Job, SampleReader
from stoker.feed.gather import NEAR_S, Gathering, Pattern, ReadFacts, choose_units
from stoker.feed.gatherer import Gatherer
from stoker.feed.options import FeedOptions
from stoker.feed.placement import DECODED, Placement, Work
from stoker.feed.plan import BatchPlan, FeedSpec
from stoker.feed.rows import Reader, RowPace, RowReader
from stoker.io.buffers import view
from stoker.io.limits import start_thread
from stoker.store.base import CachingStore
from stoker.values import StageTimes

if TYPE_CHECKING:  # what not every data set needs is loaded where it is used
    from stoker.feed.pictures import ImageThreads
    from stoker.feed.workers import MapPool

_log = logging.getLogger("stoker.feed")

# While the images of one batch are decoded, the headers of the next one are read: 15 us an image, under the lock.
_DECODING: Final = 2

_Stage: TypeAlias = Callable[[Work], SimpleQueue[Work | None] | None]


def _start_image_threads() -> ImageThreads:
    from stoker.feed.pictures import ImageThreads  # noqa: PLC0415

    return ImageThreads()


class Stages:
    """Fetch, decode and map batches. One thread maps, so that user code need not be thread-safe, and one decodes; two
    where there are images, which other threads decode.

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
        pattern: Pattern | None = None,
    ) -> None:
        self.pool = FetchPool(options.threads)
        self._rows = RowPace(opened.store, opened.objects.keys, self.pool.count_joined)
        self._opened = opened
        self._spec = spec
        self._placement = placement
        self._finish = finish
        self._decoders = tuple(find_decoder(name, options.decoders) for name in spec.decoders)
        self._image_threads = _start_image_threads() if spec.has_images else None
        self._decodes = not all(decoder is None or isinstance(decoder, AsRows) for decoder in self._decoders)
        self._to_decode: SimpleQueue[Work | None] = SimpleQueue()
        self._to_map: SimpleQueue[Work | None] = SimpleQueue()
        self.workers = self._make_workers(options.map_workers or 1) if spec.packed else None
        self._threads: list[threading.Thread] = []
        self._stopped = False
        self._options = options
        self._pattern = pattern
        self._stated_s = opened.store.limits.latency_s
        store = opened.store
        self._caching = store if isinstance(store, CachingStore) and self._stated_s < NEAR_S else None
        self._latency_s = 0.0  # what the choice to gather or not was made for
        self.gathering = Gathering(None, 0, 0)
        self._gatherer: Gatherer | None = None
        self._knows_all = False
        self._known_objects = np.zeros(len(opened.objects), np.bool_)
        self._coming: dict[int, threading.Event] = {}  # objects whose offsets are read ahead: set when that has ended

    def _make_workers(self, count: int) -> MapPool:
        from stoker.feed.workers import MapPool  # noqa: PLC0415

        return MapPool(self._spec, count, self._placement, self._mapped)

    def load_offsets(self, batches: Sequence[OrderedBatch]) -> None:
        """Read the offset tables that batches are the first to need, side by side. For one thread."""
        if self._knows_all:
            return
        new = self._new_objects(batches)
        for index in new:
            if (coming := self._coming.pop(index, None)) is not None:
                coming.wait()
        if len(new) > 1:
            loaded = threading.Event()
            job = Job(batches[0].step, len(new), lambda number: self._load(new[number]), lambda _: loaded.set())
            self.pool.submit(job)
            loaded.wait()
            if job.error is not None:
                raise job.error
        self._known_objects[new] = True
        self._knows_all = bool(self._known_objects.all())

    @property
    def looks_ahead(self) -> bool:
        """Whether there is anything to gain by `read_ahead`: the store is far, and batches are made before use."""
        return self._latency_s >= NEAR_S and self._options.prefetch_bytes > 0

    def read_ahead(self, ordered: OrderedBatch, due: int) -> bool:
        """Begin to read offset tables and units for a batch that is `due` batches away, and do not wait for them.

        False if there is no room for more. What goes wrong is left to the batch itself. For one thread.
        """
        if not self._knows_all:
            new = [index for index in self._new_objects([ordered]) if index not in self._coming]
            if new:
                loaded = threading.Event()
                self._coming |= dict.fromkeys(new, loaded)
                job = Job(ordered.step, len(new), lambda number: self._try_load(new[number]), lambda _: loaded.set())
                self.pool.submit(job)
        if self._gatherer is None:
            return not self._knows_all
        return self._gatherer.read_ahead(ordered, due)

    def forget_ahead(self) -> None:
        """Other batches are wanted than those that was read ahead for."""
        if self._gatherer is not None:
            self._gatherer.forget_ahead()

    def _new_objects(self, batches: Sequence[OrderedBatch]) -> list[int]:
        samples = np.concatenate([each.samples for each in batches])
        touched = np.searchsorted(self._opened.objects.first_sample, samples, side="right") - 1
        new: list[int] = distinct(touched[~self._known_objects[touched]]).tolist()
        return new

    def _load(self, index: int) -> int:
        self._opened.load(index, self._spec.fields)
        return 0

    def _try_load(self, index: int) -> int:
        with suppress(StokerError):  # raised where it is needed
            self._load(index)
        return 0

    def order_reads(self, plans: Sequence[BatchPlan]) -> Sequence[Runs | None]:
        """What `fetch` wants to know besides each plan, if anything."""
        if self._caching is None or self._gatherer is not None or not any(plan.has_checksums for plan in plans):
            return [None] * len(plans)
        return order_runs(plans)

    def fetch(self, work: Work) -> None:
        """Begin the reads of a batch that has its memory and `times[0]`."""
        assert work.memory is not None
        if not self._threads:
            self._start()
        if self._gatherer is None:
            self._choose(work.plan)
        if self._gatherer is not None:
            self._gatherer.fetch(work)
            return
        memory = view(work.memory)
        if self._caching is not None and work.runs is not None:
            reader: Reader | None = self._read_cached(self._caching, work, work.runs, memory)
        else:
            reader = self._rows.reader(work.plan, memory)
            if isinstance(reader, RowReader) and self._read_here(work, reader):
                return
        if reader is not None:
            work.job = Job(work.step, len(reader), reader, partial(self._read, work))
            self.pool.submit(work.job)

    def _read_cached(self, caching: CachingStore, work: Work, runs: Runs, memory: memoryview) -> Reader | None:
        """Read here what needs no waiting for storage; returns what reads the rest. None if there is none, or the batch
        has failed: that is told already.
        """
        store, keys = self._opened.store, self._opened.objects.keys
        try:
            found = read_cached(caching, keys, runs, memory, lambda: work.dropped or self._stopped)
        except BaseException as error:  # noqa: BLE001  thread boundary: raised where the batch is asked for
            self._fetched(work, error)
            return None
        if not found.can_tell:
            self._caching = None
        self.pool.note(found.done, found.nbytes, None)
        if len(found.rest):
            return SampleReader(store, keys, work.plan, memory, found.rest)
        self._fetched(work, None)
        return None

    def _read_here(self, work: Work, reader: RowReader) -> bool:
        """Read quick rows in the planner's thread; False if some are left."""
        error: BaseException | None = None
        begin_s = time.perf_counter()
        try:
            count, nbytes = reader.read_here()
            if count:
                self.pool.note(count, nbytes, (time.perf_counter() - begin_s) / count)
        except BaseException as raised:  # noqa: BLE001  thread boundary: raised where the batch is asked for
            error = raised
        if error is None and len(reader):
            return False
        self._fetched(work, error)
        return True

    def _choose(self, plan: BatchPlan) -> None:
        """Choose how to read: by what the store says of itself, and again if its reads turn out to be slow."""
        latency_s = max(self._stated_s, self.pool.least_s)
        if self._pattern is None or (self._latency_s and not self._latency_s < NEAR_S <= latency_s):
            return
        self._latency_s = latency_s
        schema = {one.name: one for one in self._opened.manifest.fields}
        nbytes = sum(schema[name].total_bytes for name in self._spec.fields)
        facts = ReadFacts(
            field_count=len(self._spec.fields),
            sample_bytes=nbytes / self._opened.manifest.sample_count,
            latency_s=self._latency_s,
            ahead_bytes=self._options.prefetch_bytes,
            threads=self._options.threads,
            gather_bytes=self._options.gather_bytes,
            rows=self._rows.joins(plan),
        )
        self.gathering = choose_units(self._opened.blocks, self._opened.readable, self._pattern, facts)
        if self.gathering.units is not None:
            keeps = self._options.epochs > 1 or self.gathering.holds_all
            self._gatherer = Gatherer(self._opened, self.gathering, self.pool, self._fetched, keeps=keeps)
        elif self.gathering.needed_bytes:
            _log.info(
                "samples of %s are read one by one: reading whole blocks would take gather_bytes=%d",
                self._opened.store.url,
                self.gathering.needed_bytes,
            )

    def gather_stats(self) -> dict[str, int]:
        """What FeedStats says of gathering."""
        if self._gatherer is None:
            return {"gather_bytes": 0, "gather_needed_bytes": self.gathering.needed_bytes, "read_again": 0}
        frames = self._gatherer.frames
        return {
            "gather_bytes": frames.size_bytes,
            "gather_needed_bytes": self.gathering.needed_bytes,
            "read_again": frames.again_count,
        }

    def drop(self, work: Work) -> None:
        """Go no further with a batch than what has begun; `finish` is still called."""
        work.dropped = True
        if work.job is not None:
            self.pool.abandon(work.job)

    def stop(self) -> None:
        """Let the threads end when the sample that they are at is done."""
        self._stopped = True
        self.pool.close(0)
        if self._image_threads is not None:
            self._image_threads.stop(wait_for_them=False)
        for _ in range(_DECODING):
            self._to_decode.put(None)
        self._to_map.put(None)
        if self.workers is not None:
            self.workers.stop()

    def join(self, timeout_s: float) -> int:
        """Wait until the threads have ended; returns how many have not after `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        left = self.pool.close(timeout_s)
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        left += sum(thread.is_alive() for thread in self._threads)
        if self._image_threads is not None:
            self._image_threads.stop(wait_for_them=True)
        if self._gatherer is not None and not left:
            self._gatherer.frames.close()
        return left

    def join_user_code(self, timeout_s: float) -> None:
        """Wait for decoders and mappers only. The planner may be about to start them."""
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline_s - time.monotonic()))

    def _start(self) -> None:
        targets: list[tuple[str, Callable[[], None]]] = []
        if self._decodes:
            count = _DECODING if self._image_threads is not None else 1
            targets = [("stoker-decode", partial(self._run, self._to_decode, self._decode))] * count
        if self._spec.mappers:
            targets.append(("stoker-map", partial(self._run, self._to_map, self._map)))
        for name, target in targets:
            thread = threading.Thread(target=target, name=name, daemon=True)
            start_thread(thread, "cannot make batches")
            self._threads.append(thread)
        if self.workers is not None:
            try:
                self.workers.start()
            finally:
                self._threads += self.workers.threads

    def _read(self, work: Work, job: Job) -> None:
        work.job = None
        work.dropped = work.dropped or job.abandoned
        self._fetched(work, job.error)

    def _fetched(self, work: Work, error: BaseException | None) -> None:
        work.times.append(time.perf_counter_ns())
        if error is not None or work.dropped:
            self._finish(work, error)
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
        work.dropped = work.dropped or self._stopped
        if not work.dropped:
            try:
                following = stage(work)
            except BaseException as raised:  # noqa: BLE001  thread boundary: raised where the batch is asked for
                error = raised
        if following is None:
            self._finish(work, error)
            error = None  # no cycle of error, traceback and frame: that has the memory of the batch
        elif following is self._to_map and self.workers is not None:
            self.workers.submit(work)
        else:
            following.put(work)

    def _decode(self, work: Work) -> SimpleQueue[Work | None] | None:
        assert work.memory is not None
        if self._image_threads is not None:
            from stoker.feed.pictures import decode_pictures  # noqa: PLC0415

            slot, raw = self._placement.lend_input(work)

            def allocate(nbytes: int) -> NDArray[np.uint8]:
                return self._placement.place_output(work, slot, nbytes, DECODED)

            decode_pictures(work, raw, self._decoders, self._spec.decoders, allocate, self._image_threads)
        else:
            work.fields, work.nbytes = decode_batch(work.plan, work.memory, self._decoders)
            work.encoded = tuple(zip(work.plan.field_starts, work.plan.row_offsets, self._spec.decoders, strict=True))
        work.times.append(time.perf_counter_ns())
        if self._spec.is_mapped:
            work.stage = "the map function"
            return self._to_map
        work.times.append(work.times[-1])
        self._reply(work)
        return None

    def _map(self, work: Work) -> None:
        from stoker.feed.mapper import Samples, map_batch  # noqa: PLC0415
        from stoker.feed.randomness import Seeding  # noqa: PLC0415

        slot, memory = self._placement.lend_input(work)
        columns = {one.name: read_field(one, memory) for one in work.fields}
        ordered, spec = work.plan.ordered, self._spec
        seeding = Seeding(spec.seed, ordered.epoch, ordered.samples, global_state=spec.seeds_process)
        samples = Samples(columns, len(ordered.samples), lambda: work.plan.keys, seeding.begin)

        def allocate(nbytes: int) -> NDArray[np.uint8]:
            return self._placement.place_output(work, slot, nbytes)

        try:
            work.fields, work.nbytes = map_batch(samples, spec.mappers, allocate, lambda: self._stopped)
        finally:
            seeding.end()
        work.encoded = ()
        work.times.append(time.perf_counter_ns())
        self._reply(work)

    def _mapped(self, work: Work, error: BaseException | None) -> None:
        """In the thread of a map worker: a batch is mapped, or has failed."""
        if error is None and not work.dropped:
            work.encoded = ()
            work.times.append(time.perf_counter_ns())
            self._reply(work)
        self._finish(work, error)

    def _reply(self, work: Work) -> None:
        plan = work.plan
        assert work.memory is not None
        blank(work.fields, work.memory, [each.row for each in work.bad if each.masked])
        work.reply = WireBatch(
            step=work.step,
            epoch=plan.ordered.epoch,
            memory=self._placement.lend(work),
            valid=plan.ordered.valid,
            fields=work.fields,
            sample_keys=key_field(plan.known_keys, plan.namer, plan.ordered.samples),
            timing=StageTimes(*work.times),
            nbytes=work.nbytes,
            bad=work.bad,
        )
