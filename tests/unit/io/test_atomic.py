"""Files appear whole or not at all; what killed writers leave goes; live writers are left alone."""

import contextlib
import errno
import multiprocessing
import os
import resource
import signal
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stoker.errors import ClosedError, StoreError, UnsupportedError
from stoker.io import atomic, ofd
from stoker.io.atomic import AtomicFile, make_dirs, remove_file, remove_tree, rename_dir, sweep, write_file
from stoker.io.host import host_id
from stoker.testing import crash

DAY_S = 24 * 3600


def names(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


def temps(directory: Path) -> list[Path]:
    return list(directory.rglob(".tmp-*"))


def leave_temp(directory: Path, host: str | None = None, age_s: float = 0) -> Path:
    """What a writer killed on `host` left behind."""
    path = directory / f".tmp-{host or host_id()}-0123456789abcdef"
    path.write_bytes(b"half")
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def durables(events):
    return [event.name for event in events if event.kind == "durable"]


# ---- writing


def test_a_file_is_written_with_its_directories(tmp_path):
    state = write_file(tmp_path / "a/b/c.bin", b"bytes")
    assert (tmp_path / "a/b/c.bin").read_bytes() == b"bytes"
    assert state.st_size == 5
    assert state.st_ino == (tmp_path / "a/b/c.bin").stat().st_ino
    assert names(tmp_path) == {"a", "a/b", "a/b/c.bin"}


def test_files_and_directories_get_ordinary_modes(tmp_path):
    umask = os.umask(0o022)
    try:
        write_file(tmp_path / "dir/file", b"")
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "dir/file").stat().st_mode) == 0o644
    assert stat.S_IMODE((tmp_path / "dir").stat().st_mode) == 0o755


def test_a_short_write_is_continued(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:7]))
    write_file(tmp_path / "file", bytes(range(100)))
    assert (tmp_path / "file").read_bytes() == bytes(range(100))


def test_a_write_that_a_signal_interrupts_is_continued(tmp_path):
    read_end, write_end = os.pipe()
    hits = []
    before = signal.signal(signal.SIGALRM, lambda *_: hits.append(os.read(read_end, 1 << 20)))
    file = AtomicFile(tmp_path / "file")
    try:
        file._out._fd = write_end  # a pipe blocks, so that the signal comes in the middle of a write
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        file.write(b"x" * 300_000)
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert hits
        assert file.size_bytes == 300_000
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        file.discard()
        os.close(read_end)
        os.close(write_end)


def test_a_name_is_taken_as_it_is_and_a_link_is_replaced_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"precious")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    write_file(tmp_path / "link", b"new")
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "elsewhere").read_bytes() == b"precious"


def test_a_file_is_used_once(tmp_path):
    file = AtomicFile(tmp_path / "file")
    file.write(b"1")
    file.commit()
    file.discard()
    assert (tmp_path / "file").read_bytes() == b"1"
    for use in (lambda: file.write(b"2"), file.commit):
        with pytest.raises(ClosedError, match="committed or discarded"):
            use()


def test_an_exception_leaves_nothing(tmp_path):
    def work() -> None:
        with AtomicFile(tmp_path / "file") as file:
            file.write(b"half")
            assert len(temps(tmp_path)) == 1
            raise LookupError

    with pytest.raises(LookupError):
        work()
    assert names(tmp_path) == set()


def test_descriptors_do_not_leak(tmp_path):
    def count() -> int:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    before = count()
    for number in range(10):
        write_file(tmp_path / str(number), b"x")
        with pytest.raises(FileExistsError):
            write_file(tmp_path / str(number), b"x", if_absent=True)
        with AtomicFile(tmp_path / "never"):
            pass
    sweep(tmp_path)
    assert count() == before


def test_each_file_gets_a_time_of_its_own(tmp_path):
    times = {write_file(tmp_path / str(number), b"x").st_mtime_ns for number in range(100)}
    assert len(times) == 100
    assert abs(max(times) / 1e9 - time.time()) < 60


