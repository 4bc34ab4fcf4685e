"""Two jobs and two users on one host: they share what may be shared, and nothing else."""

import contextlib
import io
import os
import stat
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import pytest

from stoker.errors import AccessDenied, RunBusy

LEFT_S = 60
USERS = (65534, 64321)
NOT_ALLOWED = 99

# A job: it says when it is ready to begin, begins when it is told, and says what it read and where its indexes lie.
JOB = """
import hashlib, os, sys
import stoker

def line(text):
    print(text, flush=True)
    sys.stdin.readline()

os.umask(0)  # the least careful of users
data, nvme, name = sys.argv[1], sys.argv[2] or None, sys.argv[3] or None
line("ready")
try:
    with stoker.open(run=name, nvme=nvme) as run:
        loader = run.loader(data, global_batch_size=4, seed=1)
        digest = hashlib.sha256()
        for batch in loader:
            digest.update(repr(batch.sample_keys).encode() + b"".join(batch["bin"]))
        line(f"{digest.hexdigest()} {loader.stats().feeder} {loader._feeder._child.pid}")
except stoker.errors.StokerError as error:
    line(f"{type(error).__name__}: {' '.join(str(error).split())}")
"""

# Becomes another user, who may run this very interpreter: folders on the way to it that are closed to others are covered,
# in a namespace of mounts that ends with the process, by open ones that hold it.
AS_USER = """
import ctypes, os, sys
user, root, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
libc = ctypes.CDLL(None, use_errno=True)

def check(code):
    if code:
        print(f"cannot mount here: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
        os._exit(99)

def mount(source, target, kind, flags, options):
    check(libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode()))

needed = {os.path.realpath(each) for each in (sys.base_prefix, sys.prefix, root)}
closed = []
for each in needed:
    parents = [each[:i] for i, c in enumerate(each) if c == "/" and i] + [each]
    closed += [p for p in parents if not os.stat(p).st_mode & 1][:1]
if closed:
    check(libc.unshare(0x20000))
    mount("none", "/", "", (1 << 18) | 16384, "")
held = {each: os.open(each, os.O_PATH) for each in needed}
for folder in sorted(set(closed)):
    mount("none", folder, "tmpfs", 0, "mode=755")
    for each in needed:
        if each.startswith(folder + "/"):
            os.makedirs(each, exist_ok=True)
            mount(f"/proc/self/fd/{held[each]}", each, "", 4096 | 16384, "")
os.setgroups([])
os.setgid(user)
os.setuid(user)
os.chdir("/")
os.execv(sys.executable, [sys.executable, *command])
"""


