"""Crash points cost nothing until asked for, kill where they are told to, and the tools around them tell the truth."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from stoker import crash
from stoker.crash import Event
from stoker.testing import crash as suite


def three_points() -> None:
    for name in ("crash-test-a", "crash-test-b", "crash-test-a"):
        crash.point(name)


def test_a_point_does_nothing_unless_armed_or_watched():
    assert crash._crash.active is False
    three_points()


def test_points_and_durable_operations_are_traced_in_order():
    def work() -> None:
        crash.point("crash-test-a")
        crash.durable("fsync", "file")
        crash.point("crash-test-b")

    expected = [Event("point", "crash-test-a"), Event("durable", "fsync", "file"), Event("point", "crash-test-b")]
    assert suite.trace(work) == expected
    assert suite.trace(work) == expected
    work()
    assert crash._crash.trace is None
    assert crash._crash.active is False


def test_a_trace_ends_when_the_work_fails():
    def work() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        suite.trace(work)
    assert crash._crash.trace is None


def test_points_passed_by_many_threads_are_all_traced():
    def work() -> None:
        threads = [threading.Thread(target=three_points) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert len(suite.trace(work)) == 24


@pytest.mark.crash
@pytest.mark.parametrize(
    ("spec", "status"),
    [
        ("crash-test-a", suite.KILLED),
        ("crash-test-a:2", suite.KILLED),
        ("crash-test-b", suite.KILLED),
        ("*:3", suite.KILLED),
        ("crash-test-a:3", 0),
        ("crash-test-b:2", 0),
        ("*:4", 0),
        ("crash-test", 0),
        (None, 0),
    ],
)
def test_a_process_dies_at_the_pass_it_was_told(spec, status):
    assert suite.run_killed(three_points, spec) == status


@pytest.mark.crash
def test_a_killed_child_has_done_what_stands_before_the_point_and_nothing_after(tmp_path):
    def work() -> None:
        for number in range(5):
            (tmp_path / str(number)).touch()
            crash.point("crash-test-step")

    for number in range(1, 6):
        for path in tmp_path.iterdir():
            path.unlink()
        assert suite.run_killed(work, f"crash-test-step:{number}") == suite.KILLED
        assert len(list(tmp_path.iterdir())) == number


@pytest.mark.crash
def test_the_environment_variable_arms_a_process():
    code = (
        "from stoker import crash\ncrash.point('crash-test-a'); print('alive', flush=True); crash.point('crash-test-a')"
    )
    for spec, signalled, said in (
        ("crash-test-a", True, b""),
        ("crash-test-a:2", True, b"alive\n"),
        ("*:3", False, b"alive\n"),
        ("", False, b"alive\n"),
    ):
        env = os.environ | {"STOKER_CRASH": spec}
        done = subprocess.run([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, check=False)
        assert done.returncode == (-signal.SIGKILL if signalled else 0), spec
        assert done.stdout == said, spec


@pytest.mark.crash
def test_a_child_that_fails_is_reported_with_what_it_said():
    def work() -> None:
        print("on stderr by name", file=sys.stderr)
        os.write(2, b"on stderr by number\n")
        raise LookupError("the reason")

    with pytest.raises(AssertionError) as caught:
        suite.run_killed(work, "crash-test-a")
    for part in ("'crash-test-a'", "ended with 1", "by name", "by number", "LookupError: the reason"):
        assert part in str(caught.value)


@pytest.mark.crash
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, pytest.fail.Exception])
def test_a_child_never_comes_back_into_the_tests(kind):
    def work() -> None:
        raise kind("out")

    parent = os.getpid()
    with pytest.raises(AssertionError, match="ended with 1"):
        suite.run_killed(work, None)
    assert os.getpid() == parent


@pytest.mark.crash
def test_a_child_that_dies_of_something_else_is_reported():
    with pytest.raises(AssertionError, match=f"ended with -{int(signal.SIGTERM)}"):
        suite.run_killed(lambda: os.kill(os.getpid(), signal.SIGTERM), None)


@pytest.mark.crash
def test_a_child_that_hangs_is_ended_by_its_deadline(monkeypatch):
    monkeypatch.setattr(suite, "DEADLINE_S", 1)
    with pytest.raises(AssertionError, match="took more than 1 s"):
        suite.run_killed(lambda: time.sleep(30), None)


def test_every_pass_of_any_point_is_one_spec():
    assert list(suite.every_pass(suite.trace(three_points))) == ["*:1", "*:2", "*:3"]
    assert list(suite.every_pass([])) == []


POINT = Event("point", "crash-test-a")


@pytest.mark.parametrize(
    "events",
    [
        [],
        [POINT],
        [Event("durable", "fsync", "x")],
        [Event("durable", "fsync", "x"), POINT, Event("durable", "rename", "y")],
    ],
)
def test_durable_operations_with_points_between_are_accepted(events):
    suite.assert_point_between_durables(events)


def test_two_durable_operations_without_a_point_between_are_named():
    events = [POINT, Event("durable", "fsync", "x"), Event("durable", "rename", "y"), POINT]
    with pytest.raises(AssertionError, match="between fsync of 'x' and rename of 'y'"):
        suite.assert_point_between_durables(events)


def test_points_are_found_in_the_source(tmp_path):
    (tmp_path / "room").mkdir()
    (tmp_path / "a.py").write_text('crash.point("b-two")\nother.point("no")\npoint("no")\n"crash.point(\'no\')"\n')
    (tmp_path / "room/b.py").write_text('def f():\n    if x:\n        crash.point("a-one")\n')
    assert suite.points(tmp_path) == ["a-one", "b-two"]


@pytest.mark.parametrize(
    "call", ["crash.point(name)", 'crash.point(f"a-{x}")', "crash.point()", 'crash.point("a", "b")']
)
def test_a_point_whose_name_is_no_literal_is_refused(tmp_path, call):
    (tmp_path / "a.py").write_text(f"x = 1\n{call}\n")
    with pytest.raises(AssertionError, match=r"not a literal: a\.py:2"):
        suite.points(tmp_path)


def test_a_name_in_two_places_is_refused(tmp_path):
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text('crash.point("a-one")\n')
    with pytest.raises(AssertionError, match=r"'a-one' stands in two places: a\.py:1 and b\.py:1"):
        suite.points(tmp_path)
