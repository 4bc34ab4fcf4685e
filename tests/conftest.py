"""How the tests are spread over two workers; what tests of several rooms need: a server of objects on this machine."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import importlib.util
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

if importlib.util.find_spec("hypothesis") is not None:  # a machine that is there for its GPU does without
    from hypothesis import HealthCheck, settings

    # The same examples each time, however slow the machine is; --hypothesis-profile=default looks for others.
    settings.register_profile(
        "same", derandomize=True, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("same")

TESTS = Path(__file__).parent
WORKERS = 2
BUCKET = "stoker-tests"
# Takes a port that is free and says which, serves until its stdin ends, and with it the process that reads this.
MOTO = """
import os, sys
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
os._exit(0)
"""


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """All tests run in two workers, a part of them in this process, unless -n says otherwise; files stay together."""
    option = config.option
    if not hasattr(option, "numprocesses") or hasattr(config, "workerinput"):  # there is no pytest-xdist; or a worker
        return
    places = [(config.invocation_params.dir / name.partition("::")[0]).resolve() for name in config.args]
    if option.numprocesses is None and not option.usepdb and any(map(TESTS.is_relative_to, places)):
        option.numprocesses = WORKERS
    if option.numprocesses and option.dist == "no":
        option.dist, option.loadscopereorder = "loadfile", False


class Turns:
    """Who may run a test now: all who run ordinary tests, or one who runs a test that is marked `alone`.

    A readers-writer lock between workers, made of the kernel's locks on two files, which end with their holder. Whoever
    comes holds `gate` until it is in: nobody overtakes one who waits to be alone.
    """

    def __init__(self, gate: Path, room: Path) -> None:
        self._gate, self._room = (os.open(path, os.O_RDONLY | os.O_CREAT, 0o600) for path in (gate, room))
        self._is_alone = False

    def enter(self, *, alone: bool) -> None:
        """Wait until this test may run."""
        if not self._is_alone:
            fcntl.flock(self._gate, fcntl.LOCK_EX)
            fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            fcntl.flock(self._gate, fcntl.LOCK_UN)
            self._is_alone = alone

    def leave(self, *, stay_alone: bool) -> None:
        """Let others in; not between two tests that are to be alone, where each would wait for the others anew."""
        if not (self._is_alone and stay_alone):
            self._is_alone = False
            fcntl.flock(self._room, fcntl.LOCK_UN)


TURNS = pytest.StashKey[Turns]()


def is_alone(item: pytest.Item | None) -> bool:
    """Whether nothing may run beside this test."""
    return item is not None and item.get_closest_marker("alone") is not None


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        folder = Path(config.option.basetemp).parent  # of all workers of this run
        config.stash[TURNS] = Turns(folder / "gate", folder / "room")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a worker the tests of a file that are to be alone come last, so that it waits for the others once."""
    if hasattr(config, "workerinput"):
        items.sort(key=is_alone)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Around all of a test, also around its time limit: waiting for a turn is not the test's time."""
    turns = item.config.stash.get(TURNS, None)
    if turns is None:
        return (yield)
    turns.enter(alone=is_alone(item))
    try:
        return (yield)
    finally:
        turns.leave(stay_alone=is_alone(nextitem))


def encodable(found: object) -> object:
    """The same, but what is no UTF-8 in a text is written with backslashes."""
    if isinstance(found, str):
        return found.encode(errors="backslashreplace").decode()
    if isinstance(found, dict):
        return {key: encodable(value) for key, value in found.items()}
    if isinstance(found, list | tuple):
        values = [encodable(value) for value in found]
        return values if isinstance(found, list) else tuple(values)
    return found


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Iterator[None]:
    """A worker sends its reports as UTF-8, and ends where one is not: it may show a path that is any bytes."""
    return encodable((yield))


@dataclass(frozen=True)
class ObjectServer:
    """A server of objects on loopback: what the environment must say to reach it, and a bucket."""

    environ: dict[str, str]
    bucket: str

    def new_url(self) -> str:
        """A place in the bucket that no other test uses."""
        return f"s3://{self.bucket}/{uuid.uuid4().hex}"

    def request(self, method: str, path: str) -> tuple[int, bytes]:
        """One request without a signature: for what the store itself cannot ask."""
        host = self.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
        with contextlib.closing(http.client.HTTPConnection(host, timeout=10)) as connection:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read()


@pytest.fixture(scope="session")
def object_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    """moto's S3, in a process of its own; it holds what is written until the session ends."""
    if importlib.util.find_spec("moto") is None:
        pytest.skip("moto is not installed: pip install 'moto[server]'")
    folder = tmp_path_factory.mktemp("object-server")
    quiet = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", MOTO],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=quiet,
            text=True,
        )
    try:
        port = process.stdout.readline().strip()
        assert port, f"moto did not start:\n{(folder / 'log').read_text()}"
        environ = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "AWS_EC2_METADATA_DISABLED": "true",
            "HOME": str(folder),
        }
        server = ObjectServer(environ, BUCKET)
        status, body = server.request("PUT", f"/{server.bucket}")
        assert status == 200, body
        yield server
    finally:
        process.kill()
        process.communicate(timeout=10)


@pytest.fixture
def until():
    """Wait until a condition holds, at most 10 s."""

    def until(condition):
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline, "it never came to hold"
            time.sleep(0.002)

    return until
