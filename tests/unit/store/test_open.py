"""A URL or a path becomes a store, or an error that names what can."""

from pathlib import Path

import pytest

from stoker.errors import ConfigError, NotFound
from stoker.store.local import LocalStore
from stoker.store.memory import MemoryStore
from stoker.store.open import open_store
from stoker.values import Key


def test_a_path_is_a_local_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for url, root in (
        (tmp_path / "a", tmp_path / "a"),
        (str(tmp_path / "a"), tmp_path / "a"),
        ("a/b", tmp_path / "a/b"),
        ("./a", tmp_path / "a"),
        ("~/a", tmp_path / "home/a"),
        (Path("~/a"), tmp_path / "home/a"),
        ("with:colon", tmp_path / "with:colon"),
        (f"file://{tmp_path}/a%20b", tmp_path / "a b"),
        (f"FILE://localhost{tmp_path}/a", tmp_path / "a"),
    ):
        store = open_store(url)
        assert isinstance(store, LocalStore)
        assert store.root == root
    assert list(tmp_path.iterdir()) == []


def test_one_name_of_memory_is_one_set_of_objects_in_a_process():
    first, second, other = open_store("memory://test-open"), open_store("memory://test-open"), open_store("memory://b")
    assert isinstance(first, MemoryStore)
    first.write(Key("object"), b"1")
    assert second.read(Key("object")) == b"1"
    with pytest.raises(NotFound):
        other.read(Key("object"))
    first.close()
    second.close()
    assert open_store("memory://test-open").read(Key("object")) == b"1"


@pytest.mark.parametrize("url", ["gs://bucket", "AZ://bucket", "http://host/x", "ftp+x://a"])
def test_an_unknown_scheme_is_refused_with_the_known_ones(url):
    with pytest.raises(
        ConfigError, match=f"unknown scheme '{url.partition(':')[0].lower()}'".replace("+", r"\+")
    ) as caught:
        open_store(url)
    assert caught.value.where == url
    assert caught.value.exit_code == 2
    for known in ("a path", "file://", "s3://", "memory://"):
        assert known in caught.value.hint


@pytest.mark.parametrize("url", ["", "memory://", "file://", "file://host/a", "file:///a?b=c", "file:///a#b"])
def test_a_url_that_names_no_store_is_refused(url):
    with pytest.raises(ConfigError) as caught:
        open_store(url)
    assert caught.value.hint


def test_the_home_of_a_user_that_nobody_has_is_refused():
    with pytest.raises(ConfigError, match="no home directory for '~nobody-has-this-name/a'"):
        open_store("~nobody-has-this-name/a")
