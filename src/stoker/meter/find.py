"""The ledgers of a run: where they lie, read."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Final

from stoker.errors import FormatError, NewerFormat, NotFound
from stoker.ledger import LedgerSnapshot, read_ledger

_NAME: Final = re.compile(r"rank-\d{5,}\.g\d{4,}\.ledger\Z")

_log = logging.getLogger("stoker.meter")


def find_snapshots(*directories: Path) -> list[LedgerSnapshot]:
    """The ledgers in these directories (a node's folder of the run, the `ledger` folder in the run's home), read.

    A directory that is not there holds none. A file that is damaged or was never finished is passed over with a
    warning. The same ledger may appear twice: a report counts it once. Raises NewerFormat, AccessDenied, StoreError.
    About 15 ms a ledger.
    """
    found = []
    for directory in directories:
        for path in sorted(directory.glob("rank-*.ledger")):
            if not _NAME.match(path.name):
                continue
            try:
                found.append(read_ledger(path))
            except NewerFormat:
                raise
            except FormatError as error:
                _log.warning("ledger left out of the report, remove it if no process writes it: %s", error)
            except NotFound:
                _log.debug("ledger removed while it was looked for: %s", path)
    return found