def test_a_disk_that_fills_leaves_the_old_file_and_no_temporary_one(tmp_path, monkeypatch):
    write_file(tmp_path / "file", b"old")
    write = os.write

    def full(fd: int, data: memoryview) -> int:
        if len(data) > 10:
            return write(fd, data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        write_file(tmp_path / "file", b"much longer than that")
    assert names(tmp_path) == {"file"}
    assert (tmp_path / "file").read_bytes() == b"old"


def test_a_limit_of_the_kernel_on_file_size_is_an_error_and_leaves_nothing(tmp_path):
    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        with pytest.raises(OSError, match="too large") as caught:
            write_file(tmp_path / "file", bytes(50_000))
        assert caught.value.errno == errno.EFBIG

    assert crash.run_killed(work, None) == 0
    assert names(tmp_path) == set()


@pytest.mark.parametrize("step", ["fsync", "rename"])
def test_a_commit_that_fails_leaves_the_old_file_and_no_temporary_one(tmp_path, monkeypatch, step):
    write_file(tmp_path / "file", b"old")

    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    if step == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="Input/output"):
        write_file(tmp_path / "file", b"new")
    assert names(tmp_path) == {"file"}
    assert (tmp_path / "file").read_bytes() == b"old"


@pytest.mark.parametrize("how", ["new", "replace", "first"])
def test_the_bytes_are_synced_before_the_name_appears_and_the_name_after(tmp_path, monkeypatch, how):
    path = tmp_path / "file"
    if how == "replace":
        write_file(path, b"old")
    before = path.read_bytes() if path.exists() else None
    seen = []
    fsync = os.fsync

    def spy(fd: int) -> None:
        fsync(fd)
        of = Path(os.readlink(f"/proc/self/fd/{fd}"))  # noqa: PTH115  a number, not a path
        seen.append(("dir" if of == tmp_path else of.name[:5], path.read_bytes() if path.exists() else None))

    monkeypatch.setattr(os, "fsync", spy)
    events = crash.trace(lambda: write_file(path, b"new", if_absent=how == "first"))
    assert seen == [(".tmp-", before), ("dir", b"new")]
    renamed = ["link", "unlink"] if how == "first" else ["rename"]
    assert durables(events) == ["fsync", *renamed, "fsync-dir"]
    crash.assert_point_between_durables(events)


# ---- being the first


def test_one_of_many_threads_is_the_first(tmp_path):
    barrier = threading.Barrier(16)

    def race(number: int) -> bool:
        barrier.wait()
        try:
            write_file(tmp_path / "once", bytes([number]), if_absent=True)
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        won = [number for number, first in enumerate(pool.map(race, range(16))) if first]
    assert (tmp_path / "once").read_bytes() == bytes(won)
    assert names(tmp_path) == {"once"}


def _race(path, number, barrier, won):
    barrier.wait()
    with contextlib.suppress(FileExistsError):
        write_file(path, bytes([number]), if_absent=True)
        won.put(number)


@pytest.mark.parametrize("links", [True, False])
def test_one_of_many_processes_is_the_first(tmp_path, links, monkeypatch):
    if not links:
        monkeypatch.setattr(os, "link", _no_links)
    context = multiprocessing.get_context("fork")
    barrier, won = context.Barrier(16), context.SimpleQueue()
    racers = [context.Process(target=_race, args=(tmp_path / "once", n, barrier, won)) for n in range(16)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
        assert racer.exitcode == 0
    assert (tmp_path / "once").read_bytes() == bytes([won.get()])
    assert won.empty()
    assert names(tmp_path) == {"once"}


def _no_links(*_):
    raise PermissionError(errno.EPERM, "this file system has no hard links")


def test_without_links_the_file_is_renamed_without_replacing(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", _no_links)
    events = crash.trace(lambda: write_file(tmp_path / "once", b"1", if_absent=True))
    assert durables(events) == ["fsync", "rename", "fsync-dir"]
    crash.assert_point_between_durables(events)
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "once", b"2", if_absent=True)
    assert (tmp_path / "once").read_bytes() == b"1"
    assert names(tmp_path) == {"once"}


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS])
def test_where_neither_works_it_is_said_and_nothing_is_left(tmp_path, monkeypatch, code):
    monkeypatch.setattr(os, "link", _no_links)
    monkeypatch.setattr(atomic, "_renameat2", lambda *_: code)
    with pytest.raises(UnsupportedError, match="neither link nor rename") as caught:
        write_file(tmp_path / "once", b"1", if_absent=True)
    assert str(tmp_path) in caught.value.where
    assert names(tmp_path) == set()


