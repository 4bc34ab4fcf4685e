"""Where the crash suite works: in memory, since a kill leaves what the kernel has, and syncing a disk takes seconds."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from stoker.testing.fault_server import FaultServer
from stoker.testing.fork_server import ForkServer

IN_MEMORY = Path("/dev/shm")
LEAST_FREE_BYTES = 256 << 20
VICTIMS = Path(__file__).with_name("victims.py")


class Folders:
    """Makes folders under a root, as pytest's own factory does."""

    def __init__(self, root):
        self.root = root

    def mktemp(self, basename, numbered=True):
        return Path(tempfile.mkdtemp(prefix=f"{basename}-", dir=self.root))


@pytest.fixture(scope="session")
def tmp_path_factory(tmp_path_factory):
    usable = IN_MEMORY.is_dir() and os.access(IN_MEMORY, os.W_OK)
    if not usable or shutil.disk_usage(IN_MEMORY).free < LEAST_FREE_BYTES:
        yield tmp_path_factory
        return
    with tempfile.TemporaryDirectory(prefix="stoker-crash-", dir=IN_MEMORY, ignore_cleanup_errors=True) as root:
        yield Folders(Path(root))


@pytest.fixture
def tmp_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("test")
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def bucket_server():
    with FaultServer() as server:
        yield server


@pytest.fixture(scope="module")
def victims(bucket_server):
    """Forks children that do what victims.py says, and reach the server of buckets."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "STOKER_"))}
    with ForkServer(VICTIMS, environ | bucket_server.environ) as server:
        yield server


@pytest.fixture
def bucket(bucket_server, monkeypatch):
    """The server, cleared of records and faults, which this process reaches too."""
    for name, value in bucket_server.environ.items():
        monkeypatch.setenv(name, value)
    bucket_server.forget_requests()
    return bucket_server
