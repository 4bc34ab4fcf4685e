"""The findings about RAID and pools: md, ZFS, btrfs."""

from __future__ import annotations

from typing import Final

from stoker.doctor.finding import FindingId

HEALTHY = FindingId(
    "raid-healthy",
    "An array or pool has all its members.",
    "That is as it should be.",
    "nothing is to be done",
)
NO_REDUNDANCY = FindingId(
    "raid-no-redundancy",
    "RAID 0: one lost member loses all data. It is the only RAID level that GPUDirect can take.",
    "It suits caches and staging, not what exists once.",
    "keep another copy of what it holds",
)
NOT_DIRECT = FindingId(
    "raid-not-direct",
    "A RAID level or pool that GPUDirect cannot take: anything but md RAID 0.",
    "cuFile copies its I/O by the CPU, or refuses it.",
    "put what GPUs read directly on plain NVMe or md RAID 0 of NVMe",
)
DEGRADED = FindingId(
    "raid-degraded",
    "Members are missing or failed, and nothing is being rebuilt.",
    "It runs slower, and the next failure may lose the data.",
    "replace the failed member: mdadm /dev/mdN --add DEVICE, zpool replace, btrfs replace",
)
REBUILDING = FindingId(
    "raid-rebuilding",
    "Members are missing or failed, and a spare is being filled.",
    "Until it ends, rebuilding takes part of the throughput and a further failure may lose data.",
    "wait for the end; /proc/sys/dev/raid/speed_limit_max bounds what it takes",
)
BACKGROUND = FindingId(
    "raid-background-io",
    "An array or pool is checked, scrubbed, synchronised or reshaped.",
    "That I/O competes with the job's.",
    "let it run outside of measurements: echo idle > /sys/block/mdN/md/sync_action, zpool scrub -p POOL",
)
INACTIVE = FindingId(
    "raid-inactive",
    "An array is not running.",
    "What lies on it cannot be read.",
    "mdadm --assemble --scan, or mdadm --run /dev/mdN after a look at mdadm --examine of its members",
)
CONTAINER = FindingId(
    "raid-container",
    "A container of external metadata (imsm, ddf); it is always inactive, its volumes are arrays of their own.",
    "It is no fault.",
    "nothing is to be done",
)
NO_ARRAY = FindingId(
    "raid-no-array",
    "There is no md array.",
    "Nothing is to be said of md RAID here.",
    "nothing is to be done",
)
UDEV = FindingId(
    "raid-udev-import",
    "cuFile learns of a RAID volume from udev, which must import what mdadm --detail --export prints.",
    "Without that rule cuFile does not know the volume, and copies by the CPU.",
    'udev rule: IMPORT{program}="/usr/sbin/mdadm --detail --export $devnode"',
)
ERRORS = FindingId(
    "raid-device-errors",
    "A device of a pool or file system counted errors.",
    "It may be failing, or have returned wrong data.",
    "scrub (btrfs scrub start, zpool scrub), look into dmesg, and replace the device if the counters grow",
)
DATA_LOST = FindingId(
    "raid-data-errors",
    "A pool has data errors that could not be repaired.",
    "Some files are damaged.",
    "zpool status -v names them; restore them from another copy",
)

IDS: Final = tuple(value for value in list(globals().values()) if isinstance(value, FindingId))
