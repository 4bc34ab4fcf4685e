"""Data sets of version 1, pinned for ever.

golden/dataset-v1 was packed from FILES by the first release. It must open for ever, and packing FILES again must give
the same shards and the same manifest, byte for byte. The tables may come out in other bytes with another release of
Arrow, but with the same columns. The reference below is written from docs/reference/dataset-format.md alone.
"""

import hashlib
import io
import json
import struct
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from stoker.dataset.open import open_dataset
from stoker.dataset.pack import PackOptions, pack
from stoker.dataset.write import DatasetWriter
from stoker.io.checksum import crc32c
from stoker.store.local import LocalStore
from stoker.store.memory import MemoryStore
from stoker.values import Key

GOLDEN = Path(__file__).parent / "golden" / "dataset-v1"
DIGEST = "051b22ce8db17ecb99b4a21b58666817ad445ef66b310aaaa85953ca7d1d4207"
SHARD_BYTES = 98304

FILES = {
    "a-b/zero.txt": b"",
    "a.c": b"members of a sample stand together",
    "a.d/x.txt": b"though this folder sorts between them",
    "a.e": b"like this",
    "dir/upper.JPG": b"the field is jpg",
    "dir/upper.json": b'{"case": "lower"}',
    "dir/upper.seg.png": bytes(range(256)) * 3,
    "large/larger-than-a-shard.bin": bytes(i * i % 251 for i in range(100_000)),
    "long/" + "d" * 120 + "/" + "n" * 60 + ".txt": b"a name that ustar splits",
    "long/" + "n" * 140 + ".txt": b"a name that needs pax",
    "zürich/straße.txt": "Wörter".encode(),
    **{f"bulk/{i:02d}.bin": b"%06d\n" % i * 2000 for i in range(16)},
    **{f"small/{i:02d}.txt": b"%d" % i * i for i in range(24)},
    **{f"small/{i:02d}.cls": b"%d" % (i % 3) for i in range(0, 24, 5)},
}
ORDER = [
    "a-b/zero",
    "a",
    "a.d/x",
    *(f"bulk/{i:02d}" for i in range(16)),
    "dir/upper",
    "large/larger-than-a-shard",
    "long/" + "d" * 120 + "/" + "n" * 60,
    "long/" + "n" * 140,
    *(f"small/{i:02d}" for i in range(24)),
    "zürich/straße",
]


def golden():
    return {str(path.relative_to(GOLDEN)): path.read_bytes() for path in sorted(GOLDEN.rglob("*")) if path.is_file()}


def columns_of(data):
    """Columns of an Arrow file: {name: (type, values)}."""
    with pa.ipc.open_file(pa.py_buffer(data)) as reader:
        table = reader.read_all()
    names = {"large_string": "utf8", "int64": "int64", "uint32": "uint32"}
    return {f.name: (names[str(f.type)], table.column(f.name).to_pylist()) for f in table.schema}


def digest_of(data):
    """sha256 over the raw columns, as the page says."""
    digest = hashlib.sha256()
    for name, (kind, values) in columns_of(data).items():
        digest.update(name.encode() + b"\0" + kind.encode() + b"\0" + struct.pack("<q", len(values)))
        if kind == "utf8":
            encoded = [value.encode() for value in values]
            ends = [sum(map(len, encoded[:i])) for i in range(len(encoded) + 1)]
            digest.update(struct.pack(f"<{len(ends)}q", *ends) + b"".join(encoded))
        else:
            digest.update(struct.pack(f"<{len(values)}{'q' if kind == 'int64' else 'I'}", *values))
    return digest.hexdigest()


