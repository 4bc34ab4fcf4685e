"""gds_stats in forms of which there is no sample."""

from __future__ import annotations

import pytest

from stoker.doctor.gds_stats import explain_stats, parse_stats

LINE = (
    "GPU 3(UUID: ab12) Read: bw=1,5 util(%)=90 n={} posix={} unalign={} err={} MiB=1 "
    "Write: bw=0 n=0 posix=0 BufRegister: n=1"
)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((10, 0, 0, 0), {("gds-stats-direct", "ok")}),
        ((10, 4, 0, 0), {("gds-stats-compat", "warn")}),
        ((10, 0, 3, 0), {("gds-stats-direct", "ok"), ("gds-bounced", "warn")}),
        ((10, 0, 0, 2), {("gds-stats-direct", "ok"), ("gds-nvidia-fs-errors", "warn")}),
        ((0, 0, 0, 0), {("gds-stats-none", "unknown")}),
        ((10, "many", 0, 0), {("line-not-understood", "unknown")}),
        (("1.5e3", 0, 0, 0), {("gds-stats-none", "unknown")}),
        ((10, 11, 0, 0), {("line-not-understood", "unknown")}),
        ((10, -1, 0, 0), {("line-not-understood", "unknown")}),
    ],
)
def test_reads_are_judged_by_what_the_cpu_did(said, numbers, expected):
    assert said(explain_stats(LINE.format(*numbers), "x")) == expected


def test_a_route_of_its_own_is_said():
    text = "GPU 0(UUID: ab) Read: n=10 pcie p2pdma=2 nvfs=3 posix=0 unalign=0 err=0 Write: n=0 posix=0"
    (found,) = explain_stats(text, "x")
    assert "3 by nvidia-fs, 2 by PCI P2PDMA" in found.what
    assert "5 by a route that is not told apart" in found.what


def test_the_two_word_key_is_one_number():
    (gpu,) = parse_stats("GPU 0(UUID: ab) Write: n=7 pcie p2pdma=7 nvfs=0 posix=0")
    assert gpu.counted["write"].p2pdma == 7