def test_a_link_that_was_made_though_the_server_denied_it_counts(tmp_path, monkeypatch):
    link = os.link

    def repeated(source, target):
        link(source, target)
        link(source, target)  # what an NFS client sees when the answer to the first request was lost

    monkeypatch.setattr(os, "link", repeated)
    write_file(tmp_path / "once", b"1", if_absent=True)
    assert (tmp_path / "once").read_bytes() == b"1"
    assert names(tmp_path) == {"once"}


# ---- directories


def test_each_new_directory_is_made_durable_in_its_parent(tmp_path):
    events = crash.trace(lambda: make_dirs(tmp_path / "a/b"))
    assert [(e.name, e.what) for e in events if e.kind == "durable"] == [
        ("mkdir", str(tmp_path / "a")),
        ("fsync-dir", str(tmp_path)),
        ("mkdir", str(tmp_path / "a/b")),
        ("fsync-dir", str(tmp_path / "a")),
    ]
    assert crash.trace(lambda: make_dirs(tmp_path / "a/b")) == []


def test_directories_made_by_many_threads_are_made_once(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make_dirs, [tmp_path / "a/b/c/d"] * 32))
    assert (tmp_path / "a/b/c/d").is_dir()


def test_a_working_directory_that_was_removed_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(FileNotFoundError):
        make_dirs(Path("a/b"))


@pytest.mark.parametrize("below", ["file", "file/a", "file/a/b", "dangling", "dangling/a"])
def test_a_file_in_the_way_of_a_directory_is_an_error(tmp_path, below):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(NotADirectoryError):
        make_dirs(tmp_path / below)
    assert names(tmp_path) == {"file", "dangling"}


