"""How ranks hear from rank 0 at the start of a run: through the store that PyTorch's ranks already share.

With `torch.distributed` initialised it is the store of the default process group, else the TCPStore that torchrun keeps
for its workers. JSON text under a key, with a deadline; no collective, no device, no pickle.

A store may outlive the processes that use it, and torchrun counts restarts for each node, so that nodes may disagree:
what an earlier attempt left must not be heard, and nothing in the environment says what is of now. So the ranks meet
first. Rank 0 takes the next number of the store and offers a token that nobody knew before; each rank answers under it
with a nonce of its own; when all have, rank 0 confirms the nonces. Only who finds its own nonce confirmed goes on, and
what is said from then on lies under the token. A rank follows offers upwards alone: of two that could be confirmed, no
rank goes back to the lower one.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Final

import torch.distributed as dist

from stoker.checkpoint.generation import START_DEADLINE_S
from stoker.checkpoint.state import Json, Rendezvous
from stoker.errors import Fenced, LayoutError, TimedOut, Unavailable
from stoker.torch.layouts import check_group
from stoker.units import format_seconds
from stoker.values import Layout, canonical_json

if TYPE_CHECKING:  # torch.distributed has them too, but does not say so to type checkers
    from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
else:
    from torch.distributed import PrefixStore, Store, TCPStore

CONNECT_S: Final = 60.0

_PLACE: Final = "the store of torch.distributed"
_LEAST_PAUSE_S: Final = 0.002
_MOST_PAUSE_S: Final = 0.25  # 1,000 ranks that wait ask 4,000 times a second
_SHOWN_MAX_COUNT: Final = 8

_meetings = count()  # every rank makes its rendezvous in the same order: the n-th of one meets the n-th of the others


class StoreRendezvous:
    """A rendezvous over a `torch.distributed.Store` that all ranks see. A name is broadcast once."""

    def __init__(self, store: Store, rank: int, prefix: str) -> None:
        self._store = PrefixStore(prefix, store)
        self._rank = rank

    def broadcast(self, name: str, value: Json, deadline_s: float) -> Json:
        """Rank 0's `value`, on every rank. Raises TimedOut after `deadline_s`, Unavailable if the store is gone."""
        with _translating():
            if self._rank == 0:
                self._store.set(name, canonical_json(value).decode())
                return value
            try:
                self._store.wait([name], timedelta(seconds=deadline_s))
            except dist.DistStoreError as error:
                raise TimedOut(
                    f"waited {format_seconds(deadline_s)} for rank 0 to say {name!r}",
                    where=_PLACE,
                    hint="look at the log of rank 0",
                ) from error
            return json.loads(self._store.get(name))


class _Host:
    """Rank 0 in a meeting: offers, and confirms once all others have answered."""

    def __init__(self, store: Store, size: int) -> None:
        self._store = store
        self._size = size
        self._number = store.add("number", 1)
        self._token = f"{self._number}.{secrets.token_hex(16)}"

    def try_once(self) -> str | None:
        """The token, once it is confirmed. Raises Fenced if a later attempt offers one."""
        offered = _offered(self._store)
        if offered is not None and _number(offered) > self._number:
            raise Fenced("another process has begun to meet the ranks as rank 0 since", where=_PLACE)
        if offered != self._token:
            self._store.set("offer", self._token)
        answers = [_answer_key(self._token, rank) for rank in range(1, self._size)]
        if answers and not self._store.check(answers):
            return None
        nonces = [self._store.get(key).decode() for key in answers]
        self._store.set(_confirmed_key(self._token), canonical_json(nonces).decode())
        return self._token

    def missed(self) -> tuple[str, str]:
        """What is waited for in vain, and a hint."""
        missing = [rank for rank in range(1, self._size) if not self._store.check([_answer_key(self._token, rank)])]
        more = f" and {len(missing) - _SHOWN_MAX_COUNT} more" if len(missing) > _SHOWN_MAX_COUNT else ""
        names = ", ".join(map(str, missing[:_SHOWN_MAX_COUNT])) + more
        return f"rank{'s' if len(missing) > 1 else ''} {names} of {self._size}", "every rank must call stoker.open()"


