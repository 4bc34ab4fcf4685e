"""`stoker doctor gds`."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from stoker.cli.doctor import doctor
from stoker.doctor.gds_probe import cannot_probe
from stoker.doctor.node import LiveNode


def invoke(*arguments):
    result = CliRunner().invoke(doctor, ["gds", *map(str, arguments)], standalone_mode=False)
    if result.exception:
        raise result.exception
    return (result.return_value or result.exit_code), result.stdout


def test_a_path_without_a_probe_is_predicted(tmp_path):
    code, text = invoke(tmp_path, "--json")
    found = json.loads(text)
    assert found["exit_code"] == code
    assert found["gds"]["rung"] == "P0"
    assert "engine" not in found["gds"]


@pytest.mark.skipif(not cannot_probe(LiveNode()), reason="there is a GPU here")
def test_a_probe_without_a_gpu_is_unknown_at_once_and_loads_nothing(tmp_path, monkeypatch):
    import stoker.doctor.gds_probe as module

    monkeypatch.setattr(module, "run_child", lambda *_: pytest.fail("a child was started"))
    code, text = invoke(tmp_path, "--probe", "--json")
    found = json.loads(text)
    assert code == 3
    assert found["gds"]["engine"]["effective"] == "unknown"
    assert "gds-proof" in {f["id"] for f in found["findings"]}


def test_a_probe_of_a_directory_without_a_file_says_so(tmp_path, monkeypatch):
    import stoker.doctor.gds_probe as module

    monkeypatch.setattr(module, "cannot_probe", lambda _node: "")
    _, text = invoke(tmp_path, "--probe", "--json")
    assert "no file of at least 4 KiB" in json.loads(text)["gds"]["engine"]["reason"]


def test_what_the_child_saw_is_shown(tmp_path, monkeypatch):
    import stoker.doctor.gds_probe as module

    (tmp_path / "f").write_bytes(b"x" * 8192)
    monkeypatch.setattr(module, "cannot_probe", lambda _node: "")
    counted = module.ReadCounters(total=1, nvfs=1, bytes=8192)
    seen = module.Observation(module.Stage.DONE, requested_bytes=8192, returned_bytes=8192, counted=counted)
    monkeypatch.setattr(module, "run_child", lambda path: seen if path.name == "f" else None)
    _, text = invoke(tmp_path, "--probe", "--json")
    found = json.loads(text)["gds"]
    assert (found["rung"], found["engine"]["effective"]) == ("P2", "gds")
    assert found["observation"]["counted"]["nvfs"] == 1
