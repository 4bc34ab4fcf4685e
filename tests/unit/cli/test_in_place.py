"""index, cat, head and verify, as they are typed."""

import base64
import json

import pytest

from stoker.cli.head import preview
from stoker.cli.main import run
from stoker.dataset.write import DatasetWriter
from stoker.store.local import LocalStore


@pytest.fixture
def tars(tmp_path):
    with DatasetWriter(LocalStore(tmp_path / "set"), shard_bytes=8192) as writer:
        for i in range(10):
            writer.write(f"s/{i}", {"txt": b"line %d\n" % i} | ({"bin": bytes(range(i))} if i % 2 else {}))
    (tmp_path / "tars").mkdir()
    for path in (tmp_path / "set").glob("*.tar"):
        (tmp_path / "tars" / path.name).write_bytes(path.read_bytes())
    return tmp_path / "tars"


@pytest.fixture
def stoker(capfdbinary):
    """Run the command line: (exit code, stdout, stderr)."""

    def stoker(*arguments):
        code = run([str(argument) for argument in arguments])
        out, err = capfdbinary.readouterr()
        return code, out, err.decode()

    return stoker


def test_index_says_what_it_found_and_again_that_it_is_there(stoker, tars):
    code, out, _ = stoker("index", f"{tars}/shard-*.tar", "--json")
    facts = json.loads(out)
    assert (code, facts["kind"], facts["samples"], facts["fields"]) == (0, "tar", 10, ["bin", "txt"])
    assert (facts["checksums"], facts["already_there"]) == (False, False)
    code, out, _ = stoker("index", tars)
    assert (code, out.startswith(b"already there: 10 samples")) == (0, True)
    assert b"none of the fields" in stoker("show", tars)[1]


def test_index_out_is_named_to_every_verb(stoker, tars, tmp_path):
    out = tmp_path / "out"
    assert stoker("index", tars, "--out", out, "--checksums", "--include", "*.txt")[0] == 0
    assert json.loads(stoker("show", tars, "--index", out, "--json")[1])["samples"] == 10
    assert b"s/3\ttxt 7 B" in stoker("ls", tars, "--index", out)[1]
    assert stoker("cat", tars, "s/3", "--index", out)[1] == b"line 3\n"
    assert stoker("head", tars, "--index", out, "-n", 1)[1].startswith(b"s/0\n  txt")
    assert stoker("verify", tars, "--index", out, "--deep")[0] == 0
    assert not (tars / "manifest.json").exists()


def test_cat_prints_the_bytes_of_a_field(stoker, tars):
    stoker("index", tars)
    assert stoker("cat", tars, "s/9", "--field", "bin") == (0, bytes(range(9)), "")
    facts = json.loads(stoker("cat", tars, "s/9", "--field", "bin", "--json")[1])
    assert base64.b64decode(facts["base64"]) == bytes(range(9))
    code, out, err = stoker("cat", tars, "s/9")
    assert (code, out) == (2, b"")
    assert "--field is one of bin, txt" in err
    assert "has no field 'jpg'" in stoker("cat", tars, "s/9", "--field", "jpg")[2]


def test_head_shows_the_first_samples(stoker, tars):
    stoker("index", tars)
    rows = json.loads(stoker("head", tars, "-n", 2, "--json")[1])["samples"]
    assert [row["key"] for row in rows] == ["s/0", "s/1"]
    assert rows[1]["fields"]["txt"] == {"bytes": 7, "shows": "line 1"}
    assert len(json.loads(stoker("head", tars, "--json")[1])["samples"]) == 3


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"", ""),
        (b"two\nlines", "two lines"),
        (b"a" * 100, "a" * 60 + " ..."),
        (b"\xff\xd8\xff\xe0" * 9, "ff d8 ff e0 ff d8 ff e0 ff d8 ff e0 ..."),
        (b"\x00\x01", "00 01"),
        ("ä".encode() * 4096, "ä" * 60 + " ..."),
        (b"x" + "ä".encode() * 4096, "x" + "ä" * 59 + " ..."),
        (b"\x93NUMPY garbage", "93 4e 55 4d 50 59 20 67 61 72 62 61 ..."),
    ],
)
def test_a_preview_is_short_and_printable(data, shown):
    assert preview(data) == shown


