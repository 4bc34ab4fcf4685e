"""What the walk finds is what Python's tarfile finds, for every way of writing a tar; and it reads little of it."""

import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.dataset.formats.tar_walk import WINDOW_MAX_BYTES, TarWalk
from stoker.store.base import StoreLimits
from stoker.store.memory import MemoryStore
from stoker.testing.stores import WrappedStore
from stoker.units import KIB, MIB
from stoker.values import Key

KEY = Key("a.tar")
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


class CountingStore(WrappedStore):
    """Counts requests and their bytes; `latency_s` is what it claims a request costs."""

    def __init__(self, inner, latency_s=1e-6):
        super().__init__(inner)
        self.requests, self.latency_s = [], latency_s

    @property
    def limits(self):
        return StoreLimits(if_absent_max_bytes=1 << 20, promotes=False, latency_s=self.latency_s)

    def read_into(self, key, start, buffer):
        self.requests.append((start, len(memoryview(buffer))))
        super().read_into(key, start, buffer)


def make_tar(files, kind=tarfile.GNU_FORMAT, **options):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=kind, **options) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def walk(data, **options):
    store = MemoryStore()
    store.write(KEY, data)
    return list(TarWalk(CountingStore(store, **options), store.stat(KEY)))


def python_sees(data):
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [(member.name, member.offset, member.offset_data, member.size) for member in tar if member.isreg()]


def seen(members):
    return [(m.name.decode(), m.start, m.offset, m.size) for m in members if m.kind == "file"]


NAMES = {
    "plain.txt": b"x",
    "a/b.empty": b"",
    "n" * 99 + ".t": b"101 bytes of name",
    "d" * 90 + "/" + "n" * 80 + ".txt": b"a name that ustar splits" * 100,
    "zürich/straße.txt": b"y" * 512,
}


@pytest.mark.parametrize("kind", FORMATS)
def test_the_walk_finds_what_tarfile_finds(kind):
    files = {n: c for n, c in NAMES.items() if kind != "ustar" or len(n) != 101}
    data = make_tar(files, FORMATS[kind])
    assert seen(walk(data)) == python_sees(data)
    assert [name for name, *_ in seen(walk(data))] == list(files)


@pytest.mark.parametrize("kind", ["gnu", "pax"])
@pytest.mark.parametrize("length", [100, 101, 255, 256, 1000, 4000])
def test_long_names_of_both_kinds_are_read_right(kind, length):
    name = "d/" * ((length - 5) // 2) + "n" * (length - 4 - (length - 5) // 2 * 2) + ".txt"
    assert len(name) == length
    data = make_tar({name: b"content", "next.txt": b"z"}, FORMATS[kind])
    assert [n for n, *_ in seen(walk(data))] == [name, "next.txt"]
    assert seen(walk(data)) == python_sees(data)


def test_global_pax_headers_hold_for_what_follows_and_git_archives_begin_with_one():
    data = make_tar({"a.txt": b"1", "b.txt": b"2"}, tarfile.PAX_FORMAT, pax_headers={"comment": "0123abc"})
    assert data[156:157] == b"g"
    assert [n for n, *_ in seen(walk(data))] == ["a.txt", "b.txt"]


def test_an_archive_may_end_without_zeros_and_what_stands_behind_them_is_not_read():
    data = make_tar({"a.txt": b"1"})
    assert seen(walk(data[:1024])) == seen(walk(data))
    assert seen(walk(data[:1536])) == seen(walk(data))
    assert seen(walk(data + make_tar({"b.txt": b"2"}))) == seen(walk(data))


@pytest.mark.parametrize(("kind", "wanted"), [(b"1", "link"), (b"2", "link"), (b"3", "device"), (b"6", "device")])
def test_what_is_no_file_has_no_bytes_whatever_its_header_says(kind, wanted):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        info = tarfile.TarInfo("it.txt")
        info.type, info.size, info.linkname = kind, 5000, "/etc/passwd"
        tar.addfile(info)
        tar.addfile(tarfile.TarInfo("after.txt"))
    members = walk(stream.getvalue())
    assert [(m.kind, m.size) for m in members] == [(wanted, 0), ("file", 0)]


def test_folders_are_told_by_type_or_as_v7_by_their_name():
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for kind in (tarfile.DIRTYPE, tarfile.AREGTYPE):
            info = tarfile.TarInfo("folder/")
            info.type = kind
            tar.addfile(info)
    assert [m.kind for m in walk(stream.getvalue())] == ["folder", "folder"]


def test_large_members_are_skipped():
    data = make_tar({f"{i}.bin": bytes(8 * MIB) for i in range(4)})
    store = MemoryStore()
    store.write(KEY, data)
    counting = CountingStore(store)
    assert len(list(TarWalk(counting, store.stat(KEY)))) == 4
    assert len(counting.requests) <= 6
    assert sum(size for _, size in counting.requests) <= 48 * KIB


def test_small_members_are_read_in_few_requests_where_a_request_costs_much():
    data = make_tar({f"{i}.bin": bytes(20_000) for i in range(400)})
    store = MemoryStore()
    store.write(KEY, data)
    counting = CountingStore(store, latency_s=0.03)
    assert len(list(TarWalk(counting, store.stat(KEY)))) == 400
    assert len(counting.requests) < 20
    assert max(size for _, size in counting.requests) <= WINDOW_MAX_BYTES


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.from_regex(r"[a-zé]{1,150}(/[a-z]{1,120})?\.[a-z]{1,3}", fullmatch=True), st.binary(max_size=3000)
    ),
    st.sampled_from(["gnu", "pax"]),
    st.sampled_from([0.0, 1e-5, 1e-2]),
)
def test_any_archive_is_walked_as_tarfile_walks_it(files, kind, latency_s):
    data = make_tar(files, FORMATS[kind])
    assert seen(walk(data, latency_s=latency_s)) == python_sees(data)


@pytest.mark.parametrize("size", [300 * KIB, 900 * KIB, 1 * MIB + 600, 3 * MIB])
def test_of_large_members_the_headers_alone_are_read_however_slow_a_request_is(size):
    members = 6
    store = MemoryStore("large")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for number in range(members):
            info = tarfile.TarInfo(f"{number}.bin")
            info.size = size
            tar.addfile(info, io.BytesIO(bytes(size)))
    store.write(KEY, out.getvalue())
    counting = CountingStore(store, latency_s=0.03)
    assert len(list(TarWalk(counting, store.stat(KEY)))) == members
    assert len(counting.requests) == members + 1
    assert sum(count for _, count in counting.requests) <= (members + 2) * 4 * KIB
