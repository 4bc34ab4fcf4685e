"""Memory that training holds of a feeder in another process, and how that learns of what training let go."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Final, NamedTuple

from stoker.feed.wire import Release, encode
from stoker.io.channel import Channel

# Of the memory that is not lent, what the feeder can do without: less where training is about to wait for it, since far
# away what is read at a time is limited by memory.
_UNTOLD_RATIO: Final = 0.25
_UNTOLD_WAITING_RATIO: Final = 0.125
_UNTOLD_MAX: Final = 8  # more would save a small part of what is left


class Loan(NamedTuple):
    """What is lent: memory from `offset` on, which takes `slot_bytes` of the arena."""

    offset: int
    nbytes: int
    slot_bytes: int


_SLOT_BYTES: Final[Callable[[Loan], int]] = itemgetter(2)


class Loans:
    """Memory that training holds. A loan's death may happen anywhere: it takes no lock and waits for nothing.

    To tell the feeder wakes it, which takes more of the trainer's time than all else about a loan. So several are told
    at once, while the feeder has enough other memory; and all before training waits. What dies meanwhile, as another
    thread lets go of it, is told as it dies: `is_waiting` is set before that is looked for.
    """

    def __init__(self) -> None:
        self.live: dict[int, Loan] = {}
        self.untold: dict[int, Loan] = {}  # those that have died, and of which the feeder is not told yet
        self.channel: Channel | None = None
        self.next_number = 0
        self.is_waiting = False  # training waits for a batch, which may lack this memory
        self._free_bytes = 0

    def returned(self, number: int) -> None:
        """The loan has died: its slot is free, once the feeder knows."""
        loan = self.live.get(number)
        if loan is None:
            return
        self.untold[number] = loan  # before it is alive no more: it is always known as one of the two
        self.live.pop(number, None)
        self._tell_if(0 if self.is_waiting else _UNTOLD_RATIO)

    def tell_before_wait(self) -> None:
        """Training is about to wait, though perhaps not for long."""
        if self.untold:
            self._tell_if(_UNTOLD_WAITING_RATIO)

    def _tell_if(self, ratio: float) -> None:
        untold = self.untold.copy()
        if len(untold) >= _UNTOLD_MAX or sum(map(_SLOT_BYTES, untold.values())) >= ratio * self._free_bytes:
            self.tell()

    def tell(self) -> None:
        """Tell the feeder of those that have died, if that needs no waiting."""
        channel, dead = self.channel, self.untold.copy()
        if dead and channel is not None and channel.post(encode(Release(list(dead)))):
            self.forget(dead)

    def forget(self, dead: Iterable[int]) -> None:
        """The feeder knows of these."""
        for number in dead:
            self.untold.pop(number, None)

    def adapt(self, arena_bytes: int) -> None:
        """See how much the feeder can do without, of an arena of that size."""
        self._free_bytes = arena_bytes - self.nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of the slots that are lent."""
        return sum(map(_SLOT_BYTES, self.live.copy().values()))

    @property
    def taken_bytes(self) -> int:
        """The same, and of those that the feeder takes for lent."""
        return self.nbytes + sum(map(_SLOT_BYTES, self.untold.copy().values()))
