"""`ObjectSuite`: what a server of objects must do for `ObjectStore`, beyond what every store does.

::

    class TestMyServer(stoker.testing.ObjectSuite):
        @pytest.fixture
        def store(self):      # an empty ObjectStore, with options.part_bytes of 8 MiB
            ...
"""

# ruff: noqa: D102  the name of a test is its documentation

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

import numpy as np
import pytest

from stoker.errors import AlreadyExists, NotFound, PreconditionFailed, Truncated
from stoker.store.object import ObjectStore
from stoker.testing.suite_base import pattern
from stoker.units import MIB
from stoker.values import ByteRange, Key

PAGE: Final = 1000  # objects in one answer to a listing


class ObjectSuite:
    """Subclass it, with a fixture `store` that yields an empty ObjectStore."""

    def test_if_none_match_is_kept(self, store: ObjectStore) -> None:
        assert store.keeps_if_absent()
        assert list(store.list()) == []
        store.write(Key("once"), b"first", if_absent=True)
        with pytest.raises(AlreadyExists):
            store.write(Key("once"), b"second", if_absent=True)
        assert store.read(Key("once")) == b"first"

    def test_if_match_reads_one_version_and_no_other(self, store: ObjectStore) -> None:
        info = store.write(Key("object"), b"0123456789")
        assert store.read_version(info, ByteRange(2, 5)) == b"234"
        store.write(Key("object"), b"abcdefghij")
        with pytest.raises(PreconditionFailed):
            store.read_version(info, ByteRange(2, 5))
        assert store.read_version(store.stat(Key("object")), ByteRange(2, 5)) == b"cde"
        store.delete(Key("object"))
        with pytest.raises((NotFound, PreconditionFailed)):
            store.read_version(info, ByteRange(2, 5))

    def test_a_range_is_what_was_asked_for_and_ends_with_the_object(self, store: ObjectStore) -> None:
        data = pattern(9 * MIB)
        store.write(Key("object"), data)
        for start, stop in ((0, 1), (4 * MIB - 1, 8 * MIB + 1), (9 * MIB - 1, 9 * MIB), (0, 9 * MIB)):
            assert store.read(Key("object"), ByteRange(start, stop)) == data[start:stop]
        for start, stop in ((9 * MIB - 1, 9 * MIB + 1), (9 * MIB, 9 * MIB + 1), (99 * MIB, 99 * MIB + 1)):
            with pytest.raises(Truncated):
                store.read(Key("object"), ByteRange(start, stop))

    def test_a_listing_of_several_pages_shows_each_object_once(self, store: ObjectStore) -> None:
        names = {f"dir{number % 7}/object-{number:05d}" for number in range(PAGE + 50)}
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: store.write(Key(name), b"1"), names))
        found = [str(info.key) for info in store.list()]
        assert len(found) == len(names)
        assert set(found) == names
        assert {str(info.key) for info in store.list("dir3/")} == {name for name in names if name.startswith("dir3/")}
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: store.delete(Key(name)), names))
        assert list(store.list()) == []

    def test_an_object_in_parts_appears_whole(self, store: ObjectStore) -> None:
        small = ObjectStore(store.url, replace(store.options, part_bytes=8 * MIB))
        data = pattern(20 * MIB + 5)
        with small.writer(Key("parts")) as writer:
            for start in range(0, len(data), 3 * MIB):
                writer.write(memoryview(data)[start : start + 3 * MIB])
            assert list(store.list()) == []
            with pytest.raises(NotFound):
                store.stat(Key("parts"))
            info = writer.commit()
        assert info == store.stat(Key("parts")) == next(store.list())
        buffer = np.zeros(len(data), np.uint8)
        store.read_into(Key("parts"), 0, buffer)
        assert buffer.tobytes() == data

    def test_parts_that_are_discarded_leave_no_object(self, store: ObjectStore) -> None:
        small = ObjectStore(store.url, replace(store.options, part_bytes=8 * MIB))
        with small.writer(Key("parts")) as writer:
            writer.write(bytes(17 * MIB))
        assert list(store.list()) == []
        with pytest.raises(NotFound):
            store.stat(Key("parts"))
