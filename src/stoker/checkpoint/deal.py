"""Dealing replicated tensors to ranks: each is written once, every rank writes about as many bytes. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from stoker.checkpoint.state import Share, TensorEntry
from stoker.values import json_digest


def deal(entries: Iterable[TensorEntry], world: int) -> dict[str, int]:
    """Which of `world` ranks writes each replicated tensor: the largest first, to the rank with the fewest bytes.

    Depends on names and sizes alone, so all ranks that hold the same tensors deal alike, without a word. The loads of
    two ranks differ by at most the largest tensor.
    """
    loads = [(0, rank) for rank in range(world)]
    owners = {}
    for entry in sorted(_replicated(entries), key=lambda e: (-e.nbytes, e.name)):
        size, rank = loads[0]
        owners[entry.name] = rank
        heapq.heapreplace(loads, (size + entry.nbytes, rank))
    return owners


def own_entries(entries: Sequence[TensorEntry], rank: int, world: int) -> list[TensorEntry]:
    """What `rank` writes: its chunks, its private tensors, and the replicated ones it is dealt."""
    owners = deal(entries, world)
    return [entry for entry in entries if entry.share is not Share.REPLICATED or owners[entry.name] == rank]


def deal_digest(entries: Iterable[TensorEntry], world: int) -> str:
    """A digest of what was dealt: equal on two ranks only if they hold the same replicated tensors."""
    return json_digest([world, sorted([e.name, e.dtype, list(e.shape)] for e in _replicated(entries))])


def _replicated(entries: Iterable[TensorEntry]) -> Iterable[TensorEntry]:
    return (entry for entry in entries if entry.share is Share.REPLICATED)
