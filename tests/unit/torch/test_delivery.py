"""Batches on a device: copied one ahead on a stream of their own, and no slot comes back before its copy is done."""

import gc

import pytest
import torch

import stoker
from stoker.errors import ConfigError, UnsupportedError
from stoker.torch.delivery import CpuDelivery, CudaDelivery, open_delivery


@pytest.fixture
def load(run, numbers, fake_device):
    """A loader that delivers to the fake device."""

    def load(**options):
        data = run.loader(numbers, global_batch_size=4, **options)
        delivery = CudaDelivery(fake_device)
        data.deliver_with(delivery)
        return data, delivery

    return load


def test_batches_arrive_in_order_with_every_byte(run, numbers, load, fake_device):
    expected = [(b.step, b["npy"].tolist(), b["txt"]) for b in run.loader(numbers, global_batch_size=4, epochs=3)]
    data, _ = load(epochs=3)
    got = []
    for batch in data:
        fake_device.run()  # whoever looks at the values waits for the device
        got.append((batch.step, batch["npy"].tolist(), batch["txt"]))
        assert batch.valid.tolist() == [True] * 4
    assert got == expected


def test_no_slot_is_used_again_before_its_copy_is_done(run, numbers, fake_device):
    """The device stands still for two epochs, with room for two batches: all copies happen after the last was read."""
    arrays = stoker.Dataset(numbers.source).fields("npy").decode({"npy": "npy"})
    expected = [b["npy"].tolist() for b in run.loader(arrays, global_batch_size=4, epochs=2)]
    with pytest.raises(ConfigError) as caught:
        run.loader(arrays, global_batch_size=4, prefetch_bytes=64)
    data = run.loader(arrays, global_batch_size=4, epochs=2, prefetch_bytes=2 * least_of(caught.value))
    delivery = CudaDelivery(fake_device)
    data.deliver_with(delivery)
    batches = list(data)
    gc.collect()
    assert delivery.held_count == 12
    assert data.stats().lent_bytes > 0
    assert data.stats().copied_batches >= 8  # into memory that nobody waits for
    fake_device.run()
    assert [batch["npy"].tolist() for batch in batches] == expected


def least_of(error):
    return int(error.hint.split("prefetch_bytes=")[1].split(",")[0])


def test_slots_come_back_when_their_copies_are_done(load, fake_device, until):
    data, delivery = load(prefetch_bytes=1 << 20)
    for batch in data:
        del batch
        fake_device.run()
        assert delivery.held_count <= 2
    delivery.enter()
    assert delivery.held_count == 0
    until(lambda: data.stats().lent_bytes == 0)


def test_with_room_for_one_batch_alone_the_loop_goes_on(run, numbers, fake_device):
    # Lists of raw samples would hold the slot.
    arrays = stoker.Dataset(numbers.source).fields("npy").decode({"npy": "npy"})
    expected = [b["npy"].tolist() for b in run.loader(arrays, global_batch_size=4)]
    with pytest.raises(ConfigError) as caught:
        run.loader(arrays, global_batch_size=4, prefetch_bytes=64)
    data = run.loader(arrays, global_batch_size=4, prefetch_bytes=least_of(caught.value))
    data.deliver_with(CudaDelivery(fake_device))
    got = []
    for batch in data:
        fake_device.run()
        got.append(batch["npy"].tolist())
    assert got == expected
    assert data.stats().copied_batches == 0


def test_the_next_batch_is_copied_while_training_works_on_this_one(run, numbers, load, fake_device, until):
    expected = [b["npy"].tolist() for b in run.loader(numbers, global_batch_size=4)]
    data, _ = load()
    loop = iter(data)
    next(loop)
    until(lambda: data.stats().ready_batches >= 4)
    next(loop)
    fake_device.run()  # the step, beside which the device copies
    assert next(loop)["npy"].tolist() == expected[2]  # it was there when it was asked for


def test_trainings_stream_waits_for_the_copy_and_the_memory_stays_as_long_as_it_works(load, fake_device):
    data, _ = load()
    batch = next(iter(data))
    training = fake_device.training
    seen = []
    training.queue.append(lambda: seen.append(batch["npy"].clone()) or True)  # the first kernel of the step
    fake_device.run()
    assert seen[0].sum() > 0
    assert {name for _, name in fake_device.kept} == {"training"}
    assert {pointer for pointer, _ in fake_device.kept} == {batch["npy"].data_ptr(), batch.valid.data_ptr()}


def test_the_memory_of_the_feeder_is_pinned_with_the_first_batch_and_let_go_at_close(load, fake_device):
    data, delivery = load(prefetch_bytes=1 << 20)
    assert fake_device.registered == {}
    next(iter(data))
    assert list(fake_device.registered.values()) == [1 << 20]
    assert delivery.pinned_bytes == 1 << 20
    data.close()
    assert fake_device.registered == {}
    assert delivery.held_count == 0


