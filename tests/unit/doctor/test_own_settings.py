"""stoker's settings as a node shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.config import load_config
from stoker.doctor.node import LiveNode, PathStat
from stoker.doctor.own_settings import read_settings

FILE = "/u/.config/stoker/stoker.toml"
MINE = PathStat("file", 0o600, uid=1000)


def node_with(make_node, text=None, stat=MINE, **variables):
    files = {} if text is None else {FILE: text}
    return make_node(files=files, stats={FILE: stat}, variables={"HOME": "/u", **variables})


def test_file_and_environment_are_read_as_a_run_would(make_node):
    text = '[tiers.nvme]\npath = "/mnt/a"\n[feed]\nthreads = 8\n'
    found = read_settings(node_with(make_node, text, STOKER_NVME="/mnt/b"))
    assert (found.nvme, found.config.feed.threads) == (Path("/mnt/b"), 8)
    assert [str(f.severity) for f in found.findings] == ["info"]


def test_without_settings_the_default_place_counts(make_node):
    assert read_settings(node_with(make_node)).nvme == Path("/u/.cache/stoker")
    assert read_settings(make_node()).nvme is None


@pytest.mark.parametrize(
    "text", ["not toml", "[tiers]\nnmve = 1\n", "[feed]\nthreads = 0\n", "[feed]\nthreads = 'x'\n", "a = [[[[" * 500]
)
def test_settings_that_are_wrong_fail_and_nothing_breaks(make_node, text):
    found = read_settings(node_with(make_node, text))
    assert [(f.id, str(f.severity)) for f in found.findings] == [("own-settings", "fail")]
    assert found.findings[0].evidence[0].line


def test_a_variable_that_is_wrong_fails(make_node):
    found = read_settings(node_with(make_node, STOKER_FEED_THREADS="many"))
    assert [str(f.severity) for f in found.findings] == ["fail"]


def test_a_file_that_others_could_have_written_is_passed_over(make_node):
    for stat in (PathStat("file", 0o600, uid=7), PathStat("file", 0o622, uid=1000)):
        found = read_settings(node_with(make_node, "[feed]\nthreads = 8\n", stat))
        assert found.config.feed.threads != 8
        assert [str(f.severity) for f in found.findings] == ["warn"]


def test_a_file_that_is_named_must_be_there(make_node):
    found = read_settings(node_with(make_node, STOKER_CONFIG="/nowhere.toml"))
    assert [str(f.severity) for f in found.findings] == ["fail"]


def test_the_live_node_gives_what_the_library_reads(tmp_path, monkeypatch):
    (tmp_path / "stoker.toml").write_text('[tiers.nvme]\npath = "here"\n[checkpoint]\nengine = "buffered"\n')
    (tmp_path / "stoker.toml").chmod(0o600)
    monkeypatch.chdir(tmp_path)
    environ = {"PWD": str(tmp_path), "HOME": str(tmp_path)}
    monkeypatch.setattr(LiveNode, "environment", lambda _: environ)
    node = LiveNode()
    found, real = read_settings(node).config, load_config(environ, tmp_path, uid=node.host().uid)
    assert (found.tiers, found.checkpoint) == (real.tiers, real.checkpoint)
