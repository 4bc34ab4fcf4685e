"""`stoker config show`: what holds here, and why."""

import json
import os

import pytest

from stoker.cli.main import run


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """An empty folder, and no settings from outside."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith(("STOKER_", "XDG_", "SLURM_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def write(path, text):
    path.write_text(text)
    path.chmod(0o600)


def test_every_setting_is_shown_with_its_value_and_source(tmp_path, monkeypatch, capsys):
    write(tmp_path / "stoker.toml", "[feed]\nprefetch_bytes = '2GiB'\n")
    monkeypatch.setenv("STOKER_SHARED", "/mnt/all")
    assert run(["config", "show"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}
    assert rows["file"] == "stoker.toml"
    assert rows["feed.prefetch_bytes"].split() == ["2.0", "GiB", "stoker.toml:2"]
    assert rows["tiers.shared.path"].split(maxsplit=1) == ["/mnt/all", "environment STOKER_SHARED"]
    assert rows["tiers.nvme.path"].split() == [str(tmp_path / "home/.cache/stoker"), "default"]
    assert rows["report.gpu_hour_price"].split() == ["-", "default"]


def test_json_holds_the_same_as_values(tmp_path, capsys):
    write(tmp_path / "stoker.toml", "[checkpoint]\ndeadline_s = '1min'\n")
    assert run(["config", "show", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["file"] == "stoker.toml"
    (row,) = [row for row in facts["settings"] if row["name"] == "checkpoint.deadline_s"]
    assert row == {
        "name": "checkpoint.deadline_s",
        "value": 60.0,
        "source": "stoker.toml:2",
        "environment": "STOKER_CHECKPOINT_DEADLINE_S",
        "text": "1.0 min",
    }


def test_a_wrong_file_is_exit_code_2_and_three_lines(tmp_path, capsys):
    write(tmp_path / "stoker.toml", "[feed]\nthread = 1\n")
    assert run(["config", "show"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == (
        "stoker: unknown key 'feed.thread'\n  where: stoker.toml:2\n  hint:  the nearest known key is 'feed.threads'\n"
    )
