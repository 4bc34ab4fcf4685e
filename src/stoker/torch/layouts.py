"""Who shares a batch with whom: a Layout from a device mesh, and whether layout and process group agree."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import torch.distributed as dist

from stoker.errors import LayoutError
from stoker.values import Layout

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_HINTS: Final = {
    "environment": "start with torchrun or srun, or pass layout=stoker.Layout(dp_rank=..., dp_size=...)",
    "layout": "in a run with a name each process is a rank; say run.loader(layout=...) for who shares batches",
}


def layout(mesh: DeviceMesh, dp: str | tuple[str, ...] = "dp", environ: Mapping[str, str] | None = None) -> Layout:
    """The layout in which the processes of `mesh` read data: those that differ only in other dimensions than `dp` get
    the same batches (tensor, context, pipeline parallel); those along `dp` share each global batch.

    `dp` names one dimension, or several, the first the outermost: `("dp_replicate", "dp_shard")`. Nodes come from
    `environ`, by default that of the process. For `run.loader(layout=...)`, or `stoker.open(layout=...)` of a run
    without a name. Raises LayoutError for a name that the mesh does not have, for a process outside of it, and if
    environment and process group disagree.
    """
    environ = os.environ if environ is None else environ
    around = Layout.from_environment(environ)
    if Layout.is_described(environ):
        check_group(around, "environment")
    names = mesh.mesh_dim_names or ()
    wanted = (dp,) if isinstance(dp, str) else tuple(dp)
    unknown = [name for name in wanted if name not in names]
    if unknown or not wanted or len(set(wanted)) < len(wanted):
        raise LayoutError(
            f"the mesh has dimensions {', '.join(map(repr, names)) or 'without names'}, not {wanted!r}",
            hint='name the data-parallel ones: stoker.torch.layout(mesh, dp="dp")',
        )
    place = mesh.get_coordinate()
    if place is None:
        raise LayoutError(f"rank {dist.get_rank()} is not part of the mesh", hint="only its processes read data")
    rank, size = 0, 1
    for name in wanted:
        length = mesh.size(names.index(name))
        rank, size = rank * length + place[names.index(name)], size * length
    if around.nodes <= size:
        return Layout(rank, size, around.node, around.nodes)
    return Layout(rank, size, rank, size)  # peers of one batch lie on several nodes


def check_group(layout: Layout, source: str) -> None:
    """Refuse a layout, from "environment" or "layout", that is not the one of the process group, if there is a group.

    Raises LayoutError with both.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return
    rank, size = dist.get_rank(), dist.get_world_size()
    if (rank, size) != (layout.dp_rank, layout.dp_size):
        raise LayoutError(
            f"this is rank {layout.dp_rank} of {layout.dp_size} by {source}, "
            f"but rank {rank} of {size} by torch.distributed",
            hint=_HINTS[source],
        )
