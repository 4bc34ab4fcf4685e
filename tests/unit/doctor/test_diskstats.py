"""diskstats: each sample says what its row in samples/INDEX.md demands."""

from __future__ import annotations

import pytest

from stoker.doctor import diskstats
from stoker.doctor.kinds import Sample

BEFORE, AFTER = "sys/diskstats-t0.txt", "sys/diskstats-t1.txt"


def about(findings, subject):
    return [f for f in findings if f.subject == subject]


def compared(before, after, seconds=10.0):
    return diskstats.compare(Sample(before, "a"), Sample(after, "b"), seconds)


def test_the_columns_are_read_as_the_kernel_documents_them(sample):
    counters = diskstats.parse(sample(BEFORE))["nvme0n1"]
    assert (counters.reads, counters.read_sectors, counters.read_ms) == (1000000, 819200000, 500000)
    assert (counters.writes, counters.write_sectors, counters.write_ms) == (2000, 800000, 900)
    assert (counters.in_flight, counters.busy_ms, counters.queue_ms) == (0, 400000, 500900)


def test_one_moment_says_only_what_there_is(explained, said):
    found = explained(BEFORE)
    assert said(found) == {("disk-counters", "info")}
    assert found[0].what == "2 disks (nvme0n1, nvme1n1), and made of disks: md0; two moments are needed"


def test_two_moments_show_a_saturated_disk_an_uneven_array_and_count_it_once(explained):
    found = explained(BEFORE, AFTER, seconds=10.0)
    (busy,) = about(found, "nvme0n1")
    assert (busy.id, str(busy.severity)) == ("disk-saturated", "warn")
    assert busy.what.startswith("12.80 GB/s (100% read), await 16.0 ms")
    assert busy.what.endswith("busy 99.5%, average queue 391")
    (idle,) = about(found, "nvme1n1")
    assert idle.what.startswith("0.42 GB/s")
    assert "busy 9.0%" in idle.what
    uneven = next(f for f in found if f.id == "disk-uneven")
    assert (uneven.subject, str(uneven.severity)) == ("md0", "warn")
    assert uneven.what == "nvme0n1 does 97% of its work, nvme1n1 3%"
    assert about(found, "disks")[0].what == "13.22 GB/s in all by 2 disks; md0 made of them is not counted again"


@pytest.mark.parametrize(
    ("scenario", "finding", "words"),
    [
        ("throughput-local-nvme", "disk-saturated", ("6.80 GB/s", "await 16.0 ms", "busy 99.9%")),
        ("cpu-staging-compat-gds", "disk-rates", ("await 2.0 ms", "busy 29.0%")),
    ],
)
def test_the_disks_of_the_scenarios_are_what_their_rows_say(explained, scenario, finding, words):
    found = explained(*(f"scenario/{scenario}/diskstats-t{n}.txt" for n in (0, 1)), seconds=10.0)
    (disk,) = about(found, "nvme0n1")
    assert disk.id == finding
    for word in words:
        assert word in disk.what


def test_without_the_time_between_there_are_no_rates(explained):
    found = explained(BEFORE, AFTER)
    (disk,) = about(found, "nvme0n1")
    assert disk.what.startswith("128.00 GB (100% read), await 16.0 ms")
    assert "no rates" in disk.what


def line(name, reads, sectors, more=""):
    return f" 259 0 {name} {reads} 0 {sectors} 10 0 0 0 0 0 10 10{more}\n"


@pytest.mark.parametrize("more", ["", " 0 0 0 0", " 0 0 0 0 0 0"])
def test_kernels_with_fewer_columns_are_read(more):
    assert diskstats.detect(line("sda", 0, 0, more))
    (found,) = compared(line("sda", 0, 0, more), line("sda", 10, 2_000_000, more), seconds=1.0)
    assert (found.subject, found.what[:9]) == ("sda", "1.02 GB/s")


def test_a_cut_last_line_is_quoted_and_the_rest_read(explained):
    text = "".join(line(name, 0, 0) for name in ("sda", "sdb", "sdc")) + " 8 48 sdd 12"
    assert diskstats.detect(text)
    (strange, known) = diskstats.explain(text, "given")
    assert (strange.id, strange.evidence[0].line) == ("line-not-understood", "8 48 sdd 12")
    assert "3 disks" in known.what


def test_a_disk_that_is_there_at_one_moment_only_is_unknown(said):
    found = compared(line("sda", 1, 1), line("sdb", 1, 1))
    assert [(f.subject, f.what) for f in found] == [
        ("sda", "is only in the earlier of the two"),
        ("sdb", "is only in the later of the two"),
    ]
    assert said(found) == {("disk-counters-went-back", "unknown")}


def test_a_disk_that_is_busy_without_a_queue_is_not_at_its_limit():
    before = " 259 0 sda 0 0 0 0 0 0 0 0 0 0 0\n"
    (found,) = compared(before, " 259 0 sda 10 0 100 5 0 0 0 0 0 1000 5\n", seconds=1.0)
    assert (found.id, "busy 100.0%" in found.what) == ("disk-rates", True)


def test_partitions_and_hidden_paths_are_not_counted(said):
    before = "".join(line(name, 0, 0) for name in ("nvme0n1", "nvme0n1p1", "nvme0c1n1", "sda", "sda1"))
    after = "".join(line(name, 10, 1000) for name in ("nvme0n1", "nvme0n1p1", "nvme0c1n1", "sda", "sda1"))
    found = compared(before, after)
    assert {f.subject for f in found} == {"nvme0n1", "sda", "disks"}
    assert about(found, "disks")[0].what.endswith("by 2 disks")


def test_counters_that_went_back_are_unknown_and_idle_disks_are_not_mentioned(said):
    assert said(compared(line("sda", 10, 9), line("sda", 5, 1))) == {("disk-counters-went-back", "unknown")}
    assert compared(line("sda", 10, 9), line("sda", 10, 9)) == []


def test_disks_that_are_not_known_to_make_up_an_array_are_not_called_uneven():
    before = line("sda", 0, 0) + line("sdb", 0, 0) + line("dm-0", 0, 0)
    after = line("sda", 100, 9000) + line("sdb", 1, 8) + line("dm-0", 1, 8)
    assert [f for f in compared(before, after) if f.id == "disk-uneven"] == []


def test_a_line_of_another_form_is_unknown_and_quoted():
    (found, _) = diskstats.explain(line("sda", 1, 1) + " 8 1 sdb many\n", "given")
    assert (found.id, found.evidence[0].line) == ("line-not-understood", "8 1 sdb many")
