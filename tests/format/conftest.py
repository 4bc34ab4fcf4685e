"""What hostile input may cost: memory and time are limited in a child, which must end with an error of stoker's."""

from __future__ import annotations

import os
import pickle
import resource
import signal
from pathlib import Path

import pytest

from stoker.errors import StokerError

MEMORY_BYTES = 192 << 20  # more than it has already
CPU_S = 20


def _used_bytes():
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def limited():
    """Run a function in a fork with limits: returns the StokerError that it raised, or None if it raised none."""

    def limited(function):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            said = b""
            try:
                most = _used_bytes() + MEMORY_BYTES
                resource.setrlimit(resource.RLIMIT_AS, (most, most))
                resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
                try:
                    function()
                    said = pickle.dumps(None)
                except StokerError as error:
                    said = pickle.dumps(error)
                except BaseException as error:  # noqa: BLE001  process boundary: what it was, for the message of the test
                    said = pickle.dumps(f"{type(error).__name__}: {error}"[:500])
                os.write(writer, said)
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            said = stream.read()
        _, status = os.waitpid(child, 0)
        assert status == 0, f"the child was killed by {signal.Signals(status & 127).name}"
        result = pickle.loads(said)
        assert result is None or isinstance(result, StokerError), result
        return result

    return limited
