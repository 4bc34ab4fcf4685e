"""Tars made by hand to do harm: refused by an error that names object and byte, or read as the harmless part of it."""

import io
import tarfile
import time

import pytest

from stoker.dataset.formats.tar_walk import META_HEADERS_MAX, META_MAX_BYTES, TarWalk
from stoker.dataset.index import IndexOptions, index
from stoker.errors import DatasetError, FormatError, Truncated
from stoker.store.memory import MemoryStore
from stoker.values import Key

KEY = Key("evil.tar")
END = bytes(1024)


def header(name=b"a.txt", size=b"%011o\0" % 1, kind=b"0", magic=b"ustar\x0000", prefix=b"", tail=b""):
    """A header block with a right checksum, whatever is in it."""
    block = bytearray(512)
    block[: len(name)] = name[:100]
    block[100:124] = b"0000644\x000000000\x000000000\x00"
    block[124 : 124 + len(size)] = size
    block[136:148] = b"00000000000\x00"
    block[156:157] = kind
    block[257:265] = magic
    block[345 : 345 + len(prefix)] = prefix
    block[512 - len(tail) :] = tail or b""
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def member(name=b"a.txt", content=b"x", kind=b"0", **options):
    return header(name, b"%011o\0" % len(content), kind, **options) + content + bytes(-len(content) % 512)


def pax(*records, kind=b"x"):
    body = b""
    for keyword, value in records:
        rest = b" %s=%s\n" % (keyword, value)
        length = len(rest) + len(b"%d" % len(rest))
        length += len(b"%d" % length) - len(b"%d" % len(rest))
        body += b"%d%s" % (length, rest)
    return member(b"PaxHeader", body, kind)


def store_of(data):
    store = MemoryStore("evil")
    store.write(KEY, data)
    return store


def walk(data):
    store = store_of(data)
    return list(TarWalk(store, store.stat(KEY)))


def index_it(data, **options):
    return index(store_of(data), "", MemoryStore("out"), IndexOptions(**options))


OK = member(b"ok.txt", b"fine")

SIZES = {
    "negative, base 256": b"\xff" * 12,
    "negative and small, base 256": b"\xff" * 11 + b"\xfe",
    "2^63, base 256": b"\x80" + bytes(3) + b"\x80" + bytes(7),
    "2^88, base 256": b"\x80" + b"\x01" + bytes(10),
    "a minus sign": b"-0000000001\0",
    "no octal digit": b"0000000009\0\0",
    "hexadecimal": b"0x000000010\0",
    "text": b"a lot of it\0",
}


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_a_size_that_cannot_be_is_refused(size):
    with pytest.raises(FormatError, match="impossible size") as caught:
        walk(OK + header(size=size) + END)
    assert "byte 1024 of evil.tar" in caught.value.where


@pytest.mark.parametrize("value", [b"-1", b"1e3", b"9" * 30, b"0x10", b"%d" % 2**63, b"1_0", "٣".encode()])
def test_a_size_in_a_pax_header_that_cannot_be_is_refused(value):
    with pytest.raises(FormatError, match="impossible size"):
        walk(pax((b"size", value)) + OK + END)


@pytest.mark.parametrize("size", [b"%011o\0" % 1025, b"7" * 11 + b"\0", b"\x80" + bytes(3) + b"\x20" + bytes(7)])
def test_a_member_that_reaches_beyond_the_archive_is_truncated(size):
    with pytest.raises(Truncated, match=r"'a.txt' reaches to byte .* the object ends at byte 2,560"):
        walk(OK + header(size=size) + END)


def test_a_large_size_of_a_pax_header_and_of_base_256_is_believed_where_it_fits():
    content = b"y" * 700
    padded = content + bytes(-700 % 512)
    (one,) = walk(pax((b"size", b"700")) + header(size=b"%011o\0" % 0) + padded + END)
    (two,) = walk(header(size=b"\x80" + (700).to_bytes(11, "big")) + padded + END)
    assert (one.size, two.size) == (700, 700)
    assert one.offset == two.offset + 1024


@pytest.mark.parametrize("cut", range(1, 3584, 97))
def test_an_archive_cut_anywhere_but_between_members_is_an_error(cut):
    whole = pax((b"path", b"long/name.txt")) + member(content=b"z" * 600) + OK
    assert len(whole) == 3584
    boundaries = {1024 + 1536}  # after the whole first member
    if cut in boundaries:
        walk(whole[:cut])
        return
    with pytest.raises((Truncated, FormatError)) as caught:
        walk(whole[:cut])
    assert "evil.tar" in caught.value.where


