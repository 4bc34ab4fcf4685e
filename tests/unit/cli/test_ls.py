import json

import pytest
import typer
from typer.testing import CliRunner

from stoker.cli.ls import ls
from stoker.dataset.write import DatasetWriter
from stoker.errors import ConfigError, DatasetError
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
        "listed": [
            {"key": "s/0", "fields": {"txt": 0}},
            {"key": "s/1", "fields": {"json": 2, "txt": 1}},
        ],
    }


def test_a_place_without_a_data_set_is_an_error(tmp_path):
    with pytest.raises(DatasetError, match="not a data set"):
        run(tmp_path)


def test_without_a_url_it_says_that_it_needs_one():
    with pytest.raises(ConfigError, match="needs the URL"):
        run()
