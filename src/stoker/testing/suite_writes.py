"""The part of the store suite about writing: replacing, being first, writing in pieces."""

# ruff: noqa: D102  the name of a test is its documentation

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from stoker.errors import AlreadyExists, ClosedError, ConfigError, NotFound, Truncated
from stoker.store.base import ObjectWriter, Store
from stoker.testing.suite_base import SuiteBase
from stoker.units import MIB
from stoker.values import Key


class WriteSuite(SuiteBase):
    """An object appears whole or not at all."""

    def test_an_overwrite_is_seen_by_every_instance_that_has_read_before(self, store: Store) -> None:
        other = self.again(store)
        key = Key("object")
        for data in (b"first", b"second, longer", b"3"):
            store.write(key, data)
            assert store.read(key) == other.read(key) == data
        with other.writer(key) as writer:
            writer.write(b"pieces")
            writer.commit()
        for reader in (store, other):
            assert reader.read(key) == b"pieces"
            with pytest.raises(Truncated):
                self.fill(reader, key, 7)
        other.delete(key)
        for reader in (store, other):
            with pytest.raises(NotFound):
                self.fill(reader, key, 1)

    def test_the_version_changes_with_the_bytes_and_not_without(self, store: Store) -> None:
        versions = []
        for number in range(50):  # same size, within one tick of a kernel clock
            info = store.write(Key("object"), f"{number:04d}".encode())
            assert store.stat(Key("object")) == info
            versions.append(info.version)
        assert len(set(versions)) == len(versions)
        assert self.again(store).stat(Key("object")) == store.stat(Key("object")) == next(store.list("object"))

    def test_if_absent_writes_once(self, store: Store) -> None:
        info = store.write(Key("dir/once"), b"first", if_absent=True)
        assert info == store.stat(Key("dir/once"))
        with pytest.raises(AlreadyExists, match="dir/once") as caught:
            self.again(store).write(Key("dir/once"), b"second", if_absent=True)
        assert isinstance(caught.value, FileExistsError)
        assert store.read(Key("dir/once")) == b"first"
        store.delete(Key("dir/once"))
        store.write(Key("dir/once"), b"third", if_absent=True)
        assert self.listing(store) == {("dir/once", 5)}

    def test_one_of_many_concurrent_if_absent_writers_wins(self, store: Store) -> None:
        barrier = threading.Barrier(16)

        def race(number: int) -> int | None:
            barrier.wait()
            try:
                store.write(Key("dir/once"), f"{number:03d}".encode(), if_absent=True)
            except AlreadyExists:
                return None
            return number

        with ThreadPoolExecutor(16) as pool:
            won = [number for number in pool.map(race, range(16)) if number is not None]
        assert len(won) == 1
        assert store.read(Key("dir/once")) == f"{won[0]:03d}".encode()
        assert self.keys(store) == {"dir/once"}

    def test_if_absent_refuses_large_objects_as_its_limits_say(self, store: Store) -> None:
        limit = store.limits.if_absent_max_bytes
        if limit > 64 * MIB:
            pytest.skip("the limit is too large to try")
        with pytest.raises(ConfigError, match="MiB"):
            store.write(Key("large"), memoryview(bytearray(limit + 1)), if_absent=True)
        assert self.keys(store) == set()

    def test_an_object_is_invisible_until_committed(self, store: Store) -> None:
        with store.writer(Key("dir/object")) as writer:
            writer.write(b"bytes")
            for reader in (store, self.again(store)):
                with pytest.raises(NotFound):
                    reader.read(Key("dir/object"))
                assert self.keys(reader) == set()
            info = writer.commit()
            assert store.read(Key("dir/object")) == b"bytes"
        assert self.again(store).stat(Key("dir/object")) == info

    def test_an_overwritten_object_stays_until_the_writer_commits(self, store: Store) -> None:
        store.write(Key("object"), b"old")
        with store.writer(Key("object")) as writer:
            writer.write(b"new bytes")
            assert store.read(Key("object")) == b"old"
            assert self.listing(store) == {("object", 3)}
            writer.commit()
        assert store.read(Key("object")) == b"new bytes"

    @pytest.mark.parametrize("how", ["discard", "leave", "raise"])
    def test_a_writer_that_does_not_commit_leaves_nothing(self, store: Store, how: str) -> None:
        store.write(Key("object"), b"old")

        def use(writer: ObjectWriter) -> None:
            with writer:
                writer.write(b"half")
                if how == "raise":
                    raise LookupError("of the caller")
                if how == "discard":
                    writer.discard()
                    writer.discard()

        for name in ("object", "dir/new"):
            if how == "raise":
                with pytest.raises(LookupError):
                    use(store.writer(Key(name)))
            else:
                use(store.writer(Key(name)))
        assert self.listing(store) == self.listing(self.again(store)) == {("object", 3)}
        assert store.read(Key("object")) == b"old"

    @pytest.mark.parametrize("told", [1, 1000, 10_000])
    def test_a_writer_may_be_told_the_size_and_takes_more_or_fewer_bytes(self, store: Store, told: int) -> None:
        with store.writer(Key("object"), size_bytes=told) as writer:
            writer.write(bytes(1000))
            assert writer.commit() == store.stat(Key("object"))
        assert store.read(Key("object")) == bytes(1000)

    def test_a_writer_is_used_once(self, store: Store) -> None:
        writer = store.writer(Key("object"))
        writer.write(b"1")
        writer.commit()
        writer.discard()
        assert store.read(Key("object")) == b"1"
        for attempt in (lambda: writer.write(b"2"), writer.commit):
            with pytest.raises(ClosedError):
                attempt()
        discarded = store.writer(Key("object"))
        discarded.discard()
        for attempt in (lambda: discarded.write(b"2"), discarded.commit):
            with pytest.raises(ClosedError):
                attempt()
        assert store.read(Key("object")) == b"1"

    def test_writers_of_one_key_do_not_mix(self, store: Store) -> None:
        first, second = store.writer(Key("object")), store.writer(Key("object"))
        first.write(b"1")
        second.write(b"2")
        first.write(b"1")
        second.write(b"2")
        second.commit()
        assert store.read(Key("object")) == b"22"
        first.commit()
        assert store.read(Key("object")) == b"11"
        assert self.listing(store) == {("object", 2)}
