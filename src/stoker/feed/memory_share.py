"""What memory a rank takes by itself for blocks that are read whole: its part of a small part of what there is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stoker.errors import LayoutError
from stoker.io.memory_limit import memory_bytes
from stoker.units import MIB
from stoker.values import Layout

GATHER_BYTES: Final = 512 * MIB
_RATIO: Final = 1 / 8  # of the memory, for all ranks of a node: the rest is for training, batches and the page cache


def default_gather_bytes(environ: Mapping[str, str]) -> int:
    """The default of `feed.gather_bytes` for a rank that was started as `environ` says."""
    return share_of_memory(memory_bytes(), ranks_of_node(environ))


def share_of_memory(limit_bytes: int, rank_count: int) -> int:
    """512 MiB, or less where `rank_count` of them are more than an eighth of the memory. Pure."""
    return min(GATHER_BYTES, int(limit_bytes * _RATIO) // rank_count)


def ranks_of_node(environ: Mapping[str, str]) -> int:
    """How many ranks share this node, as torchrun or `srun` has it in `environ`; 1 if neither does. Pure."""
    text = environ.get("LOCAL_WORLD_SIZE", "")
    if text.isascii() and text.isdigit():
        return max(1, int(text))
    try:
        layout = Layout.from_environment(environ)
    except LayoutError:  # said by whoever needs it
        return 1
    return -(-layout.dp_size // layout.nodes)
