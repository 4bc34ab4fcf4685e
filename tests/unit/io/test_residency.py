"""Whether bytes are in the page cache, as the kernel says it."""

import ctypes
import errno
import os

import pytest

from stoker.io import residency
from stoker.io.direct import DirectFile
from stoker.io.residency import is_cached
from stoker.units import MIB


@pytest.fixture(params=["cachestat", "mincore"])
def way(request, monkeypatch):
    """With the system call of new kernels, and as on kernels without it."""
    monkeypatch.setattr(residency, "_no_cachestat", request.param == "mincore")


@pytest.fixture
def cold(tmp_path):
    """The descriptor of a file of 4 MiB that is not in the page cache, where the file system lets go of it."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(4 * MIB))
    fd = os.open(path, os.O_RDWR)
    found, choice = DirectFile.open(fd, "direct")
    if found is None:
        pytest.skip(choice.reason)
    found.close()
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    yield fd
    os.close(fd)


def test_bytes_are_cached_once_they_were_read(way, cold):
    assert not is_cached(cold, 0, 4 * MIB)
    os.pread(cold, 4 * MIB, 0)
    assert is_cached(cold, 0, 4 * MIB)
    assert is_cached(cold, MIB + 77, 3 * MIB + 5)


def test_a_warm_page_does_not_make_a_cold_range_warm(way, cold):
    os.posix_fadvise(cold, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(cold, 4096, 0)
    assert is_cached(cold, 0, 4096)
    assert not is_cached(cold, 0, 4 * MIB)


def test_a_file_that_cannot_be_asked_about_counts_as_cached(monkeypatch):
    monkeypatch.setattr(residency, "_no_cachestat", False)
    monkeypatch.setattr(residency._libc, "syscall", lambda *_args: -1)  # as for the files of another user
    read_end, write_end = os.pipe()  # and mincore cannot be asked either
    try:
        assert is_cached(read_end, 0, MIB)
    finally:
        os.close(read_end)
        os.close(write_end)


def test_a_kernel_without_cachestat_is_asked_once(monkeypatch, cold):
    calls = []

    def none(*_args):
        calls.append(1)
        ctypes.set_errno(errno.ENOSYS)
        return -1

    monkeypatch.setattr(residency, "_no_cachestat", False)
    monkeypatch.setattr(residency._libc, "syscall", none)
    assert [is_cached(cold, 0, MIB) for _ in range(3)] == [False] * 3
    assert len(calls) == 1
