"""A disk that is full, or a quota used up, at any byte and at any new name: an error says so, nothing is half-done.

Once by errors that are put in the kernel's place, for ENOSPC and EDQUOT alike, and once on real file systems in memory
of every size, in a namespace of mounts of their own.
"""

import errno
import os
import runpy
import shutil
import stat
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

import stoker
from stoker.checkpoint.inventory import take_far_inventory, take_inventory
from stoker.cli.main import run as command
from stoker.errors import AccessDenied, CapacityError, SaveFailed, StokerError
from stoker.store.local import LocalStore
from stoker.store.open import open_store
from stoker.testing.fault_server import Answer, First, Rule, Script, Stall

VICTIM = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("victims.py"))))
TARS = VICTIM.tars_of()
TRIES = 16
NEW_NAMES = ("mkdir", "link", "rename", "replace")


class Taken(NamedTuple):
    """What some work took of a disk: bytes, and new names and syncs."""

    bytes: int
    steps: int


class Disk:
    """Stands between this process and the files under `root`: so many bytes, and so many other steps, and no more."""

    def __init__(self, root, monkeypatch, code=errno.ENOSPC):
        self.root = str(root)
        self.code = code
        self.bytes = self.steps = 0
        self.bytes_limit = self.steps_limit = 1 << 60
        self._real_write = os.write
        monkeypatch.setattr(os, "write", self._write)
        monkeypatch.setattr(os, "open", self._open_instead_of(os.open))
        monkeypatch.setattr(os, "fsync", self._fsync_instead_of(os.fsync))
        for name in NEW_NAMES:
            monkeypatch.setattr(os, name, self._step_instead_of(getattr(os, name)))

    @contextmanager
    def full(self, *, after_bytes=1 << 60, after_steps=1 << 60):
        self.bytes = self.steps = 0
        self.bytes_limit, self.steps_limit = after_bytes, after_steps
        try:
            yield
        finally:
            self.bytes_limit = self.steps_limit = 1 << 60

    def _write(self, fd, data):
        if not path_of(fd).startswith(self.root):
            return self._real_write(fd, data)
        left = self.bytes_limit - self.bytes
        if left <= 0 and len(data):
            raise OSError(self.code, os.strerror(self.code))
        done = self._real_write(fd, data[:left])
        self.bytes += done
        return done

    def _open_instead_of(self, real):
        def stand_in(path, flags, mode=0o777, *, dir_fd=None):
            if flags & os.O_CREAT:
                self._step(path)
            return real(path, flags, mode, dir_fd=dir_fd)

        return stand_in

    def _fsync_instead_of(self, real):
        """A network file system says that it is full when the bytes leave."""

        def stand_in(fd):
            if stat.S_ISREG(os.fstat(fd).st_mode):
                self._step(path_of(fd))
            real(fd)

        return stand_in

    def _step_instead_of(self, real):
        def stand_in(*args, **kwargs):
            new = args[0] if real.__name__ == "mkdir" else args[1]
            if not Path(new).name.startswith(".tmp-"):  # what is removed is only hidden by that
                self._step(new)
            return real(*args, **kwargs)

        return stand_in

    def _step(self, path):
        if not os.fspath(path).startswith(self.root):
            return
        self.steps += 1
        if self.steps > self.steps_limit:
            raise OSError(self.code, os.strerror(self.code), os.fspath(path))


def path_of(fd):
    return str(Path(f"/proc/self/fd/{fd}").readlink())


