"""Getting a snapshot to storage: one rank's files with their digests, and the thread that does it behind training."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from stoker import crash
from stoker.checkpoint.layout import FileImage, Home, StepId
from stoker.checkpoint.manifest import WrittenFile
from stoker.io.checksum import CHUNK_BYTES, root_digest, xxh3_128
from stoker.io.limits import start_thread
from stoker.values import Key

_log = logging.getLogger("stoker.checkpoint")


def write_file(home: Home, step: StepId, file: FileImage, image: memoryview) -> WrittenFile:
    """Write one file of a rank from the image of its snapshot, chunk by chunk, digests taken while they are at hand.

    Durable when it returns, in the directory of the unfinished step. Raises CapacityError, AccessDenied, StoreError.
    """
    chunks = []
    with home.writer(Key(f"{step.partial}/{file.name}")) as out:
        for start in range(file.start, file.stop, CHUNK_BYTES):
            chunk = image[start : min(start + CHUNK_BYTES, file.stop)]
            chunks.append(xxh3_128(chunk))
            out.write(chunk)
        out.commit()
    crash.point("checkpoint-file-written")
    return WrittenFile(file.name, file.stop - file.start, root_digest(chunks), tuple(chunks))


class Background:
    """Does jobs one after the other, on a thread that exists only while there are any.

    The thread is not a daemon: an interpreter that ends waits for the job at hand (and so for no longer than the
    deadlines inside it), and what was staged reaches storage also after an exception in training.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._jobs: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Do `job` after those submitted before. Raises CapacityError if no thread can be started, and forgets it."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name=self._name, daemon=False)
                start_thread(thread, "cannot save in the background")
                self._thread = thread
            self._jobs.append(job)

    def _work(self) -> None:
        while True:
            with self._lock:
                if self._thread is not threading.current_thread():
                    return  # its start was interrupted, and nobody counts on it
                if not self._jobs:
                    self._thread = None
                    return
                job = self._jobs.popleft()
            try:
                job()
            except BaseException:  # noqa: BLE001  the thread's boundary: the jobs behind this one are still done
                _log.exception("a save ended in an error that nothing handles")
