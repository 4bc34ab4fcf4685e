import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from stoker.dataset.open import open_dataset
from stoker.dataset.order import OrderedBatch
from stoker.errors import DatasetError
from stoker.feed.plan import lay_out, plan_batch, plan_batches


@given(arrays(np.int64, st.tuples(st.integers(1, 9), st.integers(1, 4)), elements=st.integers(0, 500)))
def test_places_follow_one_another_and_fields_begin_at_multiples_of_64(sizes):
    (starts,), (row_offsets,), (nbytes,) = lay_out(sizes[None])
    end = 0
    for field, start in enumerate(starts.tolist()):
        assert start % 64 == 0
        assert end <= start < end + 64
        assert row_offsets[0, field] == 0
        assert np.diff(row_offsets[:, field]).tolist() == sizes[:, field].tolist()
        end = start + int(row_offsets[-1, field])
    assert end <= nbytes < end + 64
    assert nbytes % 64 == 0


def ordered(*samples):
    return OrderedBatch(4, 1, np.array(samples), np.ones(len(samples), np.bool_))


def test_a_plan_says_what_is_read_and_where_it_goes(make_store):
    store = make_store([(f"s{i}", {"a": b"x" * i, "b": b"y" * 70}) for i in range(10)])
    plan = plan_batch(open_dataset(store), ordered(7, 2), ("b", "a"))
    assert (plan.step, plan.fields, plan.field_starts, plan.nbytes) == (4, ("b", "a"), (0, 192), 256)
    assert plan.sizes.tolist() == [[70, 7], [70, 2]]
    assert plan.targets.tolist() == [[0, 192], [70, 199]]
    assert [offsets.tolist() for offsets in plan.row_offsets] == [[0, 70, 140], [0, 7, 9]]
    assert (plan.keys, plan.key_bytes, plan.key_offsets.tolist()) == (["s7", "s2"], b"s7s2", [0, 2, 4])


def test_a_sample_that_lacks_a_field_is_named(make_store):
    store = make_store([(f"s{i}", {"a": b"x"} | ({"b": b"y"} if i != 3 else {})) for i in range(5)])
    with pytest.raises(DatasetError, match="sample 's3' has no field 'b'"):
        plan_batch(open_dataset(store), ordered(1, 3), ("a", "b"))


def test_samples_of_many_objects_are_planned_at_once(make_store, numbered):
    store = make_store(numbered(60, size=1000), shard_bytes=8192)
    opened = open_dataset(store)
    assert len(opened.objects) > 5
    plan = plan_batch(opened, ordered(*range(59, -1, -7)), ("bin",))
    assert plan.keys == [f"s{i:03d}" for i in range(59, -1, -7)]
    assert len(set(plan.objects.tolist())) > 5


def test_several_batches_are_planned_as_one_by_one(make_store):
    opened = open_dataset(make_store([(f"s{i}", {"a": b"x" * i, "b": b"y" * 70}) for i in range(30)], shard_bytes=4096))
    batches = [ordered(7, 2, 29), ordered(0, 0, 11), ordered(1, 28, 3)]
    for plan, batch in zip(plan_batches(opened, batches, ("b", "a")), batches, strict=True):
        alone = plan_batch(opened, batch, ("b", "a"))
        assert plan.ordered is batch
        for name in ("fields", "field_starts", "nbytes", "key_bytes", "keys", "step", "has_checksums"):
            assert getattr(plan, name) == getattr(alone, name)
        for name in ("objects", "offsets", "sizes", "crc32cs", "targets", "key_offsets"):
            assert getattr(plan, name).tolist() == getattr(alone, name).tolist()
        assert [one.tolist() for one in plan.row_offsets] == [one.tolist() for one in alone.row_offsets]
