import numpy as np
import pytest

from stoker.dataset.order import OrderedBatch
from stoker.errors import ConfigError
from stoker.feed.placement import Placement, Work
from stoker.feed.plan import BatchPlan


def work(step=0):
    none = np.zeros((0, 0), np.int64)
    ordered = OrderedBatch(step, 0, none[0:0, 0:0].ravel(), np.zeros(0, np.bool_))
    plan = BatchPlan(ordered, (), (), (), 0, none, none, none, none, none, b"", none)
    return Work(step, plan)


@pytest.fixture
def place():
    """A placement, and what it holds: placed(nbytes) gives a work that lies there, or None."""
    made = []

    def place(prefetch_bytes, *, mapped=False):
        placement = Placement(prefetch_bytes, (False, mapped))
        made.append(placement)

        def placed(nbytes):
            one = work()
            return one if placement.place(one, nbytes) else None

        return placement, placed

    yield place
    for placement in made:
        placement.arena.close()


def test_a_batch_lies_in_its_slot_until_it_is_given_back(place):
    placement, placed = place(256)
    one = placed(200)
    assert (one.slot.nbytes, one.memory.nbytes, placement.in_flight_bytes) == (200, 200, 256)
    assert placed(1) is None
    placement.give_back(one)
    placement.give_back(one)
    assert (one.slot, one.memory, placement.in_flight_bytes, placement.peak_bytes) == (None, None, 0, 256)
    assert placed(256) is not None


def test_what_was_handed_over_is_not_in_flight_but_still_taken(place):
    placement, placed = place(256)
    one = placed(100)
    placement.hand_over(one)
    assert (placement.in_flight_bytes, placement.arena.taken_bytes) == (0, 128)


def test_a_batch_that_never_fits_is_an_error_and_one_that_does_not_fit_now_is_not(place):
    _, placed = place(256)
    with pytest.raises(ConfigError, match="prefetch_bytes is 256"):
        placed(257)
    placed(64)
    assert placed(256) is None


def test_without_a_budget_the_arena_has_room_for_a_lent_batch_and_the_next_wherever_the_first_lies(place):
    placement, placed = place(0)
    rng = np.random.default_rng(4)
    lent = placed(1000)
    for nbytes in rng.integers(1, 1001, size=500).tolist():
        following = placed(nbytes)
        assert following is not None
        placement.give_back(lent)
        lent = following
    assert placement.arena.size_bytes == 3 * 1024


def test_a_copied_batch_is_counted_and_not_in_flight(place, caplog):
    placement, placed = place(256)
    placed(256)
    for step in (1, 2):
        one = work(step)
        placement.place_apart(one, 100)
        assert (one.slot, one.memory.nbytes) == (None, 100)
    assert (placement.copied_count, placement.in_flight_bytes) == (2, 256)
    assert [record.getMessage()[:54] for record in caplog.records] == [
        "all 256 B of prefetch memory are lent: batch 1 and oth",
    ]


def test_the_first_output_is_learned_and_the_next_batches_take_room_for_theirs(place):
    placement, placed = place(1024, mapped=True)
    first = placed(64)
    assert placement.output_bytes is None
    slot, memory = placement.lend_input(first)
    assert placement.place_output(first, slot, 300).nbytes == 300
    assert (placement.output_bytes, first.slot.nbytes) == (300, 300)
    del memory
    assert placement.arena.reclaim() == 1
    assert placement.in_flight_bytes == 320
    second = placed(64)
    assert (second.slot.nbytes, second.reserved[1].nbytes) == (64, 300)
    assert placement.in_flight_bytes == 320 + 64 + 320
    assert placed(64) is None  # 320 bytes are free, 384 are needed
    assert placement.in_flight_bytes == 320 + 64 + 320
    placement.give_back(second)
    assert placement.in_flight_bytes == 320


def test_an_output_takes_the_room_kept_for_it(place):
    placement, placed = place(1024, mapped=True)
    placement._needs[1] = 128
    one = placed(64)
    kept = one.reserved[1]
    slot, memory = placement.lend_input(one)
    placement.place_output(one, slot, 100)
    assert (one.slot, one.reserved[1]) == (kept, None)
    del memory
    placement.arena.reclaim()
    assert (placement.in_flight_bytes, placement.arena.taken_bytes) == (128, 128)


def test_an_output_larger_than_the_room_kept_for_it_takes_another_place_or_is_copied(place):
    placement, placed = place(1024, mapped=True)
    placement._needs[1] = 128
    one = placed(64)
    slot, memory = placement.lend_input(one)
    placement.place_output(one, slot, 500)
    assert (one.slot.nbytes, placement.copied_count) == (500, 0)
    two = work()
    placement._needs[1] = 0
    assert placement.place(two, 64)
    slot, memory_two = placement.lend_input(two)
    assert placement.place_output(two, slot, 500).nbytes == 500
    assert (two.slot, placement.copied_count) == (None, 1)
    del memory, memory_two


def test_the_output_of_a_copied_batch_stays_in_ordinary_memory(place):
    placement, _ = place(1024, mapped=True)
    one = work()
    placement.place_apart(one, 64)
    slot, _ = placement.lend_input(one)
    assert slot is None
    placement.place_output(one, slot, 100)
    assert (one.slot, one.memory.nbytes, placement.copied_count, placement.arena.taken_bytes) == (None, 100, 1, 0)


def test_a_batch_that_is_made_gives_its_slot_back_when_the_last_view_is_gone(place):
    placement, placed = place(256)
    one = placed(200)
    memory = placement.lend(one)
    placement.hand_over(one)
    placement.hand_over(one)
    placement.give_back(one)
    assert (placement.in_flight_bytes, placement.arena.reclaim(), placement.arena.taken_bytes) == (0, 0, 256)
    del memory
    assert (placement.arena.reclaim(), placement.arena.taken_bytes) == (1, 0)


def test_a_batch_that_is_made_but_not_wanted_is_in_flight_no_more(place):
    placement, placed = place(256)
    one = placed(200)
    memory = placement.lend(one)
    placement.give_back(one)
    del memory
    assert (placement.in_flight_bytes, placement.arena.reclaim(), placement.arena.taken_bytes) == (0, 1, 0)


def test_batches_of_no_bytes_have_their_slot_too(place):
    placement, placed = place(0)
    held = [placed(0), placed(0)]
    assert [one.slot.nbytes for one in held] == [0, 0]
    assert placement.in_flight_bytes == placement.arena.taken_bytes == 128


def test_an_output_of_no_bytes_is_never_a_copy(place):
    placement, placed = place(64, mapped=True)
    one = placed(64)
    slot, _ = placement.lend_input(one)
    assert placement.place_output(one, slot, 0).nbytes == 0
    assert placement.copied_count == 0
