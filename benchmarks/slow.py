"""A store that is far away: every request takes so much longer, and is counted, in whatever process it is made.

The delay is a sleep before a local file is opened or read: latency without a limit on bandwidth. That favours those
who ask for few large pieces. Latency and count travel in the environment, to workers that are forked and to children
that are started: each request adds one byte to a file.
"""

from __future__ import annotations

import os
import time
import urllib.request
from pathlib import Path
from typing import Any

LATENCY = "BENCHMARK_LATENCY_S"
SERVER = "BENCHMARK_SERVER"
REQUESTS = "BENCHMARK_REQUESTS"  # the file whose size is the number of requests
CHILDREN = Path(__file__).parent / "late"

_files: dict[str, int] = {}


def begin(latency_s: float, requests: Path) -> None:
    """From now on requests of this process, and of those that it starts, are slow and counted."""
    requests.touch()
    os.environ[LATENCY], os.environ[REQUESTS] = str(latency_s), str(requests)
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(CHILDREN), *known])


def latency_s() -> float:
    return float(os.environ.get(LATENCY, "0"))


def note_request() -> None:
    path = os.environ[REQUESTS]
    if path not in _files:
        _files[path] = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(_files[path], b".")


def request() -> None:
    """Wait as long as a request takes to be answered."""
    note_request()
    time.sleep(latency_s())


def request_count() -> int:
    if SERVER in os.environ:
        with urllib.request.urlopen(f"{server()}/-/requests") as reply:
            return sum(piece.count(b"\n") for piece in iter(lambda: reply.read(1 << 20), b""))
    path = os.environ.get(REQUESTS)
    return Path(path).stat().st_size if path else 0


def forget_requests() -> None:
    """What a server counted for those before."""
    if SERVER in os.environ:
        asked = urllib.request.Request(f"{server()}/-/requests", method="DELETE")
        urllib.request.urlopen(asked).close()


def server() -> str:
    """Where a server with latency listens, for sources that are URLs: http://host:port."""
    return os.environ[SERVER]


def fetch(url: str) -> bytes:
    """An object of that server, s3://bucket/key."""
    with urllib.request.urlopen(f"{server()}/{url.removeprefix('s3://')}") as reply:
        return reply.read()


def make_stoker_late() -> None:
    """Every read of a directory takes as long as a request, in this process. The directory says so of itself and hands
    out no paths, as an object store does. Idempotent."""
    from dataclasses import replace

    from stoker.store import local

    if local.LocalStore.read.__module__ == __name__:
        return
    plain_into, plain_read = local.LocalStore.read_into, local.LocalStore.read

    def read_into(self: Any, key: Any, start: int, buffer: Any) -> None:
        request()
        plain_into(self, key, start, buffer)

    def read(self: Any, key: Any, range: Any = None) -> bytes:  # noqa: A002  the name in Store
        request()
        return plain_read(self, key, range)

    local._LIMITS = replace(local._LIMITS, latency_s=latency_s())
    local.LocalStore.read_into = read_into
    local.LocalStore.read = read
    local.LocalStore.read_cached = lambda *_: None  # there is no page cache over there
    local.LocalStore.path = lambda self, key: None  # noqa: ARG005
