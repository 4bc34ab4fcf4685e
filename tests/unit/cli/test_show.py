import json

import pytest
import typer
from typer.testing import CliRunner

from stoker.cli.show import show
from stoker.dataset.open import open_dataset
from stoker.dataset.write import DatasetWriter
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
