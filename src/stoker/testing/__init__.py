"""Shipped test tools: the store suite (needs pytest), stores that are slow or fail, and the crash suite.

`stoker.testing.fault_server` is an object server with faults by script; import it by that name.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from stoker.testing import crash
from stoker.testing.stores import Fault, FaultStore, RecordingStore, SlowStore, StoreWrite, WrappedStore

if TYPE_CHECKING:
    from stoker.testing.store_suite import StoreSuite

__all__ = [
    "Fault",
    "FaultStore",
    "RecordingStore",
    "SlowStore",
    "StoreSuite",
    "StoreWrite",
    "WrappedStore",
    "crash",
]


def __getattr__(name: str) -> Any:
    """StoreSuite on first use, with pytest's assertions; the rest of this package works without pytest."""
    if name != "StoreSuite":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    parts = ("store_suite", "suite_base", "suite_trees", "suite_writes")
    importlib.import_module("pytest").register_assert_rewrite(*(f"stoker.testing.{part}" for part in parts))
    return importlib.import_module("stoker.testing.store_suite").StoreSuite
