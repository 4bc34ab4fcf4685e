import sys
import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stoker.dataset.order import Order, OrderedBatch, Recipe, plan_recipe
from stoker.errors import ConfigError, EmptyDataset, LayoutError
from stoker.units import GIB, KIB, MIB

DIGEST = "0" * 64


def make_order(blocks, *, batch, seed=7, shuffle="window", block_bytes=64 * KIB):
    blocks = np.asarray(blocks, np.int64)
    recipe = plan_recipe(blocks, block_bytes, seed=seed, global_batch_size=batch, shuffle=shuffle)
    return Order(blocks, recipe, block_bytes=block_bytes, manifest_digest=DIGEST)


def uneven(block_count, most, seed=0):
    return np.random.default_rng(seed).integers(1, most, block_count, dtype=np.int64)


def epoch_of(order, epoch=0):
    first = epoch * order.steps_per_epoch
    return [order.batch(first + t).samples.tolist() for t in range(order.steps_per_epoch)]


def ranks_of(batch):
    return [ranks for ranks in range(1, 13) if batch % ranks == 0]


# Few blocks (exact), one lane, several lanes; pieces of one sample and large ones; a window of 2 to 16 blocks.
small_sets = st.builds(
    lambda sizes, repeat: sizes * repeat,
    st.lists(st.integers(1, 4) | st.integers(1, 60), min_size=1, max_size=30),
    st.sampled_from([1, 1, 2, 10, 20]),
)
batches = st.sampled_from([1, 2, 3, 4, 6, 12, 24, 60, 64])
shuffles = st.sampled_from(["window", "exact"])
seeds = st.integers(0, 2**64 - 1)
block_sizes = st.sampled_from([64 * KIB, GIB, 4 * GIB])


@settings(max_examples=60, deadline=None)
@given(small_sets, batches, shuffles, seeds, block_sizes, st.integers(0, 2**40))
def test_an_epoch_holds_no_sample_twice_and_as_many_as_there_are_whole_batches(
    blocks, batch, shuffle, seed, block_bytes, epoch
):
    total = sum(blocks)
    if total < batch:
        with pytest.raises(EmptyDataset, match=f"has {total} samples, fewer than one global batch of {batch}"):
            make_order(blocks, batch=batch, shuffle=shuffle)
        return
    order = make_order(blocks, batch=batch, shuffle=shuffle, seed=seed, block_bytes=block_bytes)
    assert order.sample_count == total
    assert order.steps_per_epoch == total // batch
    samples = np.concatenate(epoch_of(order, epoch))
    assert samples.size == total // batch * batch
    assert np.unique(samples).size == samples.size
    assert samples.min() >= 0
    assert samples.max() < total


