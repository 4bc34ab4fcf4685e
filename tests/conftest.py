"""What tests of several rooms need: a server of objects on this machine, and examples that may take their time."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest

# How long an example takes says how busy the machine is, and no test is about that.
hypothesis.settings.register_profile(
    "patient", hypothesis.settings(), deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("patient")

START_S = 30
BUCKET = "stoker-tests"


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
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    start = "import sys; from moto.server import main; main(sys.argv[1:])"
    quiet = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", start, "-H", "127.0.0.1", "-p", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=quiet,
        )
    try:
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
        _wait_for_bucket(server, process, folder / "log")
        yield server
    finally:
        process.terminate()
        process.wait(10)


def _wait_for_bucket(server: ObjectServer, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            status, body = server.request("PUT", f"/{server.bucket}")
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"moto did not start:\n{log.read_text()}")
            time.sleep(0.05)
            continue
        assert status == 200, body
        return


@pytest.fixture
def until():
    """Wait until a condition holds, at most 10 s."""

    def until(condition):
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline, "it never came to hold"
            time.sleep(0.002)

    return until