class _Guest:
    """Another rank in a meeting: answers what is offered, until an answer of its own is confirmed."""

    def __init__(self, store: Store, rank: int) -> None:
        self._store = store
        self._rank = rank
        self._nonce = secrets.token_hex(16)
        self._answered: str | None = None

    def try_once(self) -> str | None:
        """The token, once it is confirmed."""
        token = self._answered
        if token is not None and self._is_confirmed(token):
            return token
        offered = _offered(self._store)
        if offered is not None and (token is None or _number(offered) > _number(token)):
            self._answered = offered  # before it is sent: whoever may have been confirmed never goes back
            self._store.set(_answer_key(offered, self._rank), self._nonce)
        return None

    def _is_confirmed(self, token: str) -> bool:
        """Whether rank 0 counts this process in; one of an earlier attempt may have answered in its place."""
        key = _confirmed_key(token)
        return self._store.check([key]) and json.loads(self._store.get(key))[self._rank - 1] == self._nonce

    def missed(self) -> tuple[str, str]:
        """What is waited for in vain, and a hint."""
        if self._answered is None:
            return "rank 0", "look at the log of rank 0; every rank must call stoker.open()"
        return "rank 0 to hear from all ranks", "the log of rank 0 says which are missing, or how it ended"


def meet(store: Store, layout: Layout, prefix: str, deadline_s: float) -> StoreRendezvous:
    """A rendezvous of the processes that are here now, over a store in which others may have met before.

    Costs every rank a few requests, and rank 0 one a rank. Raises TimedOut after `deadline_s`, naming who did not come;
    Unavailable if the store is gone; Fenced on a rank 0 after which another one began.
    """
    place = PrefixStore(prefix, store)
    until_s, pause_s = time.monotonic() + deadline_s, _LEAST_PAUSE_S
    with _translating():
        end = _Host(place, layout.dp_size) if layout.dp_rank == 0 else _Guest(place, layout.dp_rank)
        while (token := end.try_once()) is None:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                whom, hint = end.missed()
                raise TimedOut(f"waited {format_seconds(deadline_s)} for {whom}", where=_PLACE, hint=hint)
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _MOST_PAUSE_S)
    return StoreRendezvous(place, layout.dp_rank, token)


def _offered(store: Store) -> str | None:
    return store.get("offer").decode() if store.check(["offer"]) else None


def _number(token: str) -> int:
    return int(token.partition(".")[0])


def _answer_key(token: str, rank: int) -> str:
    return f"{token}/answer/{rank}"


def _confirmed_key(token: str) -> str:
    return f"{token}/confirmed"


@contextmanager
def _translating() -> Iterator[None]:
    try:
        yield
    except (dist.DistError, RuntimeError) as error:
        raise Unavailable(f"the ranks' store is gone: {error}", where=_PLACE) from error


def make_rendezvous(layout: Layout, environ: Mapping[str, str], deadline_s: float = START_DEADLINE_S) -> Rendezvous:
    """How the ranks of `layout` meet, from the process group or torchrun's environment; returns when all are there.

    Raises LayoutError if there is neither, or if the process group has other ranks than `layout`; Unavailable if
    torchrun's store does not answer; TimedOut, naming who is missing, after `deadline_s`.
    """
    prefix = f"stoker/{next(_meetings)}"
    if dist.is_available() and dist.is_initialized():
        check_group(layout, "layout")
        store = dist.distributed_c10d._get_default_store()  # noqa: SLF001
    else:
        store = _torchrun_store(layout, environ)
        prefix = f"{prefix}/{environ.get('TORCHELASTIC_RUN_ID', '')}"
    return meet(store, layout, prefix, deadline_s)


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
