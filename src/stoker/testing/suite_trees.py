"""The part of the store suite about directories: promote, delete_tree, list_dirs."""

# ruff: noqa: D102  the name of a test is its documentation

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from stoker.errors import AlreadyExists, ConfigError, NotFound, StoreError
from stoker.store.base import Store
from stoker.testing.suite_base import SuiteBase
from stoker.values import Key


class TreeSuite(SuiteBase):
    """Skipped where `limits.promotes` is false."""

    def test_promote_moves_everything_at_once(self, store: Store) -> None:
        tree = self.tree(store)
        for name in ("a", "deep/b", "deep/er/c"):
            store.write(Key(f"run/step.partial/{name}"), name.encode())
            assert store.read(Key(f"run/step.partial/{name}")) == name.encode()
        tree.promote("run/step.partial", "run/done/step")
        assert self.keys(store) == {"run/done/step/a", "run/done/step/deep/b", "run/done/step/deep/er/c"}
        assert self.again(store).read(Key("run/done/step/deep/er/c")) == b"deep/er/c"
        for reader in (store, self.again(store)):
            with pytest.raises(NotFound):
                reader.read(Key("run/step.partial/a"))
        assert set(tree.list_dirs("run")) == {"done"}

    def test_promote_replaces_nothing_and_needs_a_source(self, store: Store) -> None:
        tree = self.tree(store)
        store.write(Key("new/a"), b"new")
        store.write(Key("old/a"), b"old")
        store.write(Key("file"), b"1")
        for target in ("old", "file"):
            with pytest.raises(AlreadyExists, match=target):
                tree.promote("new", target)
        for source in ("missing", "file", "missing/deep"):
            with pytest.raises(NotFound, match=source):
                tree.promote(source, "target")
        assert self.listing(store) == {("new/a", 3), ("old/a", 3), ("file", 1)}
        assert store.read(Key("old/a")) == b"old"

    def test_one_of_many_concurrent_promotions_wins(self, store: Store) -> None:
        tree = self.tree(store)
        for number in range(8):
            store.write(Key(f"from{number}/a"), str(number).encode())
        barrier = threading.Barrier(8)

        def race(number: int) -> int | None:
            barrier.wait()
            try:
                tree.promote(f"from{number}", "to")
            except AlreadyExists:
                return None
            return number

        with ThreadPoolExecutor(8) as pool:
            won = [number for number in pool.map(race, range(8)) if number is not None]
        assert len(won) == 1
        assert store.read(Key("to/a")) == str(won[0]).encode()
        assert len(self.keys(store)) == 8  # noqa: PLR2004  the others stay where they were

    def test_a_writer_whose_directory_was_promoted_cannot_commit(self, store: Store) -> None:
        tree = self.tree(store)
        store.write(Key("step.partial/a"), b"a")
        writer = store.writer(Key("step.partial/late"))
        writer.write(b"late")
        tree.promote("step.partial", "step")
        with pytest.raises(NotFound):
            writer.commit()
        writer.discard()
        assert self.keys(store) == {"step/a"}

    def test_delete_tree_removes_all_and_only_that(self, store: Store) -> None:
        tree = self.tree(store)
        for name in ("run/step/a", "run/step/deep/b", "run/step2/a", "other"):
            store.write(Key(name), b"1")
        half = store.writer(Key("run/step/half"))
        half.write(b"half")
        tree.delete_tree("run/step")
        tree.delete_tree("run/step")
        tree.delete_tree("missing/deep")
        tree.delete_tree("other")
        assert self.keys(store) == {"run/step2/a", "other"}
        assert set(tree.list_dirs("run")) == {"step2"}
        with pytest.raises(StoreError):
            half.commit()
        half.discard()
        assert self.keys(store) == {"run/step2/a", "other"}

    def test_list_dirs_names_the_directories_directly_below(self, store: Store) -> None:
        tree = self.tree(store)
        assert set(tree.list_dirs()) == set(tree.list_dirs("missing")) == set()
        for name in ("a/b/c/d", "a/e/f", "a/file", "z/y", "file"):
            store.write(Key(name), b"1")
        assert set(tree.list_dirs()) == {"a", "z"}
        assert set(tree.list_dirs("a")) == {"b", "e"}
        assert set(tree.list_dirs("a/b")) == {"c"}
        assert set(tree.list_dirs("a/b/c")) == set(tree.list_dirs("file")) == set()

    def test_a_sweep_leaves_objects_and_live_writers_alone(self, store: Store) -> None:
        tree = self.tree(store)
        store.write(Key("a/b"), b"1")
        with store.writer(Key("a/live")) as writer:
            writer.write(b"2")
            assert tree.sweep() == tree.sweep("a") == tree.sweep("missing") == 0
            writer.commit()
        assert self.listing(store) == {("a/b", 1), ("a/live", 1)}

    def test_directories_outside_the_store_are_refused(self, store: Store) -> None:
        tree = self.tree(store)
        store.write(Key("a/b"), b"1")
        uses: list[Callable[[], object]] = [
            lambda: tree.promote("a", "../out"),
            lambda: tree.promote("../a", "b"),
            lambda: tree.delete_tree(".."),
            lambda: tree.delete_tree(""),
            lambda: list(tree.list_dirs("..")),
            lambda: tree.sweep(".."),
        ]
        for use in uses:
            with pytest.raises(ConfigError):
                use()
        assert self.keys(store) == {"a/b"}
