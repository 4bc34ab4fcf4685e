import pytest

from stoker.config import FeedSettings
from stoker.feed import memory_share
from stoker.feed.memory_share import GATHER_BYTES, default_gather_bytes, ranks_of_node, share_of_memory
from stoker.feed.options import FeedOptions
from stoker.units import GIB, MIB


@pytest.mark.parametrize(
    ("memory", "ranks", "share"),
    [(1024 * GIB, 8, 512 * MIB), (32 * GIB, 8, 512 * MIB), (16 * GIB, 8, 256 * MIB), (2 * GIB, 1, 256 * MIB)],
)
def test_all_ranks_of_a_node_take_an_eighth_of_its_memory_at_most(memory, ranks, share):
    assert share_of_memory(memory, ranks) == share
    assert ranks * share <= memory / 8


@pytest.mark.parametrize(
    ("environ", "ranks"),
    [
        ({}, 1),
        ({"LOCAL_WORLD_SIZE": "8"}, 8),
        ({"LOCAL_WORLD_SIZE": "0"}, 1),
        ({"RANK": "3", "WORLD_SIZE": "16", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "3"}, 6),
        (
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_NODEID": "0", "SLURM_NNODES": "2", "SLURM_STEP_ID": "0"},
            4,
        ),
        ({"RANK": "3", "WORLD_SIZE": "x"}, 1),
    ],
)
def test_the_ranks_of_a_node_are_those_that_torchrun_or_slurm_started_there(environ, ranks):
    assert ranks_of_node(environ) == ranks


def test_a_loader_takes_its_share_unless_the_settings_say_how_much(monkeypatch):
    monkeypatch.setattr(memory_share, "memory_bytes", lambda: 8 * GIB)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert default_gather_bytes({"LOCAL_WORLD_SIZE": "4"}) == 256 * MIB
    assert FeedOptions.of(FeedSettings(), 1, None).gather_bytes == 256 * MIB
    assert FeedOptions.of(FeedSettings(gather_bytes=5 * MIB), 1, None).gather_bytes == 5 * MIB
    assert FeedOptions().gather_bytes == GATHER_BYTES
