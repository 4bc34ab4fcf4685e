import numpy as np
import pytest

from stoker.dataset.order import OrderedBatch
from stoker.feed.outlook import Outlook


class Around:
    """What an outlook asks and tells; there is room to begin steps below `room`."""

    def __init__(self, share=4):
        self.asked = []
        self.begun = []
        self.room = 1 << 30
        self.forgotten_count = 0
        self.share = share

    def batches(self, step):
        self.asked.append(step)
        return OrderedBatch(step, 0, np.full(self.share, step), np.ones(self.share, np.bool_))

    def begin(self, ordered, due):
        if ordered.step >= self.room:
            return False
        self.begun.append((ordered.step, due))
        return True

    def forget(self):
        self.forgotten_count += 1


def take(outlook, step):
    outlook.reach(step)
    return outlook.order(step)


def outlook_of(around, step_count=10_000):
    return Outlook(around.batches, step_count, around.begin, around.forget)


def test_steps_are_begun_once_each_as_far_as_there_is_room_and_the_order_is_asked_for_each_once():
    around = Around()
    outlook = outlook_of(around)
    outlook.open()
    around.room = 6
    for step in range(40):
        assert take(outlook, step).step == step
        outlook.look()
        around.room += 1
    assert [step for step, _ in around.begun] == list(range(1, 45))
    assert [due for _, due in around.begun][:5] == [1, 2, 3, 4, 5]
    assert around.asked == list(range(46))
    assert around.forgotten_count == 0


def test_nothing_is_begun_beyond_the_last_step_or_for_the_first_batch_alone():
    around = Around()
    outlook = outlook_of(around, step_count=5)
    take(outlook, 0)
    outlook.look()
    assert around.begun == []
    outlook.open()
    outlook.look()
    assert [step for step, _ in around.begun] == [1, 2, 3, 4]


@pytest.mark.parametrize(("share", "steps"), [(4, 1024), (1 << 16, 5), (1 << 20, 1)])
def test_what_is_kept_of_steps_to_come_is_bounded(share, steps):
    around = Around(share)
    outlook = outlook_of(around)
    take(outlook, 0)
    outlook.open()
    for _ in range(100):
        outlook.look()
    assert len(outlook._seen) == len(around.begun) == steps - 1


@pytest.mark.parametrize("step", [500, 5])
def test_after_a_jump_what_was_begun_is_forgotten_and_the_next_batch_comes_first(step):
    around = Around()
    outlook = outlook_of(around)
    outlook.open()
    around.room = 150
    for before in range(100, 120):
        take(outlook, before)
        outlook.look()
    forgotten_count, around.room, around.begun = around.forgotten_count, 1 << 30, []
    assert take(outlook, step).step == step
    assert around.forgotten_count == forgotten_count + 1
    outlook.look()
    assert around.begun == []
    outlook.open()
    outlook.look()
    assert around.begun[0] == (step + 1, 1)


def test_a_batch_that_is_made_again_is_no_jump():
    around = Around()
    outlook = outlook_of(around)
    for step in (0, 1, 2, 3, 2, 4):
        take(outlook, step)
    assert around.forgotten_count == 0


def test_steps_that_are_passed_over_are_not_kept():
    around = Around()
    outlook = outlook_of(around)
    take(outlook, 0)
    outlook.open()
    outlook.look()
    assert take(outlook, 20).step == 20
    assert around.forgotten_count == 0
    assert min(outlook._seen) == 20


def test_steps_that_are_planned_long_before_they_are_reached_are_begun_all_the_same():
    around = Around()
    outlook = outlook_of(around)
    outlook.open()
    for step in range(64):
        outlook.reach(step)
        if step % 16 == 0:
            assert [outlook.order(each).step for each in range(step, step + 16)] == list(range(step, step + 16))
        outlook.look()
    assert [step for step, _ in around.begun][:64] == list(range(1, 65))
    assert around.forgotten_count == 0