BROKEN = {
    "one bit": lambda block: bytes([block[0] ^ 1]) + block[1:],
    "no checksum": lambda block: block[:148] + bytes(8) + block[156:],
    "a checksum that is no number": lambda block: block[:148] + b"zzzzzz\0 " + block[156:],
    "noise": lambda _: bytes(i * 37 % 251 for i in range(512)),
}


@pytest.mark.parametrize("damage", BROKEN.values(), ids=BROKEN)
def test_a_header_with_a_wrong_checksum_is_refused(damage):
    with pytest.raises(FormatError, match="checksum is wrong") as caught:
        walk(OK + damage(OK[:512]) + OK[512:] + END)
    assert caught.value.where == "byte 1024 of evil.tar in memory://evil"


def test_checksums_of_old_tars_over_signed_bytes_are_right_too():
    block = bytearray(header("é.txt".encode()))
    rest = bytes(block[:148] + block[156:])
    block[148:156] = b"%06o\0 " % (sum(rest) + 256 - 256 * sum(b > 127 for b in rest))
    (found,) = walk(bytes(block) + bytes(512) + END)
    assert found.name == "é.txt".encode()


@pytest.mark.parametrize(
    ("magic", "name"),
    [(b"\x1f\x8b\x08", "gzip"), (b"BZh9", "bzip2"), (b"\xfd7zXZ\0", "xz"), (b"\x28\xb5\x2f\xfd", "zstd")],
)
def test_a_compressed_archive_is_called_what_it_is(magic, name):
    with pytest.raises(FormatError, match=f"not a tar archive but {name}"):
        walk(magic + bytes(2048))


def test_an_empty_object_is_no_tar():
    with pytest.raises(FormatError, match="empty"):
        walk(b"")


PAX = {
    "no length": b"path=a.txt\n",
    "a length of nothing": b"0 path=a\n",
    "beyond the header": b"99999 path=a.txt\n",
    "2^63": b"9223372036854775808 path=a\n",
    "a very long number": b"9" * 600 + b" path=a\n",
    "negative": b"-5 path=a.txt\n",
    "no line end": b"14 path=a.txtX",
    "no equals sign": b"11 pathabcd\n",
    "length inside itself": b"2 \n",
}


@pytest.mark.parametrize("body", PAX.values(), ids=PAX)
def test_a_pax_header_that_is_no_row_of_records_is_refused(body):
    with pytest.raises(FormatError, match="pax"):
        walk(member(b"PaxHeader", body, b"x") + OK + END)


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
def test_an_extended_header_larger_than_makes_sense_is_refused_before_memory_is_taken(kind):
    size = b"%011o\0" % (META_MAX_BYTES + 1)
    with pytest.raises(FormatError, match="extended header claims 1,048,577 bytes"):
        walk(header(size=size, kind=kind) + bytes(META_MAX_BYTES + 512) + OK + END)


def test_many_extended_headers_before_one_member_are_refused():
    with pytest.raises(FormatError, match="more than 16 extended headers"):
        walk(pax((b"path", b"b.txt")) * META_HEADERS_MAX + OK + END)
    assert len(walk(pax((b"path", b"b.txt")) * (META_HEADERS_MAX - 1) + OK + END)) == 1


def test_an_extended_header_without_a_member_is_refused():
    for rest in (b"", END):
        with pytest.raises((FormatError, Truncated), match="between an extended header and its member"):
            walk(OK + pax((b"path", b"b.txt")) + rest)


@pytest.mark.parametrize(
    "name",
    [
        b"../x.txt",
        b"a/../../x.txt",
        b"/etc/x.txt",
        b"//x.txt",
        b"a\nb.txt",
        b"a\x1b[2Jb.txt",
        b"\xff\xfe.txt",
        b"..",
    ],
)
def test_names_that_would_be_dangerous_elsewhere_are_refused_with_the_byte(name):
    with pytest.raises(DatasetError, match=r"1 file with names that no sample can have.* at byte 1024 of evil.tar"):
        index_it(OK + member(name) + END)
    report = index_it(OK + member(name) + END, include=("ok.txt",))
    assert report.samples == 1


def test_a_zero_byte_in_a_pax_name_is_refused_and_in_a_header_ends_the_name():
    with pytest.raises(DatasetError, match="names that no sample can have"):
        index_it(pax((b"path", b"a\0b.txt")) + OK + END)
    assert walk(member(b"a.txt\0../../x") + END)[0].name == b"a.txt"


