"""What is of memory stores alone; the rest is the store suite."""

import pytest

from stoker.errors import ClosedError, NotFound
from stoker.store.memory import MemoryStore
from stoker.values import Key


def test_stores_do_not_share_objects_unless_told_to():
    first, second = MemoryStore("a"), MemoryStore("a")
    first.write(Key("object"), b"1")
    with pytest.raises(NotFound):
        second.read(Key("object"))
    assert MemoryStore("b", first.contents).read(Key("object")) == b"1"


def test_closing_one_of_two_that_share_leaves_the_other():
    first = MemoryStore("a")
    second = MemoryStore("a", first.contents)
    first.write(Key("object"), b"1")
    first.close()
    with pytest.raises(ClosedError, match="closed") as caught:
        first.read(Key("object"))
    assert caught.value.where == "memory://a"
    assert second.read(Key("object")) == b"1"


def test_a_memory_store_has_no_paths_and_no_directories():
    store = MemoryStore("a")
    assert store.path(Key("object")) is None
    assert store.limits.promotes is False
    assert not hasattr(store, "promote")
