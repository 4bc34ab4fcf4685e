import errno
import os
from pathlib import Path

import pytest

from stoker.errors import AccessDenied, ConfigError, NotFound, RunBusy, StoreError
from stoker.tier.node import NodeDirectory, check_run_name, check_shared, default_nvme


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


def test_a_folder_of_ledgers_that_cannot_be_listed_is_an_error_and_not_empty(tmp_path, obeys_modes):
    node = NodeDirectory.open(tmp_path)
    assert node.set_aside_ledgers("none", 0, 1) == []
    node.run("r").mkdir(parents=True)
    node.run("r").chmod(0o300)
    with pytest.raises(AccessDenied, match="cannot set an old ledger aside: permission denied"):
        node.set_aside_ledgers("r", 0, 1)


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/1/x", "readonly/nvme", "locked/nvme"])
def test_a_place_that_cannot_be_used_is_an_error_with_a_hint(tmp_path, monkeypatch, place):
    (tmp_path / "file").write_text("")
    real = Path.mkdir

    def refuse(path, *arguments, **options):
        if path.parent.name == "readonly":
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        if path.parent.name == "locked":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        real(path, *arguments, **options)

    for name in ("readonly", "locked"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises((ConfigError, NotFound, AccessDenied)) as caught:
        NodeDirectory.open(tmp_path / place)
    assert "choose another with stoker.open(nvme=...) or STOKER_NVME" in caught.value.hint


def test_a_lock_that_cannot_be_made_is_an_error_of_ours(tmp_path):
    node = NodeDirectory.open(tmp_path)
    (tmp_path / "run").write_text("in the way")
    with pytest.raises(StoreError, match="cannot take a lock"):
        node.claim("r", 0)


def test_a_format_that_is_no_text_is_an_unknown_one(tmp_path):
    (tmp_path / "nvme").mkdir()
    (tmp_path / "nvme" / "format").write_bytes(b"\xff\xfe")
    assert NodeDirectory.open(tmp_path / "nvme").root == tmp_path / "nvme-v1"


def test_the_home_directory_of_a_user_may_be_written_as_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert NodeDirectory.open(Path("~/nvme")).root == tmp_path / "nvme"
    with pytest.raises(ConfigError, match="no home directory for '~nobody-has-this-name/x'"):
        NodeDirectory.open(Path("~nobody-has-this-name/x"))


def test_a_lock_held_by_a_child_of_a_process_that_is_gone_says_so(tmp_path):
    node = NodeDirectory.open(tmp_path)
    to_child, to_parent = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:  # the process that claims, and forks a child before it ends
        _lock = node.claim("r", 0)
        if os.fork() == 0:
            os.close(to_child[1])
            os.write(to_parent[1], b"x")
            os.read(to_child[0], 1)
        os._exit(0)
    os.read(to_parent[0], 1)
    os.waitpid(pid, 0)
    try:
        with pytest.raises(RunBusy, match=f"pid {pid} is gone; a child of it still holds the lock") as caught:
            node.claim("r", 0)
    finally:
        for fd in (*to_child, *to_parent):  # the child ends when nobody can write to it any more
            os.close(fd)
    assert "lsof" in caught.value.hint


def test_a_shared_tier_that_is_not_there_is_refused_and_not_made(tmp_path):
    with pytest.raises(NotFound, match="shared tier is not there"):
        check_shared(tmp_path / "not" / "mounted")
    assert list(tmp_path.iterdir()) == []
    assert check_shared(tmp_path) == tmp_path
    assert check_shared(None) is None


@pytest.mark.parametrize("url", ["s3://bucket/runs", "file:///mnt/runs"])
def test_a_url_is_no_directory_of_a_tier(tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="shared tier is a directory, not a URL"):
        check_shared(Path(url))
    with pytest.raises(ConfigError, match="nvme tier is a directory, not a URL"):
        NodeDirectory.open(Path(url))
    assert list(tmp_path.iterdir()) == []
