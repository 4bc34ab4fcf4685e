"""Which engine is taken follows from what was asked for and what the kernel says, and from nothing else."""

import ctypes
import os

import pytest

from stoker.errors import ConfigError, UnsupportedError
from stoker.io import choose as module
from stoker.io.choose import Alignment, EngineChoice, FileFacts, check_engine, choose, facts_of, insist, refused

ABLE = FileFacts("", Alignment(4, 512))


@pytest.mark.parametrize(
    ("requested", "facts", "effective", "reason"),
    [
        ("buffered", ABLE, "buffered", "asked for"),
        ("direct", ABLE, "direct", "asked for"),
        ("auto", ABLE, "direct", "O_DIRECT, aligned to 512 bytes"),
        ("auto", FileFacts("tmpfs", Alignment()), "buffered", "tmpfs keeps files in memory"),
        ("auto", FileFacts("ramfs", Alignment()), "buffered", "ramfs keeps files in memory"),
        ("auto", FileFacts("overlay", Alignment()), "buffered", "an overlay may change the file system below it"),
        ("direct", FileFacts("overlay", Alignment()), "direct", "asked for"),
        ("auto", FileFacts("", None), "buffered", "the file system does no direct I/O (statx)"),
        ("direct", FileFacts("", None), "buffered", "the file system does no direct I/O (statx)"),
    ],
)
def test_the_choice_and_its_reason(requested, facts, effective, reason):
    assert choose(requested, facts) == EngineChoice(requested, effective, reason)


def test_what_is_asked_for_by_name_and_not_possible_is_an_error_that_says_why():
    with pytest.raises(UnsupportedError, match=r"(?s)tmpfs keeps files in memory.*where: /data.*auto"):
        insist(choose("direct", FileFacts("tmpfs", Alignment())), "/data")
    for choice in (choose("direct", ABLE), choose("auto", FileFacts("", None)), refused("auto", "open")):
        assert insist(choice, "/data") is choice


@pytest.mark.parametrize("engine", ["auto", "direct", "buffered"])
def test_the_known_engines_are_taken(engine):
    assert check_engine(engine) == engine


def test_an_unknown_engine_is_refused_naming_the_known():
    with pytest.raises(ConfigError, match=r"(?s)unknown engine 'fast'.*auto, direct, buffered"):
        check_engine("fast")


def test_the_kernel_names_memory_file_systems(tmp_path):
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no /dev/shm")
    fd = os.open("/dev/shm", os.O_RDONLY)
    try:
        assert facts_of(fd).file_system == "tmpfs"
    finally:
        os.close(fd)


class FakeKernel:
    """A C library that answers as another kernel would."""

    def __init__(self, words, code=0):
        self._words = words
        self._code = code

    def fstatfs(self, _fd, found):
        found[0] = self._words.get("type", 0)
        return 0 if "type" in self._words else -1

    def statx(self, _fd, _path, _flags, _wanted, found):
        for at, word in self._words.items():
            if at != "type":
                ctypes.c_uint.from_buffer(found, at).value = word
        return self._code


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (FakeKernel({"type": 0x794C7630, 0: 0x2000, 0x98: 4, 0x9C: 512}), FileFacts("overlay", Alignment(4, 512))),
        (FakeKernel({"type": 0xEF53, 0: 0x2000, 0x98: 0, 0x9C: 0}), FileFacts("", None)),
        (FakeKernel({0: 0}), FileFacts("", Alignment(4096, 4096))),
        (FakeKernel({}, code=-1), FileFacts("", Alignment(4096, 4096))),
    ],
    ids=["overlay", "refuses", "does not say", "no statx"],
)
def test_what_kernels_say_is_understood(kernel, expected, monkeypatch):
    monkeypatch.setattr(module.ctypes, "CDLL", lambda *_args, **_more: kernel)
    assert facts_of(0) == expected
