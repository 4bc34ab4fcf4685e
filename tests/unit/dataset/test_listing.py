import errno
import os
import random
import re
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.dataset.listing import SourceFile, arrange, list_source
from stoker.errors import AccessDenied, DatasetError, EmptyDataset, NotFound


def listed(root, include=(), exclude=(), prefix=""):
    return list_source(root, include, exclude, prefix)


def paths(listing):
    return [member.path for member in listing.members]


def grouped(paths):
    """Samples as webdataset's `group_by_keys` makes them of consecutive names: a new one whenever the key changes."""
    samples = []
    for path in paths:
        folder, slash, base = path.rpartition("/")
        key, field = folder + slash + base.partition(".")[0], base.partition(".")[2].lower()
        if not samples or samples[-1][0] != key:
            samples.append((key, []))
        samples[-1][1].append(field)
    return samples


def test_files_stand_in_path_byte_order_grouped_into_samples(tmp_path, fill):
    fill(tmp_path, {"b.txt": b"1", "a/x.JPG": b"22", "a/x.json": b"3", "a-1.txt": b"", "B.txt": b"", "ä.txt": b""})
    listing = listed(tmp_path)
    assert paths(listing) == ["B.txt", "a-1.txt", "a/x.JPG", "a/x.json", "b.txt", "ä.txt"]
    assert listing.keys == ["B", "a-1", "a/x", "b", "ä"]
    assert listing.starts == [0, 1, 2, 4, 5, 6]
    assert [(m.field, m.size) for m in listing.members[2:4]] == [("jpg", 2), ("json", 1)]


def test_members_of_a_sample_stay_together_though_a_folder_with_a_dot_sorts_between(tmp_path, fill):
    fill(tmp_path, dict.fromkeys(["a.c", "a.d/x.txt", "a.e", "z.txt"], b""))
    listing = listed(tmp_path)
    assert paths(listing) == ["a.c", "a.e", "a.d/x.txt", "z.txt"]
    assert listing.keys == ["a", "a.d/x", "z"]


NAMES = st.lists(
    st.tuples(st.lists(st.sampled_from(["a", "a.b", "a-b", "ab", "B"]), max_size=2), st.sampled_from("ab"))
    .flatmap(lambda t: st.sampled_from(["txt", "b", "b.txt", "-"]).map(lambda e: "/".join([*t[0], f"{t[1]}.{e}"]))),
    min_size=1,
    unique=True,
)  # fmt: skip


@given(NAMES, st.randoms(use_true_random=False))
def test_any_order_of_listing_gives_the_same_samples_as_webdataset_would_group(names, rng):
    files = [SourceFile(name, len(name), 1) for name in names]
    shuffled = list(files)
    rng.shuffle(shuffled)
    first, second = arrange(None, files, "p"), arrange(None, shuffled, "p")
    assert (first.members, first.keys, first.digest) == (second.members, second.keys, second.digest)
    samples = grouped(paths(first))
    assert [key for key, _ in samples] == first.keys
    assert len(set(first.keys)) == len(first.keys)
    by_first = [paths(first)[start] for start in first.starts[:-1]]
    assert by_first == sorted(by_first, key=str.encode)


def test_a_glob_without_a_slash_is_for_the_base_name_and_one_with_a_slash_for_the_path(tmp_path, fill):
    fill(tmp_path, dict.fromkeys(["a.py", "x.d/b.py", "x.d/c.txt", "x.d/y/d.py", "n.pyc"], b""))
    assert paths(listed(tmp_path, ["*.py"])) == ["a.py", "x.d/b.py", "x.d/y/d.py"]
    assert paths(listed(tmp_path, ["x.d/*"])) == ["x.d/b.py", "x.d/c.txt", "x.d/y/d.py"]
    assert paths(listed(tmp_path, ["*.py", "*.txt"], ["x.d/y/*", "a*"])) == ["x.d/b.py", "x.d/c.txt"]
    assert paths(listed(tmp_path, [], ["*.*c"])) == ["a.py", "x.d/b.py", "x.d/c.txt", "x.d/y/d.py"]
    assert paths(listed(tmp_path, ["?.py"], ["[bd].py"])) == ["a.py"]


def test_a_prefix_stands_before_all_paths_and_globs_do_not_see_it(tmp_path, fill):
    fill(tmp_path, {"__phello__/spam.py": b"", "a.py": b""})
    listing = listed(tmp_path, ["__phello__/*", "a.py"], [], "stdlib")
    assert paths(listing) == ["stdlib/__phello__/spam.py", "stdlib/a.py"]
    assert listing.keys == ["stdlib/__phello__/spam", "stdlib/a"]
    assert [file.path for file in listing.files] == ["__phello__/spam.py", "a.py"]


