"""Between feeder and training: one batch is begun ahead, if it is ready, and never in the way of the one asked for."""

import numpy as np
import pytest

from stoker.feed.batch import BYTES, Field, InReply, WireBatch
from stoker.feed.deliver import Handover
from stoker.values import StageTimes


def wire(step):
    keys = Field("sample_keys", BYTES, InReply(b"ab"), row_offsets=np.array([0, 1, 2]))
    valid = np.array([True, False])
    return WireBatch(step, 0, np.zeros(1, np.uint8), valid, (), keys, StageTimes(1, 2, 3, 4), 100 + step)


class FakeFeeder:
    def __init__(self):
        self.ready = set()
        self.asked = []
        self.watchers = []

    def request(self, step):
        self.asked.append(step)
        return wire(step)

    def is_ready(self, step):
        return step in self.ready

    def watch(self, watcher):
        self.watchers.append(watcher)


class FakeDelivery:
    looks_ahead = True

    def __init__(self):
        self.told = []

    def count(self):
        return {}

    def enter(self):
        self.told.append("enter")

    def begin(self, batch):
        self.told.append(("begin", batch.step))
        return batch.step

    def finish(self, begun):
        self.told.append(("finish", begun))
        return f"batch {begun}"

    def close(self):
        self.told.append("close")


@pytest.fixture
def feeder():
    return FakeFeeder()


@pytest.fixture
def delivery():
    return FakeDelivery()


def test_without_a_delivery_training_gets_the_batch_as_it_is(feeder):
    given = Handover(feeder, 4, None).take(2)
    assert (given.batch.step, given.epoch, given.sample_count, given.nbytes) == (2, 0, 1, 102)
    assert given.timing == StageTimes(1, 2, 3, 4)
    assert given.batch.sample_keys == ["a", "b"]
    assert feeder.watchers == []


def test_what_is_not_ready_is_not_begun(feeder, delivery):
    handover = Handover(feeder, 4, delivery)
    assert [handover.take(step).batch for step in (0, 1)] == ["batch 0", "batch 1"]
    assert feeder.asked == [0, 1]


def test_the_next_is_begun_after_this_one_is_finished(feeder, delivery):
    feeder.ready = {1, 2, 3, 4}
    handover = Handover(feeder, 4, delivery)
    given = [handover.take(step) for step in range(4)]
    assert [one.batch for one in given] == ["batch 0", "batch 1", "batch 2", "batch 3"]
    assert [one.nbytes for one in given] == [100, 101, 102, 103]
    assert feeder.asked == [0, 1, 2, 3]  # each once, and none beyond the last
    assert delivery.told[:4] == ["enter", ("begin", 0), ("finish", 0), ("begin", 1)]
    assert delivery.told[4:7] == ["enter", ("finish", 1), ("begin", 2)]


def test_after_a_jump_what_was_begun_is_given_up(feeder, delivery):
    feeder.ready = {1}
    handover = Handover(feeder, 9, delivery)
    handover.take(0)
    assert handover.take(5).batch == "batch 5"
    assert handover.take(1).batch == "batch 1"
    assert feeder.asked == [0, 1, 5, 1]


def test_a_delivery_that_does_not_look_ahead_gets_one_at_a_time(feeder, delivery):
    feeder.ready, delivery.looks_ahead = {1, 2}, False
    handover = Handover(feeder, 4, delivery)
    handover.take(0)
    assert feeder.asked == [0]


def test_it_is_told_where_the_memory_lies_once(feeder, delivery):
    handover = Handover(feeder, 4, delivery)
    handover.take(0)
    handover.take(1)
    assert feeder.watchers == [delivery]
    handover.close()
    assert delivery.told[-1] == "close"


def test_what_is_kept_lies_in_memory_of_its_own(feeder):
    batch = Handover(feeder, 4, None).keep(3)
    assert batch.step == 3
