"""Files of tokens as a data set: what is found where, what it costs to open, and what is refused."""

import tracemalloc
from contextlib import ExitStack
from itertools import pairwise

import numpy as np
import pytest

from stoker.dataset.attach import open_described
from stoker.dataset.describe import Dataset
from stoker.dataset.tokens import OpenTokens, open_tokens
from stoker.dataset.windows import TokenWindows
from stoker.errors import AccessDenied, ConfigError, DatasetError, EmptyDataset, FormatError, NotFound, SourceChanged
from stoker.store.memory import MemoryStore
from stoker.testing.stores import WrappedStore
from stoker.values import Key, ObjectInfo


@pytest.fixture
def folder(tmp_path):
    """Three files of 100, 7 and 31 tokens, and others that are none."""
    place = tmp_path / "data"
    (place / "more").mkdir(parents=True)
    for name, count in (("a.bin", 100), ("b.bin", 7), ("more/c.bin", 31)):
        np.arange(count, dtype="<u2").tofile(place / name)
    (place / "notes.txt").write_text("three files\n")
    return place


@pytest.fixture
def open_it():
    with ExitStack() as stack:
        yield lambda source, *cut: open_tokens(source, TokenWindows(*cut), stack)


def every(opened):
    return opened.keys(np.arange(opened.manifest.sample_count))


def test_a_folder_is_all_the_bin_files_below_it_and_what_is_left_is_counted(folder, open_it):
    opened = open_it(folder, 10, "uint16", 1)
    facts = opened.manifest
    assert opened.objects.keys == ("a.bin", "more/c.bin")
    assert every(opened) == [f"a.bin#{i}" for i in range(9)] + [f"more/c.bin#{i}" for i in range(3)]
    assert (facts.sample_count, facts.object_count, facts.short_count) == (12, 2, 1)
    assert (facts.token_count, facts.dropped_count) == (138, (100 - 91) + 7 + 0)
    assert facts.fields[0].max_bytes == 22


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("a.bin", ["a.bin"]),
        ("notes.txt", ["notes.txt"]),
        ("*.bin", ["a.bin"]),
        ("**.bin", ["a.bin", "more/c.bin"]),
        ("{a,more/c}.bin", ["a.bin", "more/c.bin"]),
    ],
)
def test_a_file_a_glob_or_braces_name_the_files(folder, open_it, name, keys):
    opened = (
        open_it(f"{folder}/{name}", 4, "uint16", 2)
        if name == "notes.txt"
        else open_it(f"{folder}/{name}", 10, "uint16")
    )
    assert list(opened.objects.keys) == keys


def test_extents_are_where_the_windows_lie(folder, open_it):
    opened = open_it(folder, 10, "uint16", 1, 6)
    found = opened.extents(np.array([9, 0, 3, 3]), ("tokens",))
    assert found.object.tolist() == [1, 0, 0, 0]
    assert found.offset.ravel().tolist() == [6, 6, 66, 66]
    assert set(found.size.ravel().tolist()) == {22}
    assert set(found.crc32c.ravel().tolist()) == {-1}
    with pytest.raises(DatasetError, match="no window 99"):
        opened.extents(np.array([99]), ("tokens",))
    with pytest.raises(DatasetError, match="no field 'jpg'"):
        opened.extents(np.array([0]), ("jpg",))


def test_names_that_are_not_ascii_come_back(tmp_path, open_it):
    np.zeros(8, "<u2").tofile(tmp_path / "größe.bin")
    opened = open_it(tmp_path, 4, "uint16")
    data, offsets = opened.key_bytes(np.array([1, 0]))
    assert [bytes(data[a:b]).decode() for a, b in pairwise(offsets.tolist())] == [
        "größe.bin#1",
        "größe.bin#0",
    ]


