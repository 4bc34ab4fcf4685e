"""`StoreSuite`: what every store must do. A store that passes works with every room.

::

    class TestMyStore(stoker.testing.StoreSuite):
        @pytest.fixture
        def store(self, tmp_path):
            with closing(MyStore(tmp_path)) as store:
                yield store

        def again(self, store):      # another instance over the same objects
            return MyStore(store.root)
"""

# ruff: noqa: D102  the name of a test is its documentation

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, cast

import numpy as np
import pytest

from stoker.errors import ClosedError, ConfigError, NotFound, StokerError, Truncated
from stoker.store.base import PromotingStore, ReadBuffer, Store
from stoker.testing.suite_base import pattern
from stoker.testing.suite_trees import TreeSuite
from stoker.testing.suite_writes import WriteSuite
from stoker.units import MIB
from stoker.values import ByteRange, Key

_SIZES: Final = (0, 1, 4095, 4096, 4097, 5 * MIB)
_UNICODE: Final = (
    "ünïcode/日本語.txt",
    "emoji/🚚.bin",
    "space in name",
    "dot.",
    "-dash",
    "a%2Fb",
    "quote'\"",
    "back\\slash",
)


class StoreSuite(WriteSuite, TreeSuite):
    """Subclass it, with a fixture `store` that yields an empty store and closes it."""

    @pytest.mark.parametrize("size", _SIZES)
    def test_bytes_written_at_once_come_back(self, store: Store, size: int) -> None:
        data = pattern(size)
        info = store.write(Key("a/object"), data)
        assert (info.key, info.size_bytes) == ("a/object", size)
        assert store.read(Key("a/object")) == data
        assert self.again(store).read(Key("a/object")) == data

    @pytest.mark.parametrize("size", _SIZES)
    def test_bytes_written_in_pieces_come_back(self, store: Store, size: int) -> None:
        data = pattern(size)
        with store.writer(Key("a/object")) as writer:
            for start in range(0, size, max(1, size // 3)):
                writer.write(data[start : start + max(1, size // 3)])
            assert writer.commit().size_bytes == size
        assert self.again(store).read(Key("a/object")) == data

    def test_every_kind_of_buffer_can_be_written_and_filled(self, store: Store) -> None:
        data = pattern(1000)
        sources: tuple[ReadBuffer, ...] = (data, bytearray(data), memoryview(data), np.frombuffer(data, np.uint8))
        for number, source in enumerate(sources):
            store.write(Key(f"whole/{number}"), source)
            with store.writer(Key(f"pieces/{number}")) as writer:
                writer.write(source)
                writer.commit()
        for key in [f"{how}/{number}" for how in ("whole", "pieces") for number in range(len(sources))]:
            array = np.zeros(1000, np.uint8)
            block = bytearray(1000)
            outer = bytearray(b"x" * 1004)
            store.read_into(Key(key), 0, array)
            store.read_into(Key(key), 0, block)
            store.read_into(Key(key), 0, memoryview(outer)[2:1002])
            assert array.tobytes() == data
            assert block == data
            assert outer == b"xx" + data + b"xx"

    def test_the_store_keeps_a_copy_of_what_was_written(self, store: Store) -> None:
        source = bytearray(b"before")
        store.write(Key("whole"), source)
        writer = store.writer(Key("pieces"))
        writer.write(source)
        source[:] = b"after!"
        writer.commit()
        assert store.read(Key("whole")) == store.read(Key("pieces")) == b"before"

    def test_any_range_can_be_read(self, store: Store) -> None:
        data = pattern(10_000)
        store.write(Key("object"), data)
        for start, stop in ((0, 0), (0, 1), (0, 10_000), (1, 4096), (4096, 8192), (9_999, 10_000), (10_000, 10_000)):
            assert store.read(Key("object"), ByteRange(start, stop)) == data[start:stop]
            buffer = bytearray(stop - start)
            store.read_into(Key("object"), start, buffer)
            assert buffer == data[start:stop]

    def test_reading_past_the_end_is_truncated(self, store: Store) -> None:
        store.write(Key("object"), b"12345")
        for start, stop in ((0, 6), (5, 6), (6, 6), (6, 7), (2**40, 2**40 + 1)):
            with pytest.raises(Truncated, match="object"):
                store.read(Key("object"), ByteRange(start, stop))
            with pytest.raises(Truncated, match="object"):
                store.read_into(Key("object"), start, bytearray(stop - start))

    def test_a_missing_object_is_not_found(self, store: Store) -> None:
        store.write(Key("dir/object"), b"1")
        for name in ("missing", "dir", "dir/missing", "dir/object/below", "missing/missing"):
            for read in (store.stat, store.read, lambda key: self.fill(store, key, 1)):
                with pytest.raises(NotFound, match=name) as caught:
                    read(Key(name))
                assert isinstance(caught.value, FileNotFoundError)

    def test_a_missing_object_is_not_found_even_for_no_bytes(self, store: Store) -> None:
        with pytest.raises(NotFound):
            self.fill(store, Key("missing"), 0)
        with pytest.raises(NotFound):
            store.read(Key("missing"), ByteRange(0, 0))

    def test_deleting_is_idempotent_and_leaves_nothing(self, store: Store) -> None:
        store.write(Key("dir/object"), b"1")
        store.write(Key("dir/other"), b"2")
        assert store.read(Key("dir/object")) == b"1"
        store.delete(Key("dir/object"))
        for name in ("dir/object", "never/was", "dir", "dir/other/below"):
            store.delete(Key(name))
        with pytest.raises(NotFound):
            store.read(Key("dir/object"))
        with pytest.raises(NotFound):
            store.stat(Key("dir/object"))
        assert self.keys(store) == {"dir/other"}

    def test_keys_that_break_the_rules_are_refused(self, store: Store) -> None:
        for bad in ("", "/etc/passwd", "../up", "a//b", "a/./b", "a\x00b", "e\u0301"):
            for use in (store.read, store.writer, store.delete, lambda key: store.write(key, b"1")):
                with pytest.raises(ConfigError):
                    use(cast("Key", bad))  # what a caller without a type checker would do
        assert self.keys(store) == set()

    def test_a_prefix_is_a_text_and_not_a_directory(self, store: Store) -> None:
        names = {"a", "ab", "ab.d/x", "abc/x", "abc/y/z", "abd", "b/ab"}
        for name in names:
            store.write(Key(name), name.encode())
        for prefix in (
            "",
            "a",
            "ab",
            "abc",
            "abc/",
            "abc/y",
            "abc/y/",
            "abc/y/z",
            "abc/y/zz",
            "b",
            "b/",
            "c",
            "/",
            "ab/",
        ):
            expected = {(name, len(name)) for name in names if name.startswith(prefix)}
            assert self.listing(store, prefix) == expected, prefix
        for prefix in ("../", "..", "//", "a//", "./", "abc/../", "abc/./y"):
            assert self.listing(store, prefix) == set(), prefix

    def test_names_in_any_script_come_back_as_they_were(self, store: Store) -> None:
        for name in _UNICODE:
            store.write(Key(name), name.encode())
        assert self.keys(store) == set(_UNICODE)
        for name in _UNICODE:
            assert self.again(store).read(Key(name)) == name.encode()
            assert self.keys(store, name) == {name}
        assert all(isinstance(info.key, Key) for info in store.list())

    def test_an_empty_store_lists_nothing(self, store: Store) -> None:
        assert self.keys(store) == self.keys(store, "a") == self.keys(store, "a/b/") == set()

    def test_listing_survives_changes_under_way(self, store: Store) -> None:
        for number in range(20):
            store.write(Key(f"dir{number % 4}/{number}"), b"1")
        listing = store.list()
        seen = {str(next(listing).key)}
        for number in range(20):
            store.delete(Key(f"dir{number % 4}/{number}"))
        seen |= {str(info.key) for info in listing}
        assert seen <= {f"dir{number % 4}/{number}" for number in range(20)}

    def test_threads_do_not_disturb_each_other(self, store: Store) -> None:
        other = self.again(store)

        def work(number: int) -> None:
            for turn in range(5):
                data = pattern(10_000 + number)[number:] + bytes([turn])
                key = Key(f"dir{number % 3}/{number}")
                if turn % 2:
                    store.write(key, data)
                else:
                    with store.writer(key) as writer:
                        writer.write(data[:100])
                        writer.write(data[100:])
                        writer.commit()
                for reader in (store, other):
                    buffer = np.zeros(len(data), np.uint8)
                    reader.read_into(key, 0, buffer)
                    assert buffer.tobytes() == reader.read(key) == data

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        assert self.keys(store) == {f"dir{number % 3}/{number}" for number in range(8)}

    def test_readers_see_one_version_or_the_other_whole(self, store: Store) -> None:
        key = Key("object")
        versions = [bytes([number]) * 50_000 for number in range(4)]
        store.write(key, versions[0])
        stop = threading.Event()

        def read() -> int:
            count = 0
            while not stop.is_set() or count == 0:
                assert store.read(key) in versions
                count += 1
            return count

        with ThreadPoolExecutor(3) as pool:
            readers = [pool.submit(read) for _ in range(3)]
            try:
                for turn in range(30):
                    store.write(key, versions[turn % 4])
            finally:
                stop.set()
            assert all(reader.result() for reader in readers)

    def test_use_after_close_is_an_error_that_says_so(self, store: Store) -> None:
        key = Key("object")
        store.write(key, b"1")
        store.read(key)
        store.close()
        store.close()
        uses: list[Callable[[], object]] = [
            lambda: store.stat(key),
            lambda: store.read(key),
            lambda: self.fill(store, key, 1),
            lambda: store.write(key, b"2"),
            lambda: store.writer(key),
            lambda: list(store.list()),
            lambda: store.delete(key),
            lambda: store.path(key),
        ]
        if store.limits.promotes:
            tree = cast("PromotingStore", store)
            uses += [
                lambda: tree.promote("a", "b"),
                lambda: tree.delete_tree("a"),
                lambda: list(tree.list_dirs()),
                lambda: list(tree.list_dirs("a")),
                tree.sweep,
            ]
        for use in uses:
            with pytest.raises(ClosedError):
                use()

    def test_url_and_limits_are_said(self, store: Store) -> None:
        assert store.url
        assert store.limits.if_absent_max_bytes >= MIB
        assert store.limits.latency_s > 0
        assert isinstance(store, Store)

    def test_the_path_is_the_file_if_there_is_one(self, store: Store) -> None:
        path = store.path(Key("dir/object"))
        store.write(Key("dir/object"), b"bytes")
        assert store.path(Key("dir/object")) == path
        if path is not None:
            assert path.read_bytes() == b"bytes"

    def test_errors_say_what_and_where(self, store: Store) -> None:
        with pytest.raises(StokerError) as caught:
            store.read(Key("dir/missing"))
        assert "'dir/missing'" in caught.value.what
        assert store.url in caught.value.where
