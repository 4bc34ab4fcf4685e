import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.feed.frames import Frames
from stoker.feed.gather import Units


def units_of(count, samples=4, unusable=()):
    usable = np.ones(count, np.bool_)
    usable[list(unusable)] = False
    many = np.full(count, samples)
    return Units(np.arange(count), np.zeros(count, np.int64), np.arange(count) * 100, many * 25, many, usable, 128)


def never():
    raise AssertionError("nothing was awaited")


def fill(frames, wanted):
    """Claim the units of samples, and read what has to be read; returns the claim."""
    claim = frames.claim(np.array(wanted), never, lambda: True)
    for unit, frame in zip(claim.unit, claim.frame, strict=True):
        frames.view(frame, 100)[:1] = bytes([unit])
        frames.settle(frame, ready=True)
    return claim


def test_a_unit_is_read_once_and_found_again():
    frames = Frames(units_of(10), 4, keeps=True)
    first = fill(frames, [3, 5, 3])
    assert first.unit == [3, 5]
    assert frames.are_ready(first.frames).all()
    frames.release(first.frames)
    second = fill(frames, [5, 5, 3, 3])
    assert second.unit == []
    assert [frames.memory[frame * 128] for frame in second.frames] == [5, 5, 3, 3]


def test_frames_that_are_held_are_not_taken_and_what_has_none_is_told():
    frames = Frames(units_of(10), 2, keeps=True)
    held = fill(frames, [0, 1])
    late = fill(frames, [2, 0])
    assert late.frames.tolist() == [-1, held.frames[0]]
    assert frames.are_ready(late.frames).tolist() == [False, True]
    frames.release(held.frames)
    assert fill(frames, [2]).unit == [2]  # unit 0 is held still
    assert (frames._of_unit[0], frames._of_unit[1]) == (held.frames[0], -1)


def test_what_was_delivered_whole_goes_first_then_what_was_used_longest_ago():
    frames = Frames(units_of(10, samples=2), 3, keeps=True)
    for wanted in ([0], [1, 1], [2]):  # unit 1 has given both of its samples
        frames.release(fill(frames, wanted).frames)
    frames.release(fill(frames, [3]).frames)
    assert [unit for unit in range(4) if frames._of_unit[unit] >= 0] == [0, 2, 3]
    assert frames.again_count == 0
    frames.release(fill(frames, [4]).frames)
    assert frames._of_unit[0] == -1
    frames.release(fill(frames, [0]).frames)
    assert frames.again_count == 1


@pytest.mark.parametrize("keeps", [True, False])
def test_memory_that_was_never_written_to_is_taken_first_only_if_there_is_a_use_for_what_was_delivered(keeps):
    frames = Frames(units_of(10, samples=1), 4, keeps=keeps)
    for unit in range(8):
        frames.release(fill(frames, [unit]).frames)
    kept = [unit for unit in range(8) if frames._of_unit[unit] >= 0]
    assert kept == ([0, 1, 2, 7] if keeps else [7])
    if keeps:  # each of them is found in the next epoch, before it is given up
        for unit in (4, 0, 5, 1, 6, 2):
            assert fill(frames, [unit]).unit == ([unit] if unit >= 4 else [])
            frames.release(np.array([frames._of_unit[unit]]))


def test_a_claim_waits_until_frames_are_released_but_not_for_itself():
    frames = Frames(units_of(10), 2, keeps=True)
    held = fill(frames, [0, 1])
    release = threading.Timer(0.02, lambda: frames.release(held.frames))
    release.start()
    claim = frames.claim(np.array([2, 0]), never, lambda: False)
    release.join()
    assert (claim.frames >= 0).all()
    frames.settle(claim.frame[0], ready=True)
    frames.release(claim.frames)
    alone = frames.claim(np.array([4, 5, 6]), never, lambda: False)
    assert min(alone.frames.tolist()) == -1
    assert len(alone.unit) == 2


def test_units_that_are_not_to_be_gathered_get_no_frame():
    frames = Frames(units_of(4, unusable=[2]), 4, keeps=True)
    claim = fill(frames, [1, 2])
    assert claim.unit == [1]
    assert claim.frames[1] == -1


@pytest.mark.parametrize("ready", [True, False])
def test_who_waits_for_a_unit_is_told_when_it_is_there_or_will_not_be(ready):
    frames, told = Frames(units_of(4), 4, keeps=True), []
    reader = frames.claim(np.array([1]), never, never)
    waiter = frames.claim(np.array([1, 1, 2]), lambda: told.append(1), never)
    assert (waiter.unit, waiter.awaited) == ([2], 1)
    frames.settle(reader.frame[0], ready=ready)
    frames.settle(reader.frame[0], ready=not ready)  # no effect
    assert told == [1]
    assert frames.are_ready(waiter.frames).tolist() == [ready, ready, False]
    frames.release(reader.frames)
    frames.release(waiter.frames)
    again = frames.claim(np.array([1]), never, never)
    assert again.unit == ([] if ready else [1])


def test_what_is_forgotten_is_read_again():
    frames = Frames(units_of(4), 4, keeps=True)
    claim = fill(frames, [1, 2])
    frames.forget(claim.frames[:1])
    frames.release(claim.frames)
    assert fill(frames, [1, 2]).unit == [1]


