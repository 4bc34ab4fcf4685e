"""The ledgers of a run: where they lie, read."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from stoker.errors import FormatError, NewerFormat, NotFound, StoreError
from stoker.io.os_errors import translating
from stoker.ledger import LedgerSnapshot, ledger_name, parse_ledger, read_ledger
from stoker.store.base import Store
from stoker.values import Key

_FOLDER: Final = "ledger/"
_THREADS: Final = 8  # ledgers read at once from a store that is far away
_NAME: Final = re.compile(r"rank-\d{5,}\.g\d{4,}\.ledger\Z")

_log = logging.getLogger("stoker.meter")


def find_snapshots(*directories: Path, at_hand: Collection[LedgerSnapshot] = ()) -> list[LedgerSnapshot]:
    """The ledgers in these directories (a node's folder of the run, the `ledger` folder in the run's home), read.

    A directory that is not there holds none. One that cannot be listed, as it is closed to this user, is passed over
    with a warning if any ledger is found elsewhere or is `at_hand`, else it is an error. A file that is damaged or was
    never finished is passed over with a warning. The same ledger may appear twice: a report counts it once. Raises
    NewerFormat, AccessDenied, StoreError. About 15 ms a ledger.
    """
    found: list[LedgerSnapshot] = []
    unlisted = []
    for directory in directories:
        try:
            names = _names_in(directory)
        except StoreError as error:
            unlisted.append(error)
            continue
        for name in names:
            found += _read(partial(read_ledger, directory / name))
    if unlisted and not found and not at_hand:
        raise unlisted[0]
    for problem in unlisted:
        _log.warning("ledgers in a folder are not in the report: %s", problem)
    return found


def _names_in(directory: Path) -> list[str]:
    with translating("cannot look for ledgers", directory):
        try:
            return sorted(path.name for path in directory.iterdir() if _NAME.match(path.name))
        except (FileNotFoundError, NotADirectoryError):
            return []


def find_far_snapshots(far: Store | None, at_hand: Iterable[LedgerSnapshot]) -> list[LedgerSnapshot]:
    """The ledgers that ranks left in the far tier of a run (`far`, rooted at the run's folder; it is closed).

    Those that are `at_hand` are not read again: a rank's own is never older. A tier that cannot be reached is passed
    over with a warning if any ledger is at hand. Costs a listing, and one request of 0.5 MiB a ledger. Raises
    NewerFormat, StoreError.
    """
    if far is None:
        return []
    seen = [ledger_name(one.identity.rank, one.identity.generation) for one in at_hand]
    with closing(far), ThreadPoolExecutor(_THREADS, "stoker-report") as pool:
        try:
            names = sorted(info.key.removeprefix(_FOLDER) for info in far.list(_FOLDER))
            keys = [Key(_FOLDER + name) for name in names if _NAME.match(name) and name not in seen]
            return [one for found in pool.map(lambda key: _read_far(far, key), keys) for one in found]
        except StoreError as error:
            if not seen:
                raise
            _log.warning("ledgers in the far tier are not in the report: %s", error)
            return []


def _read_far(far: Store, key: Key) -> list[LedgerSnapshot]:
    return _read(lambda: parse_ledger(far.read(key), f"{far.url}/{key}"))


def _read(read: Callable[[], LedgerSnapshot]) -> list[LedgerSnapshot]:
    """One ledger, or none if it is damaged or gone."""
    try:
        return [read()]
    except NewerFormat:
        raise
    except FormatError as error:
        _log.warning("ledger left out of the report, remove it if no process writes it: %s", error)
    except NotFound as error:
        _log.debug("ledger removed while it was looked for: %s", error)
    return []
