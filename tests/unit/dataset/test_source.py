import os
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.dataset.listing import SourceFile, list_source
from stoker.dataset.shard import PIECE_BYTES
from stoker.dataset.source import _runs, read_files
from stoker.errors import SourceChanged

SIZES = [0, 1, 1000, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 5, 7]


@pytest.fixture
def listing(tmp_path, fill):
    files = {f"{i:02d}.bin": os.urandom(size) for i, size in enumerate(SIZES)}
    return list_source(fill(tmp_path, files), (), (), "")


def test_contents_come_in_order_in_pieces_of_at_most_a_mebibyte(listing):
    count = 0
    for file, content in zip(listing.files, read_files(listing.root, listing.files), strict=True):
        pieces = list(content)
        assert all(len(piece) <= PIECE_BYTES for piece in pieces)
        assert b"".join(pieces) == (listing.root / file.path).read_bytes()
        count += 1
    assert count == len(SIZES)


@given(st.lists(st.integers(0, 2 * PIECE_BYTES), max_size=200))
def test_files_read_at_once_are_few_and_small_or_one(sizes):
    files = [SourceFile(str(i), size, 0) for i, size in enumerate(sizes)]
    runs = list(_runs(files))
    assert [file for run in runs for file in run] == files
    assert all(len(run) == 1 or sum(file.size for file in run) <= PIECE_BYTES for run in runs)
    assert all(1 <= len(run) <= 64 for run in runs)


def test_many_empty_files_are_not_one_task():
    assert [len(run) for run in _runs([SourceFile(str(i), 0, 0) for i in range(150)])] == [64, 64, 22]


def read_all(listing):
    return [list(content) for content in read_files(listing.root, listing.files)]


def longer(path):
    path.write_bytes(path.read_bytes() + b"x")


def shorter(path):
    path.write_bytes(path.read_bytes()[:-1])


def touched(path):
    os.utime(path, ns=(1, 1))


def replaced_by_a_pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (longer, "it had .* bytes when it was listed, now"),
        (shorter, "it had .* bytes when it was listed, now"),
        (touched, "it was written to since"),
        (os.unlink, "it is gone"),
        (replaced_by_a_pipe, "it is no regular file any more"),
    ],
)
@pytest.mark.parametrize("name", ["02.bin", "06.bin"])
def test_a_file_that_is_not_what_was_listed_is_refused(listing, change, words, name):
    change(listing.root / name)
    with pytest.raises(SourceChanged, match=f"'{name}' changed while it was packed: {words}") as caught:
        read_all(listing)
    assert "pack to another place" in caught.value.hint


def test_a_large_file_that_changes_while_it_is_read_is_refused(listing):
    with closing(read_files(listing.root, [file for file in listing.files if file.path == "06.bin"])) as contents:
        content = next(contents)
        next(content)
        touched(listing.root / "06.bin")
        with pytest.raises(SourceChanged, match=r"'06\.bin' changed"):
            list(content)


def test_no_descriptor_stays_open_after_an_error(listing):
    before = len(list(Path("/proc/self/fd").iterdir()))
    touched(listing.root / "04.bin")
    for _ in range(3):
        with pytest.raises(SourceChanged):
            read_all(listing)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
