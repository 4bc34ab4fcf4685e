"""How a rank is fed, and what the feeder tells of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stoker.errors import ConfigError
from stoker.feed.decode import DECODERS, Decoder
from stoker.units import MIB


@dataclass(frozen=True, slots=True)
class FeedOptions:
    """How a rank is fed.

    Attributes:
        epochs: how often training goes through the data set.
        prefetch_bytes: memory for batches that are being made, ready or lent; 0 makes each when it is asked for.
        threads: reads in flight at most; how many there are follows from how long a read waits for storage.
        deadline_s: how long a batch may take before TimedOut says what it waits for.
        patience_s: how long all slots may be lent before batches are copied into ordinary memory.
        decoders: name -> function; None leaves bytes as they are.
    """

    epochs: int = 1
    prefetch_bytes: int = 256 * MIB
    threads: int = 64
    deadline_s: float = 300.0
    patience_s: float = 1.0
    decoders: Mapping[str, Decoder | None] = field(default_factory=lambda: DECODERS)

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("prefetch_bytes", 0), ("threads", 1), ("deadline_s", 0), ("patience_s", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}", hint=f"it must be {least} or more")


@dataclass(frozen=True, slots=True)
class FeedStats:
    """What a feeder has done, and what it holds now.

    Attributes:
        budget_bytes: size of the arena, which the bytes in flight and lent never pass.
        bytes_in_flight: slots of batches that are being made or lie ready; near the budget: storage is ahead.
        peak_bytes_in_flight: the most they ever were.
        lent_bytes: slots that training holds; near the budget: it keeps more batches than there is room for.
        ready_batches: batches that lie ready; 0 while training waits: storage is behind.
        copied_batches: batches in ordinary memory because all slots were lent; 0 is right.
        reads: requests to the store for samples.
        bytes_read: bytes of these.
    """

    budget_bytes: int
    bytes_in_flight: int
    peak_bytes_in_flight: int
    lent_bytes: int
    ready_batches: int
    copied_batches: int
    reads: int
    bytes_read: int