def test_empty_and_short_files_are_left_out_and_only_they_are_no_data_set(tmp_path, open_it):
    (tmp_path / "empty.bin").write_bytes(b"")
    np.zeros(9, "<u2").tofile(tmp_path / "short.bin")
    with pytest.raises(EmptyDataset, match="no file holds a window of 10 tokens: the longest of 2 has 9"):
        open_it(tmp_path, 10, "uint16")
    assert open_it(tmp_path, 9, "uint16").manifest.short_count == 1
    with pytest.raises(EmptyDataset, match=r"no \.bin file among 0"):
        open_it(tmp_path / "nothing", 9, "uint16")
    with pytest.raises(NotFound, match=r"no such object: 'gone\.bin'"):
        open_it(tmp_path / "gone.bin", 9, "uint16")


def test_a_folder_that_is_closed_to_this_user_is_said(tmp_path, open_it, obeys_modes):
    (tmp_path / "closed").mkdir(0)
    for name in ("closed/a.bin", "closed/below"):
        with pytest.raises(AccessDenied, match="permission denied"):
            open_it(tmp_path / name, 10, "uint16")


def test_a_size_that_is_no_whole_number_of_tokens_is_an_error_with_the_numbers(tmp_path, open_it):
    (tmp_path / "odd.bin").write_bytes(bytes(1031))
    with pytest.raises(
        FormatError, match=r"'odd.bin' has 1,031 bytes: no whole number of uint32 tokens of 4 bytes"
    ) as error:
        open_it(tmp_path, 10, "uint32")
    assert "3 too many" in error.value.hint
    assert error.value.where == str(tmp_path)
    with pytest.raises(FormatError, match="fewer than its header of 2,000"):
        open_it(tmp_path, 10, "uint32", 0, 2000)


def test_a_file_that_changed_since_it_was_listed_is_refused_when_it_is_first_used(folder, open_it):
    opened = open_it(folder, 10, "uint16")
    opened.extents(np.array([0]), ("tokens",))
    np.arange(40, dtype="<u2").tofile(folder / "more/c.bin")
    with pytest.raises(SourceChanged, match=r"'more/c.bin' had 62 bytes when it was listed, now 80"):
        opened.extents(np.array([0, 10]), ("tokens",))
    (folder / "more/c.bin").unlink()
    with pytest.raises(SourceChanged, match="was listed and is gone"):
        opened.extents(np.array([10]), ("tokens",))


def test_each_file_costs_one_stat_and_opening_costs_none():
    class Counting(WrappedStore):
        count = 0

        def stat(self, key):
            self.count += 1
            return super().stat(key)

    store = Counting(MemoryStore("tokens"))
    for name in "abc":
        store.write(Key(f"{name}.bin"), bytes(64))
    with ExitStack() as stack:
        opened = open_described(Dataset(store).tokens(4, "uint16"), stack)
    assert store.count == 0
    for _ in range(3):
        opened.extents(np.array([0, 1, 9]), ("tokens",))
    assert store.count == 2


def test_ten_billion_windows_open_in_less_than_50_megabytes():
    size = 4096 * 250_000
    files = [ObjectInfo(Key(f"shard-{i:06d}.bin"), size, f"{size}-{i}") for i in range(40_000)]
    store = MemoryStore("large")
    tracemalloc.start()
    try:
        opened = OpenTokens(store, TokenWindows(2048, "uint16"), files)
        samples = np.array([0, 10**10 - 1, 12_345_678_901 % 10**10])
        extents = opened._locate(samples)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert opened.manifest.sample_count == 10**10
    assert extents[0].tolist() == [0, 39_999, 9382]
    assert opened.keys(samples)[1] == "shard-039999.bin#249999"
    assert len(opened.blocks) == 40_000 * -(-250_000 // 2048)
    assert peak_bytes < 50e6


def test_a_description_of_tokens_goes_with_map_alone(folder):
    plain = Dataset(folder).tokens(10, "uint16", overlap=1)
    assert plain.map(dict).windows == TokenWindows(10, "uint16", 1)
    for wrong in (
        lambda: plain.fields("tokens"),
        lambda: plain.decode({"tokens": "npy"}),
        lambda: Dataset(folder).fields("x").tokens(10, "uint16"),
        lambda: Dataset(folder, index="there").tokens(10, "uint16"),
    ):
        with pytest.raises(ConfigError, match=r"tokens\(\) goes without"):
            wrong()