class Work:
    """Something to do in a folder on the disk, whose `spare` folder is on another."""

    def __init__(self, name, source, with_a_step):
        self.name = name
        self.source = source
        self.step, self.tensors = with_a_step

    def prepare(self, place, spare):
        if self.name == "index":
            place.mkdir(parents=True)
            for key, data in TARS.items():
                (place / key).write_bytes(data)
        elif self.name == "save":
            shutil.copytree(self.step, place)
        elif self.name == "drain":
            shutil.copytree(self.step, spare)

    def run(self, place, spare):
        if self.name == "pack":
            VICTIM.pack(self.source, str(place))
        elif self.name == "index":
            VICTIM.index(str(place))
        elif self.name == "save":
            VICTIM.train(str(place), "", 20)
        else:
            VICTIM.train(str(spare), str(place), 20)

    def took_less(self, place):
        """Whether a run left out what was measured: on a busy machine a step that a newer one overtakes."""
        return self.name == "drain" and 10 not in VICTIM.steps(LocalStore(place), take_far_inventory)

    def check(self, place, spare, done):
        """A reader sees all of it, or what was there before; nothing is unfinished, a pack's shards excepted."""
        names = [str(path.relative_to(place)) for path in place.rglob("*")] if place.exists() else []
        assert VICTIM.unfinished(names) == []
        if self.name in ("pack", "index"):
            assert VICTIM.is_whole(str(place)) in ({True} if done else {True, False})
        if self.name == "index":
            assert {key: (place / key).read_bytes() for key in TARS} == TARS
            if not VICTIM.exists(str(place)):
                assert {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()} == set(TARS)
        if self.name in ("save", "drain"):
            store = LocalStore(place)
            steps = VICTIM.steps(store, take_inventory if self.name == "save" else take_far_inventory)
            assert steps.keys() <= {10, 20}
            assert 20 in steps or not done  # a drain may leave out a step that a newer one overtakes
            assert 10 in steps or self.name == "drain"
            if done:
                assert VICTIM.tensors(store, steps[20]) == self.tensors


def check_error(error):
    """It says what, where and how to go on, in three lines; a save's names what it failed of."""
    assert isinstance(error, CapacityError) or (isinstance(error, SaveFailed) and find_cause(error)), repr(error)
    assert "no space left" in error.what or "quota exceeded" in error.what
    assert error.where
    assert "quota" in error.hint or "free some space" in error.hint
    assert len(str(error).splitlines()) == 3


def find_cause(error):
    while error is not None and not isinstance(error, CapacityError):
        error = error.__cause__
    return error


@pytest.fixture(params=["pack", "index", "save", "drain"])
def work(request, source, with_a_step):
    return Work(request.param, source, with_a_step)


@pytest.fixture
def new_places(tmp_path):
    """Folders that are not there yet: one on the disk that fills, one that is not."""

    numbers = count(1)

    def make():
        name = str(next(numbers))
        return tmp_path / "disk" / name, tmp_path / "spare" / name

    return make


def measure(disk, work, places):
    """How much an undisturbed run takes."""
    work.prepare(*places)
    with disk.full():
        work.run(*places)
        return Taken(disk.bytes, disk.steps)


def try_full(disk, work, places, **limits):
    """Whether it failed, as it should unless it took less, and was finished when there was space."""
    place, spare = places
    work.prepare(place, spare)
    with disk.full(**limits):
        failed = fails(work, places)
    as_it_should = failed or work.took_less(place)
    work.check(place, spare, done=not failed)
    work.run(place, spare)
    work.check(place, spare, done=True)
    return as_it_should