@settings(max_examples=40, deadline=None)
@given(small_sets, st.sampled_from([12, 24, 60]), shuffles, seeds, st.data())
def test_every_number_of_ranks_that_divides_the_batch_sees_the_same_global_batches(blocks, batch, shuffle, seed, data):
    if sum(blocks) < batch:
        blocks = blocks * batch
    order = make_order(blocks, batch=batch, shuffle=shuffle, seed=seed)
    step = data.draw(st.integers(0, 3 * order.steps_per_epoch))
    whole = order.batch(step)
    assert whole.valid.all()
    for ranks in ranks_of(batch):
        fresh = make_order(blocks, batch=batch, shuffle=shuffle, seed=seed)
        shares = [fresh.rank_batch(step, rank, ranks) for rank in range(ranks)]
        assert [share.samples.size for share in shares] == [batch // ranks] * ranks
        assert np.concatenate([share.samples for share in shares]).tolist() == whole.samples.tolist()
        assert all(share.valid.all() for share in shares)
        assert {(share.step, share.epoch) for share in shares} == {(step, step // order.steps_per_epoch)}


@settings(max_examples=60, deadline=None)
@given(small_sets, batches, seeds, st.integers(0, 3))
def test_an_evaluation_holds_every_sample_once_in_manifest_order_for_every_number_of_ranks(blocks, batch, seed, epoch):
    total = sum(blocks)
    order = make_order(blocks, batch=batch, shuffle=False, seed=seed)
    steps = order.steps_per_epoch
    assert steps == -(-total // batch)
    for ranks in ranks_of(batch):
        seen = []
        for step in range(epoch * steps, (epoch + 1) * steps):
            shares = [order.rank_batch(step, rank, ranks) for rank in range(ranks)]
            pads = [int((~share.valid).sum()) for share in shares]
            assert sum(pads) == (0 if step % steps < steps - 1 else steps * batch - total)
            assert pads == sorted(pads, reverse=True)
            assert max(pads) - min(pads) <= 1
            for share in shares:
                assert share.samples.size == batch // ranks
                assert (share.samples[~share.valid] == total - 1).all()
                assert share.valid.tolist() == sorted(share.valid.tolist(), reverse=True)
                seen += share.samples[share.valid].tolist()
        assert seen == list(range(total))


def test_pads_of_an_evaluation_are_dealt_round_robin():
    # 13 samples, batch 12, 4 ranks: one real sample and 11 pads in step 1; pad j goes to rank j mod 4.
    order = make_order([13], batch=12, shuffle=False)
    shares = [order.rank_batch(1, rank, 4) for rank in range(4)]
    assert [share.valid.tolist() for share in shares] == [[False] * 3, [False] * 3, [False] * 3, [True, False, False]]
    assert [share.samples.tolist() for share in shares] == [[12, 12, 12]] * 4

    # 19 samples: 7 real ones and 5 pads, of which rank 0 gets two.
    order = make_order([19], batch=12, shuffle=False)
    shares = [order.rank_batch(1, rank, 4) for rank in range(4)]
    assert [share.samples[share.valid].tolist() for share in shares] == [[12], [13, 14], [15, 16], [17, 18]]
    assert order.batch(1).samples.tolist() == [12, 13, 14, 15, 16, 17, 18, 18, 18, 18, 18, 18]


@settings(max_examples=40, deadline=None)
@given(small_sets, batches, shuffles, block_sizes, st.data())
def test_a_step_asked_for_alone_or_out_of_turn_equals_the_one_reached_by_walking(
    blocks, batch, shuffle, block_bytes, data
):
    blocks = blocks if sum(blocks) >= batch else blocks * batch
    make = {"blocks": blocks, "batch": batch, "shuffle": shuffle, "block_bytes": block_bytes}
    walked = make_order(**make)
    last = 3 * walked.steps_per_epoch
    steps = [walked.batch(step).samples.tolist() for step in range(last)]
    jumping = make_order(**make)
    for step in data.draw(st.lists(st.integers(0, last - 1), min_size=1, max_size=8)):
        assert jumping.batch(step).samples.tolist() == steps[step]
        assert make_order(**make).batch(step).samples.tolist() == steps[step]


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([960, 1024, 4096]), st.sampled_from([64 * KIB, 8 * MIB]))
def test_sets_larger_than_what_a_walk_keeps_are_also_the_same_however_they_are_read(seed, batch, block_bytes):
    # About a million samples; lanes renew their stretches several times an epoch.
    make = {"blocks": uneven(20_000, 100, seed), "batch": batch, "seed": seed, "block_bytes": block_bytes}
    walked = make_order(**make)
    samples = np.concatenate([walked.batch(step).samples for step in range(walked.steps_per_epoch)])
    assert np.unique(samples).size == samples.size == walked.sample_count // batch * batch
    steps = samples.reshape(walked.steps_per_epoch, batch)
    jumping = make_order(**make)
    ranks = 12 if batch == 960 else 8
    for step in np.random.default_rng(seed).integers(0, walked.steps_per_epoch, 4).tolist():
        assert (jumping.batch(step).samples == steps[step]).all()
        assert (jumping.rank_batch(step, 5, ranks).samples == np.split(steps[step], ranks)[5]).all()


@settings(max_examples=2, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([(1200, 17_000), (100, 200_000), (30_000, 660)]))
@example(1, (1, 20_000_000))
def test_ten_million_samples_are_each_read_at_most_once(seed, shape):
    block_count, most = shape
    blocks = uneven(block_count, most, seed) if block_count > 1 else np.array([10_000_000])
    order = make_order(blocks, batch=12 * 4096, seed=seed, block_bytes=8 * MIB)
    seen = np.zeros(order.sample_count, np.bool_)
    for step in range(order.steps_per_epoch):
        seen[order.rank_batch(step, 0, 2).samples] = True
        seen[order.rank_batch(step, 1, 2).samples] = True
    assert np.count_nonzero(seen) == order.steps_per_epoch * 12 * 4096
    assert order.sample_count - np.count_nonzero(seen) < 12 * 4096
    assert order.hash_count < 3 * order.sample_count


@pytest.mark.parametrize("shuffle", ["window", "exact"])
def test_other_epochs_and_other_seeds_give_other_orders(shuffle):
    blocks = uneven(600, 20)
    orders = [epoch_of(make_order(blocks, batch=64, shuffle=shuffle, seed=seed)) for seed in range(5)]
    one = make_order(blocks, batch=64, shuffle=shuffle)
    orders += [epoch_of(one, epoch) for epoch in range(1, 6)]
    assert len({str(order) for order in orders}) == 10
    left_over = [set(range(one.sample_count)) - set(np.concatenate(epoch_of(one, epoch)).tolist()) for epoch in (0, 1)]
    assert left_over[0] != left_over[1]


def test_the_window_and_exact_orders_are_not_manifest_order():
    blocks = uneven(600, 20)
    for shuffle in ("window", "exact"):
        samples = np.concatenate(epoch_of(make_order(blocks, batch=64, shuffle=shuffle)))
        ascending = np.count_nonzero(np.diff(samples) > 0) / samples.size
        assert 0.4 < ascending < 0.6


def test_one_block_is_shuffled_uniformly():
    order = make_order([10], batch=4)
    assert (order.recipe.window, order.lanes, order.recipe.shuffle) == (1, 1, "exact")
    counts = np.zeros((10, 10), np.int64)
    for epoch in range(2000):
        for place, sample in enumerate(epoch_of(order, epoch)[0]):
            counts[place, sample] += 1
    assert (np.abs(counts[:4] - 200) < 80).all()  # 6 standard deviations of 13


def test_ten_samples_in_batches_of_4_are_2_steps_for_2_ranks_and_3_in_evaluation():
    order = make_order([10], batch=4)
    assert order.steps_per_epoch == 2
    assert order.rank_batch(1, 1, 2).samples.size == 2
    evaluation = make_order([10], batch=4, shuffle=False)
    assert evaluation.steps_per_epoch == 3
    assert evaluation.batch(2).samples.tolist() == [8, 9, 9, 9]
    assert evaluation.batch(2).valid.tolist() == [True, True, False, False]


def test_31_mb_in_1790_files_are_8_lanes_and_27_steps_of_64():
    blocks = np.full(526, 3)
    blocks[: 1790 - blocks.sum()] += 1
    order = make_order(blocks, batch=64)
    assert (order.recipe.window, order.lanes, order.steps_per_epoch) == (16, 8, 27)


@pytest.mark.parametrize("step", [1.5, 2.0, True, "3", None])
def test_a_batch_of_what_is_no_step_is_refused(step):
    order = make_order([10] * 40, batch=16)
    with pytest.raises(ConfigError, match=f"step is {step!r}"):
        order.batch(step)
    assert type(order.batch(np.int64(3)).step) is int


def test_steps_count_over_the_whole_run():
    order = make_order([10], batch=4)
    assert [(order.batch(step).step, order.batch(step).epoch) for step in (0, 1, 2, 13)] == [
        (0, 0),
        (1, 0),
        (2, 1),
        (13, 6),
    ]
    assert order.batch(2).samples.tolist() != order.batch(0).samples.tolist()
    with pytest.raises(ConfigError, match="step is -1"):
        order.batch(-1)


def test_batches_cannot_be_changed_by_who_reads_them():
    for shuffle in ("window", "exact", False):
        batch = make_order(uneven(200, 9), batch=4, shuffle=shuffle).batch(1)
        assert isinstance(batch, OrderedBatch)
        assert (batch.samples.dtype, batch.valid.dtype) == (np.int64, np.bool_)
        with pytest.raises(ValueError, match="read-only"):
            batch.samples[0] = 7
        with pytest.raises(ValueError, match="read-only"):
            batch.valid[0] = False


def test_ranks_that_do_not_divide_the_batch_are_refused_naming_those_that_do():
    order = make_order([100], batch=12)
    with pytest.raises(LayoutError) as caught:
        order.rank_batch(0, 0, 5)
    assert caught.value.what == "a global batch of 12 samples cannot be divided by 5 ranks"
    assert caught.value.hint == "it divides by 1, 2, 3, 4, 6, 12"
    for size in (0, -1, 24):
        with pytest.raises(LayoutError, match=f"by {size} ranks"):
            order.rank_batch(0, 0, size)
    for rank in (-1, 4):
        with pytest.raises(LayoutError, match=f"no rank {rank} among 4"):
            order.rank_batch(0, rank, 4)


def test_fewer_samples_than_a_batch_are_refused_in_training_with_both_numbers_and_padded_in_evaluation():
    for shuffle in ("window", "exact"):
        with pytest.raises(EmptyDataset) as caught:
            make_order([3, 4], batch=8, shuffle=shuffle)
        assert caught.value.what == "the data set has 7 samples, fewer than one global batch of 8"
        assert "7 or less" in caught.value.hint
    assert make_order([3, 4], batch=8, shuffle=False).batch(0).valid.tolist() == [True] * 7 + [False]


@pytest.mark.parametrize("blocks", [[], [0]])
def test_a_data_set_of_no_samples_is_refused(blocks):
    recipe = Recipe(seed=7, global_batch_size=4, shuffle=False, window=1)
    with pytest.raises(EmptyDataset, match="no samples"):
        Order(np.array(blocks, np.int64), recipe, block_bytes=MIB, manifest_digest=DIGEST)


def test_a_recipe_of_another_data_set_is_refused():
    blocks = np.full(17, 5)
    for shuffle, window in (("window", 4), ("exact", 17)):
        recipe = Recipe(seed=7, global_batch_size=4, shuffle=shuffle, window=window)
        with pytest.raises(ConfigError, match=f"shuffle '{shuffle}' with window {window}, where the rule gives .* 16"):
            Order(blocks, recipe, block_bytes=MIB, manifest_digest=DIGEST)
    recipe = Recipe(seed=7, global_batch_size=4, shuffle="window", window=16)
    with pytest.raises(ConfigError, match="rule gives 'exact'"):
        Order(blocks[:16], recipe, block_bytes=MIB, manifest_digest=DIGEST)
    with pytest.raises(ConfigError, match="not a digest: ''"):
        Order(blocks, recipe, block_bytes=MIB, manifest_digest="")


@pytest.mark.parametrize(
    ("blocks", "batch", "block_bytes"),
    [
        (np.full(526, 4), 64, 64 * KIB),
        (uneven(20_000, 200), 1024, 8 * MIB),
        (uneven(40_000, 100), 1024, 8 * MIB),
        (np.where(np.arange(9000) % 3 == 0, 900, 1), 480, 256 * KIB),  # two of three blocks hold one large sample
        (np.repeat([1, 20_000], [2000, 40]), 512, 8 * MIB),
    ],
)
def test_walking_through_an_epoch_hashes_each_sample_at_most_three_times(blocks, batch, block_bytes):
    order = make_order(blocks, batch=batch, block_bytes=block_bytes)
    for step in range(order.steps_per_epoch):
        order.batch(step)
    per_sample = (order.hash_count - 2 * len(blocks)) / order.sample_count
    assert 0.9 < per_sample < 3


def test_asking_again_for_a_recent_step_hashes_nothing():
    order = make_order(uneven(40_000, 100), batch=1024, block_bytes=8 * MIB)
    for step in range(64):
        order.batch(step)
    before = order.hash_count
    again = [order.batch(step).samples for step in range(64)]
    assert order.hash_count == before
    assert (
        again[5].tolist() == make_order(uneven(40_000, 100), batch=1024, block_bytes=8 * MIB).batch(5).samples.tolist()
    )


def test_a_reader_that_follows_another_costs_nothing_more():
    blocks = uneven(20_000, 200)
    alone, followed = (make_order(blocks, batch=1024, block_bytes=8 * MIB) for _ in range(2))
    for step in range(2 * alone.steps_per_epoch):
        alone.batch(step)
        followed.batch(step)
        followed.batch(max(0, step - 30))
    assert followed.hash_count == alone.hash_count


def test_one_step_in_the_middle_of_a_billion_samples_takes_under_60_million_hashes_and_200_mb():
    # The slow one, about 3 s. FORMATS: 1e9 samples of 2 KB are 311,000 blocks of 8 MiB.
    blocks = np.full(311_000, 3215, np.int64)
    blocks[: 1_000_000_000 - 3215 * 311_000] += 1
    assert blocks.sum() == 1_000_000_000
    tracemalloc.start()
    try:
        order = make_order(blocks, batch=1024, block_bytes=8 * MIB)
        assert (order.lanes, order.recipe.window, order.steps_per_epoch) == (512, 4, 976_562)
        middle = order.steps_per_epoch // 2
        order.batch(middle)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert order.hash_count < 60_000_000
    assert peak < 200_000_000

    cold = order.hash_count
    for step in range(middle + 1, middle + 1001):
        order.batch(step)
    assert (order.hash_count - cold) / (1000 * 1024) < 3

    one_rank = make_order(blocks, batch=1024, block_bytes=8 * MIB)
    share = one_rank.rank_batch(middle, 3, 64)
    assert share.samples.tolist() == order.batch(middle).samples[48:64].tolist()
    assert one_rank.hash_count < 2 * 311_000 + 60_000_000 // 64


def test_threads_share_an_order():
    def make():
        return make_order(uneven(200, 9), batch=2)

    steps = np.random.default_rng(1).integers(0, make().steps_per_epoch, (4, 5000)).tolist()
    alone = make()
    by_step = [alone.batch(step).samples.tolist() for step in range(alone.steps_per_epoch)]
    shared = make()
    found, failed = [None] * 4, []

    def read(which):
        try:
            found[which] = [shared.batch(step).samples.tolist() for step in steps[which]]
        except BaseException as error:  # noqa: BLE001  reported below
            failed.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=read, args=(which,)) for which in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failed
    assert found == [[by_step[step] for step in mine] for mine in steps]