def extents_of(data):
    """(key, {field: (offset, size)}, start, stop) of each sample in a shard, from its tar headers."""
    samples = []
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            folder, slash, base = member.name.rpartition("/")
            key, field = folder + slash + base.partition(".")[0], base.partition(".")[2].lower()
            if not samples or samples[-1][0] != key:
                samples.append([key, {}, member.offset, 0])
            samples[-1][1][field] = member.offset_data, member.size
            samples[-1][3] = -(-(member.offset_data + member.size) // 512) * 512
    return samples


@pytest.fixture
def source(tmp_path):
    for name, content in FILES.items():
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "source"


def test_the_golden_data_set_is_whole_and_this_one():
    store = LocalStore(GOLDEN)
    opened = open_dataset(store)
    assert opened.manifest.digest == DIGEST
    samples = np.arange(opened.manifest.sample_count)
    assert opened.keys(samples) == ORDER
    wanted = {}
    for name, content in FILES.items():
        folder, slash, base = name.rpartition("/")
        wanted[folder + slash + base.partition(".")[0], base.partition(".")[2].lower()] = content
    fields = opened.manifest.field_names
    places = opened.extents(samples, fields)
    for row, key in enumerate(ORDER):
        for column, field in enumerate(fields):
            content = wanted.pop((key, field), None)
            if content is None:
                assert (places.offset[row, column], places.size[row, column], places.crc32c[row, column]) == (-1, 0, 0)
                continue
            found = bytearray(places.size[row, column])
            store.read_into(opened.objects.keys[places.object[row]], int(places.offset[row, column]), found)
            assert found == content
            assert places.crc32c[row, column] == crc32c(content)
    assert wanted == {}


def test_packing_the_same_files_gives_the_same_data_set(source):
    store = MemoryStore()
    pack(source, store, PackOptions(shard_bytes=SHARD_BYTES))
    found = {str(info.key): store.read(Key(info.key)) for info in store.list() if info.key != ".pack.json"}
    expected = golden()
    assert found.keys() == expected.keys()
    for name in expected:
        if name.endswith(".arrow"):
            assert columns_of(found[name]) == columns_of(expected[name]), name
        else:
            assert found[name] == expected[name], name


def test_writing_the_same_samples_gives_the_same_data_set():
    samples = {}
    for name, content in FILES.items():
        folder, slash, base = name.rpartition("/")
        samples.setdefault(folder + slash + base.partition(".")[0], {})[base.partition(".")[2]] = content
    store = MemoryStore()
    with DatasetWriter(store, shard_bytes=SHARD_BYTES) as writer:
        for key in ORDER:
            writer.write(key, {field.lower(): content for field, content in samples[key].items()})
    assert open_dataset(store).manifest.sample_count == len(ORDER)
    # One file has capitals in its extension, which a pack keeps in the tar; the writer has no way to say that.
    files, different = golden(), []
    for key in sorted(name for name in files if name.endswith(".tar")):
        if store.read(Key(key)) != files[key]:
            different.append(key)
            assert b"dir/upper.JPG" in files[key]
            assert b"dir/upper.jpg" in store.read(Key(key))
    assert len(different) == 1


def test_the_digests_are_those_of_the_page():
    files = golden()
    manifest = json.loads(files["manifest.json"])
    body = {name: value for name, value in manifest.items() if name != "digest"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert manifest["digest"] == hashlib.sha256(text).hexdigest() == DIGEST
    assert manifest["tables"] == {name: digest_of(files[f"{name}.arrow"]) for name in ("objects", "blocks")}
    objects = columns_of(files["objects.arrow"])
    for key, sha256 in zip(objects["key"][1], objects["offsets_sha256"][1], strict=True):
        assert digest_of(files[f"offsets/{key}.arrow"]) == sha256


def test_objects_offsets_and_blocks_are_those_of_the_page():
    files = golden()
    manifest, objects = json.loads(files["manifest.json"]), columns_of(files["objects.arrow"])
    assert list(objects) == ["key", "size_bytes", "first_sample", "sample_count", "offsets_sha256", "version"]
    first, blocks, total = 0, [], 0
    for number, key in enumerate(objects["key"][1]):
        assert key == f"shard-{number:06d}.tar"
        samples = extents_of(files[key])
        row = [objects[name][1][number] for name in ("size_bytes", "first_sample", "sample_count", "version")]
        assert row == [len(files[key]), first, len(samples), ""]
        assert len(files[key]) == samples[-1][3] + 1024
        assert len(files[key]) <= SHARD_BYTES or len(samples) == 1
        offsets = columns_of(files[f"offsets/{key}.arrow"])
        fields = sorted({field for sample in samples for field in sample[1]})
        assert list(offsets) == ["key", *(f"{f}/{c}" for f in fields for c in ("offset", "size", "crc32c"))]
        assert offsets["key"] == ("utf8", [sample[0] for sample in samples])
        for field in fields:
            places = [sample[1].get(field, (-1, 0)) for sample in samples]
            assert offsets[f"{field}/offset"] == ("int64", [place[0] for place in places])
            assert offsets[f"{field}/size"] == ("int64", [place[1] for place in places])
            crcs = [crc32c(files[key][o : o + s]) if o >= 0 else 0 for o, s in places]
            assert offsets[f"{field}/crc32c"] == ("uint32", crcs)
        for index, (_, _, start, stop) in enumerate(samples):
            total += stop - start
            if blocks and blocks[-1][0] == number and stop - blocks[-1][1] <= manifest["block_bytes"]:
                blocks[-1][2] = stop - blocks[-1][1]
                blocks[-1][4] += 1
            else:
                blocks.append([number, start, stop - start, first + index, 1])
        first += len(samples)
    assert manifest["block_bytes"] == 65536  # total / 4096 is far less
    assert total < 65536 * 4096
    found = columns_of(files["blocks.arrow"])
    assert list(found) == ["object", "offset", "length", "first_sample", "sample_count"]
    assert [list(row) for row in zip(*(values for _, values in found.values()), strict=True)] == blocks
    counts = (manifest["sample_count"], manifest["object_count"], manifest["block_count"])
    assert len(blocks) > counts[1]
    assert counts == (first, len(objects["key"][1]), len(blocks)) == (len(ORDER), counts[1], counts[2])


def test_the_shards_hold_the_files_under_their_names():
    found = {}
    for name, data in golden().items():
        if name.endswith(".tar"):
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                found |= {member.name: tar.extractfile(member).read() for member in tar}
    assert found == FILES