def test_links_to_files_are_files_and_everything_else_is_left_out_and_counted(tmp_path, fill, caplog):
    fill(tmp_path / "source", {"a.txt": b"abc"})
    fill(tmp_path / "elsewhere", {"b.txt": b"12345", "in/c.txt": b""})
    source = tmp_path / "source"
    (source / "link.txt").symlink_to(tmp_path / "elsewhere" / "b.txt")
    (source / "dangling.txt").symlink_to("nowhere")
    (source / "folder").symlink_to(tmp_path / "elsewhere" / "in")
    (source / "loop").symlink_to(source)
    os.mkfifo(source / "pipe.txt")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(source / "socket.txt"))
        listing = listed(source)
    assert [(m.path, m.size) for m in listing.members] == [("a.txt", 3), ("link.txt", 5)]
    assert listing.skipped_count == 5
    assert "5 entries" in caplog.text


def test_what_no_glob_takes_is_neither_counted_nor_an_error(tmp_path, fill):
    fill(tmp_path, {"a.txt": b"", "Makefile": b"", ".DS_Store": b""})
    os.mkfifo(tmp_path / "pipe")
    listing = listed(tmp_path, ["*.txt"])
    assert (paths(listing), listing.skipped_count) == (["a.txt"], 0)


@pytest.mark.parametrize(
    ("names", "what", "hint"),
    [
        (["a.jpg", "b.jpg", "Makefile"], "cannot pack 1 file without an ext.*'Makefile'$", r"--include '\*\.jpg'"),
        (["a.x"] + [f"f{i}" for i in range(5)], "cannot pack 5 files.*'f0', 'f1', 'f2', ...$", r"--include '\*\.x'"),
        (["a.txt", "d/.DS_Store"], r"1 file .* or with nothing before it: 'd/\.DS_Store'", "--exclude"),
        (["a.txt", "b."], "1 file without an extension", "--include"),
        (["a.txt", "b.__key__"], "extensions that WebDataset readers use themselves: 'b.__key__'", "--include"),
        (["__x__/a.txt", "__x__/b.txt", "c.txt"], "2 files under a first component like __x__", "--prefix data"),
        (["a.jpg", "a.JPG", "b.jpg"], "2 files that share key and extension.*'a.JPG', 'a.jpg'$", "--include"),
    ],
)  # fmt: skip
def test_files_that_make_no_sample_are_counted_and_shown_with_what_to_do(tmp_path, fill, names, what, hint):
    fill(tmp_path, dict.fromkeys(names, b""))
    with pytest.raises(DatasetError) as caught:
        listed(tmp_path)
    assert re.search(what, caught.value.what)
    assert re.search(hint, caught.value.hint)


def test_hundreds_of_extensions_are_names_with_dots(tmp_path, fill):
    fill(tmp_path, {f"2024.{i}.jpg": b"" for i in range(300)})
    with pytest.raises(DatasetError, match=r"300 different extensions, such as '0\.jpg'") as caught:
        listed(tmp_path)
    assert "rename" in caught.value.hint


def test_names_that_are_not_utf8_are_named_unless_left_out(tmp_path, fill):
    fill(tmp_path, {"a.txt": b""})
    (tmp_path / os.fsdecode(b"\xff.txt")).touch()
    with pytest.raises(DatasetError, match=r"1 file whose names are not UTF-8: b'\\xff\.txt'"):
        listed(tmp_path)
    assert paths(listed(tmp_path, ["a*"])) == ["a.txt"]


def test_nothing_to_pack_says_whether_the_globs_left_nothing(tmp_path, fill):
    with pytest.raises(EmptyDataset) as caught:
        listed(tmp_path)
    assert caught.value.hint == "the folder is empty"
    fill(tmp_path, {"a.txt": b"", "b.txt": b""})
    with pytest.raises(EmptyDataset) as caught:
        listed(tmp_path, ["*.jpg"])
    assert caught.value.hint == "of 2 files the globs leave none"


def test_a_source_that_is_no_folder_is_refused(tmp_path, fill):
    with pytest.raises(NotFound, match="there is no such folder"):
        listed(tmp_path / "nowhere")
    fill(tmp_path, {"file.txt": b""})
    with pytest.raises(NotFound, match="not a folder"):
        listed(tmp_path / "file.txt")


def test_a_folder_that_may_not_be_read_is_access_denied_and_names_it(tmp_path, fill, monkeypatch):
    fill(tmp_path, {"a/b/c.txt": b"", "d.txt": b""})
    scandir = os.scandir

    def guarded(folder):
        if Path(folder).name == "b":
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", guarded)
    with pytest.raises(AccessDenied, match="cannot list 'a/b'"):
        listed(tmp_path)


def test_the_digest_sees_paths_sizes_and_times_and_not_the_order_of_creation(tmp_path, fill):
    names = [f"{i}.txt" for i in range(20)]
    digests = set()
    for seed in range(3):
        random.Random(seed).shuffle(names)
        folder = fill(tmp_path / str(seed), dict.fromkeys(names, b"same"))
        for name in names:
            os.utime(folder / name, ns=(1, 1_700_000_000_123_456_789))
        digests.add(listed(folder).digest)
    assert len(digests) == 1
    os.utime(folder / "3.txt", ns=(1, 1_700_000_000_123_456_790))
    digests.add(listed(folder).digest)
    (folder / "3.txt").write_bytes(b"other")
    os.utime(folder / "3.txt", ns=(1, 1_700_000_000_123_456_789))
    digests.add(listed(folder).digest)
    assert len(digests) == 3
