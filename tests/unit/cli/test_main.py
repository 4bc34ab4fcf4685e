"""The command line in places that do not know all characters."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

KEYS = ["ü/plain", "ü/äöü", "ü/日本"]
ASCII_ONLY = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def stoker(folder, *arguments, **environ):
    command = [sys.executable, "-m", "stoker", *arguments]
    return subprocess.run(command, cwd=folder, env={**os.environ, **environ}, capture_output=True, check=False)


@pytest.fixture
def source(tmp_path):
    for key in KEYS:
        (tmp_path / "söurce" / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "söurce" / f"{key}.json").write_text("{}")
    return tmp_path


def test_names_of_any_letters_are_packed_and_listed_where_python_is_told_to_know_ascii_alone(source):
    done = stoker(source, "pack", "söurce", "päcked", "--json", **ASCII_ONLY)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["dataset"] == str(source / "päcked")
    listed = stoker(source, "ls", "päcked", "--json", **ASCII_ONLY)
    assert [each["key"] for each in json.loads(listed.stdout)["listed"]] == KEYS
    assert stoker(source, "cat", "päcked", KEYS[2], "--field", "json", **ASCII_ONLY).stdout == b"{}"


@pytest.mark.parametrize("encoding", ["ascii:strict", "latin-1:strict", "utf-8:strict"])
def test_what_cannot_be_written_is_written_as_escapes(source, encoding):
    for arguments in (["ls", "päcked"], ["show", "söurce"], ["show", "söurce", "--json"], ["report", "\udcff"]):
        done = stoker(source, *arguments, PYTHONIOENCODING=encoding)
        assert done.returncode in (2, 6, 9)
        assert done.stderr.startswith((b"stoker: ", b'{"error": '))
        assert b"Traceback" not in done.stderr


def test_a_stream_without_such_characters_gets_escapes(monkeypatch):
    from io import BytesIO, TextIOWrapper

    from stoker.cli.main import run

    out, err = BytesIO(), BytesIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", TextIOWrapper(out, "latin-1", errors="strict"))
        patch.setattr(sys, "stderr", TextIOWrapper(err, "latin-1", errors="strict"))
        code = run(["show", "none/日"])
        sys.stdout.flush()
        sys.stderr.flush()
        told = err.getvalue()
        sys.stdout.detach()
        sys.stderr.detach()
    assert code == 6
    assert rb"none/\u65e5" in told
