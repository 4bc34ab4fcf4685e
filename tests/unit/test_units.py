"""Sizes, durations and rates as people write and read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import ConfigError
from stoker.units import (
    GIB,
    KIB,
    MIB,
    TIB,
    format_bytes,
    format_count,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("512", 512),
        ("512B", 512),
        ("64KiB", 64 * KIB),
        ("64MiB", 64 * MIB),
        ("64mib", 64 * MIB),
        ("1.5GiB", 3 * GIB // 2),
        (" 2 TiB ", 2 * TIB),
        ("10GB", 10_000_000_000),
        ("10 GB", 10_000_000_000),
        ("1k", 1000),
        ("1Ki", 1024),
        ("3M", 3_000_000),
        (4096, 4096),
    ],
)
def test_a_size_is_read(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "1.2.3", "64 miles", "1iB", "MiB", "1e6", "0x10", "1,000", "inf", "5PiB"]
)
def test_what_is_no_size_is_refused_with_the_forms_that_are(text):
    with pytest.raises(ConfigError, match="not a size") as caught:
        parse_bytes(text)
    assert repr(text) in caught.value.what
    assert "64MiB" in caught.value.hint


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (5 * MIB, "5.0 MiB"),
        (-5 * MIB, "-5.0 MiB"),
        (3 * GIB // 2, "1.5 GiB"),
        (2000 * TIB, "2000.0 TiB"),
    ],
)
def test_a_size_is_written(count, text):
    assert format_bytes(count) == text
    assert format_rate(count) == f"{text}/s"


@given(st.integers(0, 1 << 60))
def test_a_size_that_was_written_reads_as_nearly_the_same(count):
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=0.05)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (25e-6, "25 µs"),
        (1.5e-3, "1.5 ms"),
        (0.042, "42 ms"),
        (1, "1.0 s"),
        (59.94, "59.9 s"),
        (90, "1.5 min"),
        (5400, "1.5 h"),
        (-0.042, "-42 ms"),
    ],
)
def test_a_duration_is_written_in_the_unit_that_suits_it(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30.0), (" 1.5 min", 90.0), ("2h", 7200.0), ("0s", 0.0)]
)
def test_a_duration_is_read(text, seconds):
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "s", "-1s", "1e3s", "1m", "30 S", "30sec", "1h30min", "1.s"])
def test_what_is_no_duration_is_refused_with_the_forms_that_are(text):
    with pytest.raises(ConfigError, match=r"(?s)not a duration: .*500ms, 30s, 5min or 1h"):
        parse_seconds(text)


def test_one_of_a_thing_is_not_written_as_several():
    assert [format_count(n, "shard") for n in (0, 1, 2, 12345)] == ["0 shards", "1 shard", "2 shards", "12,345 shards"]
