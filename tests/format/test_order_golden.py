"""The order of version 1, pinned for ever.

The reference below is written from docs/reference/order.md alone: whole numbers of Python, no NumPy, every epoch as a
whole. golden/order-v1.json was made by it. A line of that file never changes; a rule that must change is version 2.
"""

import hashlib
import json
import struct
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.dataset.order import Order, plan_recipe

GOLDEN = json.loads((Path(__file__).parent / "golden" / "order-v1.json").read_text())
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "order.md"

WORD = 2**64


def mix(state):
    z = (state + 0x9E3779B97F4A7C15) % WORD
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
    return z ^ (z >> 31)


def h(seed, purpose, epoch, number):
    return mix(mix(mix(mix(seed) ^ purpose) ^ epoch) ^ number)


class Reference:
    def __init__(self, block_samples, block_bytes, seed, global_batch_size, shuffle):
        self.blocks, self.seed, self.batch, self.shuffle = block_samples, seed, global_batch_size, shuffle
        self.total = sum(block_samples)
        if shuffle == "window" and len(block_samples) <= 16:
            self.shuffle = "exact"
        self.lanes = 1
        if self.shuffle == "window":
            most = min(max(len(block_samples) // 64, 1), 512)
            self.lanes = max(d for d in range(1, self.batch + 1) if self.batch % d == 0 and d <= most)
        self.window = min(16, len(block_samples), max(2, 16 * 2**30 // (self.lanes * block_bytes)))
        self.steps = self.total // self.batch if self.shuffle else -(-self.total // self.batch)

    @lru_cache  # noqa: B019  a reference lives as long as its test
    def epoch(self, epoch):
        """Every step of an epoch, as a list of sample numbers."""
        if self.shuffle is False:
            padded = [*range(self.total), *[self.total - 1] * (self.steps * self.batch - self.total)]
            return [padded[t * self.batch : (t + 1) * self.batch] for t in range(self.steps)]
        if self.shuffle == "exact":
            lanes = [sorted(range(self.total), key=lambda s: (h(self.seed, 3, epoch, s), s))]
        else:
            lanes = [self.lane(g, epoch) for g in range(self.lanes)]
        share = self.batch // len(lanes)
        return [[s for lane in lanes for s in lane[t * share : (t + 1) * share]] for t in range(self.steps)]

    def run_order(self):
        return sorted(range(len(self.blocks)), key=lambda block: (h(self.seed, 1, 0, block), block))

    @cached_property
    def cut(self):
        """(block, first sample, samples) of every lane's pieces, in run order."""
        firsts = [0]
        for size in self.blocks:
            firsts.append(firsts[-1] + size)
        stops = [(g + 1) * self.total // self.lanes for g in range(self.lanes)]
        lanes, at = [[]], 0
        for block in self.run_order():
            taken = 0
            while taken < self.blocks[block]:
                if at == stops[len(lanes) - 1]:
                    lanes.append([])
                size = min(self.blocks[block] - taken, stops[len(lanes) - 1] - at)
                lanes[-1].append((block, firsts[block] + taken, size))
                at, taken = at + size, taken + size
        return lanes

    def pieces(self, g, epoch):
        """Lane g's pieces, in the order of the epoch."""
        return sorted(self.cut[g], key=lambda piece: (h(self.seed, 2, epoch, piece[0]), piece[0]))

    def lane(self, g, epoch):
        keyed = []
        for position, (_, first, size) in enumerate(self.pieces(g, epoch)):
            words = [(h(self.seed, 3, epoch, sample) >> 32, sample) for sample in range(first, first + size)]
            keyed += [((position << 32) + self.window * word, sample) for word, sample in words]
        return [sample for _, sample in sorted(keyed)]

    def rank(self, epoch, t, rank, ranks):
        """(sample numbers, valid) of one rank in step t of an epoch."""
        share = self.batch // ranks
        if self.shuffle is not False:
            return self.epoch(epoch)[t][rank * share : (rank + 1) * share], [True] * share
        real = min(self.batch, self.total - t * self.batch)
        pads = [0] * ranks
        for j in range(self.batch - real):
            pads[j % ranks] += 1
        first = t * self.batch + sum(share - pads[r] for r in range(rank))
        mine = share - pads[rank]
        return [*range(first, first + mine), *[self.total - 1] * pads[rank]], [True] * mine + [False] * pads[rank]


def blocks_of(case):
    return [samples for count, samples in case["block_runs"] for _ in range(count)]


def reference_of(case):
    return Reference(
        blocks_of(case), case["block_bytes"], case["seed"], case["global_batch_size"], case["asked_shuffle"]
    )


def order_of(case):
    blocks = np.array(blocks_of(case), np.int64)
    recipe = plan_recipe(
        blocks,
        case["block_bytes"],
        seed=case["seed"],
        global_batch_size=case["global_batch_size"],
        shuffle=case["asked_shuffle"],
    )
    return Order(blocks, recipe, block_bytes=case["block_bytes"], manifest_digest="0" * 64)


def digest(samples):
    return hashlib.sha256(struct.pack(f"<{len(samples)}q", *samples)).hexdigest()


def expected(case):
    """What the golden file says of a case, by the reference."""
    reference = reference_of(case)
    epochs = {}
    for number in (0, 1, 7):
        steps = reference.epoch(number)
        chosen = sorted({0, 1, reference.steps // 2, reference.steps - 1} & set(range(reference.steps)))
        epochs[str(number)] = {
            "epoch_sha256": digest([sample for step in steps for sample in step]),
            "step_sha256": {str(t): digest(steps[t]) for t in chosen},
        }
        if reference.total <= 100:
            epochs[str(number)]["samples"] = steps
    found = {
        "sample_count": reference.total,
        "block_count": len(reference.blocks),
        "shuffle": reference.shuffle,
        "lanes": reference.lanes,
        "window": reference.window,
        "steps_per_epoch": reference.steps,
        "recipe_sha256": hashlib.sha256(recipe_text(reference).encode()).hexdigest(),
        "epochs": epochs,
    }
    if "ranks" in case:
        last = reference.steps - 1
        found["last_step_of_ranks"] = [reference.rank(0, last, rank, case["ranks"]) for rank in range(case["ranks"])]
    return json.loads(json.dumps(found))


def recipe_text(reference):
    shuffle = "false" if reference.shuffle is False else f'"{reference.shuffle}"'
    return (
        f'{{"filters":[],"global_batch_size":{reference.batch},"mixture":null,"order":1,'
        f'"seed":{reference.seed},"shuffle":{shuffle},"window":{reference.window}}}'
    )


cases = pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])


def test_splitmix64_gives_its_published_numbers():
    for line in GOLDEN["splitmix64"]:
        assert mix(line["state"]) == int(line["output"], 16)


@cases
def test_the_rule_as_written_gives_the_golden_order(case):
    assert expected(case) == case["expected"]


@cases
def test_stoker_gives_the_golden_order(case):
    order, golden = order_of(case), case["expected"]
    assert {
        "sample_count": order.sample_count,
        "block_count": len(blocks_of(case)),
        "shuffle": order.recipe.shuffle,
        "lanes": order.lanes,
        "window": order.recipe.window,
        "steps_per_epoch": order.steps_per_epoch,
        "recipe_sha256": order.recipe.digest,
    } == {name: value for name, value in golden.items() if name not in ("epochs", "last_step_of_ranks")}
    steps = order.steps_per_epoch
    for number, epoch in golden["epochs"].items():
        first = int(number) * steps
        for t, step_digest in epoch["step_sha256"].items():
            assert digest(order_of(case).batch(first + int(t)).samples.tolist()) == step_digest
        walked = [order.batch(step).samples.tolist() for step in range(first, first + steps)]
        assert digest([sample for step in walked for sample in step]) == epoch["epoch_sha256"]
        assert walked == epoch.get("samples", walked)
    for rank, share in enumerate(golden.get("last_step_of_ranks", [])):
        batch = order.rank_batch(steps - 1, rank, case["ranks"])
        assert [batch.samples.tolist(), batch.valid.tolist()] == share


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 3) | st.integers(1, 40), min_size=1, max_size=40),
    st.sampled_from([1, 1, 5, 12]),
    st.sampled_from([1, 2, 4, 6, 12]),
    st.sampled_from([2**16, 2**30]),
    st.integers(0, 2**64 - 1),
    st.sampled_from(["window", "exact", False]),
    st.integers(0, 2**64 - 1),
)
def test_the_rule_as_written_and_stoker_agree_on_any_small_data_set(
    sizes, repeat, batch, block_bytes, seed, shuffle, epoch
):
    case = {
        "block_runs": [[1, size] for size in sizes * repeat] + [[1, batch]],
        "block_bytes": block_bytes,
        "seed": seed,
        "global_batch_size": batch,
        "asked_shuffle": shuffle,
    }
    reference, order = reference_of(case), order_of(case)
    steps = reference.steps
    assert (order.lanes, order.recipe.window, order.steps_per_epoch) == (reference.lanes, reference.window, steps)
    walked = [order.batch(epoch * steps + t).samples.tolist() for t in range(steps)]
    assert walked == reference.epoch(epoch)
    for ranks in {1, 2, batch} & set(range(1, batch + 1)):
        if batch % ranks == 0:
            mine = [order.rank_batch(epoch * steps + steps - 1, rank, ranks) for rank in range(ranks)]
            shares = [(one.samples.tolist(), one.valid.tolist()) for one in mine]
            assert shares == [reference.rank(epoch, steps - 1, rank, ranks) for rank in range(ranks)]


def worked_example():
    """The case that the page works through, and the numbers it comes by, from the reference."""
    case = next(case for case in GOLDEN["cases"] if case["name"] == "the page's example")
    reference = reference_of(case)
    return {
        "h(7, 1, 0, 0)": f"{h(7, 1, 0, 0):016x}",
        "h(7, 2, 0, 0)": f"{h(7, 2, 0, 0):016x}",
        "h(7, 3, 0, 0)": f"{h(7, 3, 0, 0):016x}",
        "run order of blocks": reference.run_order(),
        "blocks in epoch 0": [block for block, _, _ in reference.pieces(0, 0)],
        "samples in epoch 0": reference.lane(0, 0),
        "steps of epoch 0": reference.epoch(0),
        "step 0 of epoch 1": reference.epoch(1)[0],
    }


def test_the_page_works_its_example_through_with_the_right_numbers():
    block = PAGE.read_text().split("```json worked-example\n")[1].split("```")[0]
    assert json.loads(block) == worked_example()
