"""Restoring: every byte is verified first, and nothing live changes unless all of it fits."""

import copy
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.checkpoint.generation import Generation
from stoker.checkpoint.layout import StepId
from stoker.checkpoint.manifest import decode_manifest, encode_manifest
from stoker.checkpoint.restore import derive_entropy, restore_step, seed_of
from stoker.errors import (
    CheckpointError,
    ConfigError,
    DigestMismatch,
    FormatError,
    InternalError,
    NewerFormat,
    NotFound,
    StokerError,
    TimedOut,
    Truncated,
)
from stoker.io.checksum import CHUNK_BYTES
from stoker.testing.training import ArrayState, Part
from stoker.values import Key, Layout

STEP = "step-00000010.g0001"
TENSORS = f"{STEP}/rank-00000-of-00001.safetensors"


def big_state(seed):
    """Two tensors over three chunks."""
    rng = np.random.default_rng(seed)
    arrays = {
        "model.a": rng.integers(0, 255, CHUNK_BYTES, np.uint8),
        "model.b": rng.integers(0, 255, CHUNK_BYTES + 5, np.uint8),
    }
    return ArrayState(arrays, shared={"x": seed}, private={"y": seed}, stream=seed)


@pytest.fixture
def saved(start, feed):
    """A run with one step of big_state(1)."""
    start(big_state(1), data=feed).save_and_wait(after=9)


def begin(start, feed, damage=None):
    """A new generation; `damage` strikes after it chose its step."""
    run = start(big_state(2), data=feed)
    if damage is not None:
        damage()
    return run


def flip(path, at):
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def assert_untouched(run):
    assert run.feeds[0].next_step == 0
    state = big_state(2)
    assert all(np.array_equal(run.states[0].arrays[n], a) for n, a in state.arrays.items())
    assert (run.states[0].shared, run.states[0].private, run.states[0].stream) == ({"x": 2}, {"y": 2}, 2)


@pytest.mark.parametrize(
    ("at", "what"),
    [
        (3, "chunk 0 of 'rank-00000-of-00001.safetensors' (bytes 0 to 4,194,304)"),
        (CHUNK_BYTES + 7, "chunk 1 of"),
        (2 * CHUNK_BYTES + 4096 + 4, "chunk 2 of 'rank-00000-of-00001.safetensors' (bytes 8,388,608 to 8,392,709)"),
    ],
)
def test_one_flipped_bit_is_found_and_named_and_nothing_changes(home, start, feed, saved, at, what):
    run = begin(start, feed, lambda: flip(home.path(Key(TENSORS)), at))
    with pytest.raises(DigestMismatch) as caught:
        run.restore()
    assert what in caught.value.what
    assert caught.value.where.endswith(TENSORS)
    assert_untouched(run)


@pytest.mark.parametrize("name", ["rank-00000.json", "MANIFEST.json"])
def test_a_flipped_bit_in_the_records_is_found(home, start, feed, saved, name):
    run = begin(start, feed, lambda: flip(home.path(Key(f"{STEP}/{name}")), 300))
    with pytest.raises((DigestMismatch, FormatError)):
        run.restore()
    assert_untouched(run)


@pytest.mark.parametrize("name", ["rank-00000.json", "MANIFEST.json", "rank-00000-of-00001.safetensors"])
def test_a_file_that_is_gone_is_named(home, start, feed, saved, name):
    run = begin(start, feed, lambda: home.delete(Key(f"{STEP}/{name}")))
    with pytest.raises(NotFound, match=name):
        run.restore()
    assert_untouched(run)


@pytest.mark.parametrize("name", ["rank-00000.json", "rank-00000-of-00001.safetensors"])
def test_a_file_that_is_cut_short_is_named(home, start, feed, saved, name):
    def cut():
        path = home.path(Key(f"{STEP}/{name}"))
        path.write_bytes(path.read_bytes()[:-1])

    run = begin(start, feed, cut)
    with pytest.raises(Truncated, match=name):
        run.restore()
    assert_untouched(run)


def test_a_file_with_bytes_more_is_not_believed(home, start, feed, saved):
    def grow():
        path = home.path(Key(f"{STEP}/rank-00000.json"))
        path.write_bytes(path.read_bytes() + b" ")

    with pytest.raises(DigestMismatch, match=r"rank-00000\.json"):
        begin(start, feed, grow).restore()


def test_a_manifest_of_a_later_format_is_refused(home, start, feed, saved):
    run = begin(start, feed, lambda: home.write(Key(f"{STEP}/MANIFEST.json"), b'{"format":2}'))
    with pytest.raises(NewerFormat):
        run.restore()
    assert_untouched(run)


