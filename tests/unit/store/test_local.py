"""What a directory adds to the contract: files, links, descriptors, and the errors of the kernel by name."""

import errno
import gc
import os
import pickle
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

from stoker.errors import (
    AccessDenied,
    AlreadyExists,
    CapacityError,
    ClosedError,
    ConfigError,
    NotFound,
    StokerError,
    StoreError,
    TimedOut,
    Truncated,
    Unavailable,
)
from stoker.io.host import host_id
from stoker.io.os_errors import translate
from stoker.store import local
from stoker.store.descriptors import Descriptors
from stoker.store.local import LocalStore
from stoker.testing import crash
from stoker.values import Key

KEY = Key("dir/object")


@pytest.fixture
def store(tmp_path):
    store = LocalStore(tmp_path)
    yield store
    store.close()


def raising(code):
    def fail(*_args, **_more):
        raise OSError(code, os.strerror(code))

    return fail


def open_files_below(directory: Path) -> int:
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(entry.readlink()))
        except FileNotFoundError:  # the descriptor of this listing itself
            continue
    return sum(link.startswith(str(directory)) for link in links)


# ---- the place


def test_an_object_is_a_plain_file(store, tmp_path):
    store.write(KEY, b"bytes")
    assert (tmp_path / "dir/object").read_bytes() == b"bytes"
    (tmp_path / "put there").write_bytes(b"by someone else")
    assert store.read(Key("put there")) == b"by someone else"


def test_a_store_is_made_at_once_or_by_the_first_write(tmp_path):
    LocalStore(tmp_path / "now/deep", create=True)
    assert (tmp_path / "now/deep").is_dir()
    later = LocalStore(tmp_path / "later/deep")
    assert not (tmp_path / "later").exists()
    assert list(later.list()) == list(later.list_dirs()) == []
    assert later.sweep() == 0
    with pytest.raises(NotFound):
        later.read(KEY)
    later.write(KEY, b"1")
    assert later.read(KEY) == b"1"