def test_a_file_system_that_cannot_sync_directories_is_taken_at_its_word(tmp_path, monkeypatch):
    fsync = os.fsync

    def only_files(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", only_files)
    write_file(tmp_path / "file", b"1")
    assert (tmp_path / "file").read_bytes() == b"1"


def test_a_directory_that_cannot_be_synced_for_another_reason_is_an_error(tmp_path, monkeypatch):
    fsync = os.fsync

    def broken(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output"):
        write_file(tmp_path / "file", b"1")


def test_a_directory_is_renamed_between_syncs_of_what_it_holds_and_where_it_stands(tmp_path):
    write_file(tmp_path / "a/old/file", b"1")
    make_dirs(tmp_path / "b")
    events = crash.trace(lambda: rename_dir(tmp_path / "a/old", tmp_path / "b/new"))
    assert [(e.name, e.what) for e in events if e.kind == "durable"] == [
        ("fsync-dir", str(tmp_path / "a/old")),
        ("rename", str(tmp_path / "b/new")),
        ("fsync-dir", str(tmp_path / "b")),
        ("fsync-dir", str(tmp_path / "a")),
    ]
    assert names(tmp_path) == {"a", "b", "b/new", "b/new/file"}


def test_a_directory_is_renamed_onto_nothing_that_holds_something(tmp_path):
    write_file(tmp_path / "source/file", b"1")
    write_file(tmp_path / "full/file", b"2")
    write_file(tmp_path / "plain", b"3")
    make_dirs(tmp_path / "empty")
    for target in ("full", "plain"):
        with pytest.raises(FileExistsError):
            rename_dir(tmp_path / "source", tmp_path / target)
    with pytest.raises(FileNotFoundError):
        rename_dir(tmp_path / "missing", tmp_path / "target")
    with pytest.raises(NotADirectoryError):
        rename_dir(tmp_path / "plain", tmp_path / "target")
    with pytest.raises(OSError, match="Invalid argument"):
        rename_dir(tmp_path / "source", tmp_path / "source/below/it")
    rename_dir(tmp_path / "source", tmp_path / "empty")
    assert (tmp_path / "empty/file").read_bytes() == b"1"
    assert (tmp_path / "full/file").read_bytes() == b"2"


# ---- removing


def test_a_file_is_removed_durably_and_once(tmp_path):
    write_file(tmp_path / "file", b"1")
    removed = []
    events = crash.trace(lambda: removed.append(remove_file(tmp_path / "file")))
    assert durables(events) == ["unlink", "fsync-dir"]
    assert removed == [True]
    assert remove_file(tmp_path / "file") is False
    assert remove_file(tmp_path / "missing/file") is False


def test_a_tree_is_removed_without_following_links(tmp_path):
    write_file(tmp_path / "elsewhere/precious", b"1")
    write_file(tmp_path / "tree/a/b/file", b"2")
    (tmp_path / "tree/link-to-dir").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "tree/link-to-file").symlink_to(tmp_path / "elsewhere/precious")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    assert remove_tree(tmp_path / "tree") is True
    assert remove_tree(tmp_path / "tree") is False
    assert remove_tree(tmp_path / "missing/tree") is False
    for kept in ("link", "elsewhere/precious"):
        with pytest.raises(NotADirectoryError):
            remove_tree(tmp_path / kept)
    assert names(tmp_path) == {"elsewhere", "elsewhere/precious", "link"}


def test_a_tree_vanishes_before_anything_in_it_is_removed(tmp_path):
    for name in ("MANIFEST.json", "a", "deep/b"):
        write_file(tmp_path / "step" / name, b"1")
    events = crash.trace(lambda: remove_tree(tmp_path / "step"))
    assert durables(events)[:2] == ["rename", "fsync-dir"]
    assert sorted(durables(events)[2:-1]) == ["rmdir", "rmdir", "unlink", "unlink", "unlink"]
    assert durables(events)[-1] == "fsync-dir"


# ---- sweeping


def test_what_a_killed_writer_left_is_swept_and_nothing_else(tmp_path):
    write_file(tmp_path / "deep/er/file", b"1")
    leave_temp(tmp_path)
    leave_temp(tmp_path / "deep/er")
    assert sweep(tmp_path) == 2
    assert names(tmp_path) == {"deep", "deep/er", "deep/er/file"}
    assert sweep(tmp_path) == 0
    assert sweep(tmp_path / "missing") == 0


def test_a_tree_whose_removal_was_killed_is_swept(tmp_path):
    write_file(tmp_path / ".tmp-00000000-0123456789abcdef/step/file", b"1")
    write_file(tmp_path / "run/.tmp-00000000-0123456789abcdef/file", b"1")
    assert sweep(tmp_path) == 2
    assert names(tmp_path) == {"run"}


def test_a_live_writer_is_not_swept(tmp_path):
    with AtomicFile(tmp_path / "file") as file:
        file.write(b"1")
        assert sweep(tmp_path) == 0
        assert sweep(tmp_path, now_s=time.time() + 2 * DAY_S) == 0
        file.commit()
    assert names(tmp_path) == {"file"}


def test_a_live_writer_of_another_process_is_not_swept_and_a_dead_one_is(tmp_path):
    context = multiprocessing.get_context("fork")
    ready, go_on = context.Event(), context.Event()

    def write() -> None:
        with AtomicFile(tmp_path / "file"):
            ready.set()
            go_on.wait(60)

    writer = context.Process(target=write)
    writer.start()
    assert ready.wait(30)
    assert sweep(tmp_path) == 0
    assert len(temps(tmp_path)) == 1
    writer.kill()
    writer.join()
    assert sweep(tmp_path) == 1
    assert names(tmp_path) == set()


@pytest.mark.parametrize(("age_s", "swept"), [(0, 0), (DAY_S - 60, 0), (DAY_S + 60, 1)])
def test_a_file_of_another_host_is_swept_after_a_day(tmp_path, age_s, swept):
    leave_temp(tmp_path, host="00000000", age_s=age_s)
    assert sweep(tmp_path) == swept


@pytest.mark.parametrize(("age_s", "swept"), [(0, 0), (DAY_S + 60, 1)])
def test_where_there_are_no_locks_a_file_is_written_and_swept_by_age_alone(tmp_path, monkeypatch, age_s, swept):
    def no_locks(fd: int) -> bool:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(ofd, "try_lock", no_locks)
    leave_temp(tmp_path, age_s=age_s)
    write_file(tmp_path / "file", b"1")
    assert sweep(tmp_path) == swept
    assert len(temps(tmp_path)) == 1 - swept


def test_a_link_or_a_pipe_with_a_temporary_name_does_not_hold_the_sweep_up(tmp_path):
    (tmp_path / "precious").write_bytes(b"1")
    (tmp_path / f".tmp-{host_id()}-link").symlink_to(tmp_path / "precious")
    os.mkfifo(tmp_path / f".tmp-{host_id()}-pipe")
    sweep(tmp_path)
    assert (tmp_path / "precious").read_bytes() == b"1"
    assert (tmp_path / f".tmp-{host_id()}-link").is_symlink()


def test_a_writer_whose_file_is_swept_before_it_is_locked_takes_another_name(tmp_path, monkeypatch):
    try_lock = ofd.try_lock
    swept = []

    def sweep_first(fd: int) -> bool:
        if not swept:
            swept.append(None)
            monkeypatch.setattr(ofd, "try_lock", try_lock)
            swept[0] = sweep(tmp_path)
        return try_lock(fd)

    monkeypatch.setattr(ofd, "try_lock", sweep_first)
    write_file(tmp_path / "file", b"1")
    assert swept == [1]
    assert names(tmp_path) == {"file"}


def test_a_writer_whose_file_a_sweep_still_holds_does_not_use_it(tmp_path, monkeypatch):
    answers = [False, True]
    monkeypatch.setattr(ofd, "try_lock", lambda _: answers.pop(0))
    with AtomicFile(tmp_path / "file") as file:
        assert answers == []
        assert len(temps(tmp_path)) == 2
        file.commit()
    assert len(temps(tmp_path)) == 1


def test_a_place_where_every_new_file_is_removed_is_an_error(tmp_path, monkeypatch):
    def remove_first(fd: int) -> bool:
        for path in temps(tmp_path):
            path.unlink()
        return True

    monkeypatch.setattr(ofd, "try_lock", remove_first)
    with pytest.raises(StoreError, match="100 temporary files"):
        write_file(tmp_path / "file", b"1")


def test_writers_and_sweepers_at_once_lose_nothing(tmp_path):
    stop = threading.Event()

    def sweep_on() -> None:
        while not stop.is_set():
            sweep(tmp_path)

    with ThreadPoolExecutor(6) as pool:
        sweepers = [pool.submit(sweep_on) for _ in range(2)]
        try:
            list(
                pool.map(lambda n: write_file(tmp_path / f"{n % 5}/{n}", bytes([n]), if_absent=n % 2 == 0), range(200))
            )
        finally:
            stop.set()
        for sweeper in sweepers:
            sweeper.result()
    for number in range(200):
        assert (tmp_path / f"{number % 5}/{number}").read_bytes() == bytes([number])
    assert temps(tmp_path) == []


def test_the_host_id_is_8_hex_digits_and_stays():
    assert len(host_id()) == 8
    assert int(host_id(), 16) >= 0
    assert host_id() == host_id()


# ---- dying


def _replace(root: Path) -> None:
    write_file(root / "dir/file", b"new")


def _first(root: Path) -> None:
    write_file(root / "dir/once", b"first", if_absent=True)


def _rename(root: Path) -> None:
    if not (root / "done/step").exists():
        write_file(root / "step.partial/a", b"a")
        write_file(root / "step.partial/deep/b", b"b")
        rename_dir(root / "step.partial", root / "done/step")


def _remove(root: Path) -> None:
    remove_tree(root / "old")
    remove_file(root / "single")


def _sweep(root: Path) -> None:
    sweep(root)


def _rename_file(root: Path) -> None:
    for name in ("aside", "beside"):
        if (root / name).exists():
            atomic.rename_file(root / name, root / f"{name}.1")


WORK = {
    "replace": _replace,
    "first": _first,
    "rename": _rename,
    "rename-file": _rename_file,
    "remove": _remove,
    "sweep": _sweep,
}


def _prepare(root: Path) -> Path:
    write_file(root / "dir/file", b"old")
    write_file(root / "old/MANIFEST", b"m")
    write_file(root / "old/deep/a", b"a")
    write_file(root / "single", b"s")
    write_file(root / "aside", b"aside")
    write_file(root / "beside", b"beside")
    write_file(root / f".tmp-{host_id()}-fedcba9876543210/deep/file", b"of a removal that was killed")
    leave_temp(root)
    leave_temp(root / "dir")
    return root


def _whole_or_absent(root: Path) -> None:
    """What every reader may rely on, whenever the work was killed."""
    assert (root / "dir/file").read_bytes() in (b"old", b"new")
    assert not (root / "dir/once").exists() or (root / "dir/once").read_bytes() == b"first"
    assert [path.read_bytes() for path in (*root.glob("aside*"), *root.glob("beside*"))] == [b"aside", b"beside"]
    if (root / "done/step").exists():
        assert (root / "done/step/a").read_bytes() == b"a"
        assert (root / "done/step/deep/b").read_bytes() == b"b"
    if (root / "old").exists():
        assert names(root / "old") == {"MANIFEST", "deep", "deep/a"}


@pytest.mark.crash
@pytest.mark.parametrize("name", WORK)
def test_killed_anywhere_everything_is_whole_or_absent_and_the_next_run_finishes(tmp_path, name):
    work = WORK[name]
    whole = _prepare(tmp_path / "whole")
    events = crash.trace(lambda: work(whole))
    crash.assert_point_between_durables(events)
    assert len(durables(events)) > 2
    sweep(whole)
    for number, spec in enumerate(crash.every_pass(events)):
        root = _prepare(tmp_path / str(number))
        assert crash.run_killed(lambda root=root: work(root), spec) == crash.KILLED, spec
        _whole_or_absent(root)
        sweep(root)
        _whole_or_absent(root)
        assert temps(root) == []
        with contextlib.suppress(FileExistsError):
            work(root)
        sweep(root)
        assert names(root) == names(whole), spec


def test_every_crash_point_of_the_module_is_passed_by_these_works(tmp_path, monkeypatch):
    passed = set()
    for name, work in WORK.items():
        root = _prepare(tmp_path / name)
        passed |= {event.name for event in crash.trace(lambda work=work, root=root: work(root))}
    monkeypatch.setattr(os, "link", _no_links)
    passed |= {event.name for event in crash.trace(lambda: write_file(tmp_path / "x", b"", if_absent=True))}
    passed |= {event.name for event in crash.trace(AtomicFile(tmp_path / "y").discard)}
    assert set(crash.points(Path(atomic.__file__).parent)) <= passed


@pytest.mark.parametrize("code", [0, errno.EINVAL])
def test_a_file_is_renamed_durably_and_never_over_another(tmp_path, monkeypatch, code):
    if code:
        monkeypatch.setattr(atomic, "_renameat2", lambda *_: code)
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    with pytest.raises(FileExistsError):
        atomic.rename_file(tmp_path / "a", tmp_path / "b")
    atomic.rename_file(tmp_path / "a", tmp_path / "c")
    assert sorted((path.name, path.read_text()) for path in tmp_path.iterdir()) == [("b", "b"), ("c", "a")]


def test_a_directory_that_is_renamed_as_soon_as_the_file_appears_is_no_failure(tmp_path, monkeypatch):
    replace = Path.replace

    def rename_at_once(temp, target):
        replace(temp, target)
        Path(target).parent.rename(tmp_path / "promoted")

    with AtomicFile(tmp_path / "partial" / "receipt") as file:
        file.write(b"all there")
        monkeypatch.setattr(Path, "replace", rename_at_once)
        file.commit()
    assert (tmp_path / "promoted" / "receipt").read_bytes() == b"all there"
