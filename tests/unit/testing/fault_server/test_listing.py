"""Pages of a listing hold each key once, whatever their size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stoker.testing.fault_server.listing import cut_page

KEYS = st.lists(st.text("ab/-é", min_size=1, max_size=6), unique=True, max_size=30)


def pages(keys, prefix, delimiter, size):
    keys = sorted(key for key in keys if key.startswith(prefix))
    after, found, folders = "", [], []
    while after is not None:
        page = cut_page(keys, prefix, delimiter, after, size)
        assert len(page.keys) + len(page.folders) <= size
        found += page.keys
        folders += page.folders
        after = page.next_after
    return found, folders


@given(KEYS, st.text("ab/", max_size=2), st.integers(1, 7))
def test_all_keys_come_once_and_in_order(keys, prefix, size):
    found, folders = pages(keys, prefix, "", size)
    assert found == sorted(key for key in keys if key.startswith(prefix))
    assert folders == []


@given(KEYS, st.text("ab/", max_size=2), st.sampled_from(["/", "-", "b/"]), st.integers(1, 7))
def test_a_delimiter_makes_folders_and_each_comes_once(keys, prefix, delimiter, size):
    found, folders = pages(keys, prefix, delimiter, size)
    inside = [key for key in keys if key.startswith(prefix)]
    cut = {key: prefix + key[len(prefix) :].partition(delimiter)[0] + delimiter for key in inside}
    deep = {key for key in inside if delimiter in key[len(prefix) :]}
    assert found == sorted(set(inside) - deep)
    assert folders == sorted({cut[key] for key in deep})


def test_the_last_page_says_that_it_is_the_last_and_a_page_of_nothing_too():
    assert cut_page(["a", "b"], "", "", "", 2).next_after is None
    assert cut_page(["a", "b"], "", "", "", 1).next_after == "a"
    assert cut_page(["a", "b"], "", "", "", 0).next_after is None
    assert cut_page([], "", "", "", 1).next_after is None
