import json

import pytest
import typer
from typer.testing import CliRunner

from stoker.cli.show import show
from stoker.dataset.open import open_dataset
from stoker.dataset.write import DatasetWriter
from stoker.errors import ConfigError
from stoker.store.local import LocalStore


@pytest.fixture
def place(tmp_path):
    with DatasetWriter(LocalStore(tmp_path / "set"), shard_bytes=8192) as writer:
        for i in range(10):
            writer.write(f"s/{i}", {"txt": b"x" * i} | ({"json": b"{}"} if i % 2 else {}))
    return tmp_path / "set"


def run(*arguments):
    app = typer.Typer()
    app.command()(show)
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False).stdout


def test_json_holds_the_facts_of_manifest_and_objects(place):
    opened = open_dataset(LocalStore(place))
    facts = json.loads(run(place, "--json"))
    assert facts["digest"] == opened.manifest.digest
    assert (facts["samples"], facts["bytes"], facts["shards"]) == (10, 55, opened.manifest.object_count)
    assert facts["blocks"] == len(opened.blocks)
    assert facts["block_bytes"] == 65536
    assert facts["stored_bytes"] == sum(path.stat().st_size for path in place.glob("*.tar"))
    assert facts["fields"] == [
        {"name": "json", "samples": 5, "bytes": 10, "max_bytes": 2},
        {"name": "txt", "samples": 10, "bytes": 45, "max_bytes": 9},
    ]
    assert facts["checksum"].startswith("crc32c of each field")


def test_people_read_the_same(place):
    text = run(place)
    assert open_dataset(LocalStore(place)).manifest.digest in text
    assert "field      txt: in 10 samples, 45 B, the largest 9 B" in text
    assert "checksum   crc32c of each field" in text


@pytest.fixture
def shards(tmp_path):
    for name, count in (("a", 1001), ("b", 40), ("c", 5)):
        (tmp_path / f"{name}.bin").write_bytes(bytes(8 + 2 * count))
    return tmp_path


CUT = ("--tokens", "uint16", "--seq-len", 10, "--overlap", 1, "--header-bytes", 8)


def test_files_of_tokens_are_shown_as_what_they_are(shards):
    facts = json.loads(run(shards, *CUT, "--json"))
    assert facts["kind"] == "tokens"
    assert facts["digest"].startswith("tokens:uint16:10:1:8:")
    assert (facts["samples"], facts["shards"], facts["short_files"], facts["tokens"]) == (103, 2, 1, 1046)
    assert facts["dropped_tokens"] == 0 + 9 + 5
    text = run(shards, *CUT)
    assert "samples    103 windows of 11 uint16 tokens, one every 10" in text
    assert "left out   14 tokens at the ends of files; 1 short files" in text
    assert "after a header of 8 bytes" in text


def test_an_index_of_tokens_and_a_type_that_is_none_are_refused(shards):
    with pytest.raises(ConfigError, match="--index does not go with --tokens"):
        run(shards, *CUT, "--index", "there")
    with pytest.raises(ConfigError, match="no type of tokens: 'half'"):
        run(shards, "--tokens", "half")
