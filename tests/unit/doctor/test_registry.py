"""The list of checks is whole: each is there, or it is said why not."""

from __future__ import annotations

from stoker.doctor.registry import CHECK_IDS, CHECKS, LEFT_OUT, checks_as_markdown


def test_every_check_is_there_or_is_left_out_for_a_reason():
    there = {check.id for check in CHECKS}
    assert (CHECK_IDS[0], CHECK_IDS[-1], len(CHECK_IDS)) == ("C01", "C23", 23)
    assert there <= set(CHECK_IDS)
    assert set(CHECK_IDS) - there == {"C07", "C09"}
    assert {"C07", "C09"} <= set(LEFT_OUT) <= set(CHECK_IDS)
    assert all(reason.endswith(".") and "|" not in reason for reason in LEFT_OUT.values())


def test_the_table_has_a_row_a_check_with_all_that_it_looks_at():
    rows = dict(line[2:].split(" | ", 1) for line in checks_as_markdown().splitlines()[2:])
    assert tuple(rows) == CHECK_IDS
    assert all(check.subject in rows[check.id] for check in CHECKS)
    assert rows["C23"].startswith("verdict of a path (each) |")
    assert rows["C07"].startswith("nothing | It reads data into a GPU")


def test_each_check_says_its_id_where_it_is_written():
    silent = [c.run.__name__ for c in CHECKS if c.id not in (c.run.__doc__ or "")]
    assert silent == []
