"""What becomes of a batch between the feeder and training: a `Delivery` makes tensors of it, on a device.

The rooms above have them (`stoker.torch.delivery`); without one training gets the batch as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from stoker.feed.batch import BadSample, Batch, WireBatch
from stoker.feed.request import Feeder
from stoker.io.memory import MapWatcher
from stoker.ledger import Counter
from stoker.values import StageTimes


class Delivery(MapWatcher, Protocol):
    """Turns batches into what training gets. Called by one thread at a time, but for what a MapWatcher is told."""

    @property
    def looks_ahead(self) -> bool:
        """Whether to `begin` the batch after the one that is handed over, if it is ready."""

    def count(self) -> Mapping[Counter, int]:
        """What the ledger keeps of it, as far as it is known by now; only grows."""

    def enter(self) -> None:
        """Training asks for a batch."""

    def begin(self, batch: Batch) -> Any:
        """Begin to make a batch ready, and return at once; the result goes to `finish`."""

    def finish(self, begun: Any) -> Any:
        """What training gets. Whatever it does with it next happens after it is there."""

    def wait(self) -> None:
        """Wait until the device has done all it was given."""

    def close(self) -> None:
        """Let go of all memory of the feeder, once no copy reads it any more. Idempotent."""


class Delivered(msgspec.Struct, frozen=True, eq=False):
    """What training gets for a step, and what the account needs of it."""

    batch: Any
    epoch: int
    timing: StageTimes
    sample_count: int
    nbytes: int
    row_count: int
    bad: tuple[BadSample, ...]


class Handover:
    """Takes batches from a feeder and hands them over through a delivery, one batch ahead if that looks ahead."""

    def __init__(self, feeder: Feeder, step_count: int, delivery: Delivery | None) -> None:
        self._feeder = feeder
        self._step_count = step_count
        self._delivery = delivery
        self._watches = False
        self._ahead: tuple[int, Delivered] | None = None

    def count(self) -> Mapping[Counter, int]:
        """What the ledger keeps of the delivery; nothing without one."""
        return self._delivery.count() if self._delivery is not None else {}

    def take(self, step: int) -> Delivered:
        """The batch of a step, as training gets it. Raises what the feeder and the delivery raise."""
        delivery = self._delivery
        if delivery is None:
            wire = self._feeder.request(step)
            return _told(wire, Batch(wire))
        if not self._watches:
            self._feeder.watch(delivery)
            self._watches = True
        delivery.enter()
        ahead, self._ahead = self._ahead, None
        begun = ahead[1] if ahead is not None and ahead[0] == step else self._begin(delivery, step)
        given = msgspec.structs.replace(begun, batch=delivery.finish(begun.batch))
        following = step + 1
        if delivery.looks_ahead and following < self._step_count and self._feeder.is_ready(following):
            self._ahead = following, self._begin(delivery, following)
        return given

    def keep(self, step: int) -> Any:
        """The batch of a step in memory of its own, which it keeps: for whoever repeats it."""
        wire = self._feeder.request(step)
        batch = Batch(msgspec.structs.replace(wire, memory=wire.memory.copy()))
        return batch if self._delivery is None else self._delivery.finish(self._delivery.begin(batch))

    def wait(self) -> None:
        """Wait until the device has done all it was given."""
        if self._delivery is not None:
            self._delivery.wait()

    def close(self) -> None:
        """Let go of all memory of the feeder."""
        self._ahead = None
        if self._delivery is not None:
            self._delivery.close()

    def _begin(self, delivery: Delivery, step: int) -> Delivered:
        wire = self._feeder.request(step)
        return _told(wire, delivery.begin(Batch(wire)))


def _told(wire: WireBatch, batch: Any) -> Delivered:
    samples = wire.valid.tobytes().count(1)  # a third of the cost of numpy's own
    return Delivered(batch, wire.epoch, wire.timing, samples, wire.nbytes, len(wire.valid), wire.bad)
