"""What a run leaves in its tiers when it ends: the accounts of its ranks, and a note if training is through."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from stoker.checkpoint.generation import Generation, end_run
from stoker.checkpoint.tiers import Tiers
from stoker.errors import StokerError
from stoker.ledger import Ledger, ledger_name
from stoker.values import Key

_log = logging.getLogger("stoker.checkpoint")


class HasEnd(Protocol):
    """How far one loader is: a progress of the feed."""

    @property
    def finished(self) -> bool:
        """Whether training has had its last batch."""


@dataclass(frozen=True, slots=True)
class Records:
    """What one rank leaves. Does not hold the run: one that nobody holds is freed at once."""

    tiers: Tiers
    generation: Generation
    ledger: Ledger
    progress: Sequence[HasEnd]

    def leave(self, kind: type[BaseException] | None, *_details: object) -> None:
        """Keep the ledger in every tier; on rank 0, note the end if training is through and nothing failed.

        Raises StoreError where it cannot; after an error in training (`kind`) that is only logged.
        """
        rank = self.generation.layout.dp_rank
        key = Key(f"ledger/{ledger_name(rank, self.generation.number)}")
        finished = rank == 0 and any(one.finished for one in self.progress)
        try:
            for store in self.tiers.nearest_first:
                store.write(key, self.ledger.image())
            if kind is None and finished:
                end_run(self.tiers, self.generation)
        except StokerError as failure:
            if kind is None:
                raise
            _log.warning("the ledger stays on its node: %s", failure.what)
