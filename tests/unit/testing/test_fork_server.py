"""Children of a warm process are killed where they should be, and say what went wrong where they were not."""

import os

import pytest

from stoker.testing import crash
from stoker.testing.fault_server import FaultServer
from stoker.testing.fork_server import ForkServer

SCRIPT = """
import os, time
from pathlib import Path
from stoker import crash
from stoker.store.open import open_store
from stoker.values import Key

def note(folder):
    for number in range(100):
        Path(folder, str(number)).write_bytes(b"")
        crash.point("noted")

def wait(path):
    Path(path).write_bytes(b"")
    time.sleep(50)

def fail(text):
    raise ValueError(text)

def put(url):
    store = open_store(url)
    store.write(Key("a"), b"1")
    assert store.read(Key("a")) == b"1"

def vanish(_):
    os._exit(7)
"""


@pytest.fixture(scope="module")
def bucket():
    with FaultServer() as server:
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory, bucket):
    script = tmp_path_factory.mktemp("script") / "victims.py"
    script.write_text(SCRIPT)
    with ForkServer(script, os.environ | bucket.environ) as server:
        yield server


def test_a_child_comes_to_its_end(server, tmp_path):
    assert server.run("note", str(tmp_path)) == (0, 0)
    assert len(list(tmp_path.iterdir())) == 100


def test_a_child_is_killed_at_a_named_point(server, tmp_path):
    assert server.run("note", str(tmp_path), spec="noted:3").status == crash.KILLED
    assert len(list(tmp_path.iterdir())) == 3


def test_a_child_is_killed_at_a_call_and_the_same_number_is_the_same_place(server, tmp_path):
    whole = server.run("note", str(tmp_path), kill_at_call=0)
    assert whole.status == 0
    assert whole.calls > 400
    counts = []
    for number in (whole.calls // 2, whole.calls // 2, whole.calls - 5):
        folder = tmp_path / f"killed-{len(counts)}"
        folder.mkdir()
        assert server.run("note", str(folder), kill_at_call=number) == (crash.KILLED, number)
        counts.append(len(list(folder.iterdir())))
    assert 0 < counts[0] == counts[1] < counts[2]


def test_a_child_is_killed_when_the_caller_says_so(server, tmp_path):
    begun = tmp_path / "begun"
    assert server.run("wait", str(begun), kill_when=begun.exists).status == crash.KILLED


def test_a_child_that_ends_first_is_not_killed(server, tmp_path):
    assert server.run("note", str(tmp_path), kill_when=lambda: False).status == 0


def test_what_a_child_says_when_it_fails_is_passed_on(server):
    with pytest.raises(AssertionError, match="ValueError: because"):
        server.run("fail", "because")
    with pytest.raises(AssertionError, match="ended with 7"):
        server.run("vanish", "")


def test_a_child_uses_an_object_store_as_often_as_there_are_children(server, bucket):
    for number in range(2):
        assert server.run("put", f"s3://{bucket.bucket}/{number}").status == 0
    assert bucket.keys() == ["0/a", "1/a"]


def test_a_script_that_cannot_be_loaded_is_an_error(tmp_path):
    script = tmp_path / "wrong.py"
    script.write_text("raise SystemExit(3)")
    with pytest.raises(AssertionError, match="ended with 3"):
        ForkServer(script, os.environ)
