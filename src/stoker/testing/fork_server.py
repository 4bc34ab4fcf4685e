"""A warm process that forks children to be killed at any moment, also such as use an object store.

The client of an object store cannot be used across a fork, and a test process has often used one. This process has
loaded what the children need and used nothing of it, so a child begins within milliseconds and may use everything.

::

    with ForkServer(Path("victims.py"), environ) as victims:     # victims.py defines pack(source, url)
        ended = victims.run("pack", source, url, kill_when=after(0.01))
        assert ended.status in (0, crash.KILLED)
"""

from __future__ import annotations

import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from stoker.testing import crash

_MESSAGE_MAX_BYTES: Final = 64 << 10
_POLL_S: Final = 0.0002
_START_S: Final = 60.0


class Ended(NamedTuple):
    """How a child ended: its wait status, 0 or `crash.KILLED`, and how long it ran."""

    status: int
    seconds: float


class ForkServer:
    """Forks children that call a function of a script. `environ` is the whole environment of all of them."""

    def __init__(self, script: Path, environ: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603  this very interpreter
                [sys.executable, "-m", "stoker.testing.fork_server", str(script), str(theirs.fileno())],
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._socket.settimeout(_START_S)
        self._receive()  # loaded
        self._socket.settimeout(None)

    def run(
        self,
        name: str,
        *args: str,
        spec: str | None = None,
        kill_when: Callable[[], bool] | None = None,
    ) -> Ended:
        """Call function `name` in a child, which dies at `spec` (see `stoker.crash`) or when `kill_when` says so.

        That is asked every 0.2 ms from when the child was forked. Raises AssertionError with what the child said if it
        ended in any other way than at its end or by SIGKILL.
        """
        self._socket.send(json.dumps({"name": name, "args": args, "spec": spec}).encode())
        pid, started_s = self._receive()["pid"], time.perf_counter()
        if kill_when is not None:
            self._kill(pid, kill_when)
        answer = self._receive()
        if "error" in answer:
            raise AssertionError(f"{name}: {answer['error']}")
        return Ended(answer["status"], time.perf_counter() - started_s)

    def _kill(self, pid: int, kill_when: Callable[[], bool]) -> None:
        with suppress(ProcessLookupError):  # it came to its end first
            pidfd = os.pidfd_open(pid)
            try:
                while not select.select([self._socket], [], [], _POLL_S)[0]:
                    if kill_when():
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                        return
            finally:
                os.close(pidfd)

    def _receive(self) -> Any:
        data = self._socket.recv(_MESSAGE_MAX_BYTES)
        if not data:
            raise AssertionError(f"the process that forks children ended with {self._process.wait()}")
        return json.loads(data)

    def close(self) -> None:
        """End the process. Idempotent."""
        self._socket.close()
        self._process.wait(_START_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def after(seconds: float) -> Callable[[], bool]:
    """Says whether so much time has passed since it was first asked."""
    until_s: list[float] = []

    def is_over() -> bool:
        if not until_s:
            until_s.append(time.perf_counter() + seconds)
        return time.perf_counter() >= until_s[0]

    return is_over


def serve(script: str, orders: socket.socket) -> None:
    """Fork a child for each order, one after the other, until the other end is closed."""
    functions = runpy.run_path(script)
    orders.send(b"{}")
    while data := orders.recv(_MESSAGE_MAX_BYTES):
        order = json.loads(data)
        child = crash.Child(partial(functions[order["name"]], *order["args"]), order["spec"])
        orders.send(json.dumps({"pid": child.pid}).encode())
        try:
            answer: dict[str, Any] = {"status": child.wait()}
        except AssertionError as error:
            answer = {"error": str(error)[-_MESSAGE_MAX_BYTES // 2 :]}
        orders.send(json.dumps(answer).encode())


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[2])) as orders:
        serve(sys.argv[1], orders)
