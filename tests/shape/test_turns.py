"""Two workers run tests side by side, but nothing beside one that is to be alone; any report can be sent by them."""

import fcntl
import threading
from pathlib import Path

import pytest


@pytest.fixture
def conftest(request):
    return request.config.pluginmanager.get_plugin(str(Path(__file__).parents[1] / "conftest.py"))


@pytest.fixture
def enter(conftest, tmp_path):
    """enter(alone=...) is the turns of another worker, which has entered."""
    gate, room = tmp_path / "gate", tmp_path / "room"

    def enter(*, alone):
        turns = conftest.Turns(gate, room)
        turns.enter(alone=alone)
        return turns

    return enter


def is_held(path):
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_ordinary_tests_run_side_by_side(enter):
    first, second = enter(alone=False), enter(alone=False)
    for turns in (first, second):
        turns.leave(stay_alone=False)
    enter(alone=True).leave(stay_alone=False)


def test_one_that_is_to_be_alone_waits_for_all_and_nobody_overtakes_it(enter, tmp_path, until):
    there, order = enter(alone=False), []

    def come(*, alone):
        turns = enter(alone=alone)
        order.append(alone)
        turns.leave(stay_alone=False)

    waiting = [threading.Thread(target=come, kwargs={"alone": alone}) for alone in (True, False)]
    waiting[0].start()
    until(lambda: is_held(tmp_path / "gate"))
    waiting[1].start()
    waiting[1].join(0.02)
    assert order == []
    there.leave(stay_alone=False)
    for thread in waiting:
        thread.join(10)
    assert order == [True, False]


def test_two_in_a_row_that_are_to_be_alone_let_nobody_in_between(enter, tmp_path):
    turns = enter(alone=True)
    turns.leave(stay_alone=True)
    assert is_held(tmp_path / "room")
    turns.enter(alone=True)
    turns.leave(stay_alone=False)
    assert not is_held(tmp_path / "room")
    enter(alone=False)


def test_a_report_that_shows_what_is_no_utf_8_is_sent_with_backslashes(conftest):
    report = {"sections": [("log", "in r\udce9sum")], "when": "call", "duration": 0.5, "longrepr": None}
    sent = {"sections": [("log", "in r\\udce9sum")], "when": "call", "duration": 0.5, "longrepr": None}
    assert conftest.encodable(report) == sent
