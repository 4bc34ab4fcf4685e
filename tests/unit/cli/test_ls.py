import json
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from stoker.cli import main
from stoker.cli.ls import SHOWN_SAMPLES, ls, printable
from stoker.cli.pack import pack
from stoker.dataset.write import DatasetWriter
from stoker.errors import ConfigError, DatasetError, NotFound
from stoker.store.local import LocalStore


@pytest.fixture
def place(tmp_path):
    with DatasetWriter(LocalStore(tmp_path / "set"), shard_bytes=8192) as writer:
        for i in range(10):
            writer.write(f"s/{i}", {"txt": b"x" * i} | ({"json": b"{}"} if i % 2 else {}))
    return tmp_path / "set"


def run(*arguments):
    app = typer.Typer()
    app.command()(ls)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def test_ls_lists_keys_and_field_sizes_in_order(place):
    lines = run(place).splitlines()
    assert len(lines) == 10
    assert lines[2] == "s/2\ttxt 2 B"
    assert lines[3] == "s/3\tjson 2 B  txt 3 B"


def test_a_limit_lists_only_the_first(place):
    assert [line.split("\t")[0] for line in run(place, "--limit", "3").splitlines()] == ["s/0", "s/1", "s/2"]
    assert run(place, "--limit", "0") == ""
    assert len(run(place, "--limit", "99").splitlines()) == 10


def test_json_is_one_object(place):
    facts = json.loads(run(place, "--limit", "2", "--json"))
    assert facts == {
        "dataset": str(place),
        "samples": 10,
        "complete": False,
        "listed": [
            {"key": "s/0", "fields": {"txt": 0}},
            {"key": "s/1", "fields": {"json": 2, "txt": 1}},
        ],
    }


def test_a_place_without_a_data_set_is_an_error(tmp_path):
    with pytest.raises(DatasetError, match="not a data set"):
        run(tmp_path)


@pytest.fixture
def tiers(tmp_path):
    for root in (tmp_path / "n" / "checkpoint", tmp_path / "s"):
        step = root / "r1" / "step-00000020.g0001"
        step.mkdir(parents=True)
        (step / "x").write_bytes(b"x" * 2048)
        (root / "r1" / "run.json").write_text("{}")
    return tmp_path


def test_without_a_url_it_lists_the_tiers_and_the_runs_they_hold(tiers):
    lines = run("--nvme", tiers / "n", "--shared", tiers / "s").splitlines()
    assert [line.split("\t")[0] for line in lines] == ["nvme", "  run r1", "shared", "  run r1"]
    assert "1 step, 2.0 KiB, newest step-00000020.g0001" in lines[1]


def test_the_tiers_as_json(tiers):
    facts = json.loads(run("--nvme", tiers / "n", "--json"))
    assert list(facts) == ["nvme"]
    assert facts["nvme"]["runs"] == [
        {"run": "r1", "step_count": 1, "newest": "step-00000020.g0001", "total_bytes": 2048}
    ]


def test_a_tier_that_was_named_and_is_not_there_is_an_error(tmp_path):
    with pytest.raises(NotFound, match="shared"):
        run("--nvme", tmp_path, "--shared", tmp_path / "none")


def test_a_user_who_has_run_nothing_yet_holds_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("STOKER_NVME", str(tmp_path / "none"))
    assert "no tier holds anything yet" in run()
    assert not (tmp_path / "none").exists()


def test_keys_are_shown_without_what_a_terminal_would_obey():
    assert printable("a/ü\x9b31m\u202e\\") == "a/ü\\x9b31m\\u202e\\\\"


@pytest.mark.parametrize(
    ("target", "code", "said"), [("> /dev/full", 5, "no space left"), (">&-", 0, ""), ("| true", 1, "")]
)
def test_a_stdout_that_is_full_or_closed_ends_without_a_traceback(place, target, code, said):
    command = f'"{sys.executable}" -m stoker ls "{place}" {target}; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(["/bin/bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in ({code} if "true" not in target else {0, code})
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_a_pack_into_memory_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="gone when this command ends"):
        pack(tmp_path, "memory://x")


@pytest.fixture
def large(tmp_path):
    with DatasetWriter(LocalStore(tmp_path / "large")) as writer:
        for i in range(SHOWN_SAMPLES + 1):
            writer.write(f"{i}", {"txt": b""})
    return tmp_path / "large"


def test_a_large_data_set_is_cut_for_people_and_they_are_told_how_to_see_the_rest(large, capfd):
    assert main.run(["ls", str(large)]) == 0
    shown = capfd.readouterr()
    assert len(shown.out.splitlines()) == SHOWN_SAMPLES
    assert f"the first {SHOWN_SAMPLES} of {SHOWN_SAMPLES + 1} samples; --all lists all" in shown.err
    for arguments, count in ((["--all"], SHOWN_SAMPLES + 1), (["--limit", "2"], 2), (["--limit", "999"], 101)):
        assert main.run(["ls", str(large), *arguments]) == 0
        shown = capfd.readouterr()
        assert len(shown.out.splitlines()) == count
        assert shown.err == ""


def test_json_lists_all_samples_or_says_that_it_is_cut(large):
    whole, cut = json.loads(run(large, "--json")), json.loads(run(large, "--json", "--limit", "3"))
    assert (len(whole["listed"]), whole["complete"]) == (SHOWN_SAMPLES + 1, True)
    assert (len(cut["listed"]), cut["complete"], cut["samples"]) == (3, False, SHOWN_SAMPLES + 1)


def test_all_and_a_limit_exclude_each_other(large):
    with pytest.raises(ConfigError, match="--all and --limit"):
        run(large, "--all", "--limit", "3")
