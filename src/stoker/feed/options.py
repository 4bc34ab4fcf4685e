"""How a rank is fed, and what the feeder tells of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, get_args

from stoker.errors import ConfigError
from stoker.feed.decode import DECODERS, Decoder
from stoker.io.host import cpu_count
from stoker.units import MIB, parse_bytes
from stoker.values import whole_number

if TYPE_CHECKING:
    from stoker.config import FeedSettings  # which a feeder in a child process does not load

FeederKind: TypeAlias = Literal["auto", "child", "inline"]
FEEDERS: Final[tuple[FeederKind, ...]] = get_args(FeederKind)


_EPOCHS_MOST: Final = 10**9  # so that steps can be counted
_MAP_WORKERS_MOST: Final = 4  # by itself: other ranks of the node have their own, and training needs the rest


def count_of(name: str, value: Any, least: int) -> int:
    """`value`, of any type that is a whole number, as int. Raises ConfigError for others, and below `least`."""
    number = whole_number(value)
    if number is None:
        raise ConfigError(f"{name} is {value!r}", hint="it must be a whole number")
    if number < least:
        raise ConfigError(f"{name} is {number}", hint=f"it must be {least} or more")
    return number


@dataclass(frozen=True, slots=True)
class FeedOptions:
    """How a rank is fed.

    Attributes:
        epochs: how often training goes through the data set.
        prefetch_bytes: memory for batches that are being made, ready or lent, as a number or a size such as "64MiB";
            0 makes each when it is asked for.
        gather_bytes: memory for blocks that are read whole, where that is cheaper than sample by sample. A limit: where
            it is too small for that, and at 0, each sample is read by itself.
        threads: reads in flight at most; how many there are follows from how long a read waits for storage.
        deadline_s: how long a batch may take before TimedOut says what it waits for.
        patience_s: how long all slots may be lent before batches are copied into ordinary memory.
        map_workers: processes that map functions run in, if there are any; 0: they run in the feeder itself. None: with
            a feeder in a child process half as many as it may use processors, 1 to 4, else 0.
        decoders: name -> function; None leaves bytes as they are.
        feeder: where batches are made: in a "child" process, "inline" in threads of this one, or "auto": in a child
            wherever one can do it.
    """

    epochs: int = 1
    prefetch_bytes: int = 256 * MIB
    threads: int = 128
    deadline_s: float = 300.0
    patience_s: float = 1.0
    gather_bytes: int = 512 * MIB
    map_workers: int | None = None
    decoders: Mapping[str, Decoder | None] = field(default_factory=lambda: DECODERS)
    feeder: FeederKind = "auto"

    @classmethod
    def of(cls, settings: FeedSettings, epochs: int, prefetch_bytes: int | str | None) -> Self:
        """What the settings say, but for `prefetch_bytes` if that is given; the default of `gather_bytes` follows from
        the memory of the node and from the ranks that share it.
        """
        gather_bytes = settings.gather_bytes
        if gather_bytes is None:
            from stoker.feed.memory_share import default_gather_bytes  # noqa: PLC0415  not loaded by a child feeder

            gather_bytes = default_gather_bytes(os.environ)
        wanted = settings.prefetch_bytes if prefetch_bytes is None else prefetch_bytes
        return cls(
            epochs,
            parse_bytes(wanted),
            settings.threads,
            settings.deadline_s,
            gather_bytes=gather_bytes,
            map_workers=settings.map_workers,
            feeder=settings.feeder,
        )

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefetch_bytes", parse_bytes(self.prefetch_bytes))
        object.__setattr__(self, "gather_bytes", parse_bytes(self.gather_bytes))
        for name, least in (("epochs", 1), ("prefetch_bytes", 0), ("gather_bytes", 0), ("threads", 1)):
            object.__setattr__(self, name, count_of(name, getattr(self, name), least))
        if self.epochs > _EPOCHS_MOST:
            raise ConfigError(f"epochs is {self.epochs}", hint=f"it must be {_EPOCHS_MOST:,} or less")
        if self.map_workers is not None:
            object.__setattr__(self, "map_workers", count_of("map_workers", self.map_workers, 0))
        for name in ("deadline_s", "patience_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise ConfigError(f"{name} is {value!r}", hint="it must be a number of seconds, 0 or more")
        if self.feeder not in FEEDERS:
            raise ConfigError(f"feeder is {self.feeder!r}", hint=f"there are {', '.join(FEEDERS)}")

    def count_map_workers(self, *, in_child: bool) -> int:
        """How many processes map, if there is something to map."""
        if self.map_workers is not None:
            return self.map_workers
        return max(1, min(_MAP_WORKERS_MOST, cpu_count() // 2)) if in_child else 0


@dataclass(frozen=True, slots=True)
class FeedStats:
    """What a feeder has done, and what it holds now.

    Attributes:
        feeder: where batches are made: "child" or "inline".
        budget_bytes: size of the arena, which the bytes in flight and lent never pass.
        bytes_in_flight: slots of batches that are being made or lie ready; near the budget: storage is ahead.
        peak_bytes_in_flight: the most they ever were.
        lent_bytes: slots that training holds; near the budget: it keeps more batches than there is room for.
        ready_batches: batches that lie ready; 0 while training waits: storage is behind.
        copied_batches: batches in ordinary memory because all slots were lent; 0 is right.
        reads: requests to the store for samples.
        bytes_read: bytes of these.
        gather_bytes: memory for blocks that are read whole; 0 while each sample is read by itself.
        gather_needed_bytes: what reading whole blocks takes at least; above the limit: it would pay with more memory;
            0: it would not pay.
        substituted_samples, masked_samples: bad samples of the batches that training has had, by what became of them.
        read_again: blocks that were read again because there was no room for them until their last sample; 0 is right.
    """

    feeder: str
    budget_bytes: int
    bytes_in_flight: int
    peak_bytes_in_flight: int
    lent_bytes: int
    ready_batches: int
    copied_batches: int
    reads: int
    bytes_read: int
    gather_bytes: int = 0
    gather_needed_bytes: int = 0
    read_again: int = 0
    substituted_samples: int = 0
    masked_samples: int = 0
