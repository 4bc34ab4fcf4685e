"""Whether batches are made in a child process, and the start of one: before all else, so that both can load at once."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from stoker.errors import CapacityError, UnsupportedError
from stoker.io.child import Child

MODULE: Final = "stoker.feed"
_OF_THIS_PROCESS: Final = re.compile(r"memory://", re.IGNORECASE)
# Without functions of the user nobody multiplies matrices there. OpenBLAS would start a thread for each processor as
# soon as numpy is loaded, and they spin: on two cores that cost 30 ms of the 70 that the trainer was loading in.
_ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1"}


@dataclass(slots=True)
class Start:
    """What a loader begins with: the `child` that makes its batches, or None if threads of this process do; and what is
    closed with it.
    """

    child: Child | None = None
    closes: Callable[[], None] = lambda: None

    def give_up(self) -> None:
        """There will be no loader."""
        if self.child is not None:
            self.child.close()
        self.closes()


def start_feeder(dataset: Any, kind: str) -> Start:
    """Start a child for the data set that a path, URL or description names, if one can serve it.

    `kind` is that of FeedOptions: "auto" falls back to threads of this process and says so once; "child" raises
    UnsupportedError, naming why.
    """
    if kind == "inline":
        return Start()
    described = hasattr(dataset, "source")  # else it is a name, or nothing that can be opened
    places = [dataset.source, dataset.index] if described else [dataset]
    reason = next(filter(None, map(_reason, places)), "")
    if not reason:
        try:
            maps = bool(described and dataset.mappers)
            return Start(start_child(maps=True) if maps else start_child())
        except (UnsupportedError, CapacityError) as error:
            if kind == "child":
                raise
            reason = error.what
    if kind == "child":
        raise UnsupportedError(
            f"a feeder in a child process cannot read this data set: {reason}",
            hint='choose feeder="auto" or "inline" (feed.feeder in stoker.toml, STOKER_FEED_FEEDER)',
        )
    import logging  # noqa: PLC0415  3 ms that a child does not wait for

    logging.getLogger("stoker.feed").info("batches are made in threads of this process, not in a child: %s", reason)
    return Start()


def start_child(*, maps: bool = False) -> Child:
    """A child that waits for what a feeder must know; `maps`: it may run functions of the user. The kernel kills it
    with the main thread, if that starts it.
    """
    return Child.start(
        MODULE, {} if maps else _ONE_THREAD, dies_with_thread=threading.current_thread() is threading.main_thread()
    )


def _reason(place: Any) -> str:
    """Why another process cannot read there; "" if it can."""
    if place is None or isinstance(place, str | os.PathLike):
        return "memory:// is memory of this process" if _OF_THIS_PROCESS.match(os.fspath(place or "")) else ""
    return f"its store is an object of this process, a {type(place).__name__}"