def test_a_preview_of_an_array_is_its_shape():
    import io

    import numpy as np

    stream = io.BytesIO()
    np.save(stream, np.zeros((3, 4), np.float32))
    assert preview(stream.getvalue()) == "float32 array of shape (3, 4)"


def test_verify_lists_every_fault_and_ends_with_4(stoker, tmp_path):
    shard = tmp_path / "v" / "shard-000000.tar"
    with DatasetWriter(LocalStore(tmp_path / "v")) as writer:
        for i in range(10):
            writer.write(f"{i}", {"txt": b"line %d\n" % i})
    assert stoker("verify", tmp_path / "v", "--deep")[0] == 0
    shard.write_bytes(shard.read_bytes().replace(b"line 2", b"LINE 2").replace(b"line 7", b"LINE 7"))
    assert stoker("verify", tmp_path / "v")[0] == 0
    code, out, _ = stoker("verify", tmp_path / "v", "--deep", "--json")
    assert (code, len(json.loads(out)["faults"])) == (4, 2)
    code, out, _ = stoker("verify", tmp_path / "v", "--deep")
    assert (code, out.count(b"FAULT  DigestMismatch"), out.strip().endswith(b"2 faults")) == (4, 2, True)


def test_verify_of_what_is_nothing_is_an_error(stoker, tmp_path):
    assert stoker("verify", tmp_path)[0] == 9
    (tmp_path / "MANIFEST.json").write_text("{}")
    code, _, err = stoker("verify", tmp_path)
    assert code == 6
    assert "not the name of a committed step" in err


def test_verify_knows_the_folder_of_a_run_and_of_a_step(stoker):
    from pathlib import Path

    golden = Path(__file__).parents[2] / "format" / "golden" / "checkpoint-v1"
    facts = json.loads(stoker("verify", golden, "--deep", "--json")[1])
    assert (facts["kind"], facts["steps"], facts["faults"]) == ("checkpoint", ["step-00000040.g0002"], [])
    code, out, _ = stoker("verify", golden / "step-00000040.g0002", "--json")
    assert (code, json.loads(out)["files"]) == (0, facts["files"])


VERBS = [("show",), ("ls",), ("head",), ("verify",), ("index",), ("cat", "key")]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_a_folder_that_is_not_there_is_not_found_by_any_verb(stoker, tmp_path, verb):
    name, *rest = verb
    code, out, err = stoker(name, tmp_path / "none", *rest)
    assert (code, out) == (6, b"")
    assert err.splitlines()[:2] == ["stoker: no such folder", f"  where: {tmp_path / 'none'}"]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_a_file_in_place_of_a_folder_is_said_to_be_one(stoker, tmp_path, verb):
    name, *rest = verb
    (tmp_path / "cat.jpg").write_bytes(b"x")
    code, out, err = stoker(name, tmp_path / "cat.jpg", *rest)
    assert (code, out) == (6, b"")
    assert err.startswith("stoker: a file, where a folder is needed")
    assert str(tmp_path / "cat.jpg") in err


def test_a_folder_without_a_manifest_is_no_data_set_and_says_how_to_make_it_one(stoker, tmp_path):
    code, _, err = stoker("show", tmp_path)
    assert code == 9
    assert "stoker index URL" in err


def test_a_part_of_a_data_set_is_not_shown_as_the_whole_of_it(stoker, tars):
    stoker("index", tars)
    assert stoker("show", f"{tars}/shard-*.tar")[0] == 0
    code, out, err = stoker("ls", f"{tars}/shard-000000.tar")
    assert (code, out) == (9, b"")
    assert "'shard-000000.tar' is a part of this data set" in err


def test_an_archive_that_is_not_there_is_named(stoker, tars):
    assert "no such object: 'none.tar'" in stoker("index", f"{tars}/none.tar")[2]
    assert (
        "1 of 2 objects are not there: 'shard-999999.tar'" in stoker("index", f"{tars}/shard-{{000000,999999}}.tar")[2]
    )
