import pytest

from stoker.dataset.shard import PIECE_BYTES, Member, PlaceCounter, ShardReader, ShardWriter
from stoker.errors import FormatError, InternalError, NotFound
from stoker.io.checksum import crc32c
from stoker.store.memory import MemoryStore
from stoker.values import ByteRange, Key

KEY = Key("shard-000000.tar")
CONTENTS = {
    "a.txt": b"one",
    "b/ä.seg.png": b"",
    "c.bin": bytes(range(256)) * 5000,
    "d" * 300 + ".bin": b"x" * 512,
}
MEMBERS = [Member(path, path.partition(".")[2], len(data)) for path, data in CONTENTS.items()]


def write_all(store):
    with ShardWriter(store, KEY) as writer:
        places = []
        for member in MEMBERS:
            writer.begin(member)
            for start in range(0, member.size, 1000):
                writer.add(CONTENTS[member.path][start : start + 1000])
            places.append(writer.end())
        size = writer.finish()
    return places, size


def test_the_writer_says_where_each_content_lies_and_its_checksum(store):
    places, size = write_all(store)
    assert store.stat(KEY).size_bytes == size
    for member, place in zip(MEMBERS, places, strict=True):
        content = store.read(KEY, ByteRange(place.offset, place.offset + place.size))
        assert content == CONTENTS[member.path]
        assert place.crc32c == crc32c(content)
        assert place.field == member.field


def test_places_can_be_counted_before_and_read_back_after(store):
    places, _ = write_all(store)
    counter, reader = PlaceCounter(), ShardReader(store, KEY)
    assert [counter.next(member) for member in MEMBERS] == [place._replace(crc32c=0) for place in places]
    assert [reader.next(member) for member in MEMBERS] == places


def test_reading_back_refuses_another_member_than_expected(store):
    write_all(store)
    for wrong in (Member("b.txt", "txt", 3), Member("a.txt", "txt", 4), Member("ä.txt", "txt", 3)):
        with pytest.raises(FormatError, match="the member at byte 0 is not"):
            ShardReader(store, KEY).next(wrong)


class PieceStore(MemoryStore):
    """Notes the size of each piece that a writer is given."""

    def writer(self, key):
        made, self.pieces = super().writer(key), []
        write = made.write
        made.write = lambda data: (self.pieces.append(len(data)), write(data))
        return made


def test_small_members_are_written_together_and_large_ones_are_not_copied():
    store = PieceStore()
    with ShardWriter(store, KEY) as writer:
        for i in range(5000):
            writer.begin(Member(f"{i}.txt", "txt", 10))
            writer.add(b"0123456789")
            writer.end()
        writer.begin(Member("large.txt", "txt", 2 * PIECE_BYTES))
        writer.add(bytes(2 * PIECE_BYTES))
        writer.end()
        size = writer.finish()
    assert sum(store.pieces) == size
    assert len(store.pieces) == -(-5000 * 1024 // PIECE_BYTES) + 2
    assert sorted(store.pieces)[-2] <= PIECE_BYTES
    assert max(store.pieces) == 2 * PIECE_BYTES


def test_an_object_appears_only_when_it_is_finished(store):
    with ShardWriter(store, KEY) as writer:
        writer.begin(MEMBERS[0])
        writer.add(b"one")
        writer.end()
    with pytest.raises(NotFound):
        store.stat(KEY)


def test_a_member_of_other_size_than_its_header_is_a_bug_and_is_not_stored(store):
    with ShardWriter(store, KEY) as writer:
        writer.begin(MEMBERS[0])
        writer.add(b"on")
        with pytest.raises(InternalError, match=r"'a\.txt' is 1 bytes short"):
            writer.end()
    assert list(store.list()) == []
