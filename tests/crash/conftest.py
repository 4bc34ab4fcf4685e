"""Where the crash suite works: in memory, since a kill leaves what the kernel has, and syncing a disk takes seconds."""

import ctypes
import os
import runpy
import shutil
import tempfile
import uuid
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from stoker.store.local import LocalStore
from stoker.testing import crash
from stoker.testing.fault_server import FaultServer, Nth, Rule, Script, Stall
from stoker.testing.fork_server import ForkServer

IN_MEMORY = Path("/dev/shm")
LEAST_FREE_BYTES = 256 << 20
VICTIMS = Path(__file__).with_name("victims.py")
VICTIM = SimpleNamespace(**runpy.run_path(str(VICTIMS)))
STALL_S = 20.0
TIMES_NS = (1, 1_700_000_000_000_000_000)


class Made:
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
        yield Made(Path(root))


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
    with ForkServer(VICTIMS, environ | bucket_server.environ | {"STOKER_S3_PART_BYTES": "8MiB"}) as server:
        yield server


@pytest.fixture
def bucket(bucket_server, monkeypatch):
    """The server, cleared of records and faults, which this process reaches too."""
    for name, value in bucket_server.environ.items():
        monkeypatch.setenv(name, value)
    bucket_server.forget_requests()
    return bucket_server


class Folders:
    """Places are folders; a kill comes between two calls out of Python, where an undisturbed run makes so many."""

    def __init__(self, root):
        self.root = root
        self.call_count = 0

    def new_place(self):
        return str(self.root / uuid.uuid4().hex)

    def put(self, place, objects):
        for key, data in objects.items():
            path = Path(place, key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            os.utime(path, ns=TIMES_NS)

    def objects(self, place):
        """All files, also those of unfinished writes; and folders of such."""
        found = {str(path.relative_to(place)): path for path in Path(place).rglob("*")}
        return {
            name: path.read_bytes() if path.is_file() else b""
            for name, path in found.items()
            if path.is_file() or ".tmp-" in name
        }

    def stamps(self, place):
        """What changes when an object is written again."""
        return {str(p.relative_to(place)): (p.stat().st_ino, p.stat().st_mtime_ns) for p in Path(place).rglob("*.tar")}

    def measure(self, run):
        self.call_count = run(kill_at_call=0).calls

    def moment(self, share, _dice):
        return {"kill_at_call": 1 + int(share * self.call_count)}

    def calm(self):
        pass


class Buckets:
    """Places are prefixes in a bucket; a kill comes within a request."""

    def __init__(self, server):
        self.server = server
        self.request_count = 0

    def new_place(self):
        return f"s3://{self.server.bucket}/{uuid.uuid4().hex}"

    def put(self, place, objects):
        for key, data in objects.items():
            self.server.put(f"{place.rpartition('/')[2]}/{key}", data)

    def objects(self, place):
        prefix = f"{place.rpartition('/')[2]}/"
        return {key.removeprefix(prefix): self.server.get(key) for key in self.server.keys(prefix)}

    def stamps(self, place):
        prefix = place.rpartition("/")[2]
        written = [r for r in self.server.requests(key=f"{prefix}/*.tar") if r.method in ("PUT", "POST")]
        return {key: sum(r.key == f"{prefix}/{key}" for r in written) for key in self.objects(place) if "tar" in key}

    def measure(self, run):
        self.server.forget_requests()
        run()
        self.request_count = len(self.server.requests())

    def moment(self, share, dice):
        within_request = dice.random() < 0.5
        stall = Stall(STALL_S, after_bytes=dice.randrange(2000) if within_request else None)
        self.server.forget_requests()
        self.server.play(Script(rules=(Rule(stall, Nth(1 + int(share * self.request_count))),)))
        return {"kill_when": lambda: any(r.fault and (within_request or r.status) for r in self.server.requests())}

    def calm(self):
        self.server.play(Script())


@pytest.fixture
def folders(tmp_path):
    return Folders(tmp_path)


@pytest.fixture
def buckets(bucket):
    return Buckets(bucket)


@pytest.fixture(params=["folders", "buckets"])
def world(request):
    """Places of either kind."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    for key, fields in VICTIM.SAMPLES.items():
        for field, content in fields.items():
            path = folder / f"{key}.{field}"
            path.write_bytes(content)
            os.utime(path, ns=TIMES_NS)
    return folder


@pytest.fixture(scope="module")
def with_a_step(tmp_path_factory, victims):
    """A run's folder with one step, and what its second step holds when nothing is killed."""
    folder, whole = tmp_path_factory.mktemp("run") / "near", tmp_path_factory.mktemp("whole") / "near"
    victims.run("train", str(folder), "", "10")
    shutil.copytree(folder, whole)
    victims.run("train", str(whole), "", "20")
    store = LocalStore(whole)
    expected = VICTIM.tensors(store, VICTIM.steps(store)[20])
    assert len(expected) == 5
    return folder, expected


class Mounts:
    """File systems of its own for a forked child: made in a namespace that ends with it, so nothing stays mounted."""

    NEW_NAMESPACE, NEW_USERS = 0x00020000, 0x10000000
    READ_ONLY, REMOUNT, BIND, RECURSIVE, PRIVATE, DETACH = 1, 32, 4096, 16384, 1 << 18, 2

    def __init__(self):
        self.libc = ctypes.CDLL(None, use_errno=True)

    def run(self, work):
        """Run `work` in a child that may mount. Raises AssertionError with what it said if it failed."""
        assert crash.run_killed(partial(self._enter, work), None) == 0

    def _enter(self, work):
        uid, gid = os.getuid(), os.getgid()
        if self.libc.unshare(self.NEW_NAMESPACE) != 0:
            self._check(self.libc.unshare(self.NEW_NAMESPACE | self.NEW_USERS))
            for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
                Path("/proc/self", name).write_text(text)
        self._mount("none", "/", "", self.RECURSIVE | self.PRIVATE, "")
        work()

    @contextmanager
    def mounted(self, folder, options):
        """A file system in memory at `folder`."""
        self._mount("tmpfs", str(folder), "tmpfs", 0, options)
        try:
            yield
        finally:
            self._check(self.libc.umount2(str(folder).encode(), self.DETACH))

    def remount(self, folder, options):
        self._mount("tmpfs", str(folder), "tmpfs", self.REMOUNT, options)

    def make_read_only(self, folder):
        self._mount(str(folder), str(folder), "", self.BIND, "")
        self._mount("none", str(folder), "", self.BIND | self.REMOUNT | self.READ_ONLY, "")

    def _mount(self, source, target, kind, flags, options):
        self._check(self.libc.mount(*(text.encode() for text in (source, target, kind)), flags, options.encode()))

    def _check(self, code):
        if code != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@pytest.fixture(scope="session")
def mounts(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("mounts"), Mounts()

    def try_it():
        with made.mounted(folder, "size=64k"):
            (folder / "x").write_bytes(b"x")

    try:
        made.run(try_it)
    except AssertionError as error:
        pytest.skip(f"nothing can be mounted here: {str(error).splitlines()[-1]}")
    assert not (folder / "x").exists()
    return made
