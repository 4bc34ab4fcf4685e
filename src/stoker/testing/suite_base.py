"""What the parts of the store suite share."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from stoker.store.base import PromotingStore, Store
from stoker.values import Key


def pattern(size_bytes: int) -> bytes:
    """Bytes in which a shifted, swapped or missing part shows: no two aligned words are the same."""
    return np.arange(size_bytes // 8 + 1, dtype="<u8").tobytes()[:size_bytes]


class SuiteBase:
    """The tools of a part of the suite."""

    def again(self, store: Store) -> Store:
        """Another instance over the same objects; by default the store itself, which proves less."""
        return store

    @staticmethod
    def keys(store: Store, prefix: str = "") -> set[str]:
        """The keys the store lists, each once."""
        found = [str(info.key) for info in store.list(prefix)]
        assert len(found) == len(set(found))
        return set(found)

    @staticmethod
    def listing(store: Store, prefix: str = "") -> set[tuple[str, int]]:
        """The keys and sizes the store lists."""
        return {(str(info.key), info.size_bytes) for info in store.list(prefix)}

    @staticmethod
    def fill(store: Store, key: Key, size_bytes: int) -> None:
        """Read the first `size_bytes` of an object into a buffer."""
        store.read_into(key, 0, bytearray(size_bytes))

    @staticmethod
    def tree(store: Store) -> PromotingStore:
        """The store, if it has directories; else the test is skipped."""
        if not store.limits.promotes:
            pytest.skip("the store has no directories")
        return cast("PromotingStore", store)
