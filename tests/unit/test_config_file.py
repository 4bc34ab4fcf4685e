"""The file of settings is read only if it is the user's own and nobody else may write to it."""

import logging
import os

import pytest

from stoker import config_file
from stoker.config_file import MAX_FILE_BYTES, find_file
from stoker.errors import ConfigError

UID = os.geteuid()


@pytest.fixture(autouse=True)
def nothing_was_warned_of(monkeypatch):
    monkeypatch.setattr(config_file, "_warned", set())


@pytest.fixture
def place(tmp_path):
    """A current directory and a home, both without a file."""
    (tmp_path / "home/.config/stoker").mkdir(parents=True)
    (tmp_path / "work").mkdir()
    return tmp_path


def make(path, text="x = 1\n", mode=0o644):
    path.write_text(text)
    path.chmod(mode)
    return path


def find(place, **environ):
    return find_file({"HOME": str(place / "home"), **environ}, place / "work", UID)


def test_the_named_file_comes_before_that_of_the_directory_and_that_before_that_of_the_user(place):
    assert find(place) is None
    users = make(place / "home/.config/stoker/stoker.toml", "a")
    assert find(place) == (users, "a")
    here = make(place / "work/stoker.toml", "b")
    assert find(place) == (here, "b")
    named = make(place / "work/other.toml", "c")
    assert find(place, STOKER_CONFIG="other.toml") == (named, "c")
    assert find(place, STOKER_CONFIG=str(users)) == (users, "a")


def test_the_configuration_home_of_the_user_may_be_elsewhere(place):
    (place / "xdg/stoker").mkdir(parents=True)
    make(place / "home/.config/stoker/stoker.toml", "a")
    elsewhere = make(place / "xdg/stoker/stoker.toml", "b")
    assert find(place, XDG_CONFIG_HOME=str(place / "xdg")) == (elsewhere, "b")
    assert find_file({}, place / "work", UID) is None


def test_an_empty_name_means_no_file(place):
    make(place / "work/stoker.toml")
    assert find(place, STOKER_CONFIG="") is None


def test_a_named_file_that_is_not_there_is_an_error(place):
    with pytest.raises(ConfigError, match=r"(?s)it is not there.*gone.toml \(environment STOKER_CONFIG\)"):
        find(place, STOKER_CONFIG="gone.toml")


def of_another_user(path):
    pass  # the caller looks with another user's number


def by_the_group(path):
    path.chmod(0o664)


def by_all(path):
    path.chmod(0o646)


def a_link(path):
    path.rename(path.with_name("real"))
    path.symlink_to("real")


def a_directory(path):
    path.unlink()
    path.mkdir()


def a_pipe(path):
    path.unlink()
    os.mkfifo(path)


def too_large(path):
    path.write_bytes(b"#" * (MAX_FILE_BYTES + 1))


def not_text(path):
    path.write_bytes(b"a = '\xff'")


SPOILT = [
    (of_another_user, f"it belongs to user {UID}, not to {UID + 1}"),
    (by_the_group, r"others may write to it \(mode 0664\)"),
    (by_all, r"others may write to it \(mode 0646\)"),
    (a_link, "a link is not followed"),
    (a_directory, "not a regular file"),
    (a_pipe, "not a regular file"),
    (too_large, "larger than 1.0 MiB"),
    (not_text, "not UTF-8 at byte 5"),
]


@pytest.mark.parametrize(("spoil", "problem"), SPOILT, ids=[spoil.__name__ for spoil, _ in SPOILT])
def test_a_file_that_cannot_be_trusted_is_an_error_if_named_and_passed_over_with_one_warning_if_found(
    place, spoil, problem, caplog
):
    spoil(make(place / "work/stoker.toml"))
    uid = UID + 1 if spoil is of_another_user else UID
    with pytest.raises(ConfigError, match=problem):
        find_file({"STOKER_CONFIG": "stoker.toml"}, place / "work", uid)
    for _ in range(2):
        assert find_file({}, place / "work", uid) is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert caplog.text.count("is not read") == 1


def test_a_file_passed_over_does_not_hide_that_of_the_user(place):
    make(place / "work/stoker.toml", mode=0o666)
    users = make(place / "home/.config/stoker/stoker.toml", "a")
    assert find(place) == (users, "a")


def test_a_file_of_exactly_the_greatest_size_is_read(place):
    make(place / "work/stoker.toml", "#" * MAX_FILE_BYTES)
    assert find(place)[1] == "#" * MAX_FILE_BYTES


def test_a_file_that_may_not_be_read_says_so(place, monkeypatch):
    make(place / "work/stoker.toml")

    def refuse(_path, _flags):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(config_file.os, "open", refuse)
    with pytest.raises(ConfigError, match="permission denied"):
        find(place, STOKER_CONFIG="stoker.toml")
