"""Bad samples: an error, another sample, or a masked row, and never too many of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.dataset.describe import Dataset
from stoker.dataset.open import open_dataset
from stoker.dataset.write import DatasetWriter
from stoker.errors import ConfigError, DigestMismatch, SampleError, TooManyBadSamples
from stoker.feed.bad import BadBudget, substitutes
from stoker.feed.batch import BadSample
from stoker.feed.loader import Loader
from stoker.feed.options import FeedOptions
from stoker.feed.start import Start, start_child
from stoker.ledger import Counter
from stoker.store.local import LocalStore
from stoker.values import Layout

COUNT = 48
DAMAGED, NO_JSON, UNMAPPABLE = 7, 20, 33


@pytest.fixture
def place(tmp_path):
    """48 samples: of number 7 a byte has changed on disk, 20 is not JSON, and map functions raise on 33."""
    store = LocalStore(tmp_path / "data", create=True)
    with DatasetWriter(store, shard_bytes=1 << 20) as writer:
        for i in range(COUNT):
            writer.write(f"s{i:03d}", {"bin": b"%04d" % i * 20, "json": b"{" if i == NO_JSON else b'{"i": %d}' % i})
    for shard in (tmp_path / "data").glob("shard-*"):
        data = shard.read_bytes()
        at = data.find(b"%04d" % DAMAGED * 20)
        if at >= 0:
            shard.chmod(0o600)
            shard.write_bytes(data[: at + 5] + b"X" + data[at + 6 :])
    return store


@pytest.fixture
def load(ledger, make_order):
    made = []

    def load(store, describe, kind="inline", *, batch=16, layout=None, shuffle="window", **options):
        opened = open_dataset(store)
        loader = Loader(
            describe(Dataset(str(store.root))),
            opened,
            order=make_order(opened, batch, shuffle=shuffle),
            layout=layout or Layout(),
            options=FeedOptions(**options),
            ledger=ledger,
            start=Start(start_child()) if kind == "child" else Start(),
        )
        made.append(loader)
        return loader

    yield load
    for loader in made:
        loader.close()


def number(sample):
    if sample["json"]["i"] == UNMAPPABLE:
        raise ValueError("not this one")
    return {"i": sample["json"]["i"], "x": np.full(3, sample["json"]["i"], np.int32), "b": bytes(sample["bin"][:4])}


def mapped(policy, budget_ratio=0.1):
    return lambda d: d.decode({"json": "json"}).map(number).on_bad(policy, budget_ratio)


@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
        (DAMAGED, DigestMismatch, "sample 's007' has crc32c"),
        (NO_JSON, SampleError, "sample 's020' is not JSON"),
        (UNMAPPABLE, SampleError, r"sample 's033': map\(\) failed: ValueError"),
    ],
)
def test_without_a_policy_a_bad_sample_is_an_error(place, load, bad, error, text):
    data = load(place, lambda d: d.decode({"json": "json"}).map(number), batch=1, shuffle=False, prefetch_bytes=0)
    with pytest.raises(error, match=text):
        data._feeder.request(bad)


@pytest.mark.parametrize(("kind", "workers"), [("inline", 0), ("inline", 2), ("child", 0), ("child", 1)])
def test_another_sample_stands_for_a_bad_one_the_same_everywhere(place, load, ledger, kind, workers):
    data = load(place, mapped("substitute"), kind, map_workers=workers)
    plain = {step: data.order.batch(step).samples.tolist() for step in range(3)}
    found = []
    for batch in data:
        assert batch.valid.all()
        for row, key in enumerate(batch.sample_keys):
            i = int(batch["i"][row])
            assert key == f"s{i:03d}"
            assert (batch["x"][row] == i).all()
            assert batch["b"][row] == b"%04d" % i
            if i != plain[batch.step][row]:
                found.append(plain[batch.step][row])
                others = substitutes(data.seed, 0, found[-1], COUNT)
                assert i == next(each for each in others if each not in (DAMAGED, NO_JSON, UNMAPPABLE))
    assert sorted(found) == [DAMAGED, NO_JSON, UNMAPPABLE]
    assert data.stats().substituted_samples == 3
    assert ledger.snapshot().totals.counters[Counter.SUBSTITUTED_SAMPLES] == 3


@pytest.mark.parametrize(("kind", "workers"), [("inline", 0), ("child", 1)])
def test_a_masked_sample_is_not_valid_and_all_zeros(place, load, ledger, kind, workers):
    data = load(place, mapped("mask"), kind, map_workers=workers)
    masked = []
    for batch in data:
        samples = data.order.batch(batch.step).samples.tolist()
        for row, sample in enumerate(samples):
            if batch.valid[row]:
                assert int(batch["i"][row]) == sample
                assert batch["b"][row] == b"%04d" % sample
            else:
                masked.append(sample)
                assert batch["i"][row] == 0
                assert not batch["x"][row].any()
                assert batch["b"][row] == b""
    assert sorted(masked) == [DAMAGED, NO_JSON, UNMAPPABLE]
    assert data.stats().masked_samples == 3
    assert ledger.snapshot().totals.samples == COUNT - 3
    assert ledger.snapshot().totals.counters[Counter.MASKED_SAMPLES] == 3


@pytest.mark.parametrize("kind", ["inline", "child"])
def test_masked_bytes_are_zeros_and_masked_objects_none(place, load, kind):
    data = load(place, lambda d: d.decode({"json": "json"}).on_bad("mask", 0.1), kind)
    count = 0
    for batch in data:
        for row in np.flatnonzero(~batch.valid).tolist():
            assert bytes(batch["bin"][row]) == bytes(80)
            assert batch["json"][row] is None
            count += 1
    assert count == 2


def test_ranks_stay_aligned_and_substitute_the_same(place, load):
    whole = [(batch.sample_keys, batch["i"].tolist()) for batch in load(place, mapped("substitute"))]
    parts = [
        [
            (batch.sample_keys, batch["i"].tolist())
            for batch in load(place, mapped("substitute"), layout=Layout(rank, 4))
        ]
        for rank in range(4)
    ]
    joined = []
    for step in zip(*parts, strict=True):
        keys = [key for part, _ in step for key in part]
        joined.append((keys, [value for _, part in step for value in part]))
    assert joined == whole


@pytest.mark.parametrize("kind", ["inline", "child"])
def test_too_many_are_an_error_that_names_the_first(place, load, kind):
    def never(sample):
        raise ValueError("never")

    data = load(place, lambda d: d.fields("bin").map(never).on_bad("substitute", budget_ratio=0.01), kind)
    text = r"11 of the 16 samples of step 0 are bad, and 10 may be: 's\d+', 's\d+', 's\d+' and 8 more; .*never"
    with pytest.raises(TooManyBadSamples, match=text):
        next(iter(data))
    with pytest.raises(TooManyBadSamples):
        next(iter(data))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(4, 50)), max_size=40), st.floats(0, 0.2))
def test_a_budget_is_passed_exactly_when_the_share_is(batches, ratio):
    budget = BadBudget(ratio)
    for count, samples in batches:
        bad = [BadSample(row, f"k{row}", "odd", masked=bool(row % 2)) for row in range(count)]
        before = budget.samples, budget.substituted, budget.masked
        total = budget.substituted + budget.masked + count
        if count and total > 10 + ratio * (budget.samples + samples):
            with pytest.raises(TooManyBadSamples):
                budget.spend(bad, samples)
            assert (budget.samples, budget.substituted, budget.masked) == before
            return
        budget.spend(bad, samples)
        assert budget.substituted + budget.masked == total


@given(st.integers(0, 2**64 - 1), st.integers(0, 9), st.integers(0, 999))
def test_what_stands_for_a_sample_is_in_the_data_set_and_another_one(seed, epoch, sample):
    found = substitutes(seed, epoch, sample, 1000)
    assert found == substitutes(seed, epoch, sample, 1000)
    assert sample not in found
    assert all(0 <= each < 1000 for each in found)


def test_a_policy_is_one_of_three_and_a_budget_a_part():
    with pytest.raises(ConfigError, match="unknown policy 'skip'"):
        Dataset("a").on_bad("skip")
    for ratio in (-0.1, 1.5, True, "1"):
        with pytest.raises(ConfigError, match="budget_ratio is"):
            Dataset("a").on_bad("mask", ratio)
    assert repr(Dataset("a").on_bad("mask")) == "Dataset('a').on_bad('mask', budget_ratio=0.001)"
