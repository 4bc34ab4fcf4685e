"""Shipped test tools: suites for stores and servers (need pytest), stores that are slow or fail, the crash suite.

`stoker.testing.fault_server` is an object server with faults by script; import it by that name.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from stoker.testing import crash
from stoker.testing.stores import Fault, FaultStore, RecordingStore, SlowStore, StoreWrite, WrappedStore

if TYPE_CHECKING:
    from stoker.testing.object_suite import ObjectSuite
    from stoker.testing.store_suite import StoreSuite

__all__ = [
    "Fault",
    "FaultStore",
    "ObjectSuite",
    "RecordingStore",
    "SlowStore",
    "StoreSuite",
    "StoreWrite",
    "WrappedStore",
    "crash",
]


_SUITES: Final = {"ObjectSuite": "object_suite", "StoreSuite": "store_suite"}


def __getattr__(name: str) -> Any:
    """The suites on first use, with pytest's assertions; the rest of this package works without pytest."""
    if name not in _SUITES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    parts = ("object_suite", "store_suite", "suite_base", "suite_trees", "suite_writes")
    importlib.import_module("pytest").register_assert_rewrite(*(f"stoker.testing.{part}" for part in parts))
    return getattr(importlib.import_module(f"stoker.testing.{_SUITES[name]}"), name)


def __dir__() -> list[str]:
    """The public names, whether they are loaded yet or not."""
    return sorted(__all__)
