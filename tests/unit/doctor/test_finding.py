"""Findings: ids, order, exit codes, JSON."""

from __future__ import annotations

import pytest

from stoker.doctor.finding import Evidence, Finding, FindingId, Severity, exit_code, worst_first

THING = FindingId("a-thing", meaning="m", why="w", fix="do this")


def test_a_finding_carries_the_general_fix_unless_it_has_a_better_one_or_is_fine():
    assert THING.warn("x", "y").fix == "do this"
    assert THING.warn("x", "y", fix="do that").fix == "do that"
    assert THING.ok("x", "y").fix == ""
    assert THING.warn("x", "y").reference == "docs/reference/findings.md#a-thing"


@pytest.mark.parametrize("name", ["Thing", "thing", "a_thing", "a-thing-", "a thing"])
def test_an_id_of_another_form_is_refused(name):
    with pytest.raises(ValueError, match="finding id"):
        FindingId(name, "m", "w", "f")


def test_the_worst_comes_first_and_doubles_go():
    found = [THING.ok("a", ""), THING.unknown("b", ""), THING.fail("c", ""), THING.ok("a", ""), THING.warn("d", "")]
    assert [f.subject for f in worst_first(found)] == ["c", "d", "b", "a"]


@pytest.mark.parametrize(
    ("severities", "code"),
    [
        ("", 0),
        ("ok info", 0),
        ("unknown", 3),
        ("unknown info", 3),
        ("unknown ok", 0),
        ("unknown warn", 1),
        ("warn fail", 2),
    ],
)
def test_the_exit_code_is_that_of_the_worst(severities, code):
    assert exit_code([THING.found(Severity(s), "x", "y") for s in severities.split()]) == code


def test_json_and_back_is_the_same():
    finding = THING.warn("x", "y", Evidence("line", "/proc/x"))
    assert Finding.from_json(finding.to_json()) == finding
    assert list(finding.to_json()) == ["id", "severity", "subject", "what", "evidence", "fix", "reference"]


def test_evidence_is_one_printable_line():
    line = Evidence("a\x1b[31m\tb\n" + "c" * 1000, "x").line
    assert line.startswith("a [31m b c")
    assert line.isprintable()
    assert len(line) <= 240
