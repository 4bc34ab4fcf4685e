"""What a measurement of storage plans, and what its numbers mean."""

from __future__ import annotations

import json

import pytest

from stoker.doctor.identity import identify
from stoker.doctor.storage import Measurement, Place, Plan, judge, link_limit, pcie_bytes_per_s, plan_for, to_json
from stoker.errors import CapacityError
from stoker.io.choose import EngineChoice
from stoker.units import GIB, MIB

DIRECT = EngineChoice("auto", "direct", "large")
BUFFERED = EngineChoice("auto", "buffered", "tmpfs keeps files in memory")


def measured(**changes):
    values = {
        "file_bytes": GIB,
        "elapsed_s": 9.0,
        "sequential_read_bytes_per_s": 4e9,
        "random_read_bytes_per_s": 2e9,
        "random_reads_per_s": 15000.0,
        "write_bytes_per_s": 1e9,
        "commit_s": 0.002,
        "creates_per_s": 9000.0,
        "stats_per_s": 90000.0,
        "removes_per_s": 12000.0,
        "read_engine": DIRECT,
        "write_engine": DIRECT,
    }
    return Measurement(**values | changes)


def place(link=None):
    return Place("/data/x", "/data", "xfs", "nvme0n1", link)


def test_the_whole_plan_is_within_twenty_seconds_and_two_gib():
    assert Plan().limit_s <= 20
    assert Plan().file_bytes <= 2 * GIB


@pytest.mark.parametrize(("free", "file_bytes"), [(100 * GIB, 2 * GIB), (4 * GIB, GIB), (256 * MIB, 64 * MIB)])
def test_a_quarter_of_the_free_space_is_written_at_most(free, file_bytes):
    assert plan_for(free, "/x").file_bytes == file_bytes


def test_too_little_space_is_refused_with_what_would_do():
    with pytest.raises(CapacityError, match=r"100\.0 MiB are free") as caught:
        plan_for(100 * MIB, "/x")
    assert "256.0 MiB" in caught.value.hint
    assert caught.value.where == "/x"


@pytest.mark.parametrize(
    ("speed", "width", "rate"),
    [
        ("16.0 GT/s PCIe", "4", 16e9 * 128 / 130 * 4 / 8),
        ("5.0 GT/s PCIe", "4\n", 5e9 * 0.8 * 4 / 8),
        ("Unknown", "4", None),
        ("16.0 GT/s PCIe", "0", None),
        ("16.0 GT/s PCIe", "", None),
    ],
)
def test_a_pcie_link_carries_its_rate_less_its_coding(speed, width, rate):
    assert pcie_bytes_per_s(speed, width) == (None if rate is None else pytest.approx(rate))


@pytest.fixture
def nvme_node(make_node):
    base = "/sys/devices/pci0000:00/nvme/nvme0/nvme0n1"
    files = {
        "/proc/self/mountinfo": "36 1 259:0 / /data rw - xfs /dev/nvme0n1 rw\n",
        f"{base}/dev": "259:0\n",
        "/sys/block/nvme0n1/device/device/current_link_speed": "16.0 GT/s PCIe\n",
        "/sys/block/nvme0n1/device/device/current_link_width": "4\n",
    }
    return make_node(files=files, links={"/sys/dev/block/259:0": base, "/data/x": "/data/x"})


def test_the_link_of_a_local_nvme_is_its_limit(nvme_node):
    assert link_limit(nvme_node, identify(nvme_node, "/data/x")) == pytest.approx(7.877e9, rel=1e-3)
    del nvme_node.files["/sys/block/nvme0n1/device/device/current_link_width"]
    assert link_limit(nvme_node, identify(nvme_node, "/data/x")) is None


def test_a_mount_without_a_device_has_no_link_limit(make_node):
    node = make_node(files={"/proc/self/mountinfo": "36 1 0:50 / /data rw - nfs4 a:/b rw\n"})
    assert link_limit(node, identify(node, "/data")) is None


def test_a_direct_measurement_is_in_order_and_says_what_it_was(said):
    found = judge(measured(), place(link=8e9))
    assert said(found) == {("storage-measured", "ok"), ("storage-link-limit", "info")}
    assert "read direct, written direct" in found[0].what
    assert "reads 50% of the" in found[1].what
    assert len(found[0].evidence) == 5


def test_a_measurement_through_the_page_cache_is_an_upper_bound_with_the_reason():
    found = judge(measured(read_engine=BUFFERED), place())
    assert [f.id for f in found] == ["storage-measured", "storage-measured-cached"]
    assert [e.line for e in found[1].evidence] == ["buffered: tmpfs keeps files in memory"]


def test_the_json_holds_what_is_documented():
    import stoker.doctor.storage as module

    found = to_json(measured(), place(), 1.5)
    assert json.loads(json.dumps(found)) == found
    assert all(f'"{name}"' in module.__doc__ for name in found)
