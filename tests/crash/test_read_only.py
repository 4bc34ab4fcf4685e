"""Folders that cannot be written to, and such that cannot be entered: refused by name with a hint, and nothing is left.

Three kinds: a file system mounted read-only, which binds root as well; folders of another user; folders closed to all
but another user. What only reads works in the first two.
"""

import os
import runpy
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

import stoker
from stoker.cli.main import run as command
from stoker.errors import AccessDenied, SaveFailed, StokerError
from stoker.store.local import LocalStore
from stoker.testing import crash

VICTIM = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("victims.py"))))
NOBODY = 65534


class Places:
    """What lies in the folder that cannot be written to, and `own`: a folder that can."""

    def __init__(self, root, own, source, run):
        self.root, self.own = root, own
        self.files = shutil.copytree(source, root / "files")
        self.run = shutil.copytree(run, root / "run")
        self.own_run = shutil.copytree(run, own / "run")
        self.set, self.tars, self.empty = root / "set", root / "tars", root / "empty"
        self.nvme, self.new = own / "nvme", own / "new"
        VICTIM.pack(source, str(self.set))
        self.empty.mkdir()
        self.tars.mkdir()
        for key, data in VICTIM.tars_of().items():
            (self.tars / key).write_bytes(data)
        for path in root.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)


def read_samples(folder, nvme):
    with stoker.open(nvme=nvme) as run:
        return sum(batch.step >= 0 for batch in run.loader(str(folder), global_batch_size=6))


def open_shared(places):
    with stoker.open(run="r", nvme=places.nvme, shared=places.empty):
        pass


WRITES = {
    "pack": lambda p: VICTIM.pack(p.files, str(p.empty)),
    "pack into a folder to be made": lambda p: VICTIM.pack(p.files, str(p.empty / "a" / "b")),
    "write": lambda p: VICTIM.write(str(p.empty)),
    "index": lambda p: VICTIM.index(str(p.tars)),
    "save to a new run": lambda p: VICTIM.train(str(p.empty), "", 20),
    "go on with a run": lambda p: VICTIM.train(str(p.run), "", 20),
    "drain": lambda p: VICTIM.train(str(p.own_run), str(p.empty), 20),
    "open a run": lambda p: stoker.open(run="r", nvme=p.empty),
    "open a run in a folder to be made": lambda p: stoker.open(run="r", nvme=p.empty / "nvme"),
    "open a run with a shared tier": open_shared,
}
READS = {
    "read a data set": lambda p: VICTIM.is_whole(str(p.set)),
    "train from a data set": lambda p: read_samples(p.set, p.nvme),
    "train from tars": lambda p: read_samples(p.tars, p.nvme),
    "pack from there": lambda p: VICTIM.pack(p.files, str(p.new)),
    "pack what is packed": lambda p: VICTIM.pack(p.files, str(p.set)),
    "read a checkpoint": lambda p: VICTIM.steps(LocalStore(p.run)),
}
COMMANDS = {
    "stoker verify SET": (0, lambda p: ["verify", "--deep", str(p.set)]),
    "stoker verify RUN": (0, lambda p: ["verify", "--deep", str(p.run)]),
    "stoker ls SET": (0, lambda p: ["ls", str(p.set)]),
    "stoker cat SET": (0, lambda p: ["cat", str(p.set), "03", "--field", "a"]),
    "stoker head SET": (0, lambda p: ["head", str(p.set)]),
    "stoker pack": (7, lambda p: ["pack", str(p.files), str(p.empty)]),
    "stoker index": (7, lambda p: ["index", str(p.tars)]),
}


def outcome(act, places):
    """The error of `act`, or None."""
    try:
        act(places)
    except StokerError as error:
        return type(error) if error.where and error.hint else f"an error without a place or a hint: {error}"
    return None


def snapshot(root):
    return {str(path): path.stat().st_mtime_ns for path in root.rglob("*")}


def act_all(places, expected):
    """Try everything; what did not end as it should, all at once."""
    wrong = {}
    for name, act in (WRITES | READS).items():
        wanted = expected(name)
        try:
            found = outcome(act, places)
        except Exception as error:  # noqa: BLE001  reported below, with the others
            found = repr(error)
        if found != wanted:
            wrong[name] = found
    for name, (code, arguments) in COMMANDS.items():
        found = command(arguments(places))
        if found != (code if expected("read a data set") is None else 7):
            wrong[name] = found
    assert not wrong, wrong


