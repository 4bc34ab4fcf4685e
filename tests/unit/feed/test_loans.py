"""What training lets go is told to the feeder: several loans at once, but never so many that it lacks memory."""

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.feed import loans as loans_module
from stoker.feed.loans import Loan, Loans
from stoker.feed.wire import Release, decode_from_trainer


class FakeChannel:
    def __init__(self):
        self.takes = True
        self.told = []

    def post(self, message):
        if self.takes:
            self.told.append(decode_from_trainer(message))
        return self.takes


def lend(loans, number, nbytes=64):
    loans.live[number] = Loan(64 * number, nbytes, nbytes)


@pytest.fixture
def loans():
    made = Loans()
    made.channel = FakeChannel()
    return made


def test_until_it_is_known_how_much_memory_there_is_each_loan_is_told_at_once(loans):
    for number in range(3):
        lend(loans, number)
        loans.returned(number)
    assert loans.channel.told == [Release([0]), Release([1]), Release([2])]
    assert (loans.live, loans.untold) == ({}, {})


def test_with_much_memory_several_are_told_at_once(loans):
    loans.adapt(16 * 64)
    for number in range(10):
        lend(loans, number)
        loans.returned(number)
    assert loans.channel.told == [Release([0, 1, 2, 3]), Release([4, 5, 6, 7])]
    assert list(loans.untold) == [8, 9]
    assert (loans.nbytes, loans.taken_bytes) == (0, 128)


def test_where_training_is_about_to_wait_half_as_many_are_told(loans):
    loans.adapt(16 * 64)
    loans.tell_before_wait()
    for number in range(6):
        lend(loans, number)
        loans.returned(number)
        loans.tell_before_wait()
    assert loans.channel.told == [Release([0, 1]), Release([2, 3]), Release([4, 5])]


def test_with_very_much_memory_they_are_told_by_number(loans):
    loans.adapt(1 << 40)
    for number in range(17):
        lend(loans, number)
        loans.returned(number)
    assert [len(each.loans) for each in loans.channel.told] == [8, 8]


def test_what_training_keeps_is_not_counted_on(loans):
    for number in range(14):
        lend(loans, number)
    loans.adapt(16 * 64)
    loans.returned(3)
    assert loans.channel.told == [Release([3])]


@given(st.lists(st.integers(1, 8), min_size=1, max_size=60), st.integers(1, 32))
def test_never_is_more_than_a_quarter_of_the_free_memory_kept_from_the_feeder(sizes, slots):
    loans = Loans()
    loans.channel = FakeChannel()
    loans.adapt(slots * 64)
    for number, size in enumerate(sizes):
        lend(loans, number, 64 * size)
        loans.returned(number)
        assert sum(each.slot_bytes for each in loans.untold.values()) < slots * 64 / 4
    told = [number for each in loans.channel.told for number in each.loans]
    assert told + list(loans.untold) == list(range(len(sizes)))


def test_what_the_feeder_could_not_be_told_is_told_with_the_next(loans):
    for number in range(2):
        lend(loans, number)
    loans.channel.takes = False
    loans.returned(0)
    loans.channel.takes = True
    loans.returned(1)
    assert loans.channel.told == [Release([0, 1])]
    loans.returned(1)
    loans.tell()
    assert len(loans.channel.told) == 1


def test_a_loan_that_dies_while_others_are_told_is_not_lost(loans, monkeypatch):
    lend(loans, 0)
    lend(loans, 1)
    encode = loans_module.encode

    def dies_meanwhile(message):
        loans.returned(1)
        return encode(message)

    monkeypatch.setattr(loans_module, "encode", lambda message: (monkeypatch.undo(), dies_meanwhile(message))[1])
    loans.returned(0)
    gc.collect()
    assert sorted(number for each in loans.channel.told for number in each.loans) in ([0, 0, 1], [0, 1])
    assert loans.untold == {}


def test_while_training_waits_each_is_told_as_it_dies(loans):
    loans.adapt(16 * 64)
    for number in range(3):
        lend(loans, number)
    loans.returned(0)
    loans.is_waiting = True
    loans.returned(1)
    loans.is_waiting = False
    loans.returned(2)
    assert loans.channel.told == [Release([0, 1])]
    assert list(loans.untold) == [2]


def test_a_loan_that_dies_is_at_any_time_alive_or_not_told_yet(loans):
    class Live(dict):
        def pop(self, number, default=None):
            assert number in loans.untold
            return super().pop(number, default)

    loans.adapt(1 << 40)
    loans.live = Live()
    lend(loans, 0)
    loans.returned(0)
    assert list(loans.untold) == [0]
    assert loans.live == {}
