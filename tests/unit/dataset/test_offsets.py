import numpy as np
import pytest

from stoker.dataset.offsets import MISSING, OffsetsBuilder, OffsetsTable, Place, offsets_key, offsets_schema
from stoker.dataset.tables import Table, Text
from stoker.errors import FormatError


def build():
    builder = OffsetsBuilder()
    builder.add("a", [Place("jpg", 512, 10, 7), Place("json", 1536, 5, 2**32 - 1)])
    builder.add("b", [Place("json", 2560, 0, 0)])
    builder.add("c", [])
    return builder.build()


def test_a_field_that_a_sample_lacks_has_offset_minus_one_and_size_zero():
    table = build()
    assert list(table.keys) == ["a", "b", "c"]
    assert list(table.fields) == ["jpg", "json"]
    assert table.fields["jpg"].offset.tolist() == [512, MISSING, MISSING]
    assert table.fields["json"].offset.tolist() == [1536, 2560, MISSING]
    assert table.fields["json"].size.tolist() == [5, 0, 0]
    assert table.fields["json"].crc32c.tolist() == [2**32 - 1, 0, 0]


def test_the_columns_are_the_key_and_three_for_each_field_in_sorted_order():
    assert build().table.schema == offsets_schema(["jpg", "json"])
    assert [name for name, _ in offsets_schema(["x"])] == ["key", "x/offset", "x/size", "x/crc32c"]
    assert offsets_key("shard-000000.tar") == "offsets/shard-000000.tar.arrow"


def test_a_table_that_was_read_is_checked_against_fields_and_object():
    table = build().table
    assert list(OffsetsTable.check(table, ["jpg", "json", "txt"], 2560, "here").fields) == ["jpg", "json"]
    with pytest.raises(FormatError, match="knows no field 'json'"):
        OffsetsTable.check(table, ["jpg"], 2560, "here")
    with pytest.raises(FormatError, match=r"field 'json' of sample 1 lies at 2560 \+ 0, the object ends at 2559"):
        OffsetsTable.check(table, ["jpg", "json"], 2559, "here")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("x/offset", -2),
        ("x/offset", 2**63 - 1),
        ("x/offset", 991),
        ("x/size", -1),
        ("x/size", 2**63 - 1),
        ("x/size", 1001),
    ],
)
def test_offsets_outside_the_object_are_refused_without_overflow(column, value):
    columns = {
        "key": Text.of(["a", "b"]),
        "x/offset": np.array([0, 990], dtype=np.int64),
        "x/size": np.array([5, 10], dtype=np.int64),
        "x/crc32c": np.zeros(2, dtype=np.uint32),
    }
    OffsetsTable.check(Table(columns), ["x"], 1000, "here")
    columns[column][1] = value
    with pytest.raises(FormatError, match="field 'x' of sample 1"):
        OffsetsTable.check(Table(columns), ["x"], 1000, "here")


@pytest.mark.parametrize(("size", "crc"), [(1, 0), (0, 1)])
def test_a_missing_field_has_no_size_and_no_checksum(size, crc):
    columns = {
        "key": Text.of(["a"]),
        "x/offset": np.array([MISSING], dtype=np.int64),
        "x/size": np.array([size], dtype=np.int64),
        "x/crc32c": np.array([crc], dtype=np.uint32),
    }
    with pytest.raises(FormatError, match="field 'x' of sample 0"):
        OffsetsTable.check(Table(columns), ["x"], 1000, "here")


def test_other_columns_than_these_are_refused():
    one = np.zeros(1, dtype=np.int64)
    crc = np.zeros(1, dtype=np.uint32)
    for columns in (
        {"x/offset": one, "x/size": one, "x/crc32c": crc},
        {"key": Text.of(["a"]), "x/offset": one, "x/size": one},
        {"key": Text.of(["a"]), "x/offset": one, "x/size": one, "x/crc32c": one},
        {"key": Text.of(["a"]), "extra": one},
        {"key": one},
    ):
        with pytest.raises(FormatError, match="not a table of offsets"):
            OffsetsTable.check(Table(columns), ["x"], 1000, "here")
