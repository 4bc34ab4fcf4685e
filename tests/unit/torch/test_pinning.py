"""Memory is pinned where it is mapped, let go before it is unmapped, and a refusal is said once."""

import logging
from types import SimpleNamespace

import pytest
import torch

from stoker.errors import CapacityError, UnsupportedError
from stoker.io.memory import Arena
from stoker.torch import pinning as module
from stoker.torch.pinning import CudaDriver, Pinning


@pytest.fixture
def pinning(fake_device):
    return Pinning(fake_device, fake_device.new_stream())


def test_an_arena_is_pinned_whole_once_and_let_go_when_it_closes(fake_device, pinning):
    arena = Arena(1 << 20)
    arena.watch(pinning)
    assert fake_device.registered == {arena.address: 1 << 20}
    assert pinning.pinned_bytes == 1 << 20
    arena.close()
    arena.close()
    assert fake_device.registered == {}
    assert pinning.pinned_bytes == 0


def test_an_arena_that_grows_is_pinned_where_it_lies_then(fake_device, pinning):
    arena = Arena(1 << 16)
    arena.watch(pinning)
    arena.grow(1 << 17)
    assert fake_device.registered == {arena.address: 1 << 17}
    assert fake_device.registrations == [1 << 16, 1 << 17]
    arena.close()
    assert fake_device.registered == {}


def test_memory_is_let_go_only_when_no_copy_reads_it(fake_device, pinning):
    arena = Arena(1 << 16)
    arena.watch(pinning)
    side = fake_device.streams[1]
    with fake_device.on(side):
        fake_device.copy(torch.ones(4))
    arena.close()  # the fake fails if the copy is still queued
    assert side.queue == []


def test_an_arena_without_memory_is_not_pinned_until_it_grows(fake_device, pinning):
    arena = Arena(0)
    arena.watch(pinning)
    assert fake_device.registered == {}
    arena.grow(1 << 16)
    assert fake_device.registered == {arena.address: 1 << 16}
    arena.close()


def test_a_refusal_is_said_once_and_shows(fake_device, pinning, caplog):
    fake_device.refuse = "cudaHostRegister says: out of memory (2)"
    arena = Arena(1 << 16)
    with caplog.at_level(logging.WARNING):
        arena.watch(pinning)
        arena.grow(1 << 17)
    arena.close()
    assert [record.getMessage().count("cannot be pinned") for record in caplog.records] == [1]
    assert "64.0 KiB of prefetch memory" in caplog.text
    assert (pinning.pinned_bytes, pinning.refusal) == (0, fake_device.refuse)


@pytest.fixture
def cudart(monkeypatch):
    """PyTorch's door to the CUDA runtime, recorded: what was called, and what it answers."""
    calls, answers = [], {"cudaHostRegister": 0, "cudaHostUnregister": 0}

    def called(name):
        return lambda *arguments: calls.append((name, *arguments)) or answers[name]

    fake = SimpleNamespace(
        cudaHostRegister=called("cudaHostRegister"),
        cudaHostUnregister=called("cudaHostUnregister"),
        cudaGetErrorString=lambda code: {2: "out of memory", 713: "resource not mapped"}[code],
    )
    monkeypatch.setattr(module, "_cudart", lambda: fake)
    monkeypatch.setattr(torch.cuda, "device", lambda _device: fake_context())
    return SimpleNamespace(calls=calls, answers=answers)


class fake_context:  # noqa: N801  as torch.cuda.device
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def test_the_runtime_is_asked_with_address_and_length(cudart):
    driver = CudaDriver(torch.device("cpu"))
    driver.register(4096, 8192)
    driver.unregister(4096)
    assert cudart.calls == [("cudaHostRegister", 4096, 8192, 0), ("cudaHostUnregister", 4096)]


def test_a_device_without_room_is_an_error_with_the_bytes():
    class Large:
        nbytes = 3 << 30

        def to(self, *_, **__):
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(CapacityError, match=r"no memory on device 'cpu' for 3\.0 GiB of a batch"):
        CudaDriver(torch.device("cpu")).copy(Large())


def test_what_the_runtime_refuses_is_an_error_in_its_words(cudart):
    driver = CudaDriver(torch.device("cpu"))
    cudart.answers |= {"cudaHostRegister": 2, "cudaHostUnregister": 713}
    with pytest.raises(UnsupportedError, match=r"cudaHostRegister says: out of memory \(2\)"):
        driver.register(4096, 8192)
    with pytest.raises(UnsupportedError, match=r"cudaHostUnregister says: resource not mapped \(713\)"):
        driver.unregister(4096)
