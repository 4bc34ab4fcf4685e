"""The live node: what is not there is a value."""

from __future__ import annotations

import os

import pytest

from stoker.doctor.node import LiveNode, Missing


@pytest.fixture
def node(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "x").write_bytes(b"abc\xff")
    (tmp_path / "sys").mkdir()
    (tmp_path / "sys" / "link").symlink_to("../proc/x")
    (tmp_path / "sys" / "out").symlink_to("/etc")
    return LiveNode(tmp_path)


def test_a_file_is_text_whatever_it_holds_and_no_more_than_asked(node):
    assert node.read("/proc/x") == "abc\ufffd"
    assert node.read("/proc/x", 2) == "ab"
    assert node.read_tail("/proc/x", 2) == "c\ufffd"


@pytest.mark.parametrize("path", ["/none", "/proc/x/y", "/proc", "/a\0b", "/" + "x" * 300])
def test_what_cannot_be_read_is_missing_with_a_reason(node, path):
    found = node.read(path)
    assert isinstance(found, Missing)
    assert found.reason
    assert isinstance(node.listing("/none"), Missing)
    assert isinstance(node.stat("/a\0b"), Missing)
    assert isinstance(node.space("/none"), Missing)


def test_links_are_followed_within_the_folder(node):
    assert node.link("/sys/link") == "/proc/x"
    assert isinstance(node.link("/sys/out"), Missing)
    assert node.listing("/sys") == ("link", "out")


def test_no_command_is_run_for_a_folder(node):
    assert isinstance(node.run(["true"]), Missing)
    assert node.environment() == {}


def test_commands_that_are_not_there_or_fail_are_answers():
    live = LiveNode()
    assert live.run(["no-such-command-at-all"]) == Missing("no such command")
    found = live.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (found.stdout, found.stderr, found.status) == ("out\n", "err\n", 3)


def test_a_pipe_without_a_writer_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert LiveNode(tmp_path).read("/pipe") == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_rights_is_denied(tmp_path):
    (tmp_path / "x").write_text("x")
    (tmp_path / "x").chmod(0)
    found = LiveNode(tmp_path).read("/x")
    assert isinstance(found, Missing)
    assert found.denied


def test_everything_denied_is_answered_by_every_check(make_node):
    from stoker.doctor.check import Target
    from stoker.doctor.diagnose import diagnose

    class Denied(make_node):
        def read(self, path, limit_bytes=0):
            return Missing("permission denied")

        read_tail = listing = link = stat = space = read

        def run(self, argv):
            return Missing("permission denied")

        def host(self):
            return Missing("permission denied")

    found = diagnose(Denied(), [Target("/data"), Target()])
    assert found
    assert [f for f in found if f.id == "check-broke"] == []
    assert [f for f in found if str(f.severity) in ("fail", "ok")] == []
