"""A capture answers as the node did, but for what is private."""

from __future__ import annotations

import json

from stoker.doctor.capture import CapturedNode, RecordingNode
from stoker.doctor.node import Host, Missing, Output, PathStat, Space
from stoker.doctor.redact import Redactor


def test_a_capture_answers_as_the_node_did_with_private_things_replaced(make_node, tmp_path):
    node = make_node(
        files={"/proc/a": "peer 10.1.2.3\n", "/sys/b": Missing("permission denied")},
        commands={"tool -x": Output("10.1.2.3 said\n", "warned", 1)},
        links={"/sys/l": "/sys/real"},
        stats={"/dev/x": PathStat("character", special="1:3")},
        spaces={"/mnt": Space(10, 5)},
        variables={"CUFILE_LOGGING_LEVEL": "INFO", "MY_PRIVATE": "x", "HOME": "/data/here", "HOMEPAGE": "x"},
    )
    recording = RecordingNode(node)
    for path in ("/proc/a", "/sys/b", "/none"):
        recording.read(path)
    recording.run(["tool", "-x"])
    recording.run(["none"])
    recording.link("/sys/l")
    recording.listing("/proc")
    recording.stat("/dev/x")
    recording.space("/mnt")
    recording.environment()
    recording.host()
    assert recording.write(tmp_path / "c", Redactor(), ["/mnt"]) == 3
    again = CapturedNode(tmp_path / "c")
    assert again.targets == ("/mnt",)
    assert again.read("/proc/a") == "peer 192.0.2.1\n"
    assert again.read("/sys/b") == Missing("permission denied")
    assert again.read("/none") == Missing("no such file")
    assert again.read("/never/asked") == Missing("not in the capture")
    assert again.run(["tool", "-x"]) == Output("192.0.2.1 said\n", "warned", 1)
    assert again.run(["none"]) == Missing("no such command")
    assert again.link("/sys/l") == "/sys/real"
    assert again.listing("/proc") == ("a",)
    assert again.stat("/dev/x") == PathStat("character", special="1:3")
    assert again.space("/mnt") == Space(10, 5)
    assert again.environment() == {"CUFILE_LOGGING_LEVEL": "INFO", "HOME": "/data/here"}
    assert again.host() == Host(1000, "x86_64", "6.8.0", 64)
    assert again.clock_s() == 1.8e9


def test_secrets_are_known_by_their_key_also_in_the_index(make_node, tmp_path):
    recording = RecordingNode(make_node(variables={"STOKER_S3_SECRET_KEY": "hush"}))
    recording.environment()
    recording.write(tmp_path / "c", Redactor(), [])
    assert "hush" not in (tmp_path / "c" / "capture.json").read_text()


def test_a_folder_with_files_alone_is_a_capture(tmp_path):
    (tmp_path / "root" / "proc").mkdir(parents=True)
    (tmp_path / "root" / "proc" / "x").write_text("1\n")
    node = CapturedNode(tmp_path)
    assert node.read("/proc/x") == "1\n"
    assert node.listing("/proc") == ("x",)
    assert node.readable("/proc/x")
    assert isinstance(node.host(), Missing)


def test_a_broken_index_is_taken_for_none(tmp_path):
    for text in ("{", "[]", json.dumps({"stat": [], "commands": 7, "host": {"x": 1}, "targets": {}}), "[" * 100000):
        (tmp_path / "capture.json").write_text(text)
        node = CapturedNode(tmp_path)
        assert isinstance(node.stat("/x"), Missing)
        assert isinstance(node.run(["x"]), Missing)
        assert isinstance(node.host(), Missing)
        assert node.targets == ()