def fails(work, places):
    try:
        work.run(*places)
    except StokerError as error:
        check_error(error)
        return True
    return False


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_at_any_byte(code, work, new_places, tmp_path, monkeypatch):
    disk = Disk(tmp_path / "disk", monkeypatch, code)
    total = measure(disk, work, new_places()).bytes
    assert total > 5000
    limits = [*(total * n // TRIES + n for n in range(TRIES)), total - 1]
    assert all(try_full(disk, work, new_places(), after_bytes=limit) for limit in limits)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_at_any_new_name_and_at_any_sync(code, work, new_places, tmp_path, monkeypatch):
    disk = Disk(tmp_path / "disk", monkeypatch, code)
    total = measure(disk, work, new_places()).steps
    assert total > 20
    failed = [try_full(disk, work, new_places(), after_steps=number) for number in range(0, total, 2)]
    assert sum(failed) > len(failed) // 2


PAGE = os.sysconf("SC_PAGESIZE")
LARGE = f"size={64 << 20},nr_inodes=4096"


def fill_real_disk(work, mounts, places, what, stride):
    """Run with so little left of a file system in memory, `what` of it, and more each time until it is enough."""
    place, spare = places
    for number in range(0, 400, stride):
        with mounts.mounted(place.parent, LARGE):
            work.prepare(place, spare)
            state = os.statvfs(place.parent)
            pages, inodes = state.f_blocks - state.f_bfree, state.f_files - state.f_ffree
            scarce = {"bytes": f"size={(pages + number + 1) * PAGE}", "names": f"nr_inodes={inodes + number}"}
            mounts.remount(place.parent, scarce[what])
            failed = fails(work, places)
            work.check(place, spare, done=not failed)
            if not failed:
                assert number, "there was enough from the beginning"
                return
            mounts.remount(place.parent, LARGE)
            work.run(place, spare)
            work.check(place, spare, done=True)
        shutil.rmtree(spare, ignore_errors=True)
    raise AssertionError("there was never enough")


@pytest.mark.parametrize(("what", "stride"), [("bytes", 3), ("names", 1)])
def test_full_for_real(what, stride, work, mounts, new_places):
    places = new_places()
    places[0].parent.mkdir()
    mounts.run(partial(fill_real_disk, work, mounts, places, what, stride))


def open_and_close(place):
    with stoker.open(run="r", nvme=place):
        pass


def fill_node(mounts, folder):
    """A run whose node has so much space, and more each time: the account of waits alone takes 0.5 MiB, twice."""
    failed = 0
    for pages in (1, 2, 3, 5, 8, 100, 132, 140, 200, 264, 400):
        with mounts.mounted(folder, f"size={pages * PAGE}"):
            try:
                open_and_close(folder / "nvme")
            except StokerError as error:
                check_error(error)
                failed += 1
            mounts.remount(folder, LARGE)
            open_and_close(folder / "nvme")
            assert VICTIM.unfinished([str(path) for path in folder.rglob("*")]) == []
    assert 0 < failed < 11


def test_a_run_on_a_full_node_says_so(mounts, tmp_path, monkeypatch):
    (tmp_path / "disk").mkdir()
    monkeypatch.chdir(tmp_path)
    mounts.run(partial(fill_node, mounts, tmp_path / "disk"))


def test_commands_end_with_the_code_of_a_full_disk(mounts, source, tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()

    def child():
        with mounts.mounted(folder, f"size={6 * PAGE}"):
            assert command(["pack", str(source), str(folder / "set")]) == 5
            (tmp_path / "tars").mkdir()
            for key, data in TARS.items():
                (tmp_path / "tars" / key).write_bytes(data)
            shutil.rmtree(folder / "set")
            assert command(["index", str(tmp_path / "tars"), "--out", str(folder / "index")]) == 5

    mounts.run(child)


def act(name, source, spare, place):
    if name == "drain":
        VICTIM.train(str(spare), place, 20)
    elif name == "pack":
        VICTIM.pack(source, place)
    else:
        VICTIM.index(place)


@pytest.mark.parametrize("name", ["pack", "index", "drain"])
@pytest.mark.parametrize(
    ("answer", "cause"),
    [(Answer(403, "QuotaExceeded"), CapacityError), (Answer(403, "AccessDenied"), AccessDenied)],
)
def test_a_bucket_that_takes_no_more_says_so_and_the_same_work_is_done_when_it_does(
    name, answer, cause, buckets, folders, source, with_a_step
):
    for number in count():
        place, spare = buckets.new_place(), shutil.copytree(with_a_step[0], folders.new_place())
        if name == "index":
            buckets.put(place, TARS)
        refused = Rule(answer, method="PUT")
        taken = [Rule(Stall(1e-6), First(number), method="PUT")] if number else []
        buckets.server.play(Script(rules=(*taken, refused)))
        found = None
        try:
            act(name, source, spare, place)
        except StokerError as error:
            found = error
        buckets.server.play(Script())
        if found is None:
            break
        assert isinstance(found, cause) or isinstance(found.__cause__, cause), repr(found)
        assert found.where.startswith(place)
        assert found.hint
        left = buckets.objects(place)
        assert "manifest.json" not in left
        assert VICTIM.unfinished(left) == []
        if name == "index":
            assert left == TARS
        act(name, source, spare, place)
        if name == "drain":
            assert VICTIM.tensors(open_store(place), VICTIM.steps(open_store(place), take_far_inventory)[20])
        else:
            assert VICTIM.is_whole(place)
    assert number > 8
