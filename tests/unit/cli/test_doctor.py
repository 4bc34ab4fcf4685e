"""`stoker doctor`."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stoker.cli.doctor import doctor
from stoker.doctor.check import run_checks
from stoker.errors import ConfigError, NotFound
from stoker.tier.node import NodeDirectory

SAMPLES = Path(__file__).parents[1] / "doctor" / "samples"


def invoke(*arguments):
    result = CliRunner().invoke(doctor, list(map(str, arguments)), standalone_mode=False)
    if result.exception:
        raise result.exception
    return (result.return_value or result.exit_code), result.stdout


def test_a_path_alone_is_looked_at_and_no_path_is_the_node(tmp_path):
    for arguments in ([tmp_path, "--json"], ["--json"], ["check", tmp_path, "--json"]):
        code, text = invoke(*arguments)
        found = json.loads(text)
        assert found["version"] == 1
        assert found["exit_code"] == code
        assert found["findings"]


def test_a_report_says_when_its_evidence_was_read_and_a_capture_when_it_was_made(tmp_path):
    found = json.loads(invoke(tmp_path, "--capture", tmp_path / "c", "--json")[1])
    made = json.loads((tmp_path / "c" / "capture.json").read_text())["clock_s"]
    assert abs(datetime.fromisoformat(found["read_at"]).timestamp() - made) < 60
    (tmp_path / "c" / "capture.json").write_text('{"version": 1, "clock_s": 1800000000.0}')
    assert json.loads(invoke("--from", tmp_path / "c", "--json")[1])["read_at"] == "2027-01-15T08:00:00Z"
    samples = SAMPLES / "scenario" / "throughput-local-nvme"
    assert json.loads(invoke("--from", samples, "--json")[1])["read_at"] is None


def test_explain_tells_by_content_or_by_kind(tmp_path):
    (tmp_path / "notes.txt").write_text((SAMPLES / "gds_stats" / "forced-compat.txt").read_text())
    for arguments in (
        [tmp_path / "notes.txt"],
        ["auto", tmp_path / "notes.txt"],
        ["gds-stats", tmp_path / "notes.txt"],
    ):
        code, text = invoke("explain", *arguments)
        assert code == 1
        assert "39714 of 39714" in text
        assert text.endswith("1 warn\n")


def test_explain_of_something_else_is_unknown(tmp_path):
    (tmp_path / "x").write_text("hello\n")
    code, text = invoke("explain", tmp_path / "x", "--json")
    assert code == 3
    assert json.loads(text)["findings"][0]["evidence"][0]["line"] == "hello"


def test_explain_without_a_file_or_with_one_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="no file is given"):
        invoke("explain", "gdscheck")
    with pytest.raises(NotFound):
        invoke("explain", tmp_path / "none")


@pytest.mark.alone
@pytest.mark.parametrize("has_nvme", [False, True])
def test_a_capture_of_this_node_says_the_same_when_it_is_looked_at_again(tmp_path, monkeypatch, has_nvme):
    monkeypatch.setenv("HOME", str(tmp_path / "ada"))
    for name in ("XDG_CACHE_HOME", "SLURM_TMPDIR", "STOKER_NVME"):
        monkeypatch.delenv(name, raising=False)
    # On a busy machine one check or another does not answer within the 2 s that it has.
    monkeypatch.setattr("stoker.doctor.diagnose.run_checks", partial(run_checks, limit_s=60))
    if has_nvme:
        NodeDirectory.open(tmp_path / "ada" / ".cache" / "stoker")
    code, text = invoke(tmp_path, "--capture", tmp_path / "c", "--json")
    again, text_again = invoke("--from", tmp_path / "c", "--json")
    assert again == code
    kinds = [[(f["id"], f["severity"]) for f in json.loads(t)["findings"]] for t in (text, text_again)]
    assert kinds[0] == kinds[1]


@pytest.mark.parametrize("name", sorted(p.name for p in (SAMPLES / "scenario").iterdir()))
def test_a_folder_of_samples_is_looked_at(name):
    code, text = invoke("--from", SAMPLES / "scenario" / name, "--json")
    assert json.loads(text)["exit_code"] == code


def test_a_folder_of_samples_that_names_its_window_gives_rates(tmp_path):
    scenario = SAMPLES / "scenario" / "throughput-local-nvme"
    _, text = invoke("--from", scenario, "--json")
    (disk,) = [f for f in json.loads(text)["findings"] if f["subject"] == "nvme0n1"]
    assert disk["id"] == "disk-saturated"
    assert disk["what"].startswith("6.80 GB/s")
    for name in ("diskstats-t0.txt", "diskstats-t1.txt"):
        (tmp_path / name).write_text((scenario / name).read_text())
    for meta in ("{", '{"window_s": 0}', '{"window_s": "soon"}'):
        (tmp_path / "meta.json").write_text(meta)
        _, text = invoke("--from", tmp_path, "--json")
        (disk,) = [f for f in json.loads(text)["findings"] if f["subject"] == "nvme0n1"]
        assert "there are no rates" in disk["what"]


def test_a_folder_without_anything_is_an_error(tmp_path):
    with pytest.raises(NotFound):
        invoke("--from", tmp_path)
    with pytest.raises(ConfigError):
        invoke("--from", tmp_path, "--capture", tmp_path)


def test_a_bucket_is_looked_at_and_written_to_only_with_the_probe(tmp_path, monkeypatch):
    from stoker.testing.fault_server import FaultServer

    with FaultServer() as server:
        server.put("pre/a", b"0123456789")
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        for arguments, severity in (([], "info"), (["--probe"], "ok"), (["--capture", tmp_path / "c"], "info")):
            _, text = invoke("s3://bucket/pre", *arguments, "--json")
            found = {f["id"]: f["severity"] for f in json.loads(text)["findings"]}
            assert found["object-store-answers"] == "ok"
            assert found["object-store-conditional-write"] == severity
        assert server.keys() == ["pre/a"]


def test_looking_at_a_node_loads_neither_numpy_nor_a_client_of_object_stores():
    script = "import sys, stoker.doctor.diagnose; print({'numpy', 'obstore', 'pyarrow', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
