"""A warm process that forks children to be killed at any moment, also such as use an object store.

The client of an object store cannot be used across a fork, and a test process has often used one. This process has
loaded what the children need and used nothing of it, so a child begins within milliseconds and may use everything.

::

    with ForkServer(Path("victims.py"), environ) as victims:     # victims.py defines pack(source, url)
        ended = victims.run("pack", source, url, kill_at_call=5000)
        assert ended.status in (0, crash.KILLED)
"""

from __future__ import annotations

import json
import mmap
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, NamedTuple, Self

from stoker.testing import crash

_MESSAGE_MAX_BYTES: Final = 64 << 10
_POLL_S: Final = 0.0002
_START_S: Final = 60.0


class Ended(NamedTuple):
    """How a child ended: its wait status, 0 or `crash.KILLED`, and how many calls of C functions were counted."""

    status: int
    calls: int


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
        try:
            self._receive()  # loaded
        except BaseException:
            self.close()
            raise
        self._socket.settimeout(None)

    def run(
        self,
        name: str,
        *args: str,
        spec: str | None = None,
        kill_at_call: int | None = None,
        kill_when: Callable[[], bool] | None = None,
    ) -> Ended:
        """Call function `name` in a child, which may be killed on the way.

        `spec`: at a named point (see `stoker.crash`); `kill_at_call`: when it is about to make so many calls of C
        functions (0: they are counted only); `kill_when`: asked every 0.2 ms from when the child was forked. Raises
        AssertionError with what the child said if it ended in any other way than at its end or by SIGKILL.
        """
        order = {"name": name, "args": args, "spec": spec, "kill_at_call": kill_at_call}
        self._socket.send(json.dumps(order).encode())
        pid = self._receive()["pid"]
        if kill_when is not None:
            self._kill(pid, kill_when)
        answer = self._receive()
        if "error" in answer:
            raise AssertionError(f"{name}: {answer['error']}")
        return Ended(answer["status"], answer["calls"])

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


class CallCounter:
    """Counts the calls of C functions in a forked child, and ends it by SIGKILL at one of them.

    Such calls are all that reaches the kernel, and their number does not depend on what else the machine does. The
    count is in memory that the parent shares.
    """

    def __init__(self, work: Callable[[], object], kill_at: int | None) -> None:
        self._work = work
        self._kill_at = kill_at
        self._shared = mmap.mmap(-1, mmap.PAGESIZE)
        self._count = memoryview(self._shared).cast("q")

    @property
    def count(self) -> int:
        """The calls so far."""
        return self._count[0]

    def __call__(self) -> None:
        """Do the work, counted if that was asked for. In the child."""
        if self._kill_at is None:
            self._work()
            return
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        try:
            self._work()
        finally:
            sys.setprofile(None)

    def _see(self, _frame: FrameType, event: str, _arg: object) -> None:
        if event == "c_call":
            self._count[0] += 1
            if self._count[0] == self._kill_at:
                os.kill(os.getpid(), signal.SIGKILL)


def serve(script: str, orders: socket.socket) -> None:
    """Fork a child for each order, one after the other, until the other end is closed."""
    functions = runpy.run_path(script)
    orders.send(b"{}")
    while data := orders.recv(_MESSAGE_MAX_BYTES):
        order = json.loads(data)
        work = CallCounter(partial(functions[order["name"]], *order["args"]), order["kill_at_call"])
        child = crash.Child(work, order["spec"])
        orders.send(json.dumps({"pid": child.pid}).encode())
        try:
            answer: dict[str, Any] = {"status": child.wait(), "calls": work.count}
        except AssertionError as error:
            answer = {"error": str(error)[-_MESSAGE_MAX_BYTES // 2 :]}
        orders.send(json.dumps(answer).encode())


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[2])) as orders:
        serve(sys.argv[1], orders)
