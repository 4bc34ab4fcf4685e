"""What to read: refused where files contradict each other or the state, and laid where frameworks expect it."""

import numpy as np
import pytest

from stoker.checkpoint.load_plan import Assembly, StoredChunk, Transfer, describe, index_chunks, plan_load
from stoker.checkpoint.reshard import Box
from stoker.checkpoint.state import Share, StoredTensor, TensorEntry
from stoker.errors import CheckpointError, FormatError
from stoker.io.safetensors import Header, TensorPlace


def header(dtype="F32", shape=(2, 3)):
    return Header({}, {"t": TensorPlace(dtype, shape, 4096, 4096 + 24)}, 4096)


def test_chunks_of_all_files_are_found_by_name():
    found = index_chunks([header(), header()], [{"t": (0, 0)}, {"t": (2, 0)}])
    assert found == {
        "t": [StoredChunk(0, "F32", 4096, Box((0, 0), (2, 3))), StoredChunk(1, "F32", 4096, Box((2, 0), (2, 3)))]
    }
    assert describe(found["t"]) == StoredTensor("F32", (4, 3))


def test_of_equal_boxes_the_first_counts_and_others_may_not_overlap():
    starts = [{"t": (0, 0)}, {"t": (0, 0)}, {"t": (2, 0)}]
    found = index_chunks([header()] * 3, starts)
    assert [(chunk.file, chunk.box.offsets) for chunk in found["t"]] == [(0, (0, 0)), (2, (2, 0))]
    assert plan_load([TensorEntry.whole("t", "F32", (4, 3))], found).transfers.keys() == {0, 2}
    overlapping = index_chunks([header()] * 2, [{"t": (0, 0)}, {"t": (1, 0)}])
    with pytest.raises(FormatError, match="or some of them twice"):
        plan_load([TensorEntry.whole("t", "F32", (3, 3))], overlapping)


@pytest.mark.parametrize("offsets", [{}, {"t": (0,)}, {"t": ()}])
def test_a_chunk_without_its_place_is_refused(offsets):
    with pytest.raises(FormatError, match=r"tensor 't' of shape \[2, 3\] is said to begin at"):
        index_chunks([header()], [offsets])


def test_chunks_of_two_dtypes_are_refused():
    with pytest.raises(FormatError, match="is F32 in one file and I32 in another"):
        index_chunks([header(), header("I32")], [{"t": (0, 0)}, {"t": (2, 0)}])


def test_only_the_bytes_that_hold_a_part_are_read():
    stored = {"t": [StoredChunk(0, "F32", 4096, Box((0, 0), (2, 3))), StoredChunk(1, "F32", 8192, Box((2, 0), (2, 3)))]}
    wanted = TensorEntry("t", "F32", (2, 3), (1, 0), (4, 3), Share.CHUNK)
    assert plan_load([wanted], stored).transfers == {
        0: [Transfer("t", 4096 + 12, 4096 + 24, Box((1, 0), (1, 3)), Box((0, 0), (2, 3)))],
        1: [Transfer("t", 8192, 8192 + 12, Box((2, 0), (1, 3)), Box((2, 0), (2, 3)))],
    }


@pytest.mark.parametrize(("dtype", "shape"), [("I32", (2, 3)), ("F32", (3, 2))])
def test_a_part_of_another_tensor_than_is_stored_is_refused(dtype, shape):
    stored = {"t": [StoredChunk(0, "F32", 4096, Box((0, 0), (2, 3)))]}
    with pytest.raises(CheckpointError, match="'t' is wanted as"):
        plan_load([TensorEntry.whole("t", dtype, shape)], stored)


def test_memory_is_aligned_as_frameworks_align_theirs():
    entries = [TensorEntry.whole(f"t{i}", "U8", (i,)) for i in range(1, 40)]
    stored = {e.name: [StoredChunk(0, "U8", 0, Box((0,), e.shape))] for e in entries}
    tensors = Assembly(plan_load(entries, stored)).tensors
    assert all(array.ctypes.data % 64 == 0 and array.dtype == np.uint8 for array in tensors.values())
    assert [array.size for array in tensors.values()] == list(range(1, 40))
