"""`stoker report`."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
import typer
from typer.testing import CliRunner

from stoker.cli.report import report
from stoker.errors import ConfigError, NotFound
from stoker.ledger import Cause, Ledger, LedgerIdentity, ledger_name
from stoker.store.open import open_store
from stoker.values import Key

app = typer.Typer()
app.command()(report)


def make(directory, steps, rank=0, generation=1):
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / ledger_name(rank, generation)
    ledger = Ledger.create(path, LedgerIdentity("run-42", rank, 1, generation, "node-a"))
    for number in range(steps):
        ledger.record_step(number, 0, number * 10**9, number * 10**9 + 10**8, {Cause.FETCH: 10**8}, 16, 1000)
    return ledger


def invoke(*arguments):
    result = CliRunner().invoke(app, list(map(str, arguments)), standalone_mode=False)
    if result.exception:
        raise result.exception
    return result.stdout


def test_a_running_run_is_reported_from_the_node(tmp_path):
    make(tmp_path / "run" / "run-42", steps=3)
    text = invoke("run-42", "--nvme", tmp_path)
    assert text.startswith("run run-42: 1 rank on 1 host")
    assert "3 steps" in text


def test_json_is_one_object_with_the_price_worked_in(tmp_path):
    make(tmp_path / "run" / "run-42", steps=3)
    found = json.loads(invoke("run-42", "--nvme", tmp_path, "--gpu-hour-price", "36", "--json"))
    assert found["wait_s"] == pytest.approx(0.3)
    assert found["money_waited"] == pytest.approx(0.003)


def test_ledgers_in_the_homes_count_and_copies_of_one_count_once(tmp_path):
    nvme, shared = tmp_path / "nvme", tmp_path / "shared"
    make(nvme / "run" / "run-42", steps=5)
    make(nvme / "checkpoint" / "run-42" / "ledger", steps=5)
    make(shared / "run-42" / "ledger", steps=4, generation=2)
    found = json.loads(invoke("run-42", "--nvme", nvme, "--shared", shared, "--json"))
    assert [g["generation"] for g in found["generations"]] == [1, 2]
    assert found["steps"] == 9


def test_the_default_place_is_that_of_the_node(tmp_path, monkeypatch):
    make(tmp_path / "run" / "run-42", steps=1)
    monkeypatch.setenv("STOKER_NVME", str(tmp_path))
    assert "1 step," in invoke("run-42")


def test_a_run_without_ledgers_is_not_found_and_nothing_is_made(tmp_path):
    with pytest.raises(NotFound) as raised:
        invoke("run-43", "--nvme", tmp_path / "none", "--shared", tmp_path / "shared")
    assert "'run-43'" in raised.value.what
    assert str(tmp_path / "shared" / "run-43" / "ledger") in raised.value.where
    assert "--shared" in raised.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_would_leave_the_directory_is_refused(tmp_path):
    for path in ("../other", "folder/run-42"):
        with pytest.raises(ConfigError, match="not a path"):
            invoke(path, "--nvme", tmp_path)
    with pytest.raises(ConfigError, match="not a run name"):
        invoke("..", "--nvme", tmp_path)


def test_a_wrong_name_is_told_which_runs_there_are(tmp_path):
    (tmp_path / "shared").mkdir()
    with pytest.raises(NotFound) as raised:
        invoke("run-43", "--nvme", tmp_path / "nvme", "--shared", tmp_path / "shared")
    assert "no run has left a ledger there" in raised.value.hint
    make(tmp_path / "nvme" / "run" / "run-42", steps=1)
    make(tmp_path / "shared" / "run-41" / "ledger", steps=1)
    with pytest.raises(NotFound) as raised:
        invoke("run-43", "--nvme", tmp_path / "nvme", "--shared", tmp_path / "shared")
    assert "there are 'run-41', 'run-42'" in raised.value.hint


def test_directories_and_price_come_from_the_settings_and_options_beat_them(tmp_path, monkeypatch):
    make(tmp_path / "nvme" / "run" / "run-42", steps=3)
    (tmp_path / "stoker.toml").write_text('[tiers.nvme]\npath = "nvme"\n[report]\ngpu_hour_price = 36\n')
    (tmp_path / "stoker.toml").chmod(0o600)
    monkeypatch.setenv("STOKER_CONFIG", str(tmp_path / "stoker.toml"))
    monkeypatch.delenv("STOKER_NVME", raising=False)
    assert json.loads(invoke("run-42", "--json"))["money_waited"] == pytest.approx(0.003)
    found = json.loads(invoke("run-42", "--gpu-hour-price", "72", "--json"))
    assert found["money_waited"] == pytest.approx(0.006)
    with pytest.raises(NotFound):
        invoke("run-42", "--nvme", tmp_path / "elsewhere")


def test_ledgers_that_only_the_far_store_has_are_in_the_report(tmp_path):
    make(tmp_path / "nvme" / "run" / "run-42", steps=5, generation=2)
    make(tmp_path / "gone", steps=4).close()
    with closing(open_store("memory://report/run-42")) as far:
        name = ledger_name(0, 1)
        far.write(Key(f"ledger/{name}"), (tmp_path / "gone" / name).read_bytes())
    options = ("--object", "memory://report", "--json")
    found = json.loads(invoke("run-42", "--nvme", tmp_path / "nvme", *options))
    assert [g["generation"] for g in found["generations"]] == [1, 2]
    assert found["steps"] == 9
    found = json.loads(invoke("run-42", "--nvme", tmp_path / "elsewhere", *options))
    assert found["steps"] == 4
    with pytest.raises(NotFound, match="run-43") as caught:
        invoke("run-43", "--nvme", tmp_path / "nvme", *options)
    assert "memory://report" in caught.value.where
