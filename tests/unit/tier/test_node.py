import os
from pathlib import Path

import pytest

from stoker.errors import AccessDenied, ConfigError
from stoker.tier.node import NodeDirectory, check_run_name, default_nvme


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"STOKER_NVME": "/a", "SLURM_TMPDIR": "/b", "HOME": "/h"}, "/a"),
        ({"SLURM_TMPDIR": "/b", "XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/b/stoker"),
        ({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/c/stoker"),
        ({"HOME": "/h", "TMPDIR": "/t"}, "/h/.cache/stoker"),
        ({"HOME": "", "TMPDIR": "/t"}, "/t/stoker-7"),
        ({}, "/tmp/stoker-7"),
    ],
)
def test_the_default_place_follows_the_environment(environ, expected):
    assert default_nvme(environ, 7) == Path(expected)


def test_a_new_directory_is_closed_to_others_and_says_its_format(tmp_path):
    node = NodeDirectory.open(tmp_path / "deep" / "nvme")
    assert node.root.stat().st_mode & 0o777 == 0o700
    assert (node.root / "format").read_text() == "stoker nvme 1\n"
    assert NodeDirectory.open(node.root) == node


def test_a_directory_of_an_unknown_format_is_left_alone_and_a_sibling_is_used(tmp_path):
    root = tmp_path / "nvme"
    root.mkdir()
    (root / "format").write_text("stoker nvme 99\n")
    node = NodeDirectory.open(root)
    assert node.root == tmp_path / "nvme-v1"
    assert (root / "format").read_text() == "stoker nvme 99\n"
    assert sorted(p.name for p in root.iterdir()) == ["format"]


def test_a_directory_of_another_user_is_refused(tmp_path, monkeypatch):
    real = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: real + 1)
    with pytest.raises(AccessDenied, match=f"belongs to user {real}"):
        NodeDirectory.open(tmp_path)


def test_a_file_where_the_directory_should_be_is_refused(tmp_path):
    (tmp_path / "nvme").write_text("")
    with pytest.raises((ConfigError, OSError)):
        NodeDirectory.open(tmp_path / "nvme")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-x", "a b", "x" * 200, "step.partial", "ü"])
def test_a_run_name_that_is_no_directory_name_is_refused(name):
    with pytest.raises(ConfigError, match="not a run name"):
        check_run_name(name)


def test_ordinary_run_names_are_taken():
    assert [check_run_name(n) for n in ("run-42", "A", "2026.11_x")] == ["run-42", "A", "2026.11_x"]


def test_ledgers_of_another_run_of_that_name_are_set_aside_and_never_lost(tmp_path, caplog):
    node = NodeDirectory.open(tmp_path)
    folder = node.run("r")
    folder.mkdir(parents=True)
    for name in ("rank-00000.g0001", "rank-00000.g0002", "rank-00000.g0003", "rank-00001.g0002", "rank-00000.g0002.1"):
        (folder / f"{name}.ledger").write_text(name)
    moved = node.set_aside_ledgers("r", 0, 2)
    assert [path.name for path in moved] == ["rank-00000.g0002.2.ledger", "rank-00000.g0003.1.ledger"]
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "rank-00000.g0001.ledger": "rank-00000.g0001",
        "rank-00000.g0002.1.ledger": "rank-00000.g0002.1",
        "rank-00000.g0002.2.ledger": "rank-00000.g0002",
        "rank-00000.g0003.1.ledger": "rank-00000.g0003",
        "rank-00001.g0002.ledger": "rank-00001.g0002",
    }
    assert len(caplog.records) == 1
    assert node.set_aside_ledgers("r", 0, 2) == []
    assert len(caplog.records) == 1
