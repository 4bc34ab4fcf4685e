"""Which reads and writes of a local store pass the page cache by, and that it is said."""

import errno
import logging
import os
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from stoker.errors import ConfigError, Truncated, UnsupportedError
from stoker.io.choose import EngineChoice, FileFacts
from stoker.io.direct import DirectFile, aligned_memory
from stoker.store import engines
from stoker.store.engines import Engines
from stoker.store.local import LocalStore
from stoker.units import MIB
from stoker.values import Key

KEY = Key("object")
SIZE = 3 * MIB + 500
CACHED = "the bytes are in the page cache"


@pytest.fixture
def content(tmp_path):
    """What the object holds; cold, on a file system that goes directly. Elsewhere these tests are skipped."""
    content = np.random.default_rng(3).integers(0, 256, SIZE, np.uint8).tobytes()
    (tmp_path / KEY).write_bytes(content)
    fd = os.open(tmp_path / KEY, os.O_RDWR)
    found, choice = DirectFile.open(fd, "direct")
    if found is None:
        os.close(fd)
        pytest.skip(f"no direct I/O in {tmp_path}: {choice.reason}")
    found.close()
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    return content


def read(store, start, size, skew=0):
    memory = aligned_memory(size + skew)[skew:].data
    store.read_into(KEY, start, memory)
    return memory.tobytes()


@pytest.fixture
def make(tmp_path):
    stores = []

    def open_store(engine):
        stores.append(LocalStore(tmp_path, engine=engine))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


@pytest.mark.parametrize("skew", [0, 1])
def test_large_cold_reads_go_directly_and_are_counted(content, make, skew):
    store = make("auto")
    assert read(store, 100, 2 * MIB, skew) == content[100 : 100 + 2 * MIB]
    stats = store.stats()
    assert (stats.requested, stats.direct_reads, stats.direct_read_bytes) == ("auto", 1, 2 * MIB)
    assert [choice.effective for choice in stats.choices] == ["direct"]


def test_what_the_page_cache_holds_is_read_from_there(content, make, tmp_path):
    (tmp_path / KEY).read_bytes()
    store = make("auto")
    assert read(store, 0, 2 * MIB) == content[: 2 * MIB]
    assert store.stats().direct_reads == 0
    assert store.stats().choices[EngineChoice("auto", "buffered", CACHED)] == 1


def test_small_reads_stay_with_the_page_cache_without_a_question(content, make, monkeypatch):
    monkeypatch.setattr(Engines, "read", lambda *_args: pytest.fail("asked"))
    store = make("auto")
    assert read(store, 5, MIB - 1) == content[5 : MIB + 4]


def test_by_default_everything_goes_through_the_page_cache(content, tmp_path, monkeypatch):
    monkeypatch.setattr(Engines, "read", lambda *_args: pytest.fail("asked"))
    with closing(LocalStore(tmp_path)) as store:
        assert read(store, 0, SIZE) == content
        assert store.stats().requested == "buffered"


def test_by_name_every_read_goes_directly(content, make, tmp_path):
    (tmp_path / KEY).read_bytes()
    store = make("direct")
    for start, size, skew in ((0, 1, 0), (SIZE - 3, 3, 7), (1000, MIB + 9, 1)):
        assert read(store, start, size, skew) == content[start : start + size]
    assert store.stats().direct_reads == 3


@pytest.mark.parametrize("engine", ["auto", "direct", "buffered"])
def test_a_read_beyond_the_end_is_truncated_with_both_numbers(content, make, engine):
    with pytest.raises(Truncated, match=r"ends at byte 3,146,228, wanted up to 3,146,229"):
        read(make(engine), 1, SIZE)