def test_a_step_of_another_run_is_refused(home, start, feed, saved):
    def rename():
        manifest = decode_manifest(home.read(Key(f"{STEP}/MANIFEST.json")), "")
        changed = type(manifest)(**{f: getattr(manifest, f) for f in manifest.__struct_fields__} | {"run": "other"})
        home.write(Key(f"{STEP}/MANIFEST.json"), encode_manifest(changed))

    with pytest.raises(CheckpointError, match="of run 'other', not 'run-1'"):
        begin(start, feed, rename).restore()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"ranks": (0, 1), "world": 2}, "receipts of 1 of 2 ranks"),
        ({"ranks": ()}, "0 of 1 ranks"),
        ({"files": ()}, "receipts of 0 of 1 ranks"),
    ],
)
def test_a_manifest_that_does_not_fit_its_receipts_is_refused(home, start, feed, saved, change, what):
    def rewrite():
        manifest = decode_manifest(home.read(Key(f"{STEP}/MANIFEST.json")), "")
        changed = type(manifest)(**{f: getattr(manifest, f) for f in manifest.__struct_fields__} | change)
        home.write(Key(f"{STEP}/MANIFEST.json"), encode_manifest(changed))

    with pytest.raises(FormatError, match=what):
        begin(start, feed, rewrite).restore()


def test_data_that_are_not_those_of_the_run_leave_the_model_alone(start, feed, saved):
    run = start(big_state(2), data=lambda: feed(digest="c" * 64))
    with pytest.raises(ConfigError, match="manifest"):
        run.restore()
    assert_untouched(run)


def test_a_state_that_does_not_fit_is_refused_before_anything_is_read(home, start, feed, saved, monkeypatch):
    run = start(ArrayState({"model.a": np.zeros(3)}), data=feed)
    read = []
    read_into = home.read_into
    monkeypatch.setattr(
        home, "read_into", lambda key, at, buffer: (read.append(len(buffer)), read_into(key, at, buffer))
    )
    with pytest.raises(CheckpointError, match="stored is"):
        run.restore()
    assert read == [CHUNK_BYTES]  # the header
    assert run.feeds[0].next_step == 0


def test_a_step_saved_without_data_needs_a_restore_without(start, state, feed):
    start(state(1)).save_and_wait(after=9)
    with pytest.raises(CheckpointError, match="without a position"):
        start(state(2), data=feed).restore()
    start(state(2)).restore()


def test_a_step_saved_with_data_needs_a_restore_with_them(start, state, equal, feed):
    start(state(1), data=feed).save_and_wait(after=9)
    again = start(state(2))
    with pytest.raises(CheckpointError, match="step 10 was saved with a position in the data") as caught:
        again.restore()
    assert "data=" in caught.value.hint
    assert equal(again.states[0], state(2))


def test_a_damaged_step_is_an_error_that_says_how_to_go_on_from_an_older_one(home, start, state, equal, feed):
    run = start(state(1), data=feed)
    run.save_and_wait(after=9)
    run.save_and_wait(after=19)
    newest = home.root / "step-00000020.g0001"
    flip(newest / "rank-00000-of-00001.safetensors", 4096)
    again = start(state(2), data=feed)
    with pytest.raises(DigestMismatch, match="chunk 0 of 'rank-00000-of-00001") as caught:
        again.restore()
    assert equal(again.states[0], state(2))
    assert "the bytes changed on storage" in caught.value.hint
    assert "move it out of the run's folder and start again, from step-00000010.g0001" in caught.value.hint
    newest.rename(home.root / "aside")
    assert start(state(2), data=feed).restore() == [10]
    flip(home.root / "step-00000010.g0001" / "rank-00000-of-00001.safetensors", 4096)
    with pytest.raises(DigestMismatch) as caught:
        start(state(2), data=feed).restore()
    assert "no other step is whole" in caught.value.hint


def test_a_home_that_cannot_be_listed_does_not_hide_what_is_damaged(home, start, state, monkeypatch):
    def refuse(prefix=""):
        raise TimedOut("hangs")

    start(state(1)).save_and_wait(after=9)
    again = start(state(2))
    flip(home.path(Key(TENSORS)), 4096)
    monkeypatch.setattr(home, "list_dirs", refuse)
    with pytest.raises(DigestMismatch):
        again.restore()


def test_fewer_and_more_ranks_take_replicated_tensors_from_whoever_wrote_them(start, state):
    base = state(1).arrays
    for worlds in [(3, 2), (2, 3), (3, 1), (1, 3)]:
        first = start(*[state(1, stream=10 + r, private={"of": r}) for r in range(worlds[0])], run="run-1")
        first.save_and_wait(after=9)
        again = start(*[state(2, stream=0, private={}) for _ in range(worlds[1])], run="run-1")
        assert again.restore() == [10] * worlds[1]
        for rank, found in enumerate(again.states):
            assert all(found.arrays[n].tobytes() == base[n].tobytes() for n in base)
            assert found.private == {"of": rank % worlds[0]}
            expected = 10 + rank if rank < worlds[0] else derive_entropy(0, rank, 10)
            assert found.stream == expected


def test_a_rank_that_is_new_says_where_its_random_numbers_come_from(start, state, caplog):
    start(state(1)).save_and_wait(after=9)
    start(state(2), state(2)).restore()
    told = [r.getMessage() for r in caplog.records if "rank 1 did not exist" in r.getMessage()]
    (line,) = told
    assert line.startswith("rank 1 did not exist when step 10 was saved by 1 ranks")
    assert line.endswith("its random numbers come from (seed, rank, step), its extra state from rank 0")