def test_what_is_read_ahead_is_held_until_it_is_there_and_then_kept_for_its_batch():
    frames = Frames(units_of(10), 3, keeps=False)
    ahead = frames.claim_ahead(np.array([5, 6, 5]), 2, 4)
    assert (ahead.unit, ahead.is_all) == ([5, 6], True)
    assert frames.claim_ahead(np.array([5, 7]), 2, 4) == ([], [], False)  # no more than two
    early = frames.claim(np.array([1, 2]), never, lambda: True)
    assert early.frames.min() == -1  # one frame is left
    frames.settle(early.frame[0], ready=True)
    for frame in ahead.frame:
        frames.settle(frame, ready=True)
    frames.release(early.frames)
    assert fill(frames, [3]).unit == [3]  # in the place of what was used before
    told = []
    late = frames.claim(np.array([5, 6]), lambda: told.append(1), lambda: True)
    assert (late.unit, late.awaited, told) == ([], 0, [])
    assert frames.are_ready(late.frames).all()
    assert frames.again_count == 0


@pytest.mark.parametrize("ready", [True, False])
def test_a_batch_waits_for_what_is_being_read_ahead_for_it(ready):
    frames, told = Frames(units_of(10), 3, keeps=False), []
    ahead = frames.claim_ahead(np.array([5]), 2, 4)
    claim = frames.claim(np.array([5, 5]), lambda: told.append(1), never)
    assert (claim.unit, claim.awaited) == ([], 1)
    frames.settle(ahead.frame[0], ready=ready)
    assert told == [1]
    assert frames.are_ready(claim.frames).all() == ready
    frames.release(claim.frames)
    assert not frames._holders.any()
    assert frames.claim_ahead(np.array([6, 7, 8]), 2, 4).is_all is False  # there is room for two again


def test_what_was_read_ahead_in_vain_makes_room_first():
    frames = Frames(units_of(10), 3, keeps=False)
    frames.release(fill(frames, [1, 2]).frames)
    ahead = frames.claim_ahead(np.array([5]), 1, 4)
    frames.forget_ahead()
    other = frames.claim_ahead(np.array([6]), 1, 4)
    assert other.frame != ahead.frame  # that is being written to still
    for claim in (ahead, other):
        frames.settle(claim.frame[0], ready=True)
    frames.forget_ahead()
    assert set(frames.claim_ahead(np.array([7, 8]), 2, 4).frame) == {*ahead.frame, *other.frame}


def test_closing_gives_the_memory_back():
    frames = Frames(units_of(4), 4, keeps=True)
    frames.close()
    assert len(frames.memory) == 0
    assert frames.size_bytes == 512


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.booleans())),
    st.booleans(),
    st.integers(0, 4),
)
def test_a_frame_holds_what_is_said_to_lie_in_it_as_long_as_it_is_held(frame_count, turns, keeps, most):
    frames, held = Frames(units_of(10), frame_count, keeps=keeps), []
    for number, (wanted, release) in enumerate(turns):
        for ahead, _ in turns[number : number + 2]:
            claim = frames.claim_ahead(np.array(ahead), most, 1)
            assert int(frames._is_ahead.sum()) <= most
            for unit, frame in zip(claim.unit, claim.frame, strict=True):
                frames.view(frame, 100)[:1] = bytes([unit])
                frames.settle(frame, ready=True)
        held.append((wanted, fill(frames, wanted)))
        for units, claim in held:
            for unit, frame in zip(units, claim.frames.tolist(), strict=True):
                assert frame == -1 or frames.memory[frame * 128] == unit
        if release:
            frames.release(held.pop(0)[1].frames)
    for _, claim in held:
        frames.release(claim.frames)
    assert not frames._holders.any()
    taken = frames._of_unit[frames._of_unit >= 0].tolist()
    assert len(taken) == len(set(taken))


def test_where_each_unit_has_room_what_is_there_needs_no_claim():
    frames = Frames(units_of(4, unusable=(3,)), 3, keeps=True)
    assert frames.at_hand(np.array([0, 1])) is None
    held = fill(frames, [0, 1, 0])
    assert frames.at_hand(np.array([1, 0, 0])).tolist() == held.frames[[1, 0, 0]].tolist()
    assert frames.at_hand(np.array([1, 2])) is None  # not read yet
    assert frames.at_hand(np.array([1, 3])) is None  # never will be
    frames.claim(np.array([2]), never, lambda: True)
    assert frames.at_hand(np.array([2])) is None  # is being read
    frames.forget(held.frames[:1])
    assert frames.at_hand(np.array([0])) is None
    assert frames.at_hand(np.array([1])) is not None


def test_where_a_unit_may_lose_its_frame_each_batch_claims():
    frames = Frames(units_of(4), 3, keeps=True)
    fill(frames, [0, 1])
    assert frames.at_hand(np.array([0, 1])) is None


def test_what_was_read_ahead_and_is_at_hand_makes_room_to_read_more_ahead():
    frames = Frames(units_of(4), 4, keeps=True)
    ahead = frames.claim_ahead(np.array([0, 1, 2]), 2, due=1)
    assert (ahead.unit, ahead.is_all) == ([0, 1], False)
    for frame in ahead.frame:
        frames.settle(frame, ready=True)
    assert frames.claim_ahead(np.array([2]), 2, due=1).unit == []
    assert frames.at_hand(np.array([0, 1, 1])) is not None
    assert frames.claim_ahead(np.array([2]), 2, due=1).unit == [2]
