"""How files of tokens are cut, against plain arithmetic over every window."""

import hashlib
import json
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.dataset.describe import Dataset
from stoker.dataset.layout import choose_block_bytes, make_blocks
from stoker.dataset.position import Position, Segment
from stoker.dataset.windows import TokenWindows, WindowBlocks, tell_apart
from stoker.errors import ConfigError, FormatError
from stoker.values import Key, ObjectInfo

cuts = st.builds(
    lambda seq_len, dtype, overlap, header: TokenWindows(seq_len, dtype, min(overlap, seq_len), header),
    st.integers(1, 50_000),
    st.sampled_from(["uint16", "uint32", "int32", "int64"]),
    st.integers(0, 3),
    st.sampled_from([0, 4, 1024]),
)


@given(cut=cuts, tokens=st.lists(st.integers(0, 500_000), min_size=1, max_size=5))
def test_a_file_holds_the_windows_that_fit_one_after_the_other(cut, tokens):
    for length, count in zip(tokens, cut.count_windows(np.array(tokens)).tolist(), strict=True):
        assert cut.count_tokens("a.bin", cut.header_bytes + length * cut.item_bytes) == length
        starts = [at for at in range(0, length, cut.seq_len) if at + cut.seq_len + cut.overlap <= length]
        assert count == len(starts)


@given(cut=cuts, windows=st.lists(st.integers(1, 3000), min_size=1, max_size=4), scale=st.sampled_from([1, 8]))
def test_blocks_by_arithmetic_are_those_that_walking_over_the_windows_gives(cut, windows, scale):
    windows = np.array(windows)
    block_bytes = choose_block_bytes(int(cut.extent(windows).sum())) * scale
    blocks = WindowBlocks(cut, windows, block_bytes)
    walked = []
    first = 0
    for number, count in enumerate(windows.tolist()):
        at = 0
        while at < count:
            stop = at + 1
            while stop < count and cut.extent(np.array(stop + 1 - at)) <= block_bytes:
                stop += 1
            length = (stop - at - 1) * cut.stride_bytes + cut.window_bytes
            walked.append((number, cut.header_bytes + at * cut.stride_bytes, length, first + at, stop - at))
            at = stop
        first += count
    columns = (blocks.object, blocks.offset, blocks.length, blocks.first_sample, blocks.sample_count)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == walked
    assert len(blocks) == len(walked)


def test_without_overlap_and_header_blocks_are_those_of_any_data_set():
    cut = TokenWindows(1000, "uint16")
    windows = np.array([700, 1, 33])
    shards = np.concatenate([[0], np.cumsum(windows)])
    table = make_blocks(np.full(734, 2000), shards, 65536)
    blocks = WindowBlocks(cut, windows, 65536)
    for name in ("object", "offset", "length", "first_sample", "sample_count"):
        assert np.array_equal(getattr(blocks, name), getattr(table, name)), name


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TokenWindows(0, "uint16"), "seq_len is 0"),
        (lambda: TokenWindows(True, "uint16"), "seq_len is True"),
        (lambda: TokenWindows(2.5, "uint16"), "seq_len is 2.5"),
        (lambda: TokenWindows(8, "float32"), "no type of tokens: 'float32'"),
        (lambda: Dataset("x").tokens(8, np.float32), "no type of tokens: 'float32'"),
        (lambda: Dataset("x").tokens(8, np.dtype(">u2")), "no type of tokens: '>u2'"),
        (lambda: Dataset("x").tokens(8, int), "no type of tokens: <class 'int'>"),
        (lambda: TokenWindows(8, "uint16", -1), "overlap is -1"),
        (lambda: TokenWindows(8, "uint16", 9), "overlap is 9, more than the 8"),
        (lambda: TokenWindows(8, "uint16", 1, -4), "header_bytes is -4"),
        (lambda: TokenWindows(1 << 40, "uint16"), "seq_len is 1099511627776"),
    ],
)
def test_a_cut_that_cannot_be_is_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_a_size_that_cannot_be_is_an_error_with_the_numbers():
    cut = TokenWindows(8, "uint32", 0, 1024)
    with pytest.raises(FormatError, match=r"'a.bin' has 4,002 bytes after a header of 1,024: .* uint32 .* 4 bytes"):
        cut.count_tokens("a.bin", 5026)
    with pytest.raises(FormatError, match=r"'a.bin' has 1,000 bytes, fewer than its header of 1,024"):
        cut.count_tokens("a.bin", 1000)


@pytest.mark.parametrize("name", ["uint16", "uint32", "int32", "int64"])
def test_a_type_may_be_given_as_numpy_has_it(name):
    for dtype in (name, getattr(np, name), np.dtype(name)):
        assert Dataset("x").tokens(8, dtype).windows == TokenWindows(8, name)
        assert type(Dataset("x").tokens(8, dtype).windows.dtype) is str


def test_a_cut_is_plain_data():
    cut = TokenWindows(np.int64(8), "uint16", 1, 1024)
    assert TokenWindows(**json.loads(json.dumps(asdict(cut)))) == cut


def files(version="v1"):
    return [ObjectInfo(Key("a.bin"), 100, version), ObjectInfo(Key("b.bin"), 50, "v")]


def test_the_digest_covers_the_cut_and_every_file_and_fits_a_position():
    cut = TokenWindows(2048, "uint16", 1)
    digests = {
        cut.digest(files()),
        cut.digest(files("v2")),
        cut.digest(files()[:1]),
        TokenWindows(2049, "uint16", 1).digest(files()),
        TokenWindows(2048, "int32", 1).digest(files()),
        TokenWindows(2048, "uint16", 0).digest(files()),
        TokenWindows(2048, "uint16", 1, 4).digest(files()),
    }
    assert len(digests) == 7
    longest = TokenWindows(1 << 27, "uint32", 1 << 27, 1 << 40).digest(files())
    digest = "dc2e6876592cb747939285b6671efb296c72e8ce07543c8cbf099b0b051f6c2e"
    position = Position((Segment(longest, digest, first_step=0),), next_step=7)
    assert Position.from_json(position.to_json()) == position


def test_the_digest_is_the_one_on_the_page_of_the_format():
    page = (Path(__file__).parents[3] / "docs" / "reference" / "dataset-format.md").read_text()
    (text,) = re.findall(r"^(\{.*\"kind\":\"tokens\".*\})$", page, re.MULTILINE)
    digest = TokenWindows(8, "uint16", 1).digest(files("v1")[:1])
    assert digest == f"tokens:uint16:8:1:0:{hashlib.sha256(text.encode()).hexdigest()}"
    assert digest.endswith("f19b3cc91e899f163414c898ae70f71d43cffc2d5fa9edbb4d70c1ccd5caf1c1")


def test_two_digests_are_told_apart_by_what_differs():
    old, new = TokenWindows(2048, "uint16", 1), TokenWindows(1024, "uint16", 1, 8)
    told = tell_apart(old.digest(files()), new.digest(files()))
    assert told == ["seq_len was 2048, is 1024", "header_bytes was 0, is 8"]
    (told,) = tell_apart(old.digest(files()), old.digest(files("v2")))
    assert told.startswith("the token files (their names, sizes or versions) were")
    assert tell_apart(old.digest(files()), "0" * 64) == []
    assert tell_apart("tokens:x", "tokens:y") == []
