import json

import pytest
import typer
from typer.testing import CliRunner

from stoker.cli.pack import pack
from stoker.dataset.open import open_dataset
from stoker.errors import ConfigError, DatasetError
from stoker.store.local import LocalStore

FACTS = {"dataset", "files", "samples", "bytes", "shards", "blocks", "digest", "skipped_shards", "seconds"}


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    for i in range(6):
        file = folder / f"d{i % 2}" / f"{i}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(i * 100))
        file.with_suffix(".json").write_bytes(b"{}")
    return folder


def run(*arguments):
    app = typer.Typer()
    app.command()(pack)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_pack_prints_one_json_object_and_makes_a_data_set(source, tmp_path):
    result = run(source, tmp_path / "out", "--shard-size", "4KiB", "--json")
    facts = json.loads(result.stdout)
    manifest = open_dataset(LocalStore(tmp_path / "out")).manifest
    assert set(facts) >= FACTS
    assert (facts["files"], facts["samples"], facts["bytes"]) == (12, 6, 1512)
    assert (facts["digest"], facts["shards"]) == (manifest.digest, manifest.object_count)
    assert facts["shards"] > 1
    assert result.stderr == ""


def test_globs_and_prefix_are_passed_on(source, tmp_path):
    options = ["--include", "*.jpg", "--include", "*.json", "--exclude", "d1/*", "--exclude", "0.*", "--prefix", "p"]
    run(source, tmp_path / "out", *options)
    opened = open_dataset(LocalStore(tmp_path / "out"))
    assert opened.keys(opened.objects.first_sample[:1]) == ["p/d0/2"]
    assert opened.manifest.sample_count == 2


def test_a_dry_run_says_what_would_be_written_and_writes_nothing(source, tmp_path):
    planned = json.loads(run(source, tmp_path / "out", "--dry-run", "--json").stdout)
    assert not (tmp_path / "out").exists()
    assert planned["fields"] == ["jpg", "json"]
    written = json.loads(run(source, tmp_path / "out", "--json").stdout)
    assert {name: planned[name] for name in ("files", "samples", "bytes", "shards", "blocks")} == {
        name: written[name] for name in ("files", "samples", "bytes", "shards", "blocks")
    }
    assert "would pack 12 files (1.5 KiB) as 6 samples" in run(source, tmp_path / "other", "--dry-run").stdout


def test_people_read_what_was_packed_and_that_it_was_there_already(source, tmp_path):
    first = run(source, tmp_path / "out").stdout
    assert first.startswith("packed 12 files as 6 samples (1.5 KiB) in 1 shard in ")
    assert open_dataset(LocalStore(tmp_path / "out")).manifest.digest in first
    assert run(source, tmp_path / "out").stdout.startswith("already there: 6 samples (1.5 KiB) in 1 shard")


def test_files_that_are_no_regular_files_are_counted(source, tmp_path):
    (source / "loop.jpg").symlink_to(source)
    assert "left out 1 that are no regular files" in run(source, tmp_path / "out").stdout


def test_bad_input_is_an_error_of_stoker(source, tmp_path):
    with pytest.raises(ConfigError, match="not a size"):
        run(source, tmp_path / "out", "--shard-size", "many")
    (source / "README").write_bytes(b"")
    with pytest.raises(DatasetError, match="without an extension"):
        run(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
