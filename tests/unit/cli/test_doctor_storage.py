"""`stoker doctor storage`."""

from __future__ import annotations

import json
import os

import pytest
from typer.testing import CliRunner

from stoker.cli.doctor import doctor
from stoker.doctor.storage import Plan
from stoker.errors import CapacityError, NotFound
from stoker.units import MIB


def names_in(directory):
    return sorted(entry.name for entry in directory.iterdir())


@pytest.fixture
def small(tmp_path, monkeypatch):
    import stoker.doctor.storage as module

    plan = Plan(file_bytes=8 * MIB, block_bytes=MIB, readers=2, file_count=20, commit_count=2)
    whole = module.plan_for
    monkeypatch.setattr(module, "plan_for", lambda free, where: whole(free, where, plan))
    monkeypatch.setenv("STOKER_NVME", str(tmp_path / "nvme"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def invoke(*arguments):
    result = CliRunner().invoke(doctor, list(map(str, arguments)), standalone_mode=False)
    if result.exception:
        raise result.exception
    return (result.return_value or result.exit_code), result.stdout


def test_a_measurement_is_shown_kept_and_taken_for_the_ceiling(small, tmp_path):
    code, text = invoke("storage", small, "--json")
    found = json.loads(text)
    assert found["exit_code"] == code
    assert "storage-measured" in {f["id"] for f in found["findings"]}
    (kept,) = (tmp_path / "nvme" / "doctor").iterdir()
    assert json.loads(kept.read_text()) == found["measurement"]
    assert names_in(small) == []
    _, why = invoke("--why", small, "--seconds", "0.01", "--json")
    ceiling = json.loads(why)["attribution"]["signals"]["ceiling_bytes_per_s"]
    rate = found["measurement"]["sequential_read_bytes_per_s"]
    assert ceiling == (rate if found["measurement"]["read_engine"]["effective"] == "direct" else None)


def test_a_dry_run_touches_nothing(small, tmp_path):
    code, text = invoke("storage", small, "--dry-run", "--json")
    assert code == 0
    assert json.loads(text)["file_bytes"] == 8 * MIB
    _, text = invoke("storage", small, "--dry-run")
    assert text.startswith("would write 8,388,608 bytes")
    assert names_in(tmp_path) == ["data"]


def test_what_cannot_be_measured_is_an_error(small, tmp_path, monkeypatch):
    with pytest.raises(NotFound):
        invoke("storage", tmp_path / "none")
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotFound):
        invoke("storage", tmp_path / "file")
    monkeypatch.setattr(os, "statvfs", lambda _path: os.statvfs_result((4096, 4096, 9, 9, 9, 0, 0, 0, 0, 255)))
    with pytest.raises(CapacityError):
        invoke("storage", small)
