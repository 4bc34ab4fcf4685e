"""What is said of several things is said once."""

from __future__ import annotations

from stoker.doctor.finding import Evidence, FindingId
from stoker.doctor.fold import fold

THING = FindingId("a-thing", "m", "w", "f")


def test_equal_findings_of_several_subjects_become_one_with_all_evidence():
    a, b, other = (
        THING.ok("a", "fine", Evidence("1", "x")),
        THING.ok("b", "fine", Evidence("2", "x")),
        THING.ok("a", "!"),
    )
    found = fold([a, other, b, a])
    assert [(f.subject, f.what, [e.line for e in f.evidence]) for f in found] == [
        ("a, b", "fine", ["1", "2"]),
        ("a", "!", []),
    ]


def test_findings_that_differ_in_severity_or_fix_stay_apart():
    found = [THING.ok("a", "fine"), THING.info("a", "fine"), THING.info("a", "fine", fix="other")]
    assert fold(found) == found
