"""`Loader`: what training iterates. One rank's share of every global batch, in order, from where the run stands."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

from stoker.dataset.describe import Dataset
from stoker.dataset.order import Order
from stoker.dataset.readable import Readable
from stoker.errors import ClosedError, ConfigError, DatasetError, UnsupportedError, naming
from stoker.feed.bad import BadBudget
from stoker.feed.batch import Batch
from stoker.feed.child import ChildFeeder
from stoker.feed.deliver import Delivery, Handover
from stoker.feed.headspace import Headspace, kept_steps
from stoker.feed.images import check_pillow
from stoker.feed.options import FeedOptions, FeedStats
from stoker.feed.plan import check_fits, choose_fields
from stoker.feed.request import Feeder
from stoker.feed.start import Start
from stoker.feed.travel import pack_hello, share
from stoker.ledger import Counter, Ledger, split_wait
from stoker.values import Layout

if TYPE_CHECKING:
    from stoker.dataset.position import Position

__all__ = ["FeedOptions", "FeedStats", "Loader"]


@dataclass(slots=True)
class Progress:
    """How far training is; outlives the loader it is of."""

    step_count: int
    next_step: int = 0

    @property
    def finished(self) -> bool:
        """Whether training has had its last batch."""
        return self.next_step >= self.step_count


class Loader:
    """Iterate batches of a data set: `for batch in data`. Made by `run.loader`.

    Training (`shuffle` is "window" or "exact"): goes on where it stands, through all epochs, and yields nothing once
    it is through; a loop that was left goes on in the next one. One loop at a time: a new one takes over.
    Evaluation (`shuffle=False`): each loop begins anew; it has no position and is never part of a checkpoint.
    Several threads may share a loop: they take turns, and each batch goes to one of them.

    Reading begins with the first batch asked for, and goes on ahead of use within `options.prefetch_bytes`. Threads,
    memory and open files are given back by `close()`, or when the loader is no longer referenced; batches stay as long
    as they are held. `start` says whether a child process makes the batches, and what is closed with the loader.

    Attributes:
        order: which samples are in which batch.
        steps_per_epoch: the same on every rank.
        progress: how far training is; None for an evaluation.

    Raises ConfigError for unknown fields and decoders and for a batch that cannot fit `prefetch_bytes`, DatasetError
    for a field that some samples lack, LayoutError if the ranks cannot share a batch.
    """

    def __init__(
        self,
        dataset: Dataset,
        opened: Readable,
        *,
        order: Order,
        layout: Layout,
        options: FeedOptions,
        ledger: Ledger,
        start: Start | None = None,
    ) -> None:
        self._url = opened.store.url
        with naming(self._url):
            spec = replace(choose_fields(dataset, opened.manifest, tuple(options.decoders)), seed=order.recipe.seed)
        if spec.has_images:
            check_pillow()
        self.order = order
        self.steps_per_epoch = order.steps_per_epoch
        self._evaluates = order.recipe.shuffle is False
        self._step_count = order.steps_per_epoch * options.epochs
        self.progress = None if self._evaluates else Progress(self._step_count)
        self._ledger = ledger
        self._loop_count = 0
        self._turn = threading.Lock()
        batches = partial(share, order, layout)
        count, rest = divmod(order.recipe.global_batch_size, layout.dp_size)
        # In training a first batch can cost seconds of hashing; it is asked for here only where it is refused.
        tail = batches(self.steps_per_epoch - 1) if self._evaluates or rest else None
        if options.prefetch_bytes:
            check_fits(opened, spec.fields, count, tail, options.prefetch_bytes)
        self._account = account = _Account(ledger)
        self._budget = BadBudget(dataset.budget_ratio)
        start = start or Start()
        closes = start.closes

        def ends(counts: Mapping[Counter, int]) -> None:  # must not hold the loader
            account.tell(counts)
            closes()

        self._feeder: Feeder
        if start.child is not None:
            hello = pack_hello(dataset, opened, order, layout, options, self._step_count)
            self._feeder = ChildFeeder(start.child, hello, ends, opened.namer)
        else:
            from stoker.feed.feeder import InlineFeeder  # noqa: PLC0415  10 ms that only threads here need
            from stoker.feed.functions import pack_functions  # noqa: PLC0415
            from stoker.feed.gather import pattern_of  # noqa: PLC0415

            pattern = pattern_of(order, layout)
            if spec.mappers and options.count_map_workers(in_child=False):
                packed = tuple(pack_functions(dataset.mappers))
                spec = replace(spec, mappers=(), packed=packed, seeds_process=dataset.seeded)
            self._feeder = InlineFeeder(opened, batches, spec, options, self._step_count, ends, pattern)
        self._handover = Handover(self._feeder, self._step_count, None)
        self._closed = weakref.finalize(self, self._feeder.abandon)
        self._is_open = True

    def deliver_with(self, delivery: Delivery) -> None:
        """Hand batches over as `delivery` makes them, not as they are. Before the first one; it is closed with this."""
        self._handover = Handover(self._feeder, self._step_count, delivery)

    @property
    def seed(self) -> int:
        """The seed of the order."""
        return self.order.recipe.seed

    @property
    def finished(self) -> bool:
        """Whether training has had its last batch. An evaluation is never finished."""
        return self.progress is not None and self.progress.finished

    def __repr__(self) -> str:
        recipe = self.order.recipe
        step = "evaluation" if self.progress is None else f"step {self.progress.next_step}"
        facts = f"{step} of {self._step_count}, global batch {recipe.global_batch_size}"
        facts += "" if self._evaluates else f", seed {recipe.seed}"
        return f"<Loader of {self._url}: {facts}{'' if self._is_open else ', closed'}>"

    def __reduce__(self) -> NoReturn:
        raise UnsupportedError(
            "a loader cannot be copied, or sent to another process", self._url, "with a DataLoader use num_workers=0"
        )

    def __len__(self) -> int:
        """Steps of all epochs, wherever it stands."""
        return self._step_count

    def __iter__(self) -> Iterator[Batch]:
        """Batches from where training stands, or from the first one of an evaluation. Errors as `next()` meets them:
        what the store raises, DigestMismatch, SampleError, TimedOut; asking again tries again.
        """
        self._check_open()
        self._loop_count += 1
        if self._evaluates:
            # What an evaluation takes is neither compute nor wait of a training step: the account stands still.
            self._ledger.record_end(time.perf_counter_ns())
        return _Loop(self._advance, self._loop_count, self._step_count)

    def position(self, after: int) -> Position:
        """Where the run stands when it has done step `after` (-1: none). Raises ConfigError for an evaluation."""
        self._training("has no position")
        return self.order.position(after)

    def seek(self, position: Position) -> None:
        """Go on at `position`. Raises ConfigError if it is of other data or another recipe, or for an evaluation."""
        progress = self._training("cannot go on from a checkpoint")
        from stoker.dataset.position import Position  # noqa: PLC0415  a run from its beginning does without

        given: object = position
        if not isinstance(given, Position):
            raise ConfigError(f"not a position: {given!r}", self._url, "seek() takes what position() gave")
        with naming(self._url):
            position.check(self.order)
        progress.next_step = position.next_step

    def headspace(self, count: int = 8, steps: int = 200) -> Headspace:
        """`steps` batches without storage: the next `count` of training, read once and then handed over in turn.

        For a loop that shows what a step costs when no batch has to be waited for; its `report()` says so. Training
        stands where it stood, and its account is not touched; but what the loop trains is trained, so throw that away.
        Raises ConfigError for numbers below 1, and what reading a batch raises.
        """
        self._check_open()
        first = self.progress.next_step if self.progress is not None else 0
        with self._turn:
            kept = [self._handover.keep(step) for step in kept_steps(first, count, self._step_count)]
        self._ledger.record_end(time.perf_counter_ns())
        return Headspace(kept, steps, trained=self._ledger.snapshot, wait=self._handover.wait)

    def stats(self) -> FeedStats:
        """What was read, and what lies ready, is made and is lent now; also after `close()`."""
        spent = self._budget
        return replace(self._feeder.stats(), substituted_samples=spent.substituted, masked_samples=spent.masked)

    def close(self) -> None:
        """Stop reading and end the threads; batches that are still held stay as they are. Idempotent."""
        self._is_open = False
        if self._closed.detach() is not None:
            self._handover.close()
            if not self._evaluates:
                self._account.tell(self._handover.count())  # what was known only when the device was done
            self._feeder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if not self._is_open:
            raise ClosedError("the loader is closed")

    def _training(self, what: str) -> Progress:
        if self.progress is None:
            raise ConfigError(
                f"a loader with shuffle=False is an evaluation: it {what}",
                hint="give the checkpoint the loader of training",
            )
        return self.progress

    def _advance(self, loop: _Loop) -> Batch:
        with self._turn:  # from the choice of the step until it is counted
            entered_ns = time.perf_counter_ns()
            self._check_open()
            if self.progress is not None and loop.number != self._loop_count:
                raise ConfigError("another loop over this loader has begun since", hint="one loop at a time")
            at = self.progress or loop.progress
            step = at.next_step
            if step >= at.step_count:
                if not self._evaluates:
                    self._ledger.record_end(entered_ns)
                raise StopIteration
            batch = self._deliver(step, entered_ns)
            at.next_step = step + 1
        return batch

    def _deliver(self, step: int, entered_ns: int) -> Batch:
        """The batch of a step, and the account of the wait for it."""
        budget = self._budget
        try:
            given = self._handover.take(step)
            budget.spend(given.bad, given.row_count)
        except DatasetError as error:  # as `naming` does, which costs more than nothing where there is no error
            error.where = error.where or self._url
            raise
        left_ns = time.perf_counter_ns()
        counts = self._feeder.count()
        if not self._evaluates:
            counts |= self._handover.count()
        if budget.first_keys:
            counts[Counter.SUBSTITUTED_SAMPLES] = budget.substituted
            counts[Counter.MASKED_SAMPLES] = budget.masked
        self._account.tell(counts, publish=self._evaluates)
        if not self._evaluates:
            waits = split_wait(entered_ns, left_ns, given.timing)
            self._ledger.record_step(step, given.epoch, entered_ns, left_ns, waits, given.sample_count, given.nbytes)
        batch: Batch = given.batch  # or what a delivery makes of one, with the same attributes
        return batch


class _Account:
    """What the ledger has been told of a feeder."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._told: Mapping[Counter, int] = {}

    def tell(self, now: Mapping[Counter, int], *, publish: bool = True) -> None:
        """Bring the ledger's counters up to date; one that is closed already stays as it is. Without `publish` what is
        recorded next in it publishes them: to publish is most of the cost.
        """
        told = self._told
        more = {counter: amount - told.get(counter, 0) for counter, amount in now.items()}
        if any(more.values()):
            with suppress(ClosedError):
                self._ledger.add_all(more, publish=publish)
                self._told = {**told, **now}


class _Loop(Iterator[Batch]):
    """One `for` loop over a loader: the `number`th, with a progress of its own if it is an evaluation's."""

    def __init__(self, advance: Callable[[_Loop], Batch], number: int, step_count: int) -> None:
        self.number = number
        self.progress = Progress(step_count)
        self._advance = advance

    def __next__(self) -> Batch:
        return self._advance(self)
