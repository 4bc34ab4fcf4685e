"""Shards of DTensors: which box a rank holds, and which rank writes it. Ranks are played one after the other."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from stoker.checkpoint.reshard import Box, pieces
from stoker.checkpoint.state import Share, StoredTensor
from stoker.errors import CheckpointError
from stoker.torch.state import TorchState
from stoker.torch.tensors import box_of, copy_bytes, from_bytes, is_writer, part_like

WORLD = 4


def on_each_rank(mesh_shape, act):
    """act(mesh) on every rank of a group that sends nothing."""
    found = []
    for rank in range(WORLD):
        dist.init_process_group("fake", rank=rank, world_size=WORLD, store=FakeStore())
        try:
            found.append(act(init_device_mesh("cpu", mesh_shape)))
        finally:
            dist.destroy_process_group()
    return found


@pytest.mark.parametrize("shape", [(8, 6), (5, 3), (1, 7), (2,), (3, 0), ()])
@pytest.mark.parametrize(
    ("mesh_shape", "placements"),
    [
        ((4,), [Shard(0)]),
        ((4,), [Replicate()]),
        ((2, 2), [Replicate(), Shard(0)]),
        ((2, 2), [Shard(0), Replicate()]),
        ((2, 2), [Shard(0), Shard(1)]),
        ((2, 2), [Shard(0), Shard(0)]),
        ((4,), [Shard(1)]),
        ((2, 2), [_StridedShard(0, split_factor=2), Shard(0)]),  # FSDP over tensor parallelism
    ],
)
def test_what_the_writers_hold_is_the_whole_tensor_once(shape, mesh_shape, placements):
    if any(isinstance(p, Shard) and p.dim >= len(shape) for p in placements):
        placements = [Replicate()] * len(placements)
    whole = torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape)

    def look(mesh):
        tensor = distribute_tensor(whole, mesh, placements, src_data_rank=None)
        entry = box_of("t", tensor, Share.REPLICATED)
        data = np.zeros(entry.nbytes, np.uint8)
        copy_bytes(tensor, data)
        return entry, is_writer(tensor), data

    found = on_each_rank(mesh_shape, look)
    assert {entry.global_shape for entry, _, _ in found} == {shape}
    assert all(entry.share is Share.CHUNK for entry, _, _ in found)
    for entry, _, data in found:  # what a rank holds is what its box says
        index = Box(entry.offsets, entry.shape).within(Box((0,) * len(shape), shape))
        assert np.array_equal(data.view("f4").reshape(entry.shape), whole.numpy()[(*index, ...)])
    written = [Box(entry.offsets, entry.shape) for entry, writes, _ in found if writes]
    assert len(pieces(Box((0,) * len(shape), shape), written)) == (len(written) if whole.numel() else 0)
    assert len(written) >= 1
    assert all(box.volume for box in written) or len(written) == 1


def test_a_tensor_with_pending_sums_is_refused():
    def look(mesh):
        with pytest.raises(CheckpointError, match="sums over ranks are pending"):
            box_of("t", DTensor.from_local(torch.ones(2), mesh, [Partial()], run_check=False), Share.REPLICATED)

    on_each_rank((4,), look)


def test_a_shard_that_is_no_box_is_refused():
    def look(mesh):
        tensor = distribute_tensor(torch.ones(8), mesh, [_StridedShard(0, split_factor=2)], src_data_rank=None)
        with pytest.raises(CheckpointError, match=r"its shard \[2\] is no box of \[8\]"):
            box_of("t", tensor, Share.REPLICATED)

    on_each_rank((4,), look)


def test_a_part_goes_back_where_it_was():
    whole = torch.arange(35.0).reshape(7, 5)

    def look(mesh):
        like = distribute_tensor(torch.zeros(7, 5), mesh, [Shard(0)], src_data_rank=None)
        entry = part_like("t", StoredTensor("F32", (7, 5)), like)
        index = Box(entry.offsets, entry.shape).within(Box((0, 0), (7, 5)))
        data = np.frombuffer(bytearray(whole[index].contiguous().numpy().tobytes()), np.uint8)
        made = from_bytes(data, entry, like)
        assert (made.shape, made.placements, made.device_mesh) == (like.shape, like.placements, mesh)
        assert made.stride() == like.stride()
        assert torch.equal(made.to_local(), whole[index])
        return entry.shape

    assert on_each_rank((4,), look) == [(2, 5), (2, 5), (2, 5), (1, 5)]


def test_of_equal_shards_one_rank_writes_and_all_want_theirs_back():
    class Average:
        def __init__(self, tensor):
            self.tensor = tensor

        def state_dict(self):
            return {"t": self.tensor}

        def load_state_dict(self, state):
            self.tensor = state["t"]

    def look(mesh):
        tensor = distribute_tensor(torch.ones(4), mesh, [Replicate(), Shard(0)], src_data_rank=None)
        state = TorchState(torch.nn.Module(), extra={"x": Average(tensor)})
        capture = state.capture()
        wanted = state.wanted({"extra.x.t": StoredTensor("F32", (4,))}, capture.scalars)
        return [e.offsets for e in capture.entries], [e.offsets for e in wanted]

    assert on_each_rank((2, 2), look) == [
        ([(0,)], [(0,)]),
        ([(2,)], [(2,)]),
        ([], [(0,)]),
        ([], [(2,)]),
    ]


def test_without_a_pattern_a_part_is_the_whole_tensor():
    entry = part_like("t", StoredTensor("I64", (2, 2)), torch.zeros(2, 2))
    assert (entry.shape, entry.offsets, entry.global_shape) == ((2, 2), (0, 0), (2, 2))
    made = from_bytes(np.arange(4).view(np.uint8), entry, None)
    assert made.tolist() == [[0, 1], [2, 3]]
    assert from_bytes(np.zeros(0, np.uint8), part_like("t", StoredTensor("BF16", (0, 3)), None), None).shape == (0, 3)
