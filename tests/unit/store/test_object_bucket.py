"""A listing goes on behind the last name only where that loses none; else it begins anew."""

import pytest

from stoker.errors import Unavailable
from stoker.store.object_bucket import Bucket
from stoker.store.retries import Retries, RetryPolicy


class FakeClient:
    """Lists pages, and fails before those whose numbers are in `failing`, each once. Notes where it was to go on."""

    def __init__(self, pages, failing, *, goes_on=True):
        self.pages = pages
        self.failing = set(failing)
        self.goes_on = goes_on
        self.offsets = []

    def requests(self):
        return self

    def list(self, directory, *, offset, chunk_size):
        self.offsets.append(offset)
        for number, page in enumerate(self.pages):
            if number in self.failing:
                self.failing.remove(number)
                raise OSError("cut")
            found = [{"path": name} for name in page if offset is None or not self.goes_on or name > offset]
            if found:
                yield found


@pytest.fixture
def waits():
    return []


@pytest.fixture
def names_of(waits):
    """The names that a bucket lists, by a policy of three attempts."""

    def names_of(client):
        retries = Retries(RetryPolicy(attempts=3), sleep=waits.append, fraction=lambda: 1.0)
        return [meta["path"] for meta in Bucket(client, "s3://bucket", retries).list("")]

    return names_of


def test_pages_that_fail_are_asked_for_again_behind_the_last_name(names_of, waits):
    client = FakeClient([["a", "b"], ["b/c", "d"], ["e"], ["f"]], failing=[1, 3])
    assert names_of(client) == ["a", "b", "b/c", "d", "e", "f"]
    assert client.offsets == [None, "b", "e"]
    assert waits == [0.1, 0.1]  # each page has its own attempts


def test_a_page_that_never_comes_is_an_error_after_the_attempts(names_of, waits):
    client = FakeClient([["a"], ["b"]], failing=[])

    def list_and_fail(directory, *, offset, chunk_size):
        client.offsets.append(offset)
        if offset is None:
            yield [{"path": "a"}]
        raise OSError("cut")

    client.list = list_and_fail
    with pytest.raises(Unavailable, match="attempt 3 of 3"):
        names_of(client)
    assert client.offsets == [None, "a", "a"]
    assert waits == [0.1, 0.2]


@pytest.mark.parametrize(
    "pages",
    [
        [["b", "a"], ["c"]],  # in no order
        [["b", "d"], ["a", "c"], ["e"]],
        [["dir-x", "dir"], ["e"]],  # dir/ is the marker of a folder, and shows as dir
        [["a", "b%2Fc"], ["d"]],  # the client would ask for what is behind another name
        [["a", "ü"], ["ž"]],
    ],
    ids=str,
)
def test_where_going_on_might_lose_a_name_the_listing_is_to_begin_anew(names_of, waits, pages):
    client = FakeClient(pages, failing=[len(pages) - 1])
    with pytest.raises(Unavailable) as caught:
        names_of(client)
    assert not caught.value.is_given_up  # whoever made the call makes it again
    assert names_of(client) == [name for page in pages for name in page]
    assert (client.offsets, waits) == ([None, None], [])


@pytest.mark.parametrize("pages", [[["a", "b"], ["c"]], [["b", "c"], ["a", "d"]]], ids=str)
def test_a_server_that_does_not_go_on_is_found_out(names_of, pages):
    client = FakeClient(pages, failing=[1], goes_on=False)
    with pytest.raises(Unavailable, match="does not go on behind") as caught:
        names_of(client)
    assert not caught.value.is_given_up


def test_a_listing_that_fails_at_once_is_made_again_by_whoever_made_it(names_of, waits):
    client = FakeClient([["a"]], failing=[0])
    with pytest.raises(Unavailable) as caught:
        names_of(client)
    assert not caught.value.is_given_up
    assert waits == []
