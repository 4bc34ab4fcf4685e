"""Bytes between a file and memory past the page cache are those that go through it, wherever a range begins or ends."""

import errno
import os
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.errors import UnsupportedError
from stoker.io import direct
from stoker.io.choose import Alignment, EngineChoice, FileFacts
from stoker.io.direct import (
    DIRECT_WRITE_MIN_BYTES,
    DirectFile,
    FileWriter,
    address_of,
    aligned_memory,
    is_congruent,
    split,
)
from stoker.units import MIB

SIZE = 3 * MIB + 1234
EXTRA = FileFacts("", Alignment(512, 512))


@pytest.fixture(scope="module")
def content():
    return np.random.default_rng(5).integers(0, 256, SIZE, np.uint8)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder on a file system that does direct I/O; where the temporary folder is not on one, these are skipped."""
    folder = tmp_path_factory.mktemp("direct")
    (folder / "probe").write_bytes(b"1")
    with (folder / "probe").open("rb") as file:
        found, choice = DirectFile.open(file.fileno(), "direct")
    if found is None:
        pytest.skip(f"no direct I/O in {folder}: {choice.reason}")
    found.close()
    return folder


@pytest.fixture(scope="module")
def opened(place, content):
    path = place / "object"
    path.write_bytes(content)
    with path.open("rb") as file:
        found, _ = DirectFile.open(file.fileno(), "direct")
        with closing(found):
            yield found


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 30), st.sampled_from([1, 4, 512, 4096, 65536]))
def test_a_range_is_edge_blocks_and_edge(start, length, block):
    first, last = split(start, start + length, block)
    assert start <= first <= last <= start + length
    assert (last - first) % block == 0
    assert first == last or first % block == 0
    assert first - start < block or first == start + length  # an edge lies within one block
    assert start + length - last < block
    assert first == start or start // block == (first - 1) // block


def test_a_range_of_whole_blocks_has_no_edges():
    assert split(4096, 12288, 4096) == (4096, 12288)
    assert split(1, 4095, 4096) == (4095, 4095)
    assert split(4095, 8193, 4096) == (4096, 8192)


@pytest.mark.parametrize("size", [0, 1, 4096, 2 * MIB - 1, 2 * MIB, 4 * MIB + 1])
def test_aligned_memory_begins_at_a_page_or_huge_page_and_is_zero(size):
    memory = aligned_memory(size)
    assert memory.shape == (size,)
    assert address_of(memory.data) % (2 * MIB if size >= 2 * MIB else 4096) == 0
    assert not memory.any()


def test_memory_suits_a_range_if_whole_blocks_fall_on_aligned_addresses():
    memory = aligned_memory(8192).data
    alignment = Alignment(memory_bytes=512, offset_bytes=512)
    assert is_congruent(memory, 512, alignment)
    assert is_congruent(memory[100:], 100, alignment)
    assert not is_congruent(memory[100:], 512, alignment)
    assert is_congruent(memory[100:], 104, Alignment(memory_bytes=4, offset_bytes=512))


# ---- reads


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=80)
@given(data=st.data())
def test_any_range_reads_as_it_does_through_the_page_cache(opened, content, data):
    near = st.sampled_from([0, 512, 4096, MIB, SIZE // 512 * 512, SIZE, SIZE + 4096])
    start = max(0, data.draw(near) + data.draw(st.integers(-700, 700)))
    length = max(0, data.draw(st.sampled_from([0, 512, 4096, MIB, SIZE])) + data.draw(st.integers(-700, 700)))
    expected = content[start : start + length].tobytes()
    memory = aligned_memory(length + 8192)
    memory[:] = 7
    suited = memory[start % 4096 :][:length].data
    assert is_congruent(suited, start, opened.alignment)
    assert opened.read_into(start, suited) == len(expected)
    assert suited[: len(expected)] == expected
    memory[:] = 7
    odd = memory[3:][:length].data
    assert opened.read_staged(start, odd) == len(expected)
    assert odd[: len(expected)] == expected
    assert memory[:3].tolist() == [7, 7, 7]
    assert set(memory[3 + len(expected) :].tolist()) <= {7}  # nothing beyond the end of the file or of the range


def test_a_range_with_edges_is_one_system_call(opened, content, monkeypatch):
    calls = []
    real = os.preadv
    monkeypatch.setattr(
        os, "preadv", lambda fd, parts, at: calls.append([len(p) for p in parts]) or real(fd, parts, at)
    )
    block = opened.alignment.offset_bytes
    memory = aligned_memory(MIB).data[100:]
    assert opened.read_into(100, memory) == len(memory)
    assert calls == [[block, MIB - block]]
    assert memory == content[100:MIB].tobytes()


@pytest.mark.parametrize("most", [1, 100, 512, 513, 5000])
def test_short_reads_are_continued_wherever_they_end(opened, content, monkeypatch, most):
    real = os.preadv

    def short(fd, parts, at):
        """What a signal, or a striped file system, does: fewer bytes than asked for."""
        taken, left = [], max(most, 4096 if most < 512 else most)
        for part in parts:
            taken.append(part)
            left -= len(part)
            if left <= 0:
                break
        count = real(fd, taken, at)
        return min(count, max(most, 513))

    monkeypatch.setattr(os, "preadv", short)
    for read, skew in ((opened.read_into, 300), (opened.read_staged, 5)):
        memory = aligned_memory(20_000).data[skew:]
        assert read(300, memory) == len(memory)
        assert memory == content[300 : 300 + len(memory)].tobytes()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (errno.EINVAL, "the file system refuses O_DIRECT at open (EINVAL)"),
        (errno.ENOENT, "/proc is not mounted, to open the file once more"),
    ],
)
def test_a_file_that_cannot_be_opened_directly_is_left_to_the_page_cache(place, monkeypatch, code, reason):
    real = os.open

    def refuse(path, flags, *more):
        if flags & os.O_DIRECT:
            raise OSError(code, "no")
        return real(path, flags, *more)

    path = place / "refused"
    path.write_bytes(b"1")
    with path.open("rb") as file:
        monkeypatch.setattr(os, "open", refuse)
        found, choice = DirectFile.open(file.fileno(), "auto")
    assert found is None
    assert choice == EngineChoice("auto", "buffered", reason)


# ---- writes


def written(path: Path, engine, pieces) -> EngineChoice:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        writer = FileWriter(fd, engine, str(path))
        for piece in pieces:
            writer.write(piece)
        return writer.finish()
    finally:
        os.close(fd)


def cut(content, sizes):
    start = 0
    for size in sizes:
        yield content[start : start + size]
        start += size


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=20)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 511, 4096, 5000, MIB, 4 * MIB, 4 * MIB + 1]), max_size=6),
    skew=st.sampled_from([0, 3]),
    engine=st.sampled_from(["auto", "direct", "buffered"]),
)
def test_what_is_written_in_any_pieces_is_what_is_read(place, sizes, skew, engine):
    memory = aligned_memory(sum(sizes) + skew)
    memory[:] = np.arange(len(memory)) % 251
    content = memory[skew:]
    choice = written(place / "out", engine, cut(content, sizes))
    assert (place / "out").read_bytes() == content.tobytes()
    large = engine == "auto" and len(content) >= DIRECT_WRITE_MIN_BYTES
    assert choice.effective == ("direct" if large or engine == "direct" else "buffered")


def test_large_aligned_memory_is_written_from_where_it_lies_and_the_tail_through_the_page_cache(place, monkeypatch):
    writes = []
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: writes.append((address_of(data), len(data))) or real(fd, data))
    memory = aligned_memory(8 * MIB + 100)
    written(place / "out", "auto", [memory[: 4 * MIB], memory[4 * MIB :]])
    at = address_of(memory.data)
    assert writes[:2] == [(at, 4 * MIB), (at + 4 * MIB, 4 * MIB)]
    assert [size for _, size in writes[2:]] == [100]


def test_a_file_that_stays_small_goes_through_the_page_cache_and_says_why(place):
    choice = written(place / "out", "auto", [b"x" * 100])
    assert choice == EngineChoice("auto", "buffered", "files below 4.0 MiB are read again soon")


def refusing_writes(monkeypatch, after):
    """A file system that takes O_DIRECT and, after so many writes, refuses to write with it."""
    real = os.write
    count = 0

    def write(fd, data):
        nonlocal count
        import fcntl

        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            count += 1
            if count > after:
                raise OSError(errno.EINVAL, "no")
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("skew", [0, 1])
def test_a_file_system_that_refuses_a_direct_write_gets_the_rest_through_the_page_cache(
    place, monkeypatch, after, skew
):
    refusing_writes(monkeypatch, after)
    memory = aligned_memory(12 * MIB + 77 + skew)
    memory[:] = np.arange(len(memory)) % 253
    content = memory[skew:]
    choice = written(place / "out", "auto", cut(content, [4 * MIB, 4 * MIB, 4 * MIB + 77]))
    assert choice == EngineChoice("auto", "buffered", "the file system refuses O_DIRECT at a write (EINVAL)")
    assert (place / "out").read_bytes() == content.tobytes()
    with pytest.raises(UnsupportedError, match="asked for but is not possible: the file system refuses"):
        written(place / "out", "direct", [content])


def test_a_file_system_that_refuses_the_flag_gets_all_through_the_page_cache(place, monkeypatch):
    monkeypatch.setattr(direct, "_set_direct", lambda *_args, **_more: False)
    memory = aligned_memory(5 * MIB)
    choice = written(place / "out", "auto", [memory])
    assert choice.reason == "the file system refuses O_DIRECT at open (EINVAL)"
    assert (place / "out").stat().st_size == 5 * MIB


def test_other_errors_of_a_direct_write_are_raised(place, monkeypatch):
    def full(_fd, _data):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="full"):
        written(place / "out", "auto", [aligned_memory(5 * MIB)])


# ---- memory file systems


@pytest.fixture
def in_memory():
    folder = Path("/dev/shm")
    if not os.access(folder, os.W_OK):
        pytest.skip("no /dev/shm")
    path = folder / f"stoker-test-{os.getpid()}"
    yield path
    path.unlink(missing_ok=True)


def test_on_tmpfs_auto_uses_the_page_cache_and_direct_is_refused(in_memory):
    memory = aligned_memory(5 * MIB)
    choice = written(in_memory, "auto", [memory])
    assert choice == EngineChoice("auto", "buffered", "tmpfs keeps files in memory")
    with in_memory.open("rb") as file:
        assert DirectFile.open(file.fileno(), "auto") == (None, choice)
    with pytest.raises(UnsupportedError, match="tmpfs keeps files in memory"):
        written(in_memory, "direct", [memory])