def test_without_prefetch_the_memory_that_grows_is_pinned_again(load, fake_device):
    data, _ = load(prefetch_bytes=0)
    for _ in data:
        fake_device.run()
        assert len(fake_device.registered) == 1
    assert fake_device.registrations == sorted(fake_device.registrations)


def test_a_loader_that_nobody_holds_lets_the_memory_go(load, fake_device, until):
    data, delivery = load()
    next(iter(data))
    del data, delivery
    gc.collect()
    until(lambda: fake_device.registered == {})


def test_what_is_begun_ahead_is_given_up_after_a_jump(run, numbers, load, fake_device, until):
    expected = [b["npy"].tolist() for b in run.loader(numbers, global_batch_size=4)]
    data, _ = load()
    loop = iter(data)
    next(loop)
    until(lambda: data.stats().ready_batches >= 4)
    next(loop)  # 2 is begun
    data.seek(data.position(after=3))
    batch = next(loop)
    fake_device.run()
    assert (batch.step, batch["npy"].tolist()) == (4, expected[4])


def test_batches_out_of_memory_that_cannot_be_pinned_arrive_and_are_counted(run, numbers, load, fake_device):
    expected = [b["npy"].tolist() for b in run.loader(numbers, global_batch_size=4)]
    fake_device.refuse = "cudaHostRegister says: operation not supported (801)"
    data, delivery = load()
    got = []
    for batch in data:
        fake_device.run()
        got.append(batch["npy"].tolist())
    assert got == expected
    assert delivery.pinned_bytes == 0
    assert run._ledger.snapshot().counters["pageable_batches"] == 6


def test_the_pads_of_an_evaluation_are_marked_on_the_device_too(run, numbers, fake_device):
    data = run.loader(numbers, global_batch_size=10, shuffle=False)
    data.deliver_with(CudaDelivery(fake_device))
    marks = []
    for batch in data:
        fake_device.run()
        marks += batch.valid.tolist()
    assert marks == [True] * 24 + [False] * 6


def test_idle_is_what_the_device_stood_still_between_its_work_and_the_batch(load, fake_device, run):
    data, delivery = load(epochs=1)
    fake_device.copy_ms = 0.0
    loop = iter(data)
    next(loop)
    fake_device.training.work(5)
    fake_device.run()
    known = delivery.idle_ns
    # Training asks; the device has done its work; 20 ms pass on the device before the batch is there.
    fake_device.streams[1].work(20)
    delivery.enter()
    token = delivery.begin(_batch_of(data, 3))
    delivery.finish(token)
    fake_device.run()
    delivery.wait()
    assert delivery.idle_ns - known == 20_000_000
    list(loop)
    fake_device.run()
    delivery.wait()


def _batch_of(data, step):
    from stoker.feed.batch import Batch

    return Batch(data._feeder.request(step))


def test_a_device_that_has_work_left_is_not_idle(load, fake_device):
    data, delivery = load()
    for _ in data:
        fake_device.training.work(50)  # queued before the next is asked for, and never seen to end by the host
    fake_device.copy_ms = 0.0
    delivery.wait()
    assert delivery.idle_ns < 50e6  # the first batch alone: its copies


def test_the_ledger_tells_the_idle_time(load, fake_device, run):
    data, delivery = load()
    for _ in data:
        fake_device.streams[1].work(7)
        fake_device.run()
    assert delivery.idle_ns > 0
    assert run._ledger.snapshot().counters["device_idle_ns"] > 0
    data.close()
    assert run._ledger.snapshot().counters["device_idle_ns"] == delivery.idle_ns


def test_on_the_cpu_nothing_is_copied():
    assert isinstance(open_delivery("cpu"), CpuDelivery)
    assert isinstance(open_delivery(torch.device("cpu")), CpuDelivery)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda", 0)])
def test_a_device_that_is_not_there_is_an_error(run, numbers, device):
    with pytest.raises(UnsupportedError, match=r"'cuda.*is not there: PyTorch .* sees 0 CUDA devices"):
        run.loader(numbers, global_batch_size=4, device=device)


@pytest.mark.parametrize("device", ["gpu", "cuda:x", 3.5])
def test_what_names_no_device_is_refused(run, numbers, device):
    with pytest.raises(ConfigError, match="device is"):
        run.loader(numbers, global_batch_size=4, device=device)


def test_other_kinds_of_devices_are_refused(run, numbers):
    with pytest.raises(UnsupportedError, match="'meta'"):
        run.loader(numbers, global_batch_size=4, device="meta")
