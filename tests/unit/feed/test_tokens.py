"""Windows of tokens in training: against numpy's own windows, over ranks, resumes, stores and changes."""

import os
import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.dataset.describe import Dataset
from stoker.dataset.position import Position
from stoker.errors import ConfigError, SourceChanged, Truncated
from stoker.feed.open import OrderWish, open_loader
from stoker.feed.options import FeedOptions
from stoker.ledger import Counter, Ledger, LedgerIdentity
from stoker.testing.fault_server import FaultServer
from stoker.values import Layout


def make_files(folder, counts, dtype="<u2", header=b"", seed=0):
    """Files of so many random tokens, and the arrays that are in them."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    arrays = {}
    for number, count in enumerate(counts):
        name = f"t{number}.bin"
        arrays[name] = rng.integers(0, np.iinfo(dtype).max, count).astype(dtype)
        (folder / name).write_bytes(header + arrays[name].tobytes())
    return arrays


def windows(arrays, seq_len, overlap):
    """Key -> window, by slicing."""
    found = {}
    for name, array in arrays.items():
        starts = range(0, len(array) - seq_len - overlap + 1, seq_len)
        found |= {f"{name}#{i}": array[at : at + seq_len + overlap] for i, at in enumerate(starts)}
    return found


def open_it(dataset, ledger, batch=4, shuffle="window", layout=None, **options):
    defaults = {"prefetch_bytes": 1 << 20, "gather_bytes": 0, "feeder": "inline"}
    options = defaults | options
    wish = OrderWish(batch, 5, shuffle)
    return open_loader(dataset, wish, layout=layout or Layout(), options=FeedOptions(**options), ledger=ledger)


def make_ledger():
    return Ledger.create(None, LedgerIdentity(run="", rank=0, world=1, generation=1, host="host"))


@pytest.mark.parametrize(("gather_bytes", "feeder"), [(0, "inline"), (1 << 20, "inline"), (1 << 20, "child")])
@pytest.mark.parametrize("shuffle", ["window", "exact"])
def test_windows_are_the_same_wherever_and_however_they_are_read(tmp_path, ledger, gather_bytes, feeder, shuffle):
    arrays = make_files(tmp_path, [5000, 3, 12_000])
    expected = windows(arrays, 16, 1)
    dataset = Dataset(str(tmp_path / "t*.bin")).tokens(16, "uint16", overlap=1)
    options = {"gather_bytes": gather_bytes, "feeder": feeder, "epochs": 2}
    with open_it(dataset, ledger, 8, shuffle, **options) as loader:
        for batch in loader:
            wanted = [expected[key] for key in batch.sample_keys]
            assert np.array_equal(batch["tokens"], wanted)
        assert loader.stats().feeder == feeder
        assert (loader.stats().gather_bytes > 0) == (gather_bytes > 0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=25)
@given(data=st.data())
def test_batches_are_the_windows_that_numpy_slices(tmp_path_factory, data):
    dtype = data.draw(st.sampled_from(["uint16", "uint32", "int32", "int64"]))
    seq_len = data.draw(st.integers(1, 40))
    overlap = data.draw(st.integers(0, min(2, seq_len)))
    header = bytes(data.draw(st.sampled_from([0, 2, 1024])))
    counts = data.draw(
        st.lists(st.integers(0, 300), min_size=1, max_size=4).filter(lambda c: max(c) >= 2 * seq_len + 2)
    )
    folder = tmp_path_factory.mktemp("tokens")
    arrays = make_files(folder, counts, np.dtype(dtype).newbyteorder("<").str, header)
    expected = windows(arrays, seq_len, overlap)
    dataset = Dataset(folder).tokens(seq_len, dtype, overlap, len(header))
    with make_ledger() as ledger, open_it(dataset, ledger, batch=1) as loader:
        seen = []
        for batch in loader:
            tokens = batch["tokens"]
            assert (tokens.shape, tokens.dtype.name) == ((1, seq_len + overlap), dtype)
            assert np.array_equal(tokens[0], expected[batch.sample_keys[0]])
            seen += batch.sample_keys
    assert sorted(seen) == sorted(expected)


@pytest.mark.parametrize("prefetch_bytes", [0, 1 << 20])
@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_every_window_comes_once_an_epoch_on_any_number_of_ranks(tmp_path, ledger, ranks, prefetch_bytes):
    arrays = make_files(tmp_path, [2000, 3, 1403])
    expected = windows(arrays, 16, 1)
    dataset = Dataset(tmp_path).tokens(16, "uint16", overlap=1)
    keys = {}
    for rank in range(ranks):
        layout = Layout(rank, ranks)
        with open_it(dataset, ledger, 12, layout=layout, epochs=2, prefetch_bytes=prefetch_bytes) as loader:
            for batch in loader:
                for key, row in zip(batch.sample_keys, batch["tokens"], strict=True):
                    assert np.array_equal(row, expected[key])
                keys.setdefault(batch.step, []).extend(batch.sample_keys)
    steps = len(expected) // 12
    assert len(keys) == 2 * steps
    for epoch in range(2):
        seen = [key for step in range(epoch * steps, (epoch + 1) * steps) for key in keys[step]]
        assert len(seen) == len(set(seen)) == steps * 12
    with open_it(dataset, ledger, 12) as alone:
        assert [list(batch.sample_keys) for batch in alone] == [keys[step] for step in range(steps)]


def test_a_batch_is_one_writable_array_in_its_slot(tmp_path, ledger):
    make_files(tmp_path, [4000])
    with open_it(Dataset(tmp_path).tokens(64, "uint16", overlap=1), ledger, 8) as loader:
        batch = next(iter(loader))
        tokens = batch["tokens"]
        assert (tokens.shape, tokens.dtype) == ((8, 65), np.dtype("<u2"))
        assert tokens.flags.c_contiguous
        assert tokens.flags.writeable
        assert batch["tokens"] is tokens
        tokens[0, 0] = 7
        assert np.array_equal(tokens[:, 1:-1], tokens[:, :-1][:, 1:])


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 2), (2, 3)])
def test_a_run_goes_on_with_another_number_of_ranks(tmp_path, ledger, before, after):
    make_files(tmp_path, [9000, 5000])
    dataset = Dataset(tmp_path).tokens(32, "uint16")

    def steps(rank, ranks, position=None, stop=None):
        with open_it(dataset, ledger, 24 if 3 in (before, after) else 8, layout=Layout(rank, ranks)) as loader:
            if position is not None:
                loader.seek(position)
            found = []
            for batch in loader:
                found.append(batch["tokens"].copy())
                if batch.step == stop:
                    return found, loader.position(stop)
            return found, None

    whole, _ = steps(0, 1)
    firsts = [steps(rank, before, stop=4) for rank in range(before)]
    position = Position.from_json(firsts[0][1].to_json())
    rest = [steps(rank, after, position) for rank in range(after)]
    joined = [np.concatenate(parts) for parts in zip(*(found for found, _ in firsts), strict=True)]
    joined += [np.concatenate(parts) for parts in zip(*(found for found, _ in rest), strict=True)]
    assert len(joined) == len(whole)
    assert all(np.array_equal(a, b) for a, b in zip(joined, whole, strict=True))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_an_evaluation_has_every_window_once(tmp_path, ledger, ranks):
    expected = windows(make_files(tmp_path, [500, 333]), 10, 1)
    dataset = Dataset(tmp_path).tokens(10, "uint16", overlap=1)
    seen = []
    for rank in range(ranks):
        with open_it(dataset, ledger, 8, False, Layout(rank, ranks)) as loader:
            for batch in loader:
                keys = np.array(batch.sample_keys)[batch.valid].tolist()
                for key, row in zip(keys, batch["tokens"][batch.valid], strict=True):
                    assert np.array_equal(row, expected[key])
                seen += keys
    assert sorted(seen) == sorted(expected)


def test_a_map_gets_a_row_and_its_arrays_are_put_together(tmp_path, ledger):
    expected = windows(make_files(tmp_path, [1000]), 10, 1)

    def split(sample):
        assert list(sample) == ["tokens"]
        return {"inputs": sample["tokens"][:-1].astype(np.int64), "targets": sample["tokens"][1:].astype(np.int64)}

    with open_it(Dataset(tmp_path).tokens(10, "uint16", overlap=1).map(split), ledger) as loader:
        for batch in loader:
            assert batch["inputs"].shape == (4, 10)
            for key, inputs, targets in zip(batch.sample_keys, batch["inputs"], batch["targets"], strict=True):
                assert np.array_equal(inputs, expected[key][:-1])
                assert np.array_equal(targets, expected[key][1:])


def test_a_position_of_other_windows_is_refused_by_what_differs(tmp_path, ledger):
    make_files(tmp_path, [2000])
    with open_it(Dataset(tmp_path).tokens(10, "uint16"), ledger) as loader:
        position = loader.position(3)
    with (
        open_it(Dataset(tmp_path).tokens(20, "uint16", overlap=1), ledger) as loader,
        pytest.raises(ConfigError, match="another order: seq_len was 10, is 20; overlap was 0, is 1"),
    ):
        loader.seek(position)
    make_files(tmp_path, [2000], seed=1)
    os.utime(tmp_path / "t0.bin", ns=(1, 1))
    with (
        open_it(Dataset(tmp_path).tokens(10, "uint16"), ledger) as loader,
        pytest.raises(ConfigError, match="another order: the token files"),
    ):
        loader.seek(position)


def test_a_file_that_changes_under_a_run_is_an_error(tmp_path, ledger):
    make_files(tmp_path, [2000, 2000])
    with open_it(Dataset(tmp_path).tokens(10, "uint16"), ledger) as loader:
        np.zeros(2010, "<u2").tofile(tmp_path / "t1.bin")
        with pytest.raises(SourceChanged, match=r"'t1.bin' had 4,000 bytes when it was listed, now 4,020"):
            list(loader)


def test_a_file_that_is_cut_under_a_run_is_an_error(tmp_path, ledger):
    make_files(tmp_path, [20_000])
    with open_it(Dataset(tmp_path).tokens(100, "uint16"), ledger, prefetch_bytes=0) as loader:
        batches = iter(loader)
        next(batches)
        os.truncate(tmp_path / "t0.bin", 100)
        with pytest.raises(Truncated, match=r"'t0.bin' ends at byte 100"):
            list(batches)


@pytest.mark.parametrize("feeder", ["inline", "child"])
def test_windows_that_a_file_lacks_are_bad_samples_however_many_are_read_at_a_time(tmp_path, ledger, feeder):
    arrays = make_files(tmp_path, [20_000, 4000])
    expected = windows(arrays, 100, 0)
    dataset = Dataset(tmp_path).tokens(100, "uint16").on_bad("substitute", budget_ratio=0.5)
    with open_it(dataset, ledger, 8, feeder=feeder, prefetch_bytes=1 << 14) as loader:
        batches = iter(loader)
        seen = [next(batches).sample_keys]
        os.truncate(tmp_path / "t1.bin", 4000)
        for batch in batches:
            assert np.array_equal(batch["tokens"], [expected[key] for key in batch.sample_keys])
            seen.append(batch.sample_keys)
        assert loader.stats().substituted_samples > 0
    assert len(seen) == 240 // 8
    assert [len(keys) for keys in seen] == [8] * 30


@pytest.mark.parametrize("feeder", ["inline", "child"])
def test_keys_are_named_when_they_are_looked_at_and_stay_what_they_are_when_pickled(tmp_path, ledger, feeder):
    expected = windows(make_files(tmp_path, [1000, 500]), 10, 0)
    with open_it(Dataset(tmp_path).tokens(10, "uint16"), ledger, 8, feeder=feeder) as loader:
        batches = [batch for batch, _ in zip(loader, range(3), strict=False)]
        places = [batch.key_field.place for batch in batches]
        samples = [loader.order.batch(step).samples.tolist() for step in range(3)]
    assert [place.samples.tolist() for place in places] == samples
    for batch in batches:
        again = pickle.loads(pickle.dumps(batch))
        assert again.sample_keys == batch.sample_keys
        assert np.array_equal(again["tokens"], [expected[key] for key in again.sample_keys])


def test_reads_count_windows_however_many_are_read_at_a_time(tmp_path, ledger):
    make_files(tmp_path, [64_000])
    with open_it(Dataset(tmp_path).tokens(10, "uint16"), ledger, 64, prefetch_bytes=0) as loader:
        count = sum(len(batch["tokens"]) for batch in loader)
        assert count == 6400
        assert (loader.stats().reads, loader.stats().bytes_read) == (6400, 6400 * 20)
    assert ledger.snapshot().counters[Counter.READS] >= 6400


def test_windows_come_from_a_bucket(tmp_path, ledger, monkeypatch):
    expected = windows(make_files(tmp_path / "shards", [900, 5, 700]), 16, 1)
    with FaultServer(directory=tmp_path) as server:
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        for url in ("s3://bucket/shards", "s3://bucket/shards/t*.bin", "s3://bucket/shards/t{0,2}.bin"):
            seen = []
            with open_it(Dataset(url).tokens(16, "uint16", overlap=1), ledger, 1) as loader:
                for batch in loader:
                    assert np.array_equal(batch["tokens"][0], expected[batch.sample_keys[0]])
                    seen += batch.sample_keys
            assert sorted(seen) == sorted(expected)
