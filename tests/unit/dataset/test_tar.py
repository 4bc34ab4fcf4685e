import io
import shutil
import subprocess
import tarfile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stoker.dataset.formats.tar import BLOCK_BYTES, TRAILER, member_bytes, member_header, padding

PARTS = st.text(st.characters(exclude_characters="/\0", exclude_categories=("Cs",)), min_size=1, max_size=60).filter(
    lambda part: part not in (".", "..")
)
PATHS = st.lists(PARTS, min_size=1, max_size=6).map("/".join)

LONG_NAME = "n" * 120 + ".txt"
SPLITTABLE = "d" * 120 + "/" + "n" * 90 + ".txt"
UNSPLITTABLE = "d" * 160 + "/" + "e" * 60 + "/" + "n" * 60


def archive(members):
    return b"".join(member_header(p, len(d)) + d + bytes(padding(len(d))) for p, d in members) + TRAILER


def read_with_tarfile(data):
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        return [(info, tar.extractfile(info).read()) for info in tar]


@given(st.lists(st.tuples(PATHS, st.binary(max_size=1500)), max_size=8))
@example([(LONG_NAME, b"x"), (SPLITTABLE, b""), (UNSPLITTABLE, b"y" * 512), ("ä/ö.txt", b"z" * 513)])
def test_python_reads_what_was_written_and_nothing_of_who_wrote_it(members):
    found = read_with_tarfile(archive(members))
    assert [(info.name, data) for info, data in found] == members
    for info, _ in found:
        assert info.isreg()
        assert (info.mode, info.uid, info.gid, info.mtime, info.uname, info.gname) == (0o644, 0, 0, 0, "", "")


@given(PATHS, st.integers(0, 2**40))
@example("a", 8**11 - 1)
@example("a", 8**11)
@example(UNSPLITTABLE, 8**11)
def test_a_member_takes_the_bytes_it_was_said_to_take(path, size):
    header = member_header(path, size)
    assert len(header) % BLOCK_BYTES == 0
    assert member_bytes(path, size) == len(header) + size + padding(size)
    assert member_bytes(path, size) % BLOCK_BYTES == 0


@pytest.mark.skipif(shutil.which("tar") is None, reason="there is no tar here")
def test_gnu_tar_lists_and_extracts_what_was_written(tmp_path):
    members = [("a/b.txt", b"one"), (LONG_NAME, b"two" * 300), (SPLITTABLE, b""), (UNSPLITTABLE, b"3"), ("ä/ö.x", b"4")]
    (tmp_path / "shard.tar").write_bytes(archive(members))
    command = ["tar", "--quoting-style=literal", "-tf", "shard.tar"]
    listed = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    assert listed.stdout.decode().splitlines() == [path for path, _ in members]
    assert listed.stderr == b""
    subprocess.run(["tar", "-xf", "shard.tar"], cwd=tmp_path, capture_output=True, check=True)
    assert [(tmp_path / path).read_bytes() for path, _ in members] == [data for _, data in members]


def test_a_header_is_plain_ustar_where_ustar_can_say_it():
    for path in ("a/b.txt", "n" * 100, SPLITTABLE, "d" * 155 + "/" + "n" * 100):
        expected = tarfile.TarInfo(path)
        expected.size = 8**11 - 1
        ours, theirs = member_header(path, 8**11 - 1), expected.tobuf(tarfile.USTAR_FORMAT)
        assert len(ours) == BLOCK_BYTES
        for start, stop in ((0, 148), (156, 329), (345, 512)):  # all but checksum and device numbers
            assert ours[start:stop] == theirs[start:stop]


def test_device_numbers_are_zeros_as_text_which_not_every_python_writes():
    theirs = tarfile.TarInfo("a").tobuf(tarfile.USTAR_FORMAT)
    assert member_header("a", 0)[329:345] == b"0000000\x00" * 2
    assert theirs[329:345] in (b"0000000\x00" * 2, bytes(16))


def test_a_pax_header_comes_only_where_ustar_cannot_say_it():
    for path in ("n" * 101, UNSPLITTABLE, "d" * 156 + "/" + "n", "ä", "d" * 99 + "/"):
        assert (member_header(path, 0)[156:157] == b"x") is (path != "d" * 99 + "/")
    assert b" size=8589934592\n" in member_header("a", 8**11)


def test_the_short_name_beside_a_pax_name_never_looks_like_a_folder():
    path = "d" * 99 + "/" + "n" * 120
    header = member_header(path, 0)
    assert header[156:157] == b"x"
    assert header[-512:-412] == b"d" * 99 + b"\0"
    assert [info.name for info, _ in read_with_tarfile(archive([(path, b"x")]))] == [path]


def test_a_member_of_more_than_8_gib_keeps_its_size():
    with tarfile.open(fileobj=io.BytesIO(member_header("big.bin", 8**11 + 5)), mode="r:") as tar:
        assert tar.next().size == 8**11 + 5


def test_the_archive_ends_with_two_zero_blocks_and_no_record_padding():
    data = archive([("a.txt", b"x")])
    assert len(data) == 512 + 512 + 1024
    assert data.endswith(bytes(1024))