def test_a_file_is_not_a_store(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for create in (False, True):
        with pytest.raises(StoreError, match="a file, where a folder is needed") as caught:
            LocalStore(tmp_path / "file", create=create)
        assert caught.value.where == str(tmp_path / "file")
        assert caught.value.hint


def test_the_root_may_be_reached_through_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    store = LocalStore(tmp_path / "link")
    store.write(KEY, b"1")
    assert store.url == str(tmp_path / "real")
    assert (tmp_path / "real/dir/object").read_bytes() == b"1"


def test_the_root_of_the_file_system_can_be_a_store(tmp_path):
    (tmp_path / "object").write_bytes(b"1")
    assert LocalStore("/").read(Key(str(tmp_path / "object")[1:])) == b"1"


def test_the_root_stays_when_the_working_directory_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = LocalStore("here")
    monkeypatch.chdir("/")
    store.write(KEY, b"1")
    assert (tmp_path / "here/dir/object").exists()


# ---- links and strange files


def test_links_are_not_followed_and_listed_as_directories_alone(store, tmp_path):
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (tmp_path / "link").symlink_to(outside / "secret")
    (tmp_path / "dirlink").symlink_to(outside)
    for read in (store.read, store.stat, lambda key: store.read_into(key, 0, bytearray(1))):
        with pytest.raises(StoreError, match="symbolic link") as caught:
            read(Key("link"))
        assert "not followed" in caught.value.hint
    assert list(store.list()) == []
    assert set(store.list_dirs()) == {"link", "dirlink"}  # so that one that leads nowhere is missed aloud
    store.write(Key("link"), b"an object now")
    assert (outside / "secret").read_bytes() == b"secret"


def test_a_pipe_is_no_object_and_does_not_block(store, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for read in (store.read, store.stat, lambda key: store.read_into(key, 0, bytearray(1))):
        with pytest.raises(NotFound):
            read(Key("pipe"))
    assert list(store.list()) == []


def test_names_that_no_key_can_have_are_not_listed(store, tmp_path):
    for name in (b"decomposed-e\xcc\x81", b"not-utf8-\xff", b"line\nbreak"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(b"1")
    store.write(Key("good"), b"1")
    assert [info.key for info in store.list()] == ["good"]


def test_unfinished_files_are_no_objects(store, tmp_path):
    store.write(Key("dir/file"), b"1")
    (tmp_path / "dir/.tmp-0-1").write_bytes(b"half")
    (tmp_path / ".tmp-0-2").mkdir()
    (tmp_path / ".tmp-0-2/file").write_bytes(b"of a tree being removed")
    assert [info.key for info in store.list()] == ["dir/file"]
    assert list(store.list_dirs()) == ["dir"]
    for key in (".tmp-0-1", "dir/.tmp-0-1", ".tmp-0-2/file"):
        for use in (store.read, store.stat, store.writer, store.delete, store.path, lambda key: store.write(key, b"")):
            with pytest.raises(ConfigError, match="unfinished"):
                use(Key(key))


def test_sweep_removes_what_killed_writers_left_below_a_prefix(store, tmp_path):
    for directory in ("", "a", "a/b", "c"):
        (tmp_path / directory).mkdir(exist_ok=True)
        (tmp_path / directory / f".tmp-{host_id()}-1").write_bytes(b"half")
    with store.writer(Key("a/live")) as writer:
        assert store.sweep("a") == 2
        assert store.sweep("missing") == 0
        assert store.sweep() == 2
        writer.commit()
    assert [info.key for info in store.list()] == ["a/live"]


def test_only_directories_that_can_hold_the_prefix_are_walked(store, tmp_path, monkeypatch):
    for name in ("a/b/c/1", "a/bb/2", "a/x/3", "z/4"):
        store.write(Key(name), b"1")
    walked = []
    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: walked.append(str(Path(path).relative_to(tmp_path))) or real(path))
    assert {info.key for info in store.list("a/b")} == {"a/b/c/1", "a/bb/2"}
    assert set(walked) == {"a", "a/b", "a/b/c", "a/bb"}


# ---- key and prefix


def test_a_key_below_an_object_cannot_be_written(store):
    store.write(Key("a"), b"1")
    for write in (lambda: store.write(Key("a/b"), b"2"), lambda: store.writer(Key("a/b/c"))):
        with pytest.raises(StoreError, match="in the way") as caught:
            write()
        assert "both a file and a directory" in caught.value.hint
    assert store.read(Key("a")) == b"1"


def test_an_object_cannot_take_the_place_of_a_directory(store, tmp_path):
    store.write(Key("a/b"), b"1")
    with pytest.raises(StoreError, match="'a'") as caught:
        store.write(Key("a"), b"2")
    assert "both a file and a directory" in caught.value.hint
    with pytest.raises(AlreadyExists):
        store.write(Key("a"), b"2", if_absent=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_part_of_a_key_that_is_too_long_for_a_file_name_is_said(store):
    with pytest.raises(StoreError, match="too long") as caught:
        store.write(Key("x" * 300), b"")
    assert "255 bytes" in caught.value.hint
    with pytest.raises(StoreError):
        store.read(Key("x" * 300))


# ---- reading


def test_a_read_goes_straight_into_the_buffer_with_no_copy(store, monkeypatch):
    store.write(KEY, bytes(range(256)) * 16)
    seen = []
    preadv = os.preadv

    def spy(fd, buffers, offset):
        seen.extend(np.frombuffer(buffer, np.uint8).ctypes.data for buffer in buffers)
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", spy)
    target = np.zeros(4096, np.uint8)
    store.read_into(KEY, 0, target)
    assert seen == [target.ctypes.data]


def test_a_short_read_is_continued(store, monkeypatch):
    data = bytes(range(256)) * 4
    store.write(KEY, data)
    preadv, pread = os.preadv, os.pread
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: preadv(fd, [buffers[0][:100]], at))
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 100), at))
    buffer = bytearray(1000)
    store.read_into(KEY, 5, buffer)
    assert buffer == data[5:1005]
    assert store.read(KEY) == data