def test_private_tensors_go_back_to_their_rank(start, state):
    def of(rank):
        return state(1, arrays={"model.w": np.arange(3.0), "extra.mine": np.full(4, rank, "i4")})

    start(of(0), of(1)).save_and_wait(after=9)
    again = start(of(7), of(8), of(9))
    again.restore()
    assert [int(s.arrays["extra.mine"][0]) for s in again.states] == [0, 1, 0]
    alone = start(of(5))
    alone.restore()
    assert alone.states[0].arrays["extra.mine"].tolist() == [0] * 4


def sharded(whole, cuts, axis):
    """The states of ranks that hold slices of `whole` along `axis`, and one replicated tensor."""
    edges = [0, *cuts, whole.shape[axis]]
    states = []
    for lo, hi in pairwise(edges):
        index = [slice(None)] * whole.ndim
        index[axis] = slice(lo, hi)
        offsets = tuple(lo if d == axis else 0 for d in range(whole.ndim))
        arrays = {"model.w": whole[tuple(index)].copy(), "model.bias": np.arange(5.0)}
        states.append(ArrayState(arrays, parts={"model.w": Part(offsets, whole.shape)}))
    return states


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=20)
@given(st.data())
def test_any_sharding_restores_to_any_other(start, data):
    shape = (data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6)))
    whole = (
        np.random.default_rng(0).integers(-99, 99, shape).astype(data.draw(st.sampled_from(["i1", "f2", "f4", "f8"])))
    )
    drawn = []
    for _ in range(2):
        axis = data.draw(st.integers(0, 1))
        inner = range(1, shape[axis])
        cuts = sorted(data.draw(st.sets(st.sampled_from(inner), max_size=2))) if inner else []
        drawn.append((cuts, axis))
    start(*sharded(whole, *drawn[0])).save_and_wait(after=9)
    targets = sharded(whole, *drawn[1])
    expected = copy.deepcopy(targets)
    for target in targets:
        target.arrays = {name: np.zeros_like(array) for name, array in target.arrays.items()}
    start(*targets).restore()
    for target, right in zip(targets, expected, strict=True):
        for name, array in right.arrays.items():
            assert np.array_equal(target.arrays[name], array)


def test_a_shard_over_several_chunks_and_a_cut_across_rows_come_out_right(start):
    whole = np.random.default_rng(0).integers(0, 2**60, (3000, 500))
    start(*sharded(whole, [1100], 0)).save_and_wait(after=9)
    targets = sharded(np.zeros_like(whole), [123], 1)
    start(*targets).restore()
    assert np.array_equal(np.hstack([t.arrays["model.w"] for t in targets]), whole)


def test_a_shard_that_no_rank_saved_is_noticed(start):
    whole = np.arange(12.0).reshape(4, 3)
    states = sharded(whole, [2], 0)
    states[1].arrays["model.w"] = states[1].arrays["model.w"][1:]
    states[1].parts = {"model.w": Part((3, 0), (4, 3))}
    start(*states).save_and_wait(after=9)
    with pytest.raises(FormatError, match=r"tensor 'model\.w': 9 elements are stored of a part with 12"):
        start(ArrayState({"model.w": np.zeros((4, 3)), "model.bias": np.zeros(5)})).restore()


def test_entropy_differs_by_seed_rank_and_step_and_fits_64_bits():
    made = {derive_entropy(seed, rank, step) for seed in range(3) for rank in range(3) for step in range(3)}
    assert len(made) == 27
    assert all(0 <= entropy < 2**64 for entropy in made)
    assert derive_entropy(7, 1, 40) == 4758577015684869133  # for ever: restarts must agree across releases


def test_the_seed_is_that_of_the_position():
    assert seed_of({"segments": [{"fields": {"seed": 1}}, {"fields": {"seed": 2}}]}) == 2
    for position in [None, {}, {"segments": []}, {"segments": [{}]}, {"segments": [{"fields": {"seed": "x"}}]}]:
        assert seed_of(position) == 0


def test_a_generation_without_a_step_cannot_be_restored(home, state):
    with pytest.raises(InternalError):
        restore_step(home, Generation("r", 1, Layout()), state(), None)
    with pytest.raises(NotFound):
        restore_step(home, Generation("r", 1, Layout(), StepId(generation=1, step=1)), state(), None)


def test_an_error_while_reading_one_file_of_many_is_not_lost(home, start, state, monkeypatch):
    start(*[state(1) for _ in range(3)]).save_and_wait(after=9)
    again = start(*[state(2) for _ in range(3)])
    read_into = home.read_into

    def broken(key, at, buffer):
        if "rank-00002-of" in key:
            raise StokerError("the disk is gone")
        read_into(key, at, buffer)

    monkeypatch.setattr(home, "read_into", broken)
    with pytest.raises(StokerError, match="the disk is gone"):
        again.restore()
