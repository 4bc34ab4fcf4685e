from types import SimpleNamespace

import numpy as np
import pytest

from stoker.errors import DatasetError
from stoker.feed.ahead import Planned, PlansAhead


class Maker:
    """Plans that say nothing but their step; each takes `each_ns` of a clock, and steps in `bad` have none."""

    def __init__(self, parts=64, each_ns=1000):
        self.parts = parts
        self.each_ns = each_ns
        self.now_ns = 0
        self.calls = []
        self.bad = set()
        self.changes = 0

    def __call__(self, steps):
        self.calls.append(list(steps))
        self.now_ns += self.each_ns * len(steps)
        for step in steps:
            if step in self.bad:
                raise DatasetError(f"step {step} cannot be planned")
        return [Planned(SimpleNamespace(step=step, sizes=np.zeros(self.parts)), (), None) for step in steps]

    def ahead(self, step_count=1000):
        return PlansAhead(self, lambda: self.changes, step_count, clock_ns=lambda: self.now_ns)


def take(plans, step):
    planned, cost_ns = plans.find(step)
    assert planned.plan.step == step
    plans.drop(step)
    return cost_ns


def test_the_first_step_is_planned_alone_and_then_ever_more_at_once():
    make = Maker()
    plans = make.ahead()
    for step in range(5, 60):
        take(plans, step)
    assert [len(call) for call in make.calls] == [1, 2, 4, 8, 16, 16, 16]
    assert [step for call in make.calls for step in call] == list(range(5, 68))


def test_after_a_jump_the_step_that_is_waited_for_is_planned_alone():
    make = Maker()
    plans = make.ahead()
    for step in (0, 1, 2, 40, 41, 3):
        take(plans, step)
    assert make.calls == [[0], [1, 2], [40], [41, 42], [3]]


def test_a_step_that_finds_no_slot_keeps_its_plan():
    make = Maker()
    plans = make.ahead()
    assert plans.find(0) is plans.find(0)
    assert make.calls == [[0]]


def test_no_more_steps_are_planned_than_there_are_and_few_of_many_reads():
    make = Maker()
    plans = make.ahead(step_count=6)
    for step in range(6):
        take(plans, step)
    assert make.calls == [[0], [1, 2], [3, 4, 5]]
    make = Maker(parts=1000)
    plans = make.ahead()
    for step in range(7):
        take(plans, step)
    assert max(map(len, make.calls)) == 2


def test_plans_that_are_out_of_date_are_made_anew():
    make = Maker()
    plans = make.ahead()
    for step in range(4):
        take(plans, step)
    make.changes += 1
    take(plans, 4)
    assert make.calls == [[0], [1, 2], [3, 4, 5, 6], [4]]


def test_an_error_is_told_at_its_own_step_and_not_before():
    make = Maker()
    make.bad = {5}
    plans = make.ahead()
    for step in range(5):
        take(plans, step)
    with pytest.raises(DatasetError, match="step 5"):
        plans.find(5)
    make.bad = set()
    take(plans, 5)


def test_what_planning_took_belongs_to_the_first_step_that_may_wait_for_it():
    make = Maker()
    plans = make.ahead()
    assert [take(plans, step) for step in range(7)] == [1000, 2000, 0, 4000, 0, 0, 0]


def test_where_planning_reads_tables_slowly_no_step_waits_for_those_of_others():
    make = Maker(each_ns=6_000_000)
    plans = make.ahead()
    for step in range(4):
        take(plans, step)
    assert make.calls == [[0], [1], [2], [3]]
    make.each_ns = 1000
    for step in range(4, 8):
        take(plans, step)
    assert make.calls[4:] == [[4], [5, 6], [7, 8, 9, 10]]
