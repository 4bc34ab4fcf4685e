"""What the doctor prints: the worst first, each thing once, and what is fine in few lines."""

from __future__ import annotations

import pytest

from stoker.doctor.finding import Evidence, FindingId
from stoker.doctor.text import describe, moment, to_json

THING = FindingId("a-thing", "m", "w", "do this")
OTHER = FindingId("other-thing", "m", "w", "do that")


def test_the_worst_is_first_with_its_evidence_and_fix():
    found = [THING.ok("a", "fine"), THING.info("b", "fact"), OTHER.warn("c", "wrong", Evidence("line", "file"))]
    assert describe(found).splitlines() == [
        "warn    c: wrong  [other-thing]",
        "          file: line",
        "          fix: do that",
        "info    b: fact",
        "ok      a: fine",
        "1 warn, 1 info, 1 ok",
    ]


def test_of_much_evidence_the_first_lines_are_shown():
    found = [THING.fail("a", "wrong", *(Evidence(str(n), "file") for n in range(5)))]
    assert describe(found).splitlines()[1:5] == [
        "          file: 0",
        "          file: 1",
        "          file: 2",
        "          and 2 more lines, with --json",
    ]


def test_what_is_said_of_several_things_alike_is_one_line_but_json_has_each():
    found = [THING.info(f"nvme{n}", "fact") for n in range(8)]
    assert describe(found).splitlines()[0] == "info    nvme0, nvme1, nvme2, nvme3, nvme4, nvme5, nvme6, nvme7: fact"
    assert describe(found).splitlines()[1] == "8 info"
    assert [f["subject"] for f in to_json(found)["findings"]] == [f"nvme{n}" for n in range(8)]


def test_of_much_that_is_in_order_only_the_subjects_are_named():
    found = [THING.ok(f"p{n}", f"fine {n}") for n in range(9)]
    assert describe(found[:8]).splitlines() == [*(f"ok      p{n}: fine {n}" for n in range(8)), "8 ok"]
    assert describe(found).splitlines() == ["ok      p0, p1, p2, p3, p4, p5, p6, p7, p8; details with --json", "9 ok"]


def test_nothing_found_is_said():
    assert describe([]) == "nothing was found"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.8e9, "2027-01-15T08:00:00Z"), (None, None), (0.0, None), (-1.0, None), (1e300, None), (float("nan"), None)],
)
def test_the_moment_of_reading_is_utc_and_none_where_it_is_not_known(seconds, text):
    assert moment(seconds) == text
    assert to_json([], read_s=seconds)["read_at"] == text
