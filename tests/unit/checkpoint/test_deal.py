"""Replicated tensors are dealt once each, evenly, and alike on every rank."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.checkpoint.deal import deal, deal_digest, own_entries
from stoker.checkpoint.state import Share, TensorEntry

ENTRIES = st.lists(
    st.builds(
        TensorEntry.whole,
        name=st.text(max_size=5),
        dtype=st.sampled_from(["U8", "F32"]),
        shape=st.lists(st.integers(0, 50), max_size=2),
        share=st.sampled_from(Share),
    ),
    unique_by=lambda entry: entry.name,
    max_size=30,
)


@given(ENTRIES, st.integers(1, 9), st.randoms())
def test_each_replicated_tensor_is_written_by_one_rank_and_the_rest_by_all(entries, world, random):
    shuffled = random.sample(entries, len(entries))
    written = [own_entries(shuffled if rank else entries, rank, world) for rank in range(world)]
    for entry in entries:
        writers = [rank for rank in range(world) if entry in written[rank]]
        assert len(writers) == (1 if entry.share is Share.REPLICATED else world)


@given(ENTRIES, st.integers(1, 9))
def test_ranks_differ_by_at_most_the_largest_tensor(entries, world):
    sizes = {e.name: e.nbytes for e in entries if e.share is Share.REPLICATED}
    owners = deal(entries, world)
    assert owners.keys() == sizes.keys()
    loads = [sum(sizes[n] for n, owner in owners.items() if owner == rank) for rank in range(world)]
    assert max(loads) - min(loads) <= max(sizes.values(), default=0)


def test_the_largest_goes_first_and_ties_by_name():
    entries = [TensorEntry.whole(name, "U8", (size,)) for name, size in [("c", 4), ("b", 4), ("a", 9), ("d", 1)]]
    assert deal(entries, 2) == {"a": 0, "b": 1, "c": 1, "d": 1}


@given(ENTRIES, st.integers(1, 4), st.randoms())
def test_the_digest_of_a_deal_does_not_depend_on_order_but_on_everything_else(entries, world, random):
    entries = [*entries, TensorEntry.whole("one more", "U8", (3,))]
    digest = deal_digest(entries, world)
    assert digest == deal_digest(random.sample(entries, len(entries)), world)
    for other in [("one more", "I8", (3,)), ("one more", "U8", (3, 1)), ("one  more", "U8", (3,))]:
        assert digest != deal_digest([*entries[:-1], TensorEntry.whole(*other)], world)
    assert digest != deal_digest(entries, world + 1)


def test_chunks_and_private_tensors_do_not_count_in_the_digest():
    chunk = TensorEntry("a", "U8", (1,), (1,), (2,), Share.CHUNK)
    private = TensorEntry.whole("extra.b", "U8", (1,), Share.PRIVATE)
    assert deal_digest([chunk, private], 2) == deal_digest([], 2)
