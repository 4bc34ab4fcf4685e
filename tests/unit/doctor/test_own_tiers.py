"""What stoker's tiers lie on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stoker.config import CheckpointSettings, Config
from stoker.doctor.node import Space
from stoker.doctor.own_tiers import judge_engine, judge_nvme, judge_prefetch, judge_shared, judge_space

PLACE = Path("/mnt/x/stoker")


def mounted(make_node, fs_type, device="0:40", **more):
    line = f"1 0 {device} / / rw - ext4 /dev/root rw\n2 1 {device} / /mnt/x rw - {fs_type} source rw\n"
    files = {"/proc/self/mountinfo": line} | more.pop("files", {})
    return make_node(files=files, **more)


def on_device(make_node, name, **files):
    return mounted(make_node, "xfs", "8:0", files=files, links={"/sys/dev/block/8:0": f"/sys/block/{name}"})


@pytest.mark.parametrize(
    ("fs_type", "expected"),
    [
        ("tmpfs", ("own-tier-in-memory", "warn")),
        ("nfs4", ("own-tier-wrong-device", "warn")),
        ("fuse.juicefs", ("own-tier-wrong-device", "warn")),
        ("overlay", ("own-tier-wrong-device", "warn")),
        ("xfs", ("own-tier-place", "unknown")),
    ],
)
def test_the_nvme_tier_is_told_by_its_file_system(make_node, said, fs_type, expected):
    assert said(judge_nvme(mounted(make_node, fs_type), PLACE, chosen=True)) == {expected}


@pytest.mark.parametrize(
    ("device", "files", "expected"),
    [
        ("nvme0n1", {}, ("own-tier-place", "ok")),
        ("sda", {"/sys/block/sda/queue/rotational": "1\n"}, ("own-tier-wrong-device", "warn")),
        ("sda", {"/sys/block/sda/queue/rotational": "0\n"}, ("own-tier-wrong-device", "info")),
        ("vda", {"/sys/block/vda/queue/rotational": "1\n"}, ("own-tier-place", "info")),
        (
            "nvme1n1",
            {"/sys/class/nvme/nvme1/transport": "tcp\n", "/sys/class/nvme/nvme1/nvme1n1/size": "1"},
            ("own-tier-wrong-device", "warn"),
        ),
    ],
)
def test_the_nvme_tier_is_told_by_its_device(make_node, said, device, files, expected):
    assert said(judge_nvme(on_device(make_node, device, **files), PLACE, chosen=False)) == {expected}


def test_without_mounts_nothing_is_claimed(make_node, said):
    assert said(judge_nvme(make_node(), PLACE, chosen=True)) == {("own-tier-place", "unknown")}
    assert said(judge_shared(make_node(), PLACE)) == {("own-shared-tier-local", "unknown")}
    assert judge_engine(make_node(), PLACE, Config()) == judge_space(make_node(), PLACE, 1) == []


@pytest.mark.parametrize(("fs_type", "severity"), [("lustre", "ok"), ("ext4", "warn")])
def test_a_shared_tier_on_a_disk_of_this_node_is_none(make_node, fs_type, severity):
    (found,) = judge_shared(mounted(make_node, fs_type), PLACE)
    assert (found.id, str(found.severity)) == ("own-shared-tier-local", severity)


@pytest.mark.parametrize(
    ("fs_type", "engine", "severity"),
    [("xfs", "auto", "info"), ("overlay", "auto", "warn"), ("tmpfs", "auto", "warn"), ("xfs", "buffered", "info")],
)
def test_a_quiet_fallback_of_the_engine_is_said(make_node, fs_type, engine, severity):
    config = replace(Config(), checkpoint=CheckpointSettings(engine=engine))
    (found,) = judge_engine(mounted(make_node, fs_type), PLACE, config)
    assert (found.id, str(found.severity)) == ("own-engine", severity)


@pytest.mark.parametrize(("free", "save", "severity"), [(50, 51, "fail"), (4, 0, "warn"), (50, 50, "ok")])
def test_room_is_held_against_the_next_save(make_node, free, save, severity):
    node = mounted(make_node, "xfs", spaces={"/mnt/x": Space(100, free)})
    (found,) = judge_space(node, PLACE, save)
    assert (found.id, str(found.severity)) == ("own-tier-space", severity)
    assert judge_space(mounted(make_node, "nfs4", spaces={"/mnt/x": Space(100, 1)}), PLACE, 50) == []


@pytest.mark.parametrize(("ranks", "count"), [("8", 1), ("1", 0), ("x", 0)])
def test_prefetch_of_all_ranks_counts_in_the_memory_limit(make_node, ranks, count):
    found = judge_prefetch(make_node(variables={"LOCAL_WORLD_SIZE": ranks}), 100, 1000)
    assert [f.id for f in found] == ["own-prefetch-memory"] * count
    assert judge_prefetch(make_node(), 100, None) == []
