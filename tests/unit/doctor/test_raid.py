"""RAID: each sample says what its row in samples/INDEX.md demands, and so do forms that no sample has."""

from __future__ import annotations

import json

import pytest

from stoker.doctor import mdstat, pools
from stoker.doctor.check import Target
from stoker.doctor.raid import check_raid

from .conftest import by_id


def one(findings, name):
    (found,) = by_id(findings)[name]
    return found


def test_a_healthy_raid0_has_no_counts_and_no_redundancy(explained, said):
    found = explained("raid/mdstat-raid0-healthy.txt")
    assert said(found) == {("raid-healthy", "ok"), ("raid-no-redundancy", "info")}
    assert "raid0 of 4" in one(found, "raid-healthy").what
    assert "one lost member loses all; the only level that GPUDirect takes" in one(found, "raid-no-redundancy").what


def test_a_degraded_array_that_rebuilds_is_better_than_one_that_does_not(explained):
    found = explained("raid/mdstat-degraded-recovering.txt")
    rebuilding, degraded = one(found, "raid-rebuilding"), one(found, "raid-degraded")
    assert (rebuilding.subject, str(rebuilding.severity)) == ("md6", "warn")
    assert "8.5%" in rebuilding.what
    assert "onto nvme2n1" in rebuilding.what
    assert (degraded.subject, str(degraded.severity)) == ("md7", "fail")
    assert "nothing is being rebuilt, no spare" in degraded.what
    assert "nvme5n1" in degraded.what
    assert {f.subject for f in by_id(found)["raid-not-direct"]} == {"md6", "md7"}


def test_an_export_with_all_roles_is_healthy_and_needs_udev(explained, said):
    found = explained("raid/mdadm-export-raid0.txt")
    assert said(found) == {("raid-healthy", "ok"), ("raid-udev-import", "info"), ("raid-no-redundancy", "info")}
    assert one(found, "raid-healthy").what == "raid0 with 4 of 4 members"


def test_a_healthy_pool_whose_numbers_are_texts_is_healthy(explained, said):
    found = explained("raid/zpool-status-healthy.json")
    assert said(found) == {("raid-healthy", "ok"), ("raid-not-direct", "info")}
    assert one(found, "raid-healthy").evidence[0].line == '"state": "ONLINE",'


def test_btrfs_counters_that_are_not_zero_are_a_warning_and_it_is_never_direct(explained, said):
    found = explained("raid/btrfs-device-stats.txt")
    assert said(found) == {("raid-device-errors", "warn"), ("raid-not-direct", "info")}
    errors = one(found, "raid-device-errors")
    assert (errors.subject, errors.what) == ("btrfs /dev/nvme0n1", "3 corruption errors")
    assert errors.evidence[0].line == "[/dev/nvme0n1].corruption_errs 3"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Personalities : [raid0]\nunused devices: <none>\n", {("raid-no-array", "info")}),
        ("Personalities : [raid0]\n", {("line-not-understood", "unknown")}),
        ("md1 : active raid1 sdb[1](F) sda[0]\n", {("raid-degraded", "warn"), ("raid-not-direct", "info")}),
        (
            "md127 : inactive sdb[1](S) sda[0](S)\n      5544 blocks super external:imsm\n",
            {("raid-container", "info")},
        ),
        ("md127 : inactive sdb[1](S) sda[0](S)\n      5544 blocks super 1.2\n", {("raid-inactive", "fail")}),
        (
            "md1 : active raid1 sdb[1] sda[0]\n   10 blocks [2/2] [UU]\n   [>..]  check =  2.1% (1/9) finish=1min\n",
            {("raid-background-io", "warn"), ("raid-not-direct", "info")},
        ),
        (
            "md1 : active raid1 sda[0]\n      10 blocks [2/1] [U_]\n        recovery=DELAYED\n",
            {("raid-degraded", "fail"), ("raid-not-direct", "info")},
        ),
        (
            "md1 : active raid5 sda[0]\n      something new entirely\n",
            {("line-not-understood", "unknown"), ("raid-not-direct", "info")},
        ),
        (
            "md1 : active raid1 sda[0] sdb[1]\n      10 blocks super 1.2\n",
            {("line-not-understood", "unknown"), ("raid-not-direct", "info")},
        ),
        (
            "md1 : active (auto-read-only) raid0 sda[0] sdb[1]\n      10 blocks\n",
            {("raid-healthy", "ok"), ("raid-no-redundancy", "info")},
        ),
    ],
)
def test_arrays_in_other_states_are_told(said, text, expected):
    assert mdstat.detect(text)
    assert said(mdstat.explain(text, "given")) == expected


