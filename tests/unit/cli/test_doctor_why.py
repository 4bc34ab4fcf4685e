"""`stoker doctor --why`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stoker.cli.doctor import doctor
from stoker.errors import AccessDenied, ConfigError, NotFound
from stoker.ledger import Cause, Ledger, LedgerIdentity, ledger_name

SCENARIO = Path(__file__).parents[1] / "doctor" / "samples" / "scenario"
EXPECTED = {
    "throughput-local-nvme": ("throughput", 2),
    "network-nfs-tcp": ("network", 2),
    "metadata-lustre-small-files": ("metadata", 2),
    "cpu-staging-compat-gds": ("cpu-staging", 1),
}


@pytest.fixture(autouse=True)
def nvme(tmp_path, monkeypatch):
    monkeypatch.setenv("STOKER_NVME", str(tmp_path / "nvme"))
    return tmp_path / "nvme"


def invoke(*arguments):
    result = CliRunner().invoke(doctor, list(map(str, arguments)), standalone_mode=False)
    if result.exception:
        raise result.exception
    return (result.return_value or result.exit_code), result.stdout


def train(nvme, steps, compute_ms, **waits_ms):
    folder = nvme / "run" / "run-1"
    folder.mkdir(parents=True)
    ledger = Ledger.create(folder / ledger_name(0, 1), LedgerIdentity("run-1", 0, 1, 1, "node-a"))
    now = 0
    for number in range(steps):
        waits = {Cause(cause): ms * 10**6 for cause, ms in waits_ms.items()}
        entered, now = now, now + sum(waits.values())
        ledger.record_step(number, 0, entered, now, waits, 16, 1000)
        now += compute_ms * 10**6
    return ledger


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("words", [["--why", "--from"], ["why", "--from"]])
def test_a_scenario_is_judged_by_either_form(name, words):
    code, text = invoke(*words, SCENARIO / name, "--json")
    found = json.loads(text)
    assert (found["attribution"]["verdict"], code) == EXPECTED[name]
    assert found["findings"][0]["id"] == f"stall-{EXPECTED[name][0]}"


@pytest.mark.parametrize("name", EXPECTED)
def test_what_the_files_are_called_beside_their_moment_changes_nothing(name, tmp_path):
    for number, path in enumerate(sorted((SCENARIO / name).iterdir())):
        _, dash, moment = path.stem.rpartition("-t")
        new = path.name if path.name == "meta.json" else f"x{number if not dash else path.stem[:4]}{dash}{moment}"
        shutil.copy(path, tmp_path / (new if dash or path.name == "meta.json" else f"x{number}"))
    _, text = invoke("--json", "--why", "--from", tmp_path)
    assert json.loads(text)["attribution"]["verdict"] == EXPECTED[name][0]


def test_the_ledger_of_a_run_counts_before_the_gpu(nvme):
    train(nvme, 20, compute_ms=100, fetch=1)
    code, text = invoke("--why", "--from", SCENARIO / "network-nfs-tcp", "--run", "run-1", "--json")
    assert (json.loads(text)["attribution"]["verdict"], code) == ("none", 0)


def test_a_finished_run_that_waited_for_decoding_is_staging(nvme):
    train(nvme, 20, compute_ms=10, decode=90).close()
    code, text = invoke("--why", "--seconds", "0.01", "--run", "run-1", "--json")
    found = json.loads(text)["attribution"]
    assert (found["verdict"], code) == ("cpu-staging", 1)
    assert found["signals"]["utilisation_ratio"] == pytest.approx(0.1, abs=0.02)


def test_a_run_that_moves_meanwhile_is_found_and_one_that_stands_still_is_not(nvme, monkeypatch):
    import stoker.cli.doctor_why as verb

    ledger = train(nvme, 5, compute_ms=10, fetch=90)
    _, text = invoke("--why", "--seconds", "0.01", "--json")
    assert json.loads(text)["attribution"]["signals"]["utilisation_ratio"] is None

    def two_steps(_seconds):
        for number in (5, 6):
            at = number * 10**8
            ledger.record_step(number, 0, at, at + 9 * 10**7, {Cause.FETCH: 9 * 10**7}, 16, 1000)

    monkeypatch.setattr(verb.time, "sleep", two_steps)
    _, text = invoke("--why", "--seconds", "0.01", "--json")
    assert json.loads(text)["attribution"]["signals"]["utilisation_ratio"] == pytest.approx(0.1, abs=0.05)


def test_a_run_that_is_closed_to_this_user_is_said_once_and_the_others_count(nvme, monkeypatch, caplog, obeys_modes):
    import stoker.cli.doctor_why as verb

    monkeypatch.setattr(verb, "_said", set())
    train(nvme, 5, compute_ms=10, fetch=90)
    closed = nvme / "run" / "closed"
    closed.mkdir(0)
    _, text = invoke("--why", "--seconds", "0.01", "--json")
    assert json.loads(text)["attribution"]["verdict"] == "unknown"
    assert caplog.text.count(f"cannot look for ledgers: permission denied\n  where: {closed}") == 1
    with pytest.raises(AccessDenied):
        invoke("--why", "--run", "closed")
    caplog.clear()
    (nvme / "run").chmod(0)
    invoke("--why", "--seconds", "0.01", "--json")
    assert caplog.text.count("cannot look for runs: permission denied") == 1
    (nvme / "run").chmod(0o700)


@pytest.mark.parametrize("words", [["--why", "--from"], ["--from"]])
def test_a_folder_or_a_sample_that_is_closed_to_this_user_is_said(words, tmp_path, obeys_modes):
    (tmp_path / "closed").mkdir(0)
    for place in ("closed", "closed/below"):
        with pytest.raises(AccessDenied, match="permission denied"):
            invoke(*words, tmp_path / place)
    shutil.copytree(SCENARIO / "network-nfs-tcp", tmp_path / "samples", copy_function=shutil.copyfile)
    (tmp_path / "samples" / "snmp-t1.txt").chmod(0)
    with pytest.raises(AccessDenied, match="may not be read") as caught:
        invoke(*words, tmp_path / "samples")
    assert caught.value.where.endswith("snmp-t1.txt")


@pytest.mark.alone
def test_a_capture_of_both_moments_is_judged_again(tmp_path):
    _, text = invoke("--why", "--seconds", "0.02", "--capture", tmp_path / "c", tmp_path, "--json")
    _, again = invoke("--why", "--from", tmp_path / "c", "--json")
    assert json.loads(text)["attribution"]["verdict"] == json.loads(again)["attribution"]["verdict"] == "unknown"
    assert json.loads(again)["attribution"]["window_s"] >= 0.02


def test_what_cannot_be_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="out of range"):
        invoke("--why", "--seconds", "0")
    with pytest.raises(ConfigError, match="both given"):
        invoke("--why", "--from", tmp_path, "--capture", tmp_path)
    with pytest.raises(NotFound, match="no ledger of run"):
        invoke("--why", "--from", SCENARIO / "network-nfs-tcp", "--run", "none")
    with pytest.raises(NotFound):
        invoke("--why", "--from", tmp_path)


def test_a_path_called_why_is_a_path(tmp_path):
    code, text = invoke("--json", "--", "--why")
    assert json.loads(text)["targets"][0].endswith("--why")
    assert code in (0, 1, 2, 3)
