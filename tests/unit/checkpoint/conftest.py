"""Runs of numpy arrays on a directory: ranks are objects in one process, each with its background thread."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
import pytest

from stoker.checkpoint.generation import start_generation
from stoker.checkpoint.save import Checkpoint, SaveOptions
from stoker.checkpoint.tiers import Tiers
from stoker.dataset.position import Position, Segment
from stoker.errors import ConfigError, TimedOut
from stoker.ledger import Ledger, LedgerIdentity
from stoker.store.local import LocalStore
from stoker.store.memory import MemoryStore
from stoker.testing.training import ArrayState
from stoker.values import Layout


class Wire:
    """A rendezvous between threads."""

    def __init__(self):
        self.values = {}
        self.told = threading.Condition()

    def end(self, rank):
        return End(self, rank)


class End:
    def __init__(self, wire, rank):
        self.wire, self.rank = wire, rank

    def broadcast(self, name, value, deadline_s):
        with self.wire.told:
            if self.rank == 0:
                self.wire.values[name] = value
                self.wire.told.notify_all()
            elif not self.wire.told.wait_for(lambda: name in self.wire.values, deadline_s):
                raise TimedOut(f"no {name} from rank 0")
            return self.wire.values[name]


@dataclass
class FakeFeed:
    """A training loader, as far as a checkpoint looks at it."""

    total: int = 100
    seed: int = 7
    digest: str = "a" * 64
    next_step: int = 0

    def __len__(self):
        return self.total

    def position(self, after):
        segment = Segment(self.digest, "b" * 64, 0)
        return Position((segment,), after + 1)

    def seek(self, position):
        if position.segments[0].manifest != self.digest:
            raise ConfigError("the position is of another order: manifest")
        self.next_step = position.next_step


@dataclass
class Start:
    """One start of a run: its ranks' checkpoints, over one home."""

    home: LocalStore
    generation: list
    checkpoints: list
    states: list
    feeds: list
    ledgers: list = field(default_factory=list)

    def save(self, after):
        return [checkpoint.save(after=after) for checkpoint in self.checkpoints]

    def save_and_wait(self, after):
        for save in self.save(after):
            save.wait()

    def restore(self):
        return [checkpoint.restore() for checkpoint in self.checkpoints]


@pytest.fixture
def home(tmp_path):
    with_root = LocalStore(tmp_path / "home", create=True)
    yield with_root
    with_root.close()


@pytest.fixture
def far():
    """An object store, as far as checkpoints look at it: nothing in it can be renamed."""
    return MemoryStore("far")


@pytest.fixture
def tiers(home, far):
    return Tiers(home, far)


@pytest.fixture
def start(home):
    """start(state, ...) begins a generation with one rank a state, and gives the `Start`."""
    opened = []

    def begin(*states, store=None, run="run-1", data=None, every=10, **options):
        store = store or home
        world = len(states)
        wire = Wire()
        generations = [
            start_generation(
                store,
                run=run,
                layout=Layout(rank, world),
                rendezvous=wire.end(rank) if world > 1 else None,
                deadline_s=5,
            )
            for rank in range(world)
        ]
        begun = Start(store, generations, [], list(states), [])
        for rank, state in enumerate(states):
            ledger = Ledger.create(None, LedgerIdentity(run, rank, world, generations[rank].number, "host"))
            feed = data() if data is not None else None
            checkpoint = Checkpoint(
                store,
                generation=generations[rank],
                state=state,
                data=feed,
                every=every,
                ledger=ledger,
                options=SaveOptions(**{"deadline_s": 5.0, **options}),
            )
            begun.checkpoints.append(checkpoint)
            begun.feeds.append(feed)
            begun.ledgers.append(ledger)
            opened.append(checkpoint)
        return begun

    yield begin
    for background in [b for c in opened for b in (c._background, c._drains and c._drains._background) if b]:
        with background._lock:
            thread = background._thread
        if thread is not None:
            thread.join(20)
            assert not thread.is_alive()


@pytest.fixture
def state():
    """state(seed) -> an ArrayState of a few arrays of all kinds."""

    def make(seed=0, **changes):
        rng = np.random.default_rng(seed)
        arrays = {
            "model.weight": rng.standard_normal((5, 3)).astype("f4"),
            "model.half": rng.standard_normal(7).astype("f2"),
            "model.flags": rng.integers(0, 2, 9).astype(bool),
            "model.scale": np.array(rng.standard_normal(), "f4"),
            "model.empty": np.zeros((0, 4), "f4"),
            "optimizer.state.weight.exp_avg": rng.standard_normal((5, 3)).astype("f8"),
            "optimizer.state.weight.step": np.array(seed, "f4"),
        }
        return ArrayState(
            **{
                "arrays": arrays,
                "shared": {"optimizer": {"lr": 0.1 * seed}},
                "private": {"count": seed},
                "stream": seed,
                **changes,
            }
        )

    return make


@pytest.fixture
def equal():
    """equal(a, b): the two states hold the same bits."""

    def check(a, b):
        return (
            a.arrays.keys() == b.arrays.keys()
            and all(a.arrays[n].tobytes() == b.arrays[n].tobytes() for n in a.arrays)
            and (a.shared, a.private, a.stream) == (b.shared, b.private, b.stream)
        )

    return check


@pytest.fixture
def listing(home):
    """listing(): every file under the home, temporary ones included."""
    return lambda: sorted(str(path.relative_to(home.root)) for path in home.root.rglob("*") if path.is_file())


@pytest.fixture
def feed():
    return FakeFeed
