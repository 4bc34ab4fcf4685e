import errno
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from stoker.errors import CapacityError, UnsupportedError
from stoker.io import child as child_module
from stoker.io.child import Child

# A module that answers: what it is told to do, it does.
MODULE = """
import os, sys, time, signal
from stoker.io.entry import enter

def main():
    channel = enter(sys.argv[1:])
    try:
        while True:
            word = bytes(channel.receive(None)[0]).decode()
            if word == "say":
                print("some last words", file=sys.stderr)
            elif word == "exit":
                os._exit(7)
            elif word == "crash":
                os.abort()
            elif word == "hang":
                while True:
                    time.sleep(1)
            channel.send(repr((os.getpgid(0) == os.getpid(), os.getppid(), sys.stdin.read(), word,
                               signal.getsignal(signal.SIGINT) is signal.SIG_IGN)).encode())
    except EOFError:
        os._exit(0)

main()
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start the module above; ended at the end."""
    (tmp_path / "answering.py").write_text(MODULE)
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    made = []

    def start(environ=None, **options):
        made.append(Child.start("answering", environ, **options))
        return made[-1]

    yield start
    for child in made:
        child.end(0)
        child.close()


def ask(child, word):
    child.channel.send(word.encode())
    return bytes(child.channel.receive(30)[0]).decode()


@pytest.mark.parametrize("dies_with_thread", [False, True])
def test_a_child_answers_in_a_group_of_its_own_without_stdin_and_deaf_to_ctrl_c(start, dies_with_thread):
    child = start(dies_with_thread=dies_with_thread)
    assert ask(child, "hello") == repr((True, os.getpid(), "", "hello", True))
    os.kill(child.pid, signal.SIGINT)
    assert "again" in ask(child, "again")


def test_it_ends_when_it_is_told_and_is_no_zombie_then(start):
    child = start()
    ask(child, "hello")
    begin = time.monotonic()
    assert str(child.end(10)) == "exit code 0"
    assert str(child.end(10)) == "exit code 0"
    assert time.monotonic() - begin < 5
    assert not Path(f"/proc/{child.pid}").exists()


@pytest.mark.parametrize(("word", "how"), [("exit", "exit code 7"), ("crash", "SIGABRT")])
def test_how_it_ended_is_told(start, word, how):
    child = start()
    child.channel.send(word.encode())
    with pytest.raises(EOFError):
        child.channel.receive(30)
    assert str(child.end(10)) == how


def test_one_that_does_not_end_is_killed(start):
    child = start()
    child.channel.send(b"hang")
    assert str(child.end(0.05)) == "SIGKILL"


def test_its_last_words_are_kept_and_shown(start, capfd):
    child = start()
    ask(child, "say")
    child.end(10)
    assert child.last_words() == "some last words"
    assert capfd.readouterr().err == "some last words\n"
    child.close()
    assert child.last_words() == ""


def test_of_a_module_that_cannot_be_loaded_the_last_words_say_why(start, tmp_path):
    (tmp_path / "answering.py").write_text("import no_such_module")
    child = start()
    assert str(child.end(10)) == "exit code 1"
    assert child.last_words().endswith("No module named 'no_such_module'")


def test_a_stopped_child_is_known_as_such(start):
    child = start()
    ask(child, "hello")
    assert not child.is_stopped()
    os.kill(child.pid, signal.SIGSTOP)
    deadline = time.monotonic() + 10
    while not child.is_stopped():
        assert time.monotonic() < deadline
    os.kill(child.pid, signal.SIGCONT)


def test_a_stopped_child_is_not_waited_for_when_it_is_to_end(start, monkeypatch):
    child = start()
    ask(child, "hello")
    os.kill(child.pid, signal.SIGSTOP)
    deadline = time.monotonic() + 10
    while not child.is_stopped():
        assert time.monotonic() < deadline
    with monkeypatch.context() as patch:
        patch.setattr(child, "_wait", lambda timeout_s: pytest.fail(f"waited for {timeout_s} s"))
        assert str(child.end(60)) == "SIGKILL"


def test_one_that_is_let_go_ends_and_is_forgotten(start):
    child = start()
    ask(child, "hello")
    child.close()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child.pid}").exists():
        assert time.monotonic() < deadline
        child_module._reap()
        time.sleep(0.002)


def test_without_process_descriptors_it_is_waited_for_all_the_same(start, monkeypatch):
    def refuse(pid):
        raise OSError

    monkeypatch.setattr(os, "pidfd_open", refuse)
    child = start()
    ask(child, "hello")
    assert str(child.end(10)) == "exit code 0"


def test_variables_are_set_for_it_that_are_not_set_already(start, tmp_path, monkeypatch):
    (tmp_path / "answering.py").write_text(MODULE.replace("sys.stdin.read()", 'os.environ["STOKER_A"]'))
    assert "'ours'" in ask(start({"STOKER_A": "ours"}), "hello")
    monkeypatch.setenv("STOKER_A", "theirs")
    assert "'theirs'" in ask(start({"STOKER_A": "ours"}), "hello")


@pytest.mark.parametrize("name", ["", None])
def test_without_an_interpreter_it_is_refused(start, monkeypatch, name):
    monkeypatch.setattr(sys, "executable", name)
    with pytest.raises(UnsupportedError, match="no Python interpreter"):
        start()


def test_a_frozen_program_is_no_interpreter(start, monkeypatch):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(UnsupportedError, match="no Python interpreter"):
        start()


def test_what_the_system_refuses_is_told(start, monkeypatch):
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  a count
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(UnsupportedError, match="cannot start a child process: no such file") as caught:
        start()
    assert caught.value.where == "/no/such/python"
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize("place", ["socket.socketpair", "os.memfd_create", "subprocess.Popen"])
def test_without_descriptors_left_the_limit_is_named_and_none_is_lost(start, monkeypatch, place):
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  a count

    def refuse(*arguments, **options):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(place, refuse)
    with pytest.raises(CapacityError, match="too many open files") as caught:
        start()
    assert "ulimit -n" in caught.value.hint
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize(
    ("content", "mode", "hint"),
    [
        (None, 0, "was the environment moved, or replaced"),
        (b"\0\0\0\0", 0o700, "sys.executable is no program of this machine"),
        (b"#!/bin/sh\n", 0o600, "this process may not run its own interpreter"),
    ],
)
def test_an_interpreter_that_cannot_be_run_is_said_with_why(tmp_path, monkeypatch, content, mode, hint):
    place = tmp_path / "python"
    if content is not None:
        place.write_bytes(content)
        place.chmod(mode)
    monkeypatch.setattr(sys, "executable", str(place))
    with pytest.raises(UnsupportedError, match="cannot start a child process: ") as caught:
        Child.start("answering")
    assert (caught.value.where, hint in caught.value.hint) == (str(place), True)


def test_a_finder_of_modules_that_finds_no_specifications_is_passed_over(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [object(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "xxhash", raising=False)
    spec = child_module._spec_of("xxhash")
    assert spec is not None
    assert spec.name == "xxhash"


def test_what_another_thread_reaps_at_the_end_of_the_process_is_no_error(monkeypatch):
    class Process:
        returncode = None

        def poll(self):
            child_module._running.clear()  # as a thread that lets go of a feeder does meanwhile

    processes = [Process(), Process()]
    monkeypatch.setattr(child_module, "_running", dict(enumerate(processes)))
    child_module._reap_all()
    assert [each.returncode for each in processes] == [0, 0]
