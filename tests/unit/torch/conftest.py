"""A home for one run of a PyTorch training state."""

import ctypes
import io
from contextlib import contextmanager

import numpy as np
import pytest
import torch

import stoker
from stoker.checkpoint.generation import start_generation
from stoker.checkpoint.save import Checkpoint
from stoker.errors import UnsupportedError
from stoker.ledger import Ledger, LedgerIdentity
from stoker.store.local import LocalStore
from stoker.torch.state import TorchState
from stoker.values import Layout


@pytest.fixture
def home(tmp_path):
    store = LocalStore(tmp_path / "home", create=True)
    yield store
    store.close()


@pytest.fixture
def checkpoint(home):
    """checkpoint(model, ...) is that of the run's next generation."""

    def make(model, optimizer=None, scheduler=None, extra=None):
        generation = start_generation(home, run="r", layout=Layout())
        ledger = Ledger.create(None, LedgerIdentity("r", 0, 1, generation.number, "host"))
        state = TorchState(model, optimizer, scheduler, extra)
        return Checkpoint(home, generation=generation, state=state, data=None, every=1, ledger=ledger)

    return make


@pytest.fixture
def transfer(checkpoint):
    """transfer(source parts, target parts): save the one, restore into the other."""

    def move(source, target):
        with checkpoint(*source) as saving:
            saving.save(after=0).wait()
        with checkpoint(*target) as restoring:
            assert restoring.restore() == 1

    return move


@pytest.fixture
def numbers(tmp_path):
    """A data set of 24 samples: `npy` the sample's number three times as int64, `bin` some bytes, `txt` its name."""
    with stoker.writer(tmp_path / "data") as w:
        for i in range(24):
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.full(3, i))
            w.write(f"s{i:02d}", {"npy": buffer.getvalue(), "bin": bytes([i]) * (i % 5), "txt": f"t{i}".encode()})
    return stoker.Dataset(tmp_path / "data").decode({"npy": "npy", "txt": "text"})


@pytest.fixture
def run(tmp_path):
    """A run without a name."""
    with stoker.open(nvme=tmp_path / "nvme") as run:
        yield run


class FakeStream:
    """A queue of work that is done when the device is let run, in order; `name` is for reading failures."""

    def __init__(self, device, name):
        self.device = device
        self.name = name
        self.queue = []

    def record_event(self, event=None):
        event = event or FakeEvent(self.device)
        self.queue.append(event.reach)
        return event

    def wait_event(self, event):
        self.queue.append(lambda: event.query() or self.device.BLOCKED)

    def work(self, milliseconds):
        self.queue.append(lambda: self.device.spend(milliseconds))

    def synchronize(self):
        self.device.run()
        assert self.queue == [], f"{self.name} waits for what never comes"


class FakeEvent:
    def __init__(self, device):
        self.device = device
        self.at_ms = None

    def reach(self):
        self.at_ms = self.device.now_ms
        return True

    def query(self):
        return self.at_ms is not None

    def elapsed_time(self, end_event):
        return end_event.at_ms - self.at_ms


class FakeDevice:
    """A device whose streams do nothing until `run`.

    A copy out of pinned memory reads what lies there then, and keeps nothing alive; one out of other memory is staged
    at once: as on a GPU. Copies take `copy_ms`. Streams take turns where one waits for another; the clock is the
    device's.
    """

    BLOCKED = object()

    def __init__(self, copy_ms=1.0):
        self.copy_ms = copy_ms
        self.now_ms = 0.0
        self.registered = {}
        self.registrations = []
        self.refuse = ""
        self.kept = []
        self.training = FakeStream(self, "training")
        self.streams = [self.training]
        self.inside = [self.training]

    def spend(self, milliseconds):
        self.now_ms += milliseconds
        return True

    def run(self):
        moved = True
        while moved:
            moved = False
            for stream in self.streams:
                while stream.queue and stream.queue[0]() is not self.BLOCKED:
                    stream.queue.pop(0)
                    moved = True

    def register(self, address, size_bytes):
        if self.refuse:
            raise UnsupportedError(self.refuse)
        assert address not in self.registered
        self.registered[address] = size_bytes
        self.registrations.append(size_bytes)

    def unregister(self, address):
        assert all(stream.queue == [] for stream in self.streams[1:]), "a copy may still read the memory"
        del self.registered[address]

    def new_stream(self):
        self.streams.append(FakeStream(self, f"side {len(self.streams)}"))
        return self.streams[-1]

    def current_stream(self):
        return self.inside[-1]

    @contextmanager
    def on(self, stream):
        self.inside.append(stream)
        yield
        self.inside.pop()

    def timed_event(self):
        return FakeEvent(self)

    def copy(self, tensor):
        there = torch.zeros_like(tensor)
        source, nbytes = tensor.data_ptr(), tensor.nbytes
        pinned = any(start <= source < start + size for start, size in self.registered.items())
        staged = None if pinned else ctypes.string_at(source, nbytes)

        def copied():
            ctypes.memmove(there.data_ptr(), source if pinned else staged, nbytes)
            return self.spend(self.copy_ms)

        self.inside[-1].queue.append(copied)
        return there

    def all_true(self, count):
        return torch.ones(count, dtype=torch.bool)

    def keep_for(self, tensor, stream):
        self.kept.append((tensor.data_ptr(), stream.name))


@pytest.fixture
def fake_device():
    return FakeDevice()