def test_several_places_of_objects_are_read_at_once_as_one_by_one(store):
    other = Key("other")
    store.write(KEY, bytes(range(100)))
    store.write(other, bytes(range(100, 200)))
    buffers = [memoryview(bytearray(size)) for size in (10, 5, 0, 3)]
    store.read_each([KEY, other, KEY, KEY], [90, 3, 7, 0], buffers)
    wanted = (range(90, 100), range(103, 108), range(0), range(3))
    assert [bytes(buffer) for buffer in buffers] == list(map(bytes, wanted))
    store.read_each([], [], [])
    with pytest.raises(Truncated, match="'other' ends at byte 100, wanted up to 101"):
        store.read_each([KEY, other], [0, 91], [memoryview(bytearray(10)), memoryview(bytearray(10))])
    with pytest.raises(NotFound, match="'gone'"):
        store.read_each([KEY, Key("gone")], [0, 0], [memoryview(bytearray(1)), memoryview(bytearray(1))])


class PageCache:
    """Stands for `os.preadv`: places [start, ...) in `cold` need waiting; `error` is what the file system says."""

    def __init__(self, cold=(), error=None):
        self.cold = cold
        self.error = error
        self.preadv = os.preadv

    def __call__(self, fd, buffers, at, flags=0):
        if flags:
            assert flags == os.RWF_NOWAIT
            if self.error is not None:
                raise OSError(self.error, os.strerror(self.error))
            if at in self.cold:
                raise BlockingIOError(errno.EAGAIN, "")
        return self.preadv(fd, buffers, at)


def test_places_are_read_until_one_is_not_cached(store, monkeypatch):
    store.write(KEY, bytes(range(100)))
    buffers = [memoryview(bytearray(2)) for _ in range(4)]
    monkeypatch.setattr(os, "preadv", PageCache(cold=[40]))
    assert store.read_cached(KEY, [7, 90, 40, 0], buffers, bytes) == [b"\x07\x08", b"\x5a\x5b"]
    assert store.read_cached(KEY, [0, 99, 1], buffers[:3], bytes) == [b"\x00\x01"]  # the end; read_into says so
    assert store.read_cached(Key("gone"), [0], buffers[:1], bytes) == []


@pytest.mark.parametrize("name", ["EOPNOTSUPP", "EINVAL", "ENOSYS"])
def test_a_file_system_that_cannot_tell_what_is_cached_says_so(store, monkeypatch, name):
    store.write(KEY, bytes(range(100)))
    monkeypatch.setattr(os, "preadv", PageCache(error=getattr(errno, name)))
    assert store.read_cached(KEY, [0], [memoryview(bytearray(2))], bytes) is None
    store.close()
    with pytest.raises(ClosedError):
        store.read_cached(KEY, [0], [memoryview(bytearray(2))], bytes)


def test_who_reads_past_the_page_cache_does_not_look_into_it(tmp_path):
    store = LocalStore(tmp_path, engine="auto")
    store.write(KEY, b"12345")
    assert store.read_cached(KEY, [0], [memoryview(bytearray(2))], bytes) is None


def test_a_replaced_file_is_never_taken_from_the_cache_of_the_old_one(store, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "preadv", PageCache())
    store.write(KEY, b"old")
    buffer = memoryview(bytearray(3))
    assert store.read_cached(KEY, [0], [buffer], bytes) == [b"old"]
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "new").replace(tmp_path / "dir/object")
    assert store.read_cached(KEY, [0], [buffer], bytes) == [b"new"]


def test_a_file_that_shrinks_while_it_is_read_is_truncated(store, monkeypatch):
    store.write(KEY, b"x" * 100)
    monkeypatch.setattr(os, "pread", lambda *_: b"")
    with pytest.raises(Truncated):
        store.read(KEY)