def refuse_writes(name):
    return AccessDenied if name in WRITES else None


def refuse_all(_name):
    return AccessDenied


@pytest.fixture
def places(tmp_path, source, with_a_step, monkeypatch):
    root, own = tmp_path / "root", tmp_path / "own"
    root.mkdir()
    own.mkdir()
    made = Places(root, own, source, with_a_step[0])
    monkeypatch.setenv("HOME", str(root / "empty"))
    for name in ("XDG_CONFIG_HOME", "STOKER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(own)
    return made


def save_midway(places, mounts, far, until):
    """A disk that had an error is often mounted read-only at once: what a save or a drain then says."""
    checkpoint = VICTIM.begin(str(places.own_run if far else places.run), far, VICTIM.state(20))

    def save_and_wait():
        checkpoint.save(after=19)  # says what became of the step that was on its way, if that failed already
        checkpoint.wait(until)

    mounts.make_read_only(places.root)
    with pytest.raises(SaveFailed, match="read-only file system") as found:
        save_and_wait()
    assert isinstance(found.value.__cause__, AccessDenied)
    assert found.value.where
    assert found.value.hint == "the file system is mounted read-only"
    with suppress(SaveFailed):  # of the other step, if that was on its way
        checkpoint.close()
    assert VICTIM.steps(LocalStore(places.run)).keys() == {10}


@pytest.mark.parametrize("tier", ["nvme", "object"])
def test_a_disk_that_becomes_read_only_fails_a_save_by_its_name_and_the_next_start_goes_on(tier, places, mounts):
    far = str(places.empty) if tier == "object" else ""
    mounts.run(partial(save_midway, places, mounts, far, tier if far else None))
    near = places.own_run if far else places.run
    VICTIM.train(str(near), far, 20)
    assert VICTIM.steps(LocalStore(near)).keys() == {10, 20}
    assert VICTIM.unfinished([str(path) for path in places.root.rglob("*")]) == []


def as_nobody(work, places):
    """Run `work` in a child that is no more than any user."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    # What the child would load late may lie where it cannot read: it is loaded here.
    for code, arguments in COMMANDS.values():
        assert code or command(arguments(places)) == 0
    read_samples(places.set, places.nvme)
    shutil.rmtree(places.nvme)
    for path in (places.own, *places.own.rglob("*")):
        os.chown(path, NOBODY, NOBODY)

    def child():
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        work()

    assert crash.run_killed(child, None) == 0


def test_a_read_only_file_system_is_read_and_every_write_refused(places, mounts):
    before = snapshot(places.root)

    def child():
        mounts.make_read_only(places.root)
        act_all(places, refuse_writes)

    mounts.run(child)
    assert snapshot(places.root) == before


def test_the_folders_of_another_user_are_read_and_every_write_refused(places):
    for path in (*places.root.parents[:2], places.root):
        path.chmod(0o755)
    before = snapshot(places.root)
    as_nobody(partial(act_all, places, refuse_writes), places)
    assert snapshot(places.root) == before


def test_folders_that_may_not_be_entered_are_refused_by_everything(places):
    for path in places.root.parents[:2]:
        path.chmod(0o755)
    places.root.chmod(0o700)
    before = snapshot(places.root)
    as_nobody(partial(act_all, places, refuse_all), places)
    assert snapshot(places.root) == before


def test_what_to_do_instead_is_said(places, mounts):
    def child():
        mounts.make_read_only(places.root)
        with pytest.raises(AccessDenied) as found:
            VICTIM.index(str(places.tars))
        assert found.value.hint == "the file system is mounted read-only; an index may lie elsewhere: --out"
        assert command(["index", str(places.tars), "--out", str(places.new)]) == 0
        with pytest.raises(AccessDenied) as found:
            VICTIM.train(str(places.run), "", 20)
        assert "each start of a run notes itself in its folder" in found.value.hint
        shutil.copytree(places.run, places.own / "copy")
        VICTIM.train(str(places.own / "copy"), "", 20)

    mounts.run(child)
