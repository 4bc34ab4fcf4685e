"""All checks together, on a large node on which all is well."""

from __future__ import annotations

import pytest

from stoker.doctor.check import Target
from stoker.doctor.diagnose import diagnose
from stoker.doctor.text import describe

SCREEN_LINES = 40
LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max open files            1048576              1048576              files
Max locked memory         unlimited            unlimited            bytes
"""
SNMP = "Tcp: ActiveOpens InSegs OutSegs RetransSegs\nTcp: 10 1000 1000000 2\n"
QUIET = "some avg10=0.10 avg60=0.10 avg300=0.10 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n"


def under(folder, **texts):
    return {f"{folder}/{name.replace('__', '/')}": f"{text}\n" for name, text in texts.items()}


def drive(number):
    link = {f"device__{when}_link_{what}": v for when in ("current", "max") for what, v in LINK.items()}
    device = under(
        f"/sys/class/nvme/nvme{number}", transport="pcie", state="live", numa_node="0", queue_count="65", **link
    )
    queue = {"scheduler": "[none] mq-deadline", "read_ahead_kb": "4096", "max_sectors_kb": "1024"}
    return device | under(f"/sys/block/nvme{number}n1/queue", max_hw_sectors_kb="1024", **queue)


LINK = {"speed": "32.0 GT/s PCIe", "width": "4"}


def port(number):
    folder = f"/sys/class/infiniband/mlx5_{number}/ports/1"
    state = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)"}
    return under(folder, link_layer="InfiniBand", counters__port_rcv_data="100", **state)


@pytest.fixture
def large_node(make_node):
    mounts = "1 0 259:100 / / rw - ext4 /dev/nvme8n1p1 rw\n2 1 0:40 / /dev/shm rw - tmpfs shm rw,size=131072000k\n"
    mounts += "".join(f"{10 + i} 1 259:{i} / /mnt/nvme{i} rw - xfs /dev/nvme{i}n1 rw\n" for i in range(8))
    files = {"/proc/self/mountinfo": mounts, "/proc/self/limits": LIMITS, "/proc/net/snmp": SNMP}
    files |= {f"/proc/pressure/{name}": QUIET for name in ("io", "cpu", "memory")}
    for i in range(8):
        files |= drive(i) | port(i) | {f"/proc/driver/nvidia/gpus/0000:{i}b:00.0/information": "Model: H100\n"}
    return make_node(files=files)


def test_a_large_node_on_which_all_is_well_fits_one_screen_and_says_each_thing_once(large_node):
    found = diagnose(large_node, [Target("/mnt/nvme0/data")])
    assert {str(f.severity) for f in found} & {"warn", "fail"} == set()
    assert {"mlx5_7/1", "/mnt/nvme7"} <= {f.subject for f in found}
    assert len({(f.id, f.subject, f.severity) for f in found}) == len(found)
    assert len(describe(found).splitlines()) <= SCREEN_LINES
