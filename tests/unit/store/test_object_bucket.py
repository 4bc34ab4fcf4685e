"""A listing is whole: its end is seen twice, and it goes on behind the last name only where that loses none."""

import pytest

from stoker.errors import NotFound, Unavailable
from stoker.store.object_bucket import Bucket, Stored
from stoker.store.retries import Retries, RetryPolicy

CUT, FAKE = "cut", "fake"  # what a page is instead: an error, or an answer that looks like the end of a listing


class FakeServer(Bucket):
    """Lists names, two a page. `instead`: number of the page, counted over all listings -> CUT or FAKE."""

    page_names = 2

    def __init__(self, names, instead=(), *, goes_on=True):
        self.waits = []
        retries = Retries(RetryPolicy(attempts=3), sleep=self.waits.append, fraction=lambda: 1.0)
        super().__init__(self, "s3://bucket", retries)
        self.named = names
        self.instead = dict(instead)
        self.goes_on = goes_on
        self.asked = 0
        self.offsets = []

    def requests(self):
        return self

    def names(self):
        return [meta["path"] for meta in Bucket.list(self, "")]

    def head(self, name, key):
        if name not in self.named:
            raise NotFound(f"no object {name!r}")
        return Stored(1, "etag")

    def list(self, directory, *, offset, chunk_size):
        self.offsets.append(offset)
        names = [name for name in self.named if offset is None or not self.goes_on or name > offset]
        for start in range(0, max(1, len(names)), self.page_names):
            self.asked += 1
            instead = self.instead.get(self.asked)
            if instead == FAKE:
                return
            if instead == CUT:
                raise OSError("cut")
            if names:
                yield [{"path": name} for name in names[start : start + self.page_names]]


NAMES = ["a", "b", "b/c", "d", "e", "f", "g"]


def test_a_listing_is_asked_for_its_end_once_more_and_an_empty_one_twice():
    server = FakeServer(NAMES)
    assert server.names() == NAMES
    assert (server.offsets, server.waits) == ([None, "fzz"], [])
    empty = FakeServer([])
    assert empty.names() == []
    assert empty.offsets == [None, None]


def test_pages_that_fail_are_asked_for_again_behind_the_last_name():
    server = FakeServer(NAMES, {2: CUT, 4: CUT})
    assert server.names() == NAMES
    assert server.waits == [0.1, 0.1]  # each page has its own attempts
    assert server.offsets == [None, "azz", "b/bzz", "fzz"]


@pytest.mark.parametrize("number", range(1, 7))
def test_an_answer_that_is_no_listing_never_makes_one_short(number):
    server = FakeServer(NAMES, {number: FAKE})
    assert server.names() == NAMES
    if number > 1:
        server = FakeServer(NAMES, {number: FAKE, number + 1: CUT, number + 3: FAKE})
        assert server.names() == NAMES


def test_a_server_that_answers_no_listing_any_more_is_an_error_after_the_attempts():
    for instead in (FAKE, CUT):
        server = FakeServer(NAMES, dict.fromkeys(range(3, 99), instead))
        with pytest.raises(Unavailable, match=r"\(attempt 3 of 3\)"):
            server.names()
        assert server.waits == [0.1, 0.2]


@pytest.mark.parametrize(
    "names",
    [
        ["b", "a", "c"],  # in no order
        ["b", "d", "a", "c", "e"],
        ["dir-x", "dir", "e"],  # dir/ is the marker of a folder, and shows as dir
        ["a", "b%2Fc", "d"],  # the client would ask for what is behind another name
        ["a", "ü", "ž"],
    ],
    ids=str,
)
def test_where_going_on_might_lose_a_name_the_listing_is_to_begin_anew(names):
    server = FakeServer(names, {len(names) // 2 + 1: CUT})
    with pytest.raises(Unavailable) as caught:
        server.names()
    assert not caught.value.is_given_up  # whoever made the call makes it again
    assert server.names() == names
    assert server.waits == []


def test_a_server_that_always_lists_from_the_beginning_loses_and_repeats_nothing():
    for number in range(2, 9):
        assert FakeServer(NAMES, {number: CUT}, goes_on=False).names() == NAMES


def test_names_that_lose_their_order_where_the_listing_goes_on_are_an_error():
    server = FakeServer(["b", "c", "a", "d"], {2: CUT})
    server.goes_on = False
    with pytest.raises(Unavailable, match="in order, and then not"):
        server.names()


def test_a_last_name_that_was_removed_meanwhile_ends_the_listing():
    for left in (["a", "d"], ["a"], []):
        server = FakeServer(["a", "b", "c"])
        listing = Bucket.list(server, "")
        assert [next(listing)["path"] for _ in range(3)] == ["a", "b", "c"]
        server.named = left
        assert [meta["path"] for meta in listing] == [name for name in left if name > "c"]
        assert server.waits == []


def test_a_listing_that_fails_at_once_is_made_again_by_whoever_made_it():
    server = FakeServer(["a"], {1: CUT})
    with pytest.raises(Unavailable) as caught:
        server.names()
    assert not caught.value.is_given_up
    assert server.waits == []