def test_an_export_without_a_member_is_degraded_and_one_without_roles_is_unknown(said):
    head = "MD_LEVEL=raid1\nMD_DEVICES=2\n"
    found = mdstat.explain_export(head + "MD_DEVICE_a_ROLE=0\nMD_DEVICE_b_ROLE=spare\n", "given")
    assert said(found) == {("raid-degraded", "fail"), ("raid-not-direct", "info")}
    assert said(mdstat.explain_export(head, "given")) == {("line-not-understood", "unknown")}
    assert said(mdstat.explain_export("MD_LEVEL=container\nMD_DEVICES=2\n", "x")) == {("raid-container", "info")}


def pool(state="ONLINE", leaf="ONLINE", errors=0, **more):
    disk = {"name": "d0", "state": leaf, "read_errors": errors, "write_errors": 0, "checksum_errors": "0"}
    return json.dumps({"pools": {"p": {"name": "p", "state": state, "vdevs": {"p": {"vdevs": {"d0": disk}}}} | more}})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (pool(), {("raid-healthy", "ok")}),
        (pool(errors=4), {("raid-healthy", "ok"), ("raid-device-errors", "warn")}),
        (pool("DEGRADED", "FAULTED"), {("raid-degraded", "fail"), ("raid-device-errors", "warn")}),
        (
            pool("DEGRADED", scan_stats={"function": "RESILVER", "state": "SCANNING"}),
            {("raid-rebuilding", "warn")},
        ),
        (
            pool(scan_stats={"function": "SCRUB", "state": "SCANNING"}),
            {("raid-healthy", "ok"), ("raid-background-io", "warn")},
        ),
        (pool(scan_stats={"function": "SCRUB", "state": "FINISHED"}), {("raid-healthy", "ok")}),
        (pool(error_count="7"), {("raid-healthy", "ok"), ("raid-data-errors", "fail")}),
        (pool("SLEEPING"), {("line-not-understood", "unknown")}),
    ],
)
def test_pools_in_other_states_are_told(said, text, expected):
    assert pools.detect_zpool(text)
    assert said(pools.explain_zpool(text, "given")) == expected | {("raid-not-direct", "info")}


def test_a_btrfs_counter_that_is_no_number_is_unknown(said):
    found = pools.explain_btrfs("[/dev/x].write_io_errs many\n", "given")
    assert said(found) == {("line-not-understood", "unknown"), ("raid-not-direct", "info")}
    cut = pools.explain_btrfs("[/dev/x].write_io_errs 0\n", "given")
    assert said(cut) == {("line-not-understood", "unknown"), ("raid-not-direct", "info")}


def test_a_node_is_asked_for_arrays_pools_and_volumes(make_node, sample):
    node = make_node(
        files={
            "/proc/mdstat": sample("raid/mdstat-raid0-healthy.txt"),
            "/proc/spl/kstat/zfs/tank/state": "DEGRADED\n",
            "/sys/fs/btrfs/uuid-1/devinfo/1/missing": "0\n",
            "/sys/fs/btrfs/uuid-1/devinfo/1/error_stats": "write_errs 0\nread_errs 2\n",
            "/sys/fs/btrfs/uuid-1/devinfo/2/missing": "1\n",
        }
    )
    found = check_raid(node, Target())
    assert {(f.id, f.subject, str(f.severity)) for f in found} == {
        ("raid-healthy", "md0", "ok"),
        ("raid-no-redundancy", "md0", "info"),
        ("raid-degraded", "zfs tank", "fail"),
        ("raid-device-errors", "btrfs uuid-1 device 1", "warn"),
        ("raid-degraded", "btrfs uuid-1 device 2", "fail"),
    }
    assert check_raid(make_node(), Target()) == []


def test_a_raid0_that_lost_a_member_is_told_by_its_state(make_node, sample, said):
    files = {"/proc/mdstat": sample("raid/mdstat-raid0-healthy.txt"), "/sys/block/md0/md/array_state": "broken\n"}
    assert said(check_raid(make_node(files=files), Target())) == {("raid-degraded", "fail")}