def test_a_file_is_opened_once_for_many_reads(store, monkeypatch):
    store.write(KEY, b"12345")
    opened = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda *args, **more: opened.append(args[0]) or real(*args, **more))
    for _ in range(10):
        store.read_into(KEY, 0, bytearray(5))
        store.read(KEY)
        store.stat(KEY)
    assert len(opened) == 1


def test_kept_descriptors_are_bounded_and_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "OPEN_FILES", 4)
    store = LocalStore(tmp_path)
    for number in range(10):
        store.write(Key(str(number)), bytes([number]))
    for _ in range(2):
        for number in range(10):
            assert store.read(Key(str(number))) == bytes([number])
            assert open_files_below(tmp_path) <= 4
    store.close()
    assert open_files_below(tmp_path) == 0


def test_a_replaced_object_does_not_hold_its_old_bytes_on_disk_after_the_next_read(store, tmp_path):
    for number in range(5):
        store.write(KEY, bytes([number]))
        assert store.read(KEY) == bytes([number])
    assert open_files_below(tmp_path) == 1


def test_an_object_replaced_by_hand_is_read_anew_even_if_its_old_file_lives_on(store, tmp_path):
    store.write(KEY, b"old")
    assert store.read(KEY) == b"old"
    (tmp_path / "pinned").hardlink_to(tmp_path / "dir/object")
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "new").replace(tmp_path / "dir/object")
    assert store.read(KEY) == b"new"


def test_an_object_moved_away_is_not_found_under_its_old_key(store, tmp_path):
    store.write(KEY, b"1")
    assert store.read(KEY) == b"1"
    (tmp_path / "dir").rename(tmp_path / "moved")
    with pytest.raises(NotFound):
        store.read(KEY)
    assert store.read(Key("moved/object")) == b"1"


def test_a_store_closed_under_a_read_lets_it_finish(store, tmp_path):
    store.write(KEY, b"12345")
    with store._descriptors.open(str(tmp_path / KEY)) as file:
        store.close()
        assert os.pread(file.fd, 5, 0) == b"12345"
    assert open_files_below(tmp_path) == 0
    with pytest.raises(ClosedError):
        store.read(KEY)


def test_the_file_read_least_recently_is_given_up(tmp_path, monkeypatch):
    paths = [str(tmp_path / name) for name in "abc"]
    for path in paths:
        Path(path).write_bytes(b"1")
    opened = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, flags: opened.append(path[-1]) or real(path, flags))
    table = Descriptors(2)
    for name in "abacab":
        with table.open(paths["abc".index(name)]):
            pass
    assert "".join(opened) == "abcb"
    table.close()


def test_a_file_that_two_threads_open_at_once_is_kept_once(tmp_path, monkeypatch):
    path = str(tmp_path / "file")
    Path(path).write_bytes(b"1")
    table = Descriptors(4)
    real = os.open

    def open_twice(name, flags):
        monkeypatch.setattr(os, "open", real)
        with table.open(path):  # what another thread does meanwhile
            return real(name, flags)

    monkeypatch.setattr(os, "open", open_twice)
    with table.open(path) as file:
        assert os.pread(file.fd, 1, 0) == b"1"
        assert open_files_below(tmp_path) == 1
    table.close()
    assert open_files_below(tmp_path) == 0


def test_descriptors_opened_at_once_by_many_threads_are_all_closed(tmp_path):
    paths = []
    for number in range(6):
        paths.append(tmp_path / str(number))
        paths[-1].write_bytes(bytes([number]) * 10)
    table = Descriptors(2)
    failures = []

    def work(seed: int) -> None:
        for turn in range(200):
            number = (seed * 7 + turn * turn) % 6
            with table.open(str(paths[number])) as file:
                if os.pread(file.fd, 10, 0) != bytes([number]) * 10:
                    failures.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(table) <= 2
    table.close()
    assert open_files_below(tmp_path) == 0