def test_a_name_longer_than_any_path_is_refused():
    with pytest.raises(DatasetError, match="names that no sample can have"):
        index_it(pax((b"path", b"d/" * 3000 + b"a.txt")) + OK + END)
    with pytest.raises(DatasetError, match="names that no sample can have"):
        index_it(member(b"././@LongLink", b"n" * 5000 + b".txt\0", b"L") + OK + END)


def test_harmless_ways_to_write_a_path_are_one_key():
    out = MemoryStore("out")
    index(store_of(member(b"./a//b/./c.txt") + END), "", out)
    from stoker.dataset.open import open_dataset

    assert list(open_dataset(out, store_of(member(b"./a//b/./c.txt") + END)).offsets(0).keys) == ["a/b/c"]


@pytest.mark.parametrize("kind", [b"1", b"2", b"3", b"4", b"6"])
def test_links_and_devices_are_left_out_and_counted(kind):
    report = index_it(OK + header(b"link.txt", b"%011o\0" % 0, kind, tail=b"") + END)
    assert report.samples == 1
    assert sum(report.skipped.values()) == 1


def test_unknown_types_are_left_out_with_their_bytes():
    report = index_it(member(b"label.txt", b"q" * 600, b"V") + OK + END)
    assert (report.samples, sum(report.skipped.values())) == (1, 1)


def test_sparse_files_are_refused_in_both_ways_of_writing_them():
    sparse = bytearray(header(b"s.txt", b"%011o\0" % 512, b"S", magic=b"ustar  \0"))
    sparse[482] = 1
    sparse[148:156] = b"        "
    sparse[148:156] = b"%06o\0 " % sum(sparse)
    more = bytearray(512)
    more[504] = 1
    old = bytes(sparse) + bytes(more) + bytes(512) + bytes(512)
    assert [(m.name, m.offset, m.size) for m in walk(old + OK + END)] == [(b"s.txt", 1536, 512), (b"ok.txt", 2560, 4)]
    with pytest.raises(DatasetError, match="1 file stored as sparse"):
        index_it(old + OK + END)
    with pytest.raises(DatasetError, match="1 file stored as sparse"):
        index_it(pax((b"GNU.sparse.major", b"1"), (b"path", b"s.txt")) + member(b"GNUSparseFile.0/s.txt") + OK + END)
    assert index_it(old + OK + END, exclude=("s.txt",)).samples == 1


def test_a_sparse_map_that_never_ends_ends_with_the_object():
    sparse = bytearray(header(b"s.txt", b"%011o\0" % 0, b"S", magic=b"ustar  \0"))
    sparse[482] = 1
    sparse[148:156] = b"        "
    sparse[148:156] = b"%06o\0 " % sum(sparse)
    more = bytearray(512)
    more[504] = 1
    with pytest.raises(Truncated):
        walk(bytes(sparse) + bytes(more) * 5000)


def test_members_of_one_sample_that_stand_apart_are_refused():
    data = member(b"a.txt") + member(b"b.txt") + member(b"a.json") + member(b"b.json") + END
    with pytest.raises(DatasetError, match="1 file standing apart") as caught:
        index_it(data)
    assert "--sort=name" in caught.value.hint


def test_names_without_an_extension_and_doubles_are_counted_with_a_hint():
    data = OK + member(b"README") + member(b".hidden") + member(b"a.TXT") + member(b"a.txt") + member(b"a.txt") + END
    with pytest.raises(DatasetError, match=r"cannot index 2 files.*and 2 with other problems") as caught:
        index_it(data)
    assert "--include '*.txt'" in caught.value.hint


def test_more_fields_than_make_sense_are_refused_before_a_column_is_made_for_each():
    data = b"".join(member(b"a.f%d" % i) for i in range(300)) + END
    with pytest.raises(DatasetError, match="more than 256 different extensions"):
        index_it(data)


@pytest.mark.alone
def test_a_hundred_thousand_headers_take_linear_time():
    def seconds(count):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as tar:
            for i in range(count):
                tar.addfile(tarfile.TarInfo(f"{i:06d}.txt"))
        started_s = time.process_time()
        assert index_it(stream.getvalue()).samples == count
        return time.process_time() - started_s

    seconds(100)
    assert seconds(20_000) < 10 * seconds(4_000)
