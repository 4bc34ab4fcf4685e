"""Save at any step on any number of ranks, go on with any other: the batches are those of one that never stopped.

The ranks are loaders in one process, over stores on disk: what is compared are all bytes of all batches.
"""

import hashlib
import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stoker
from stoker.dataset.order import Order, plan_recipe
from stoker.dataset.position import Position
from stoker.values import Layout

BATCH = 24
RANKS = (1, 2, 3, 4, 6, 8, 12)
EPOCHS = 2
MIB = 1 << 20


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elastic")
    with stoker.writer(folder / "data", shard_bytes=8192) as w:
        rng = np.random.default_rng(4)
        for i in range(150):
            w.write(f"s{i:03d}", {"bin": rng.bytes(int(rng.integers(0, 300)))})
    return folder / "data"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Ranks that make their batches in threads: a hundred processes would say no more, and take a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STOKER_FEED_FEEDER", "inline")
        with stoker.open(nvme=tmp_path_factory.mktemp("nvme"), layout=Layout()) as run:
            yield run


@pytest.fixture
def run_with_children(tmp_path):
    with stoker.open(nvme=tmp_path / "nvme", layout=Layout()) as run:
        yield run


def ranks_of(run, data, size):
    options = {"global_batch_size": BATCH, "seed": 11, "epochs": EPOCHS, "prefetch_bytes": 1 << 20}
    return [run.loader(data, layout=Layout(rank, size), **options) for rank in range(size)]


def train(loaders, position, count):
    """Up to `count` steps of all ranks from `position`: the global batches, and the position of each rank."""
    for loader in loaders:
        loader.seek(position)
    batches = {}
    loops = [iter(loader) for loader in loaders]
    last = position.next_step - 1
    for _ in range(count):
        shares = [next(loop, None) for loop in loops]
        assert len({share is None for share in shares}) == 1, "ranks have different numbers of steps"
        if shares[0] is None:
            break
        (last,) = {share.step for share in shares}
        batches[last] = [
            (key, hashlib.sha256(sample).hexdigest())
            for share in shares
            for key, sample in zip(share.sample_keys, share["bin"], strict=True)
        ]
    positions = [json.dumps(loader.position(after=last).to_json()) for loader in loaders]
    for loader in loaders:
        loader.close()
    return batches, positions


@pytest.fixture(scope="module")
def whole(run, data):
    (alone,) = ranks_of(run, data, 1)
    batches, _ = train([alone], alone.position(after=-1), 99)
    assert list(batches) == list(range(12))
    return batches


def resumed(run, data, plan):
    """The batches of a run that stops after each `(ranks, steps)` of `plan` and goes on with the next."""
    batches, position = {}, None
    for size, count in plan:
        loaders = ranks_of(run, data, size)
        start = loaders[0].position(after=-1) if position is None else position
        some, positions = train(loaders, start, count)
        assert not batches.keys() & some.keys(), "a batch came twice"
        batches |= some
        assert positions == [positions[0]] * size
        assert len(positions[0]) < 1024
        position = Position.from_json(json.loads(positions[0]))
    return batches


@pytest.mark.parametrize("before", RANKS)
@pytest.mark.parametrize("after", RANKS)
def test_any_number_of_ranks_goes_on_where_any_other_stopped(run, data, whole, before, after):
    stop = 1 + (before + 5 * after) % 10
    assert resumed(run, data, [(before, stop), (after, 99)]) == whole


@pytest.mark.parametrize("stop", range(13))
def test_at_every_step_also_the_ends_of_epochs_and_of_training(run, data, whole, stop):
    assert resumed(run, data, [(3, stop), (4, 99)]) == whole


def test_ranks_with_feeders_of_their_own_go_on_the_same(run_with_children, data, whole):
    assert resumed(run_with_children, data, [(3, 5), (2, 99)]) == whole


def test_three_times_in_one_epoch_and_at_its_very_end(run, data, whole):
    steps = len(whole) // EPOCHS
    plan = [(2, 1), (8, 2), (3, 1), (12, steps - 4), (1, steps - 1), (6, 1), (4, 99)]
    assert resumed(run, data, plan) == whole


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=15)
@given(st.lists(st.tuples(st.sampled_from(RANKS), st.integers(0, 6)), max_size=5))
def test_however_often_and_whenever_it_stops(run, data, whole, plan):
    assert resumed(run, data, [*plan, (1, 99)]) == whole


def test_a_billion_samples_of_2_kb_resume_in_the_middle_on_every_rank_of_64_in_one_process():
    """FORMATS 1: 311,000 blocks of 8 MiB. All 512 lanes, by way of all ranks: under 60 M hashes and 200 MB."""
    blocks = np.full(311_000, 3215, np.int64)
    blocks[: 1_000_000_000 - 3215 * 311_000] += 1
    assert blocks.sum() == 1_000_000_000
    recipe = plan_recipe(blocks, 8 * MIB, seed=1, global_batch_size=1024, shuffle="window")
    tracemalloc.start()
    try:
        order = Order(blocks, recipe, block_bytes=8 * MIB, manifest_digest="0" * 64)
        middle = order.steps_per_epoch // 2
        text = json.dumps(order.position(after=middle - 1).to_json())
        position = Position.from_json(json.loads(text))
        position.check(order)
        shares = [order.rank_batch(position.next_step, rank, 64).samples for rank in range(64)]
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(text) < 1024
    assert order.hash_count < 60_000_000
    assert peak_bytes < 200_000_000
    assert order.batch(middle).samples.tolist() == np.concatenate(shares).tolist()