def test_a_file_system_that_refuses_at_the_first_read_gets_the_page_cache_said_once(content, make, monkeypatch, caplog):
    def refuse(_self, _start, _data):
        raise OSError(errno.EINVAL, "no")

    monkeypatch.setattr(DirectFile, "read_into", refuse)
    store = make("auto")
    caplog.set_level(logging.INFO, "stoker.store")
    for _ in range(3):
        assert read(store, 0, 2 * MIB) == content[: 2 * MIB]
    assert store.stats().direct_reads == 0
    assert store.stats().choices[EngineChoice("auto", "buffered", REFUSED)] == 1
    assert [record.getMessage() for record in caplog.records if "buffered" in record.getMessage()] == [
        f"buffered I/O at {store.root / KEY}: {REFUSED}"
    ]
    with pytest.raises(UnsupportedError, match="asked for but is not possible: the file system refuses O_DIRECT"):
        read(make("direct"), 0, 2 * MIB)


REFUSED = "the file system refuses O_DIRECT at a read (EINVAL)"


def test_other_errors_of_a_direct_read_are_not_a_fallback(content, make, monkeypatch):
    def fail(_self, _start, _data):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(DirectFile, "read_into", fail)
    from stoker.errors import Unavailable

    with pytest.raises(Unavailable):
        read(make("auto"), 0, 2 * MIB)


def test_a_choice_is_said_once_a_store_and_not_once_a_file(content, make, tmp_path, caplog):
    store = make("auto")
    caplog.set_level(logging.INFO, "stoker.store")
    for name in ("a", "b", "c"):
        with store.writer(Key(name)) as out:
            out.write(aligned_memory(4 * MIB))
            out.commit()
    (choice,) = store.stats().choices
    assert (choice.effective, store.stats().choices[choice]) == ("direct", 3)
    assert len(caplog.records) == 1


def test_a_file_written_directly_is_not_in_the_page_cache(content, make, tmp_path):
    from stoker.io.residency import is_cached

    found = {}
    for engine in ("auto", "buffered"):
        with make(engine).writer(Key(engine)) as out:
            out.write(aligned_memory(8 * MIB))
            out.commit()
        with (tmp_path / engine).open("rb") as file:
            found[engine] = is_cached(file.fileno(), 0, 8 * MIB)
    assert found == {"auto": False, "buffered": True}


def test_on_a_file_system_in_memory_direct_is_refused_when_the_store_is_opened(tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "facts_of", lambda _fd: FileFacts("tmpfs", None))
    with pytest.raises(UnsupportedError, match=r"(?s)tmpfs keeps files in memory.*where: .*not/yet"):
        LocalStore(tmp_path / "not/yet", engine="direct")
    LocalStore(tmp_path, engine="auto").close()


def test_on_tmpfs_auto_reads_and_writes_through_the_page_cache():
    folder = Path("/dev/shm") / f"stoker-test-engines-{os.getpid()}"
    if not os.access(folder.parent, os.W_OK):
        pytest.skip("no /dev/shm")
    with closing(LocalStore(folder, engine="auto")) as store:
        try:
            with store.writer(KEY) as out:
                out.write(aligned_memory(5 * MIB))
                out.commit()
            assert read(store, 0, 2 * MIB) == bytes(2 * MIB)
            assert store.stats().choices == {EngineChoice("auto", "buffered", "tmpfs keeps files in memory"): 2}
        finally:
            (folder / KEY).unlink()
            folder.rmdir()


def test_an_unknown_engine_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="unknown engine 'fast'"):
        LocalStore(tmp_path, engine="fast")


def test_threads_that_read_one_object_at_once_leave_no_descriptor(content, make, tmp_path):
    store = make("direct")
    wrong = []

    def work(number):
        for turn in range(20):
            start = (number * 37 + turn * 101) % MIB
            if read(store, start, 10_000, number) != content[start : start + 10_000]:
                wrong.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    assert wrong == []
    assert [link for link in links() if link.startswith(str(tmp_path))] == []


def links():
    for entry in Path("/proc/self/fd").iterdir():
        try:
            yield str(entry.readlink())
        except FileNotFoundError:  # the descriptor of this listing itself
            continue
