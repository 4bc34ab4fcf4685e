import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.dataset.names import check_prefix, check_sample_name, is_meta, is_reserved_field, split_path
from stoker.errors import ConfigError


def webdataset_split(path):
    """How the webdataset package splits a name: its `base_plus_ext`, and lower case for what follows."""
    match = re.match(r"^((?:.*/|)[^.]+)[.]([^/]*)$", path)
    return (match[1], match[2].lower()) if match else None


@pytest.mark.parametrize(
    ("path", "key", "field"),
    [
        ("a.jpg", "a", "jpg"),
        ("x/y/a.seg.PNG", "x/y/a", "seg.png"),
        ("v1.2/a.txt", "v1.2/a", "txt"),
        ("v1.2/a", "v1.2/a", ""),
        ("a.", "a", ""),
        ("a", "a", ""),
        (".hidden", "", "hidden"),
        ("d/.hidden.txt", "", "hidden.txt"),
    ],
)
def test_the_key_ends_at_the_first_dot_of_the_base_name(path, key, field):
    assert split_path(path) == (key, field)


PATHS = st.lists(st.text("aB.-_ä", min_size=1, max_size=6), min_size=1, max_size=4).map("/".join)


@given(PATHS)
def test_a_path_with_a_key_and_a_field_is_read_by_webdataset_in_the_same_way(path):
    key, field = split_path(path)
    if key and field:
        assert webdataset_split(path) == (key, field)


@given(PATHS, st.text("abä.", min_size=1, max_size=6))
def test_a_name_that_is_accepted_is_read_back_as_it_was_given(key, field):
    try:
        path = check_sample_name(key, field)
    except ConfigError:
        return
    assert split_path(path) == (key, field) == webdataset_split(path)


def test_a_first_component_between_double_underscores_is_meta_and_no_other_is():
    assert [is_meta(p) for p in ("__a__/b.py", "____/b", "__a__")] == [True] * 3
    assert [is_meta(p) for p in ("__init__.py", "a/__b__/c.py", "__a/b__/c", "_a_/b")] == [False] * 4
    assert is_meta("__a__.b__")
    assert is_reserved_field("__key__")
    assert not is_reserved_field("py")


@pytest.mark.parametrize(
    ("key", "field", "words"),
    [
        ("", "txt", "key '' with field"),
        ("a.b", "txt", "no dot after its last slash"),
        ("a", "TXT", "lower case"),
        ("a", "", "key 'a' with field ''"),
        ("a", "x/y", "no slash"),
        ("a/", "txt", "key 'a/' with field"),
        ("/a", "txt", "a part between slashes is empty"),
        ("../a", "txt", "'..'"),
        ("a\0", "txt", "NUL"),
        ("a\udc80", "txt", "Unicode"),
        ("__a__/b", "txt", "plain component before it"),
        ("a", "__key__", "use such names themselves"),
        ("a" * 5000, "txt", "longer than 4096"),
    ],
)
def test_names_that_would_be_read_back_differently_are_refused(key, field, words):
    with pytest.raises(ConfigError, match=words):
        check_sample_name(key, field)


@pytest.mark.parametrize(("key", "field"), [(3, "x"), (None, "x"), (b"a", "x"), (["a"], "x"), ("a", 3), ("a", b"x")])
def test_a_name_that_is_no_text_is_refused(key, field):
    with pytest.raises(ConfigError, match="of a sample is"):
        check_sample_name(key, field)


def test_a_very_long_name_is_not_shown_whole():
    with pytest.raises(ConfigError, match="longer than 4096 bytes") as caught:
        check_sample_name("x" * 100_000, "jpg")
    assert len(str(caught.value)) < 300


def test_a_prefix_is_a_plain_relative_path():
    assert check_prefix("") == ""
    assert check_prefix("a/b/") == "a/b"
    for wrong in ("/", "/a", "a//b", "..", "__a__", "__a__/b", "a\0"):
        with pytest.raises(ConfigError, match="not a prefix"):
            check_prefix(wrong)
