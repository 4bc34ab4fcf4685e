"""Being the first to write an object: by the server's own condition where it keeps it, else by looking again.

Some gateways answer 200 to `If-None-Match: *` and overwrite. So the condition is tried once a store, on an object of
no other use, before it is trusted. Its name says which process tries, so that the next one removes what a killed one
left. Every object written this way carries a token of its writer as metadata: with it a
writer whose answer was lost can tell whether it was the first after all.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from stoker.errors import AlreadyExists, NotFound, StoreError, Throttled, TimedOut, Unavailable, UnsupportedError
from stoker.io.buffers import ReadBuffer, view
from stoker.io.host import is_gone, process_id
from stoker.store.object_bucket import Bucket, Stored, new_token

PROBE_DIR: Final = ".stoker-probe"
SETTLE_S: Final = 0.5
FOREIGN_PROBE_S: Final = 24 * 3600.0  # whether a process of another host lives cannot be known: its probe must be old

_ROUNDS: Final = 2  # a condition that does not hold is tried again: the object may have been removed meanwhile

_log = logging.getLogger("stoker.store")


class ConditionalPut:
    """Writes an object if nothing is there. `directory`: where the probe may write, with its slash, or empty.

    Where the server keeps no condition, a writer looks, writes, waits for `settle_s` and looks whose object is there.
    Then exactly one wins, unless one of them stands still for longer than that between looking and writing.
    """

    def __init__(
        self, bucket: Bucket, directory: str, *, settle_s: float = SETTLE_S, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._bucket = bucket
        self._directory = directory
        self._settle_s = settle_s
        self._sleep = sleep
        self._secret = new_token()
        self._lock = threading.Lock()
        self._proven: bool | None = None
        self._unsettled: set[str] = set()

    def write(self, name: str, key: str, data: ReadBuffer) -> str | None:
        """Store `data` if nothing is there; the ETag, or None if the server does not tell. Raises AlreadyExists.

        After an error that leaves open whether it was stored, the same call by the same thread finds out.
        """
        token = self._token(name, data)
        try:
            if self.is_kept():
                etag = self._bucket.put_first(name, key, data, token)
            else:
                etag = self._write_and_look(name, key, data, token)
        except AlreadyExists:
            if token not in self._unsettled:
                raise
            if not self._proven:
                self._sleep(self._settle_s)  # whoever looked before our bytes were there may still write
            if not self._is_ours(name, key, data, token):
                raise
            etag = None
        except (Throttled, TimedOut, Unavailable):
            self._unsettled.add(token)
            raise
        self._unsettled.discard(token)
        return etag

    def is_kept(self) -> bool:
        """Whether the server keeps `If-None-Match: *`: tried once, with three requests, a listing and a delete."""
        if self._proven is None:
            with self._lock:
                if self._proven is None:
                    self._sweep()
                    self._proven = any(self._probe() for _ in range(_ROUNDS))
                    if not self._proven:
                        _log.warning(
                            "%s does not keep If-None-Match: two writers of one object are told apart by looking "
                            "again after %g s; give each writer its own names",
                            self._bucket.where,
                            self._settle_s,
                        )
        return self._proven

    def _sweep(self) -> None:
        """Remove the probes of processes that were killed. What cannot be listed or removed is left to the next."""
        oldest = datetime.now(UTC) - timedelta(seconds=FOREIGN_PROBE_S)
        with contextlib.suppress(StoreError):
            for meta in self._bucket.list(f"{self._directory}{PROBE_DIR}"):
                key = meta["path"].removeprefix(self._directory)
                process = key.rpartition("/")[2].rpartition("-")[0]
                if is_gone(process) or meta["last_modified"] < oldest:
                    self._bucket.delete(meta["path"], key)

    def _probe(self) -> bool:
        key = f"{PROBE_DIR}/{process_id()}-{new_token()}"
        name = self._directory + key
        tokens = (new_token(), new_token())

        def try_first(token: str) -> bool:
            return self._bucket.retries.run(partial(self._try_first, name, key, token, set()))

        try:
            with ThreadPoolExecutor(2) as pool:
                won = sum(pool.map(try_first, tokens))
            if won == 0:
                raise Unavailable("cannot try If-None-Match: neither of two writers was the first", self._bucket.where)
            return won == 1 and not try_first(new_token())
        except UnsupportedError:
            return False
        finally:
            with contextlib.suppress(StoreError):
                self._bucket.delete(name, key)

    def _try_first(self, name: str, key: str, token: str, tried: set[str]) -> bool:
        """Whether `token` was the first there; `tried` holds it if an earlier try left that open."""
        try:
            self._bucket.put_first(name, key, token.encode(), token)
        except AlreadyExists:
            return token in tried and self._is_ours(name, key, token.encode(), token)
        except (Throttled, TimedOut, Unavailable):
            tried.add(token)
            raise
        return True

    def _write_and_look(self, name: str, key: str, data: ReadBuffer, token: str) -> str | None:
        try:
            self._bucket.look(name, key)
        except NotFound:
            pass
        else:
            raise AlreadyExists(f"cannot write {key!r}: it is there already", self._bucket.where)
        etag = self._bucket.put(name, key, data, token=token)
        self._sleep(self._settle_s)
        try:
            found = self._bucket.look(name, key)
        except NotFound as error:
            raise Unavailable(f"cannot write {key!r}: it is gone again", self._bucket.where) from error
        if self._wrote(found, name, key, data, token):
            return etag
        raise AlreadyExists(f"cannot write {key!r}: another writer was faster", self._bucket.where)

    def _is_ours(self, name: str, key: str, data: ReadBuffer, token: str) -> bool:
        """Whether what lies there is what this writer stored, though it never heard so. Raises Unavailable."""
        try:
            return self._wrote(self._bucket.look(name, key), name, key, data, token)
        except NotFound as error:
            raise Unavailable(f"cannot write {key!r}: it is gone again", self._bucket.where) from error

    def _wrote(self, found: Stored, name: str, key: str, data: ReadBuffer, token: str) -> bool:
        """Whether the object `found` is this writer's: by its token, by its bytes where a server keeps no metadata."""
        if found.token is not None:
            return found.token == token
        if found.size_bytes != view(data).nbytes:
            return False
        return self._bucket.retries.run(lambda: b"".join(self._bucket.whole(name, key))) == bytes(view(data))

    def _token(self, name: str, data: ReadBuffer) -> str:
        """The same for the same call by the same thread, and for no other."""
        digest = hashlib.sha256(view(data)).hexdigest()
        text = "\n".join((self._secret, str(threading.get_ident()), name, digest))
        return hashlib.sha256(text.encode()).hexdigest()[:32]
