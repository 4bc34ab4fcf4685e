"""A loader as an IterableDataset: what DataLoader yields is what the loader holds, once, in order."""

import gc
import json
import multiprocessing
import pickle
from itertools import chain

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import stoker
from stoker.errors import ConfigError, FormatError, UnsupportedError
from stoker.values import Layout


def rows(batches):
    return [(batch.step, batch["npy"][:, 0].tolist(), batch["txt"], batch.sample_keys) for batch in batches]


@pytest.fixture
def expected(run, numbers):
    loader = run.loader(numbers, global_batch_size=4, seed=5, epochs=3)
    return [(b.step, b["npy"][:, 0].tolist(), b["txt"], b.sample_keys) for b in loader]


@pytest.fixture
def make(run, numbers):
    def make(**options):
        data = run.loader(numbers, global_batch_size=4, **({"seed": 5, "epochs": 3} | options))
        return data, stoker.torch.dataset(data)

    return make


def test_a_data_loader_yields_every_batch_once_an_epoch_a_loop(make, expected):
    data, dataset = make()
    assert isinstance(dataset, IterableDataset)
    loader = DataLoader(dataset, batch_size=None)
    assert len(loader) == len(dataset) == 6
    epochs = [rows(loader) for _ in range(4)]
    assert [len(epoch) for epoch in epochs] == [6, 6, 6, 0]
    assert list(chain(*epochs)) == expected
    assert data.finished


def test_the_last_step_of_training_is_accounted_for(make, run):
    _, dataset = make(epochs=1)
    for _ in DataLoader(dataset, batch_size=None):
        pass
    assert run.report().steps == 6
    assert run._ledger.snapshot().totals.steps == 6
    assert run._ledger._last_left_ns is None


def test_arrays_are_tensors_and_raw_samples_too_which_a_data_loader_leaves_alone(make):
    data, dataset = make()
    batch = next(iter(DataLoader(dataset, batch_size=None)))
    assert batch["npy"].dtype == torch.int64
    assert batch["npy"].shape == (4, 3)
    numbers = [int(key[1:]) for key in batch.sample_keys]
    assert [sample.dtype for sample in batch["bin"]] == [torch.uint8] * 4
    assert [sample.tolist() for sample in batch["bin"]] == [[i] * (i % 5) for i in numbers]
    assert batch["txt"] == [f"t{i}" for i in numbers]
    held = data.stats().lent_bytes
    assert held > 0  # no copy was made


def test_a_loop_that_was_left_goes_on_to_the_end_of_its_epoch(make, expected):
    _, dataset = make()
    first = iter(dataset)
    assert rows([next(first), next(first)]) == expected[:2]
    assert rows(dataset) == expected[2:6]
    assert rows(dataset) == expected[6:12]


@pytest.mark.parametrize("after", [-1, 0, 3, 5, 8, 17])
def test_the_state_goes_on_with_the_next_batch_in_another_loader(make, expected, after):
    _, dataset = make()
    seen = 0
    while seen <= after:
        for _ in dataset:
            seen += 1
            if seen > after:
                break
    text = json.dumps(dataset.state_dict())
    assert len(text) < 1024
    _, other = make()
    other.load_state_dict(json.loads(text))
    assert list(chain(*(rows(other) for _ in range(3)))) == expected[after + 1 :]


def test_the_state_is_the_same_on_every_rank(make):
    states = []
    for rank in range(4):
        _, dataset = make(layout=Layout(rank, 4))
        next(iter(dataset))
        states.append(dataset.state_dict())
    assert states == [states[0]] * 4


def test_a_state_of_other_data_or_no_state_is_refused(make):
    _, dataset = make()
    _, other = make(seed=6)
    with pytest.raises(ConfigError, match="seed"):
        dataset.load_state_dict(other.state_dict())
    with pytest.raises(FormatError):
        dataset.load_state_dict({})


def test_an_evaluation_begins_anew_and_has_no_state(make):
    _, dataset = make(shuffle=False, epochs=1)
    assert dataset.state_dict() == {}
    dataset.load_state_dict({})
    for _ in range(2):
        assert [batch.step for batch in DataLoader(dataset, batch_size=None)] == list(range(6))
    assert dataset.state_dict() == {}


def test_setting_the_epoch_changes_nothing(make, expected):
    _, dataset = make()
    dataset.set_epoch(2)
    assert rows(dataset) == expected[:6]


def test_ranks_together_yield_the_global_batch_and_equally_many_steps(make, expected):
    shares = [rows(make(layout=Layout(rank, 2))[1]) for rank in range(2)]
    assert [len(share) for share in shares] == [6, 6]
    assert [a[3] + b[3] for a, b in zip(*shares, strict=True)] == [row[3] for row in expected[:6]]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_in_a_worker_process_it_is_refused_at_once(make, method, until, monkeypatch):
    # How long a DataLoader gives a worker to end before it ends it: 5 s.
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.05, raising=False)
    _, dataset = make()
    loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context=method)
    with pytest.raises(UnsupportedError, match="num_workers=0") as caught:
        next(iter(loader))
    assert caught.value.exit_code == 8
    del caught  # and with it the iteration, which ends its worker
    gc.collect()
    until(lambda: not multiprocessing.active_children())


def test_it_is_never_pickled(make):
    with pytest.raises(UnsupportedError, match="cannot be sent to another process"):
        pickle.dumps(make()[1])


def test_batches_of_a_loader_with_a_device_are_handed_on(make, expected):
    _, dataset = make(device="cpu")
    assert rows(dataset) == expected[:6]
