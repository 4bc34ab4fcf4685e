"""Names, and where a rank's tensors lie."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.checkpoint.layout import (
    StepId,
    generation_key,
    parse_generation,
    parse_private,
    parse_receipt,
    plan_save,
    private_name,
    receipt_name,
    tensors_name,
)
from stoker.checkpoint.state import Share, TensorEntry
from stoker.errors import CheckpointError, FormatError
from stoker.io.safetensors import DTYPE_BYTES, parse_header


@given(st.integers(0, 10**12), st.integers(0, 10**6))
def test_the_name_of_a_step_is_read_back(step, generation):
    made = StepId(generation=generation, step=step)
    assert StepId.parse(made.name) == made
    assert StepId.parse(made.partial) is None
    assert StepId.parse(made.aborted) is None


def test_names_are_those_of_the_format():
    step = StepId(generation=3, step=1200)
    assert (step.name, step.partial) == ("step-00001200.g0003", "step-00001200.g0003.partial")
    assert generation_key(3) == "gen-0003.json"
    assert receipt_name(12) == "rank-00012.json"
    assert tensors_name(12, 1024, 0) == "rank-00012-of-01024.safetensors"
    assert tensors_name(12, 1024, 2) == "rank-00012-of-01024.2.safetensors"


def test_only_such_names_are_read():
    assert parse_generation("gen-0003.json") == 3
    assert parse_receipt("rank-00012.json") == 12
    for name in ["gen-3.json", "gen-0003.json.x", "gen-000a.json", "rank-00001-of-00002.safetensors", "rank-1.json"]:
        assert parse_generation(name) is parse_receipt(name) is None
    for name in ["step-1.g1", "step-00000001", "step-00000001.g0001.tmp", "xstep-00000001.g0001"]:
        assert StepId.parse(name) is None


def test_steps_are_ordered_by_generation_first():
    assert StepId(generation=2, step=1) > StepId(generation=1, step=9)


def test_a_private_tensor_carries_its_rank_only_among_several():
    assert private_name("extra.ema.x", 3, 8) == "extra.ema.x.rank-00003"
    assert private_name("extra.ema.x", 0, 1) == "extra.ema.x"
    assert parse_private("extra.ema.x.rank-00003") == ("extra.ema.x", 3)
    assert parse_private("model.x.rank-00003") is None


ENTRIES = st.lists(
    st.builds(
        lambda name, dtype, shape, share: TensorEntry(name, dtype, shape, (2,) * len(shape), (99,) * len(shape), share),
        name=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).map(lambda t: f"model.{t}"),
        dtype=st.sampled_from(sorted(DTYPE_BYTES)),
        shape=st.lists(st.integers(0, 5), max_size=3).map(tuple),
        share=st.just(Share.CHUNK),
    ),
    unique_by=lambda entry: entry.name,
    max_size=12,
)


@given(ENTRIES, st.sampled_from([1, 1500, 50 << 20]))
def test_every_tensor_has_its_aligned_place_in_a_file_that_says_so(entries, limit):
    plan = plan_save(entries, 1, 4, header_split_bytes=limit)
    expected = {entry.name: entry for entry in entries}
    seen = []
    at = 0
    for index, file in enumerate(plan.files):
        assert file.name == tensors_name(1, 4, index)
        assert file.start == at
        at = file.stop
        header = parse_header(file.header, file.stop - file.start)
        sharding = json.loads(header.metadata["DCP_SHARDING_INFO"])
        assert header.metadata.keys() == {"format", "DCP_VERSION", "DCP_SHARDING_INFO"}
        assert (header.metadata["format"], header.metadata["DCP_VERSION"]) == ("pt", "1.0")
        assert sharding.keys() == header.tensors.keys()
        for image, (name, place) in zip(file.tensors, header.tensors.items(), strict=True):
            entry = expected[name]
            assert (place.dtype, place.shape, image.source) == (entry.dtype, entry.shape, name)
            assert sharding[name] == {"saved_offsets": list(entry.offsets)}
            assert (image.start - file.start, image.stop - file.start) == (place.start, place.stop)
            assert image.start % DTYPE_BYTES[entry.dtype] == 0
            seen.append(name)
    assert sorted(seen) == sorted(expected)
    assert plan.size_bytes == at


def test_a_large_header_is_split_and_no_file_passes_the_limit():
    entries = [TensorEntry.whole(f'model.ebenholz\U0001f332\\"{i}', "U8", (1,)) for i in range(200)]
    plan = plan_save(entries, 0, 1, header_split_bytes=9000)
    assert len(plan.files) > 2
    assert all(len(file.header.rstrip(b" ")) <= 9000 for file in plan.files)
    assert [file.name for file in plan.files[:2]] == [
        "rank-00000-of-00001.safetensors",
        "rank-00000-of-00001.1.safetensors",
    ]


def test_private_tensors_are_stored_under_the_name_with_the_rank():
    entry = TensorEntry.whole("extra.a", "U8", (1,), Share.PRIVATE)
    (file,) = plan_save([entry], 1, 2).files
    assert list(parse_header(file.header, file.stop).tensors) == ["extra.a.rank-00001"]
    assert file.tensors[0].source == "extra.a"


def test_nothing_to_write_makes_no_file():
    assert plan_save([], 0, 2).files == ()


def test_two_tensors_of_one_name_are_refused():
    entry = TensorEntry.whole("model.a", "U8", (1,))
    with pytest.raises(CheckpointError, match=r"two tensors .* 'model\.a'"):
        plan_save([entry, entry], 0, 1)
    with pytest.raises(FormatError, match="C128"):
        plan_save([TensorEntry.whole("model.a", "C128", (1,))], 0, 1)