# ---- what the kernel says


@pytest.mark.parametrize(
    ("code", "kind", "exit_code"),
    [
        (errno.ENOENT, NotFound, 6),
        (errno.EEXIST, AlreadyExists, 6),
        (errno.EACCES, AccessDenied, 7),
        (errno.EPERM, AccessDenied, 7),
        (errno.EROFS, AccessDenied, 7),
        (errno.ENOSPC, CapacityError, 5),
        (errno.EDQUOT, CapacityError, 5),
        (errno.EFBIG, CapacityError, 5),
        (errno.EIO, Unavailable, 6),
        (errno.ESTALE, Unavailable, 6),
        (errno.ETIMEDOUT, TimedOut, 6),
        (errno.EMFILE, StoreError, 6),
        (errno.ENOTDIR, StoreError, 6),
        (errno.EISDIR, StoreError, 6),
        (errno.ENAMETOOLONG, StoreError, 6),
        (errno.EXDEV, StoreError, 6),
    ],
)
def test_each_errno_is_one_error(tmp_path, code, kind, exit_code):
    error = translate(OSError(code, os.strerror(code)), "cannot do it", tmp_path / "missing/file", needed_bytes=3 << 20)
    assert type(error) is kind
    assert error.exit_code == exit_code
    assert error.what.startswith(f"cannot do it: {os.strerror(code).lower()}")
    assert error.where == str(tmp_path / "missing/file")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    if kind is CapacityError:
        assert "3.0 MiB needed" in error.what
        assert "free on the file system" in error.what
        assert error.hint
        assert error.errno == errno.ENOSPC


def test_an_error_without_a_number_is_a_store_error(tmp_path):
    assert type(translate(OSError("strange"), "cannot do it", tmp_path)) is StoreError


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_says_how_much_was_needed_and_is_free(store, tmp_path, monkeypatch, code):
    monkeypatch.setattr(os, "write", raising(code))
    for write in (lambda: store.write(KEY, bytes(5 << 20)), lambda: _write_pieces(store, bytes(5 << 20))):
        with pytest.raises(CapacityError, match=r"cannot write 'dir/object': .* \(5.0 MiB needed, .* free") as caught:
            write()
        assert isinstance(caught.value.__cause__, OSError)
        assert caught.value.where == str(tmp_path / "dir/object")
    monkeypatch.undo()
    assert list(store.list()) == []
    assert not list(tmp_path.rglob(".tmp-*"))


def _write_pieces(store, data):
    with store.writer(KEY) as writer:
        writer.write(data)
        writer.commit()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
@pytest.mark.parametrize("verb", ["write", "writer", "delete", "promote", "delete_tree", "read", "list"])
def test_a_directory_that_may_not_be_used_is_access_denied(store, monkeypatch, code, verb):
    # As root no mode denies anything, so the kernel's answer is put in its mouth.
    store.write(KEY, b"1")
    uses = {
        "write": (os, "open", lambda: store.write(Key("dir/new"), b"2")),
        "writer": (os, "open", lambda: store.writer(Key("dir/new"))),
        "delete": (Path, "unlink", lambda: store.delete(KEY)),
        "promote": (Path, "rename", lambda: store.promote("dir", "new")),
        "delete_tree": (Path, "rename", lambda: store.delete_tree("dir")),
        "read": (os, "open", lambda: store.read(KEY)),
        "list": (os, "scandir", lambda: list(store.list())),
    }
    owner, name, use = uses[verb]
    monkeypatch.setattr(owner, name, raising(code))
    with pytest.raises(AccessDenied) as caught:
        use()
    monkeypatch.undo()
    assert caught.value.exit_code == 7
    assert caught.value.hint
    assert not caught.value.retryable
    assert store.read(KEY) == b"1"


