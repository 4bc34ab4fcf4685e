"""Which reads of a local store go directly to the device, what was chosen, and how much went which way."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stoker.io.choose import Engine, EngineChoice, choose, facts_of, insist, refused
from stoker.io.direct import DIRECT_READ_MIN_BYTES, DirectFile, is_congruent
from stoker.io.residency import is_cached
from stoker.store.descriptors import OpenFile

_CACHED: Final = EngineChoice("auto", "buffered", "the bytes are in the page cache")

_log = logging.getLogger("stoker.store")


@dataclass(frozen=True, slots=True)
class EngineStats:
    """How the bytes of a store went. `choices` counts, for each choice made, the files (or reads) it was made for.

    Reads too small for a choice under `auto`, and all under `buffered`, are not counted: they are the hot path.
    """

    requested: Engine
    direct_reads: int
    direct_read_bytes: int
    choices: Mapping[EngineChoice, int]


class Engines:
    """Sends large reads directly to the device, where that is wanted, possible and pays. Thread-safe.

    `auto`: from 1 MiB on, unless the bytes are in the page cache. `direct`: every read. Into aligned memory bytes go
    straight, otherwise through aligned memory beside.
    """

    def __init__(self, requested: Engine) -> None:
        self.requested = requested
        self.least_bytes = {"auto": DIRECT_READ_MIN_BYTES, "direct": 1, "buffered": 1 << 63}[requested]
        self._lock = threading.Lock()
        self._reads = 0
        self._bytes = 0
        self._choices: dict[EngineChoice, int] = {}

    def read(self, file: OpenFile, path: str, start: int, data: memoryview) -> int | None:
        """Fill `data` from `start` on; the bytes read, fewer only at the end of the file. None: nothing was read, the
        page cache is the way. Raises OSError; UnsupportedError if `direct` is not possible.
        """
        direct = self._opened(file, path)
        if direct is None:
            return None
        if self.requested == "auto" and is_cached(file.fd, start, start + len(data)):
            self._count(_CACHED)
            return None
        try:
            if is_congruent(data, start, direct.alignment):
                count = direct.read_into(start, data)
            else:
                count = direct.read_staged(start, data)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            file.give_up_direct()
            self.note(insist(refused(self.requested, "a read"), path), path)
            return None
        with self._lock:
            self._reads += 1
            self._bytes += count
        return count

    def check(self, root: Path) -> None:
        """Raise UnsupportedError now if `direct` was asked for and can be in no file below `root`."""
        if self.requested != "direct":
            return
        place = next(at for at in (root, *root.parents) if at.exists())
        fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        try:
            insist(choose(self.requested, facts_of(fd)), str(root))
        finally:
            os.close(fd)

    def note(self, choice: EngineChoice, path: str) -> None:
        """Count a choice; the first time that each is made, say it."""
        if self._count(choice) == 1 and choice.requested != "buffered":
            _log.info("%s I/O at %s: %s", choice.effective, path, choice.reason)

    def stats(self) -> EngineStats:
        """What went which way so far."""
        with self._lock:
            return EngineStats(self.requested, self._reads, self._bytes, dict(self._choices))

    def _opened(self, file: OpenFile, path: str) -> DirectFile | None:
        if not file.direct_is_known:
            direct, choice = DirectFile.open(file.fd, self.requested)
            file.take_direct(direct)
            self.note(insist(choice, path), path)
        return file.direct

    def _count(self, choice: EngineChoice) -> int:
        with self._lock:
            count = self._choices[choice] = self._choices.get(choice, 0) + 1
        return count