class Job:
    """A process that runs JOB."""

    def __init__(self, data, nvme, name="", user=None, **environ):
        command = ["-c", JOB, str(data), str(nvme), name]
        if user is not None:
            command = ["-c", AS_USER, str(user), str(Path(__file__).parents[2]), *command]
        kept = {key: text for key, text in os.environ.items() if not key.startswith(("STOKER_", "SLURM_", "XDG_"))}
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**kept, **environ},
        )

    def hear(self):
        text = self.process.stdout.readline()
        if not text:
            _, words = self.process.communicate(timeout=LEFT_S)
            if self.process.returncode == NOT_ALLOWED:
                pytest.skip(words.strip())
            raise AssertionError(words)
        return text.strip()

    def tell(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def read(self):
        """What it read, once it has begun: a digest, and the process id of its feeder."""
        digest, feeder, pid = self.hear().split()
        assert feeder == "child"
        return digest, int(pid)

    def end(self):
        """Let it go on to its end; what it wrote to stderr."""
        _, words = self.process.communicate("\n", timeout=LEFT_S)
        assert self.process.returncode == 0
        return words


@pytest.fixture
def jobs():
    """jobs(...) starts one; all have ended after the test."""
    with contextlib.ExitStack() as stack:

        def start(*arguments, **options):
            job = Job(*arguments, **options)
            stack.enter_context(job.process)
            stack.callback(job.process.kill)
            return job

        yield start


@pytest.fixture
def place():
    """A folder that any user may enter, as pytest's own may not be."""
    with tempfile.TemporaryDirectory(prefix="stoker-test-host-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def data(place):
    """Tars without a manifest, so that each node indexes them once; anyone may read them."""
    dice = np.random.default_rng(2)
    (place / "data").mkdir()
    for shard in range(3):
        with tarfile.open(place / "data" / f"{shard}.tar", "w") as tar:
            for i in range(20):
                info = tarfile.TarInfo(f"s{shard}{i:02d}.bin")
                info.size = 200
                tar.addfile(info, io.BytesIO(dice.bytes(200)))
    for path in (place / "data", *(place / "data").iterdir()):
        path.chmod(path.stat().st_mode | 0o055)
    return place / "data"


def all_at_once(jobs):
    for job in jobs:
        assert job.hear() == "ready"
    for job in jobs:
        job.tell()
    return [job.read() for job in jobs]


def test_jobs_of_one_user_share_the_node_and_index_a_data_set_once(place, data, jobs):
    started = [jobs(data, place / "nvme", name) for name in ("a", "b", "")]
    read = all_at_once(started)
    assert len({digest for digest, _ in read}) == 1
    assert len({feeder for _, feeder in read}) == 3
    words = "".join(job.end() for job in started)
    assert words.count("for this node alone; keep an index beside the data") == 1
    assert len([p for p in (place / "nvme" / "index").iterdir() if p.is_dir()]) == 1
    assert sorted(p.name for p in (place / "nvme" / "run").iterdir()) == ["a", "b"]
    assert [p for p in place.rglob("*") if ".tmp-" in p.name or p.is_socket()] == []


def test_a_second_job_of_the_same_name_is_refused_at_once_and_may_start_when_the_first_is_killed(place, data, jobs):
    first, second, third = (jobs(data, place / "nvme", "same") for _ in range(3))
    all_at_once([first])
    for job in (second, third):
        assert job.hear() == "ready"
    second.tell()
    refused = second.hear()
    assert refused.startswith(f"{RunBusy.__name__}: rank 0 of run 'same' is already running on this host")
    assert str(first.process.pid) in refused
    second.end()
    first.process.kill()
    first.process.wait()
    third.tell()
    third.read()
    third.end()


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


@pytest.mark.alone
@needs_root
def test_two_users_without_a_home_have_nothing_in_common_but_the_data(place, data, jobs):
    (place / "tmp").mkdir()
    (place / "tmp").chmod(0o1777)
    started = [jobs(data, "", "same", user=user, HOME="", TMPDIR=str(place / "tmp")) for user in USERS]
    read = all_at_once(started)
    assert read[0][0] == read[1][0]
    for user, job, (_, feeder) in zip(USERS, started, read, strict=True):
        cache = place / "tmp" / f"stoker-{user}"
        assert len([p for p in (cache / "index").iterdir() if p.is_dir()]) == 1
        assert {p.stat().st_uid for p in (cache, *cache.rglob("*"))} == {user}
        assert stat.S_IMODE(cache.stat().st_mode) == 0o700
        assert [p for p in Path("/dev/shm").iterdir() if p.stat().st_uid == user] == []
        (other,) = set(USERS) - {user}
        for private in (cache, cache / "index", f"/proc/{job.process.pid}/fd", f"/proc/{feeder}/fd"):
            assert sees(user, private)
            assert not sees(other, private)
    assert [line for line in Path("/proc/net/unix").read_text().splitlines() if "stoker" in line.split()[-1]] == []
    for job in started:
        job.end()


@needs_root
def test_the_directory_of_another_user_is_refused_with_what_to_do(place, data, jobs):
    nvme = place / "nvme"
    nvme.mkdir()
    nvme.chmod(0o777)
    os.chown(nvme, USERS[0], USERS[0])
    job = jobs(data, nvme, user=USERS[1])
    assert job.hear() == "ready"
    job.tell()
    refused = job.hear()
    assert refused.startswith(f"{AccessDenied.__name__}: the nvme tier belongs to user {USERS[0]}, not to {USERS[1]}")
    assert "choose another with stoker.open(nvme=...) or STOKER_NVME" in refused
    job.end()
    assert list(nvme.iterdir()) == []


def sees(user, folder):
    """Whether a user may list a folder; asked by a fork of this process."""
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            os.listdir(folder)
            code = 0
        except PermissionError:
            code = 1
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code < 2
    return code == 0
