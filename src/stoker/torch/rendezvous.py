"""How ranks hear from rank 0 at the start of a run: through the store that PyTorch's ranks already share.

With `torch.distributed` initialised it is the store of the default process group, else the TCPStore that torchrun keeps
for its workers. JSON text under a key, with a deadline; no collective, no device, no pickle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Final

import torch.distributed as dist

from stoker.checkpoint.state import Json, Rendezvous
from stoker.errors import LayoutError, TimedOut, Unavailable
from stoker.torch.layouts import check_group
from stoker.units import format_seconds
from stoker.values import Layout, canonical_json

if TYPE_CHECKING:  # torch.distributed has them too, but does not say so to type checkers
    from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
else:
    from torch.distributed import PrefixStore, Store, TCPStore

CONNECT_S: Final = 60.0

_meetings = count()  # every rank makes its rendezvous in the same order: the n-th of one meets the n-th of the others


class StoreRendezvous:
    """A rendezvous over a `torch.distributed.Store` that all ranks see. A name is broadcast once."""

    def __init__(self, store: Store, rank: int, prefix: str) -> None:
        self._store = PrefixStore(prefix, store)
        self._rank = rank

    def broadcast(self, name: str, value: Json, deadline_s: float) -> Json:
        """Rank 0's `value`, on every rank. Raises TimedOut after `deadline_s`, Unavailable if the store is gone."""
        try:
            if self._rank == 0:
                self._store.set(name, canonical_json(value).decode())
                return value
            self._store.wait([name], timedelta(seconds=deadline_s))
            return json.loads(self._store.get(name))
        except dist.DistStoreError as error:
            raise TimedOut(
                f"waited {format_seconds(deadline_s)} for rank 0 to say {name!r}",
                where="the store of torch.distributed",
                hint="look at the log of rank 0",
            ) from error
        except (dist.DistError, RuntimeError) as error:
            raise Unavailable(f"the ranks' store is gone: {error}", where="the store of torch.distributed") from error


def make_rendezvous(layout: Layout, environ: Mapping[str, str]) -> Rendezvous:
    """How the ranks of `layout` meet, from the process group or torchrun's environment.

    Raises LayoutError if there is neither, or if the process group has other ranks than `layout`; Unavailable if
    torchrun's store does not answer.
    """
    prefix = f"stoker/{next(_meetings)}"
    if dist.is_available() and dist.is_initialized():
        check_group(layout, "layout")
        return StoreRendezvous(dist.distributed_c10d._get_default_store(), layout.dp_rank, prefix)  # noqa: SLF001
    return StoreRendezvous(_torchrun_store(layout, environ), layout.dp_rank, f"{prefix}/{_attempt(environ)}")


def _torchrun_store(layout: Layout, environ: Mapping[str, str]) -> Store:
    host, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or not host or not port.isdigit():
        raise LayoutError(
            f"{layout.dp_size} ranks have no way to hear from rank 0",
            where="torch.distributed is not initialised, and no torchrun keeps a store for its workers",
            hint="call torch.distributed.init_process_group() before stoker.open(), or start with torchrun",
        )
    try:
        return TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=CONNECT_S))
    except (dist.DistError, RuntimeError) as error:
        raise Unavailable(f"torchrun's store does not answer: {error}", where=f"{host}:{port}") from error


def _attempt(environ: Mapping[str, str]) -> str:
    """Torchrun's store outlives its workers: what an earlier attempt of them said must not be heard."""
    return f"{environ.get('TORCHELASTIC_RUN_ID', '')}/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