def test_a_directory_without_rights_is_access_denied_for_anyone_but_root():
    def work() -> None:
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        with pytest.raises(AccessDenied, match="permission denied"):
            LocalStore(root / "readonly").write(KEY, b"1")
        with pytest.raises(AccessDenied, match="permission denied"):
            LocalStore(root / "readonly/new", create=True)
        with pytest.raises(AccessDenied, match="permission denied"):
            LocalStore(root / "secret").read(KEY)

    with tempfile.TemporaryDirectory() as name:  # pytest's own directories are closed to other users
        root = Path(name)
        root.chmod(0o755)
        if any(not parent.stat().st_mode & 0o001 for parent in root.parents):
            pytest.skip("another user cannot reach the temporary directory")
        LocalStore(root / "secret").write(KEY, b"1")
        (root / "secret").chmod(0o600)
        (root / "readonly").mkdir(mode=0o555)
        try:
            assert crash.run_killed(work, None) == 0
        finally:
            (root / "secret").chmod(0o700)


def test_a_missing_object_and_one_that_may_not_be_seen_are_two_errors(store, monkeypatch):
    store.write(KEY, b"1")
    with pytest.raises(NotFound):
        store.stat(Key("dir/missing"))
    monkeypatch.setattr(os, "lstat", raising(errno.EACCES))
    with pytest.raises(AccessDenied):
        store.stat(KEY)


def test_an_error_of_stoker_passes_untouched(store, monkeypatch):
    own = CapacityError("mine", "here", "so")

    def fail(*_):
        raise own

    store.write(KEY, b"1")
    monkeypatch.setattr(os, "write", fail)
    monkeypatch.setattr(os, "preadv", fail)
    for use in (lambda: store.write(KEY, b"2"), lambda: store.read_into(KEY, 0, bytearray(1))):
        with pytest.raises(StokerError) as caught:
            use()
        assert caught.value is own


# ---- dying


@pytest.mark.crash
def test_killed_anywhere_a_store_holds_whole_objects_or_none(tmp_path):
    objects = {"plain": b"p" * 1000, "once": b"o" * 1000, "pieces": b"q" * 3000}

    def work(root: Path) -> None:
        store = LocalStore(root)
        if not store.limits.promotes or "step" in store.list_dirs("run"):
            return
        store.write(Key("run/step.partial/plain"), objects["plain"])
        try:
            store.write(Key("run/step.partial/once"), objects["once"], if_absent=True)
        except AlreadyExists:
            assert store.read(Key("run/step.partial/once")) == objects["once"]
        with store.writer(Key("run/step.partial/pieces")) as writer:
            for _ in range(3):
                writer.write(b"q" * 1000)
            writer.commit()
        store.promote("run/step.partial", "run/step")

    events = crash.trace(lambda: work(tmp_path / "whole"))
    crash.assert_point_between_durables(events)
    expected = {f"run/step/{name}": data for name, data in objects.items()}
    specs = list(crash.every_pass(events))
    assert len(specs) > 15
    for number, spec in enumerate(specs):
        root = tmp_path / str(number)
        assert crash.run_killed(lambda root=root: work(root), spec) == crash.KILLED
        store = LocalStore(root)
        found = {str(info.key): store.read(info.key) for info in store.list()}
        assert all(objects[key.rsplit("/", 1)[1]] == data for key, data in found.items())
        assert found == expected or "step" not in store.list_dirs("run")
        store.sweep()
        assert not list(root.rglob(".tmp-*"))
        work(root)
        assert {str(info.key): store.read(info.key) for info in store.list()} == expected
        store.close()


def test_a_store_that_nobody_references_leaves_no_descriptor_open(tmp_path):
    gc.collect()  # what other tests left
    count = len(list(Path("/proc/self/fd").iterdir()))
    store = LocalStore(tmp_path)
    for name in "abc":
        store.write(Key(name), b"bytes")
        store.read(Key(name))
    assert len(list(Path("/proc/self/fd").iterdir())) == count + 3
    del store
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == count
