"""Block devices in forms that no sample has."""

from __future__ import annotations

from stoker.doctor import diskstats
from stoker.doctor.kinds import Sample


def line(name, reads=0, sectors=0, read_ms=0, busy=0, weighted=0, more=""):
    return f" 259 0 {name} {reads} 0 {sectors} {read_ms} 0 0 0 0 0 {busy} {weighted}{more}\n"


def compared(before, after, seconds=1.0):
    return diskstats.compare(Sample(before, "a"), Sample(after, "b"), seconds)


def test_kernels_with_fewer_columns_are_read():
    for more in ("", " 0 0 0 0", " 0 0 0 0 0 0"):
        assert diskstats.detect(line("sda", more=more))
        (found,) = compared(line("sda", more=more), line("sda", 10, 2000, 20, 100, 20, more))
        assert found.what == "0.00102 GB/s, a request takes 2 ms, busy 10.0%, average queue 0"


def test_partitions_are_counted_in_their_disks():
    text = line("nvme0n1", 5) + line("nvme0n1p1", 5) + line("sda", 1) + line("sda1", 1)
    assert list(diskstats.parse(text)) == ["nvme0n1", "sda"]


def test_busy_without_a_queue_is_not_full():
    (found,) = compared(line("nvme0n1"), line("nvme0n1", 10, 100, 5, 1000, 5))
    assert (found.id, str(found.severity)) == ("disk-rate", "info")


def test_counters_that_went_back_are_unknown():
    (found,) = compared(line("sda", 9), line("sda", 3))
    assert (found.id, found.what) == ("host-counters-unusable", "sda: only in one sample, or counters went back")


def test_members_that_share_the_work_are_not_spoken_of():
    before = line("nvme0n1") + line("nvme1n1") + line("md0")
    after = line("nvme0n1", 10, 1000) + line("nvme1n1", 10, 1100) + line("md0", 20, 2100)
    assert "disk-members-unbalanced" not in {f.id for f in compared(before, after)}
    apart = line("nvme0n1", 10, 9000) + line("nvme1n1", 10, 1100) + line("md0", 20, 2100)
    assert "disk-members-unbalanced" not in {f.id for f in compared(before, apart)}


def test_a_line_of_another_form_is_quoted():
    text = line("sda") + " 8 0 sdb few\n"
    (strange, _) = diskstats.explain(text, "given")
    assert strange.evidence[0].line == "8 0 sdb few"


def test_nothing_that_worked_is_said():
    (found,) = compared(line("sda"), line("sda"))
    assert found.what == "no device worked between the samples"
