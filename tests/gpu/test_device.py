"""On a real device: batches arrive with every byte, from pinned memory, beside training, and idle time is measured."""

import gc
import io
import time

import numpy as np
import pytest

import stoker
from stoker.errors import UnsupportedError
from stoker.io.memory import Arena
from stoker.store.local import LocalStore

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device")]

ROWS = 65_536  # float32: 256 KiB a sample
SAMPLES = 128


class SlowStore(LocalStore):
    """Every read takes 50 ms."""

    def read_into(self, key, start, buffer):
        time.sleep(0.05)
        super().read_into(key, start, buffer)

    def read_cached(self, *_):
        return None  # nothing comes without waiting


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu")
    rng = np.random.default_rng(1)
    with stoker.writer(folder / "data") as w:
        for i in range(SAMPLES):
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, rng.standard_normal(ROWS, np.float32))
            w.write(f"s{i:03d}", {"npy": buffer.getvalue(), "txt": f"t{i}".encode()})
    return folder / "data"


@pytest.fixture
def run(tmp_path):
    with stoker.open(nvme=tmp_path) as run:
        yield run


@pytest.fixture
def load(run, folder):
    def load(device="cuda", store=None, **options):
        data = stoker.Dataset(store or folder).decode({"npy": "npy", "txt": "text"})
        return run.loader(data, **({"global_batch_size": 16, "seed": 3, "device": device} | options))

    return load


def delivery_of(loader):
    return loader._handover._delivery


def test_batches_on_the_device_are_those_of_the_host(load):
    host = [(b.step, b["npy"].copy(), b["txt"]) for b in load(None, epochs=3)]
    there = load(epochs=3)
    count = 0
    for batch, (step, array, text) in zip(there, host, strict=True):
        assert batch["npy"].device.type == "cuda"
        assert batch.valid.device.type == "cuda"
        assert (batch.step, batch["txt"]) == (step, text)
        assert np.array_equal(batch["npy"].cpu().numpy(), array)
        count += 1
    assert count == 24


@pytest.mark.parametrize("prefetch_bytes", [0, 8 << 20, 64 << 20])
def test_a_device_that_lags_behind_gets_the_right_bytes(load, prefetch_bytes):
    """Kernels are queued far ahead of the device: a slot or a block of memory used too early would show."""
    expected = [torch.from_numpy(b["npy"]).double().sum().item() for b in load(None, epochs=3)]
    sums = []
    for batch in load(epochs=3, prefetch_bytes=prefetch_bytes):
        torch.cuda._sleep(20_000_000)  # about 10 ms
        sums.append(batch["npy"].double().sum())
        del batch
    assert [value.item() for value in sums] == pytest.approx(expected, rel=1e-9)


def test_the_memory_of_the_loader_is_pinned_and_let_go(load):
    data = load(prefetch_bytes=32 << 20)
    next(iter(data))
    assert delivery_of(data).pinned_bytes == 32 << 20
    data.close()
    assert delivery_of(data).pinned_bytes == 0
    again = load(prefetch_bytes=0)
    for _ in again:
        assert delivery_of(again).pinned_bytes == again.stats().budget_bytes  # it grows with the first batches
    again.close()


def test_a_loader_that_is_dropped_lets_the_memory_go(load):
    for _ in range(3):
        data = load(prefetch_bytes=32 << 20)
        delivery = delivery_of(data)
        next(iter(data))
        del data
        gc.collect()
        deadline = time.monotonic() + 10
        while delivery.pinned_bytes:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_pinned_pages_are_what_cuda_says_they_are():
    from stoker.torch.pinning import CudaDriver

    driver = CudaDriver(torch.device("cuda", 0))
    arena = Arena(1 << 20)
    driver.register(arena.address, arena.size_bytes)
    slot = arena.take(1 << 19)
    assert torch.from_numpy(arena.view(slot)).is_pinned()
    driver.unregister(arena.address)
    arena.close()


def test_a_registration_that_cuda_refuses_is_an_error_and_spoils_nothing():
    from stoker.torch.pinning import CudaDriver

    driver = CudaDriver(torch.device("cuda", 0))
    arena = Arena(1 << 20)
    driver.register(arena.address, arena.size_bytes)
    with pytest.raises(UnsupportedError, match="cudaHostRegister says"):
        driver.register(arena.address, arena.size_bytes)
    assert torch.ones(4, device="cuda").sum().item() == 4  # the refusal is not taken for one of this kernel
    driver.unregister(arena.address)
    arena.close()


def test_a_fed_device_does_not_idle_and_a_starved_one_does(load, folder, run):
    fed = load()
    for _ in fed:
        torch.cuda._sleep(40_000_000)  # about 20 ms, queued; the host runs ahead
    delivery_of(fed).wait()
    busy_ns = delivery_of(fed).idle_ns
    store = SlowStore(folder)
    starved = load(store=store, prefetch_bytes=0)
    for _ in starved:
        torch.cuda.synchronize()
    delivery_of(starved).wait()
    assert delivery_of(starved).idle_ns > 7 * 45_000_000  # 50 ms for each of 8 batches
    assert busy_ns < delivery_of(starved).idle_ns / 2
    assert run._ledger.snapshot().counters["device_idle_ns"] > 0
    starved.close()
    store.close()


def test_a_step_without_storage_is_measured_to_the_end_of_its_work(load):
    replay = load().headspace(count=4, steps=20)
    start = time.perf_counter()
    for batch in replay:
        assert batch["npy"].device.type == "cuda"
        torch.cuda._sleep(20_000_000)
    took_s = time.perf_counter() - start
    assert replay.report().free.step_s * 19 == pytest.approx(took_s, rel=0.2)


def test_a_device_beyond_those_there_are_is_an_error(load):
    count = torch.cuda.device_count()
    with pytest.raises(UnsupportedError, match=f"sees {count} CUDA devices"):
        load(f"cuda:{count}")


def test_the_last_device_can_be_asked_for_by_number(load):
    index = torch.cuda.device_count() - 1
    batch = next(iter(load(f"cuda:{index}")))
    assert batch["npy"].device == torch.device("cuda", index)
