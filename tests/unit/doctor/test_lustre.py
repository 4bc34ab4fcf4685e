"""A Lustre client and its layouts in forms that no sample has."""

from __future__ import annotations

import pytest

from stoker.doctor import lustre, lustre_layout
from stoker.doctor.kinds import Sample


def component(number, flags, count, pattern="raid0", start=0, size=4194304):
    return (
        f"    lcme_id: {number}\n    lcme_flags: {flags}\n"
        f"    lcme_extent.e_start: {start}\n    lcme_extent.e_end: EOF\n"
        f"      lmm_stripe_count: {count}\n      lmm_stripe_size: {size}\n      lmm_pattern: {pattern}\n"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "/l/dir\nstripe_count:  8 stripe_size:   1048576 pattern:  raid0 stripe_offset: -1\n",
            {("lustre-stripes", "ok")},
        ),
        (
            "/l/f\nlmm_stripe_count: -1\nlmm_stripe_size: 65536\nlmm_pattern: raid0\n",
            {("lustre-stripes", "ok"), ("lustre-stripe-size-small", "warn")},
        ),
        ("/l/f\n" + component(1, "init", 1) + component(2, "0", 8), {("lustre-stripes", "ok")}),
        ("/l/f\n" + component(1, "init,stale", 8) + component(2, "init", 1), {("lustre-stripes", "ok")}),
        ("/l/f\n" + component(1, "init", 4, "raid0,overstriped"), {("lustre-stripes", "ok")}),
        ("/l/f\n" + component(1, "init", 4, "raid0,released"), {("lustre-stripes", "ok"), ("lustre-released", "warn")}),
        ("/l/d\nstripe_count: 0 stripe_size: 0 stripe_offset: -1\n", {("lustre-stripes", "info")}),
        ("/l/f\nlmm_stripe_count: 4\nlmm_pattern: 1\n", {("lustre-stripes", "ok")}),
        ("/l/f\nlcm_entry_count: 2\n" + component(1, "init", 1), {("line-not-understood", "unknown")}),
        ("/l/f\n" + component(1, "init", 4, "raid9"), {("line-not-understood", "unknown")}),
        ("/l/f\n" + component(1, "init", "some"), {("line-not-understood", "unknown")}),
    ],
)
def test_layouts_are_judged_by_what_is_in_use(said, text, expected):
    assert said(lustre_layout.explain(text, "given")) == expected


def test_a_layout_in_yaml_reads_as_the_text_does():
    text = "lcm_entry_count: 1\ncomponent0:\n  lcme_id: 1\n  lcme_flags: init\n  sub_layout:\n    lmm_stripe_count: 6\n"
    (layout,) = lustre_layout.parse(text)
    assert layout.stripe_count == 6
    assert lustre_layout.detect(text)


def test_even_targets_are_fine_and_marked_ones_are_not(said):
    row = "fs-OST000{}_UUID 94181368 56330708 37850660 6{}% /l[OST:{}{}]\n"
    even = row.format(0, 0, 0, "") + row.format(1, 2, 1, "")
    (found,) = lustre.explain_df(even, "given")
    assert (found.id, str(found.severity), found.what) == ("lustre-space", "ok", "2 targets, 60% to 62% full")
    found = lustre.explain_df(even + row.format("a", 3, 10, " DR"), "given")
    assert [(f.id, f.what) for f in found] == [("lustre-target-inactive", "degraded, read-only")]
    assert said(lustre.explain_df("OST0003 : Resource temporarily unavailable\n", "x")) == {
        ("lustre-target-inactive", "warn")
    }


def lnet(nid, status="up", health=""):
    more = f"          health stats:\n              health value: {health}\n" if health else ""
    return f"    - net type: x\n      local NI(s):\n        - nid: {nid}\n          status: {status}\n{more}"


@pytest.mark.parametrize(
    ("text", "severities", "words"),
    [
        (lnet("1.1.1.1@o2ib", "down", "1000"), ["warn"], "down"),
        (lnet("1.1.1.1@o2ib", "up", "700"), ["warn"], "health 700 of 1000"),
        (lnet("1.1.1.1@o2ib", "up", "poor"), ["unknown"], "not understood"),
        (lnet("1.1.1.1@tcp"), ["ok"], "health is told by"),
        (lnet("0@lo", "up", "0"), ["unknown"], "no interface but lo"),
        (lnet("0@lo", "up", "0") + lnet("1.1.1.1@o2ib1", "up", "1000"), ["ok"], "o2ib1: 1 up and healthy"),
    ],
)
def test_interfaces_are_judged_by_status_and_health_but_lo(text, severities, words):
    found = lustre.explain_lnet("net:\n" + text, "given")
    assert [str(f.severity) for f in found] == severities
    assert words in found[0].what


def test_counters_without_times_give_no_verdict_on_time(said):
    text = "snapshot_time 10.5 secs.usecs\nread_bytes 10 samples [bytes] 1 2 20\nopen 40 samples [regs]\n"
    assert lustre.detect_stats(text)
    found = lustre.explain_stats(text, "given")
    assert ("fs-metadata-share", "info") in said(found)
    assert "times are not told" in next(f for f in found if f.id == "fs-metadata-share").what


def test_other_statistics_of_lustre_are_not_a_clients(said):
    assert not lustre.detect_stats("snapshot_time 1.5 secs\nreq_waittime 10 samples [usec] 1 2 3 4\n")
    assert ("lustre-io", "info") in said(
        lustre.explain_stats("llite.a-b.stats=\nopen 0 samples [usecs] 0 0 0 0\n", "x")
    )


def test_counters_that_went_back_are_unknown(said):
    before, after = (
        f"llite.a-b.stats=\nsnapshot_time {t}.0 secs\nopen {n} samples [usecs] 1 1 {n} 1\n" for t, n in ((1, 9), (2, 3))
    )
    assert said(lustre.compare_stats(Sample(before, "a"), Sample(after, "b"), None)) == {("lustre-io", "unknown")}
