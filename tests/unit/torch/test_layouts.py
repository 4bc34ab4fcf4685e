"""Who shares a batch with whom, from a device mesh; and when environment and process group disagree."""

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import stoker
from stoker.errors import LayoutError
from stoker.values import Layout


@pytest.fixture
def group():
    """group(rank, size): a process group of that size in which nobody else is."""

    def join(rank, size):
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())

    yield join
    if dist.is_initialized():
        dist.destroy_process_group()


def layouts(group, shape, names, dp, environ=None):
    """The layout of every process of a mesh."""
    found = []
    size = 1
    for length in shape:
        size *= length
    for rank in range(size):
        group(rank, size)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        found.append(stoker.torch.layout(mesh, dp, environ={} if environ is None else environ(rank)))
    return found


def test_tensor_parallel_peers_share_a_rank(group):
    found = layouts(group, (2, 2), ("dp", "tp"), "dp")
    assert found == [Layout(0, 2), Layout(0, 2), Layout(1, 2), Layout(1, 2)]


def test_data_parallel_need_not_be_the_outermost(group):
    found = layouts(group, (2, 2), ("pp", "dp"), ("dp",))
    assert found == [Layout(0, 2), Layout(1, 2), Layout(0, 2), Layout(1, 2)]


def test_several_dimensions_count_as_one_the_first_outermost(group):
    found = layouts(group, (2, 2, 2), ("dp_replicate", "dp_shard", "tp"), ("dp_replicate", "dp_shard"))
    assert [one.dp_rank for one in found] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert {one.dp_size for one in found} == {4}
    every_process = layouts(group, (2, 2), ("dp_replicate", "dp_shard"), ("dp_replicate", "dp_shard"))
    assert every_process == [Layout(rank, 4) for rank in range(4)]


def test_nodes_come_from_the_environment(group):
    def environ(rank):
        return {"RANK": str(rank), "WORLD_SIZE": "4", "GROUP_RANK": str(rank // 2), "GROUP_WORLD_SIZE": "2"}

    found = layouts(group, (2, 2), ("dp", "tp"), "dp", environ)
    assert found == [Layout(0, 2, 0, 2), Layout(0, 2, 0, 2), Layout(1, 2, 1, 2), Layout(1, 2, 1, 2)]

    def four_nodes(rank):
        return {"RANK": str(rank), "WORLD_SIZE": "4", "GROUP_RANK": str(rank), "GROUP_WORLD_SIZE": "4"}

    found = layouts(group, (2, 2), ("dp", "tp"), "dp", four_nodes)
    assert [(one.dp_rank, one.dp_size, one.nodes) for one in found] == [(0, 2, 2), (0, 2, 2), (1, 2, 2), (1, 2, 2)]


@pytest.mark.parametrize("dp", ["data", ("dp", "data"), (), ("dp", "dp")])
def test_a_dimension_that_the_mesh_does_not_have_is_refused_with_those_it_has(group, dp):
    group(0, 4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    with pytest.raises(LayoutError, match="'dp', 'tp'"):
        stoker.torch.layout(mesh, dp, environ={})


def test_a_mesh_without_names_is_refused(group):
    group(0, 4)
    with pytest.raises(LayoutError, match="without names"):
        stoker.torch.layout(init_device_mesh("cpu", (4,)), environ={})


def test_an_environment_of_other_ranks_than_the_process_group_is_refused_with_both(group):
    group(1, 4)
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    environ = {"RANK": "1", "WORLD_SIZE": "8"}
    with pytest.raises(LayoutError, match=r"rank 1 of 8 by environment, but rank 1 of 4 by torch\.distributed"):
        stoker.torch.layout(mesh, environ=environ)


def test_a_run_whose_environment_and_process_group_disagree_is_refused(group, tmp_path, monkeypatch):
    group(2, 4)
    with pytest.raises(LayoutError, match=r"rank 0 of 1 by environment, but rank 2 of 4 by torch\.distributed"):
        stoker.open(nvme=tmp_path)  # four processes would each train on everything
    monkeypatch.setenv("SLURM_PROCID", "2")
    monkeypatch.setenv("SLURM_NTASKS", "3")
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    with pytest.raises(LayoutError, match="rank 2 of 3 by environment, but rank 2 of 4"):
        stoker.open(nvme=tmp_path)
    monkeypatch.setenv("SLURM_NTASKS", "4")
    with stoker.open(nvme=tmp_path) as run:
        assert run.layout == Layout(2, 4)
    with stoker.open(nvme=tmp_path, layout=Layout(1, 2)) as run:  # peers, in a run without checkpoints
        assert run.layout == Layout(1, 2)


def test_a_named_run_of_fewer_ranks_than_processes_is_refused_before_anything_is_made(group, tmp_path):
    group(1, 4)
    with pytest.raises(LayoutError, match="rank 0 of 2 by layout, but rank 1 of 4") as caught:
        stoker.open(run="r", nvme=tmp_path, layout=Layout(0, 2))
    assert "run.loader(layout=...)" in caught.value.hint
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").iterdir())


def test_a_loader_takes_a_layout_of_its_own(run, numbers):
    whole = [batch.sample_keys for batch in run.loader(numbers, global_batch_size=4)]
    halves = [
        [batch.sample_keys for batch in run.loader(numbers, global_batch_size=4, layout=Layout(rank, 2))]
        for rank in range(2)
    ]
    assert [a + b for a, b in zip(*halves, strict=True)] == whole
    with pytest.raises(LayoutError, match="4 samples cannot be divided by 3 ranks"):
        run.loader(numbers, global_batch_size=4, layout=Layout(0, 3))
